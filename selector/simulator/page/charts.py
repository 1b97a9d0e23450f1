"""The charts that compare policies, each from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.page.frame import WIDTH, Frame
from selector.page.front import Point, ring_sizes, unbeaten
from selector.page.scales import Scale, padded
from selector.page.styles import ENERGY_COLOURS, Style, marker
from selector.page.svg import drawing, element, line, path, text, words

_CURVE_SHARES = (*(n / 50 for n in range(51)), 0.99, 0.995, 0.999)
"""Where a distribution is drawn: every 2 %, and the tail that p99 is read from."""


def front(points: Sequence[Point], *, title: str, by_attainment: bool) -> str:
    """J per accepted token against attainment, or against TBT where nobody had a target.

    The grey line joins the runs that no other beats in both. Runs that coincide show as rings around one another.
    """
    across = 100.0 if by_attainment else 1.0
    if by_attainment:
        x_low, x_high = _attainment_range(100.0 * min(point.x for point in points))
    else:
        x_low, x_high = padded([point.x for point in points], floor=0.0)
    frame = Frame(
        x_label="requests within their TBT target, %" if by_attainment else "TBT p99, ms",
        y_label="J per accepted token, idle included",
        x_range=(x_low, x_high),
        y_range=padded([point.y for point in points], floor=0.0),
    )
    best = [(frame.x(across * point.x), frame.y(point.y)) for point in unbeaten(points, more_is_better=by_attainment)]
    frame.marks.append(path(best, fill="none", stroke="#999999", stroke_width=4, stroke_opacity=0.5))
    for point, size in zip(points, ring_sizes(len(points)), strict=True):
        where = f"{point.x:.1%} attained" if by_attainment else f"TBT p99 {point.x:.1f} ms"
        told = f"{point.name}: {point.y:.4f} J/token, {where}"
        frame.marks.append(marker(point.style, frame.x(across * point.x), frame.y(point.y), told, size=size))
    least = min(points, key=lambda point: point.y)
    return frame.svg(title, f"The least energy is {least.y:.4f} J per accepted token, by {least.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightening:
    """One policy over several targets: (target in ms, J per accepted token, attainment 0–1), targets ascending."""

    name: str
    style: Style
    runs: Sequence[tuple[float, float, float]]


def tightening(policies: Sequence[Tightening], *, title: str, attainment: bool) -> str:
    """J per accepted token, or the attainment, against the target."""
    targets = sorted({target for policy in policies for target, _, _ in policy.runs})
    heights = {policy.name: [100.0 * run[2] if attainment else run[1] for run in policy.runs] for policy in policies}
    every = [height for heights_of_one in heights.values() for height in heights_of_one]
    frame = Frame(
        x_label="TBT target, ms",
        y_label="requests within it, %" if attainment else "J per accepted token, idle included",
        x_range=(targets[0] / 1.15, targets[-1] * 1.15),
        y_range=_attainment_range(min(every)) if attainment else padded(every, floor=0.0),
        x_log=True,
    )
    for policy, size in zip(policies, ring_sizes(len(policies)), strict=True):
        style = policy.style
        route = [
            (frame.x(target), frame.y(height))
            for (target, _, _), height in zip(policy.runs, heights[policy.name], strict=True)
        ]
        frame.marks.append(path(route, fill="none", stroke=style.colour, stroke_width=1.5, stroke_dasharray=style.dash))
        for (x, y), (target, joules, attained) in zip(route, policy.runs, strict=True):
            told = f"{policy.name}, target {target:g} ms: {joules:.4f} J/token, {attained:.1%} attained"
            frame.marks.append(marker(style, x, y, told, size=size))
    described = "; ".join(
        f"{policy.name} "
        + ", ".join(f"{joules:.3f} J and {attained:.1%} at {target:g} ms" for target, joules, attained in policy.runs)
        for policy in policies
    )
    return frame.svg(title, described, x_ticks=[(target, f"{target:g}") for target in targets])


def _attainment_range(least: float) -> tuple[float, float]:
    """Bounds in % around attainments from `least` to 100, with room for markers; half a point never fills the whole."""
    low = max(0.0, min(97.0, least - 0.06 * (100.0 - least)))
    return low, 100.0 + 0.04 * (100.0 - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A distribution: `values` in ms in ascending order, of `total` requests; those without a value never got one."""

    name: str
    style: Style
    values: Sequence[float]
    total: int


def distribution(curves: Sequence[Curve], *, title: str, x_label: str, target_ms: float | None = None) -> str:
    """Share of requests at or under each time, on a logarithmic axis; what never came keeps a curve below 100 %.

    Where a curve crosses `target_ms` is the attainment.
    """
    drawn = [curve for curve in curves if curve.values]
    positive = [max(value, 0.01) for curve in drawn for value in (curve.values[0], curve.values[-1])]
    if target_ms is not None:
        positive.append(target_ms)
    low, high = (min(positive) * 0.9, max(positive) * 1.1) if positive else (1.0, 10.0)
    frame = Frame(
        x_label=x_label, y_label="requests at or under, %", x_range=(low, high), y_range=(0.0, 100.0), x_log=True,
        height=220.0,
    )  # fmt: skip
    if target_ms is not None:
        at = frame.x(target_ms)
        frame.marks.append(line(at, frame.y.end, at, frame.bottom, stroke="#555555", stroke_dasharray="3 3"))
        left = at > 0.75 * WIDTH
        frame.marks.append(
            text(f"target {target_ms:g} ms", at + (-4 if left else 4), frame.bottom - 5,
                 anchor="end" if left else "start", class_="small")
        )  # fmt: skip
    for curve in drawn:
        style = curve.style
        route = [(frame.x(value), frame.y(100.0 * share)) for value, share in curve_points(curve.values, curve.total)]
        frame.marks.append(
            element(
                "g",
                element("title", words(curve.name)),
                path(route, fill="none", stroke=style.colour, stroke_width=1.8, stroke_dasharray=style.dash),
            )
        )
    for number, curve in enumerate(drawn):
        # Markers at different heights, so that curves that lie upon each other can still be told apart.
        share = (number + 0.5) / len(drawn)
        index = min(int(share * len(curve.values)), len(curve.values) - 1)
        height = 100.0 * (index + 1) / curve.total
        frame.marks.append(marker(curve.style, frame.x(curve.values[index]), frame.y(height), curve.name, size=4.0))
    medians = "; ".join(f"{curve.name} median {_median(curve):.1f} ms" for curve in drawn)
    return frame.svg(title, medians or "No request")


def curve_points(values: Sequence[float], total: int) -> list[tuple[float, float]]:
    """(time, share of `total` at or under it) along a distribution, few enough to draw, first and last among them."""
    points = []
    for share in sorted(_CURVE_SHARES):
        index = min(int(share * len(values)), len(values) - 1)
        points.append((values[index], (index + 1) / total))
    return list(dict.fromkeys(points))


def energy_bars(rows: Sequence[tuple[str, Mapping[str, float]]], *, title: str) -> str:
    """Stacked bars of J per accepted token; each row is a name and its decode, prefill and idle parts."""
    largest = max(sum(parts.values()) for _, parts in rows)
    height = 34.0 * len(rows) + 34.0
    scale = Scale(0.0, largest * 1.18, 6.0, WIDTH - 6.0)
    marks = []
    for tick in scale.ticks(4):
        marks.append(line(scale(tick), 4, scale(tick), height - 34, stroke="#e2e2e2"))
        marks.append(text(f"{tick:g}", scale(tick), height - 20, anchor="middle", class_="small"))
    for number, (name, parts) in enumerate(rows):
        top = 34.0 * number
        marks.append(text(name, 6, top + 13))
        begin = 0.0
        for part, value in parts.items():
            if value <= 0.0:
                continue
            x, width = scale(begin), scale(begin + value) - scale(begin)
            told = element("title", words(f"{name}: {part} {value:.4f} J/token"))
            marks.append(
                element(
                    "rect", told, x=x, y=top + 17, width=width, height=13, fill=ENERGY_COLOURS[part], stroke="#ffffff"
                )
            )
            begin += value
        marks.append(text(f"{begin:.3f}", scale(begin) + 4, top + 28, class_="small"))
    marks.append(text("J per accepted token", WIDTH - 6, height - 4, anchor="end"))
    described = "; ".join(f"{name} {sum(parts.values()):.4f}" for name, parts in rows)
    return drawing(*marks, width=WIDTH, height=height, title=title, description=f"J per accepted token: {described}")


def _median(curve: Curve) -> float:
    return curve.values[len(curve.values) // 2]
