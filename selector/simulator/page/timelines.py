"""Load, batch, arm and power over time, one set of images a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selector.core.policy import BackendSpec
from selector.page.frame import WIDTH, Frame
from selector.page.scales import Scale, label
from selector.page.styles import ENERGY_COLOURS, fill_legend, shade, shades
from selector.page.svg import drawing, element, line, path, text, words
from selector.simulator.run import RequestRecord
from selector.simulator.timeline import Timeline

_BINS = 120
_MOST_ROWS = 24
"""Beyond so many backends, the heat map has a row per arm."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A run in `bins` equal parts of its time; every array has shape (bins,)."""

    edges_s: FloatArray
    running: FloatArray
    """Mean requests decoding, whole fleet."""
    waiting: FloatArray
    """Mean requests waiting or prefilling."""
    batch: Mapping[str, FloatArray]
    """Mean requests decoding by row label: a backend and its arm, or an arm where backends are many."""
    sent_per_s: Mapping[str, FloatArray]
    """Requests sent per second, by arm."""
    power_w: Mapping[str, FloatArray]
    """Mean power of the work of each arm, and "idle"."""


def activity(
    timeline: Timeline, records: Sequence[RequestRecord], backends: Sequence[BackendSpec], duration_s: float
) -> Activity:
    """What the fleet did, binned; `duration_s` is above 0."""
    edges = np.linspace(0.0, duration_s, _BINS + 1)
    bounds = edges.tolist()
    arms = list(dict.fromkeys(spec.arm for spec in backends))
    nothing = np.zeros(_BINS)
    by_backend = {spec.name: timeline.batch(spec.name, bounds) for spec in backends}
    power = {
        arm: sum((timeline.backend_power_w(spec.name, bounds) for spec in backends if spec.arm == arm), nothing)
        for arm in arms
    }
    power["idle"] = np.maximum(timeline.power_w(bounds) - sum(power.values(), nothing), 0.0)
    sent = {}
    for arm in arms:
        times = [record.outcome.dispatched_s for record in records if record.outcome and record.outcome.arm == arm]
        sent[arm] = np.histogram(times, edges)[0] / np.diff(edges)
    if len(backends) <= _MOST_ROWS:
        batch = {f"{spec.name} · {spec.arm}": by_backend[spec.name] for spec in backends}
    else:
        batch = {
            f"mean of {sum(spec.arm == arm for spec in backends)} × {arm}": np.mean(
                [by_backend[spec.name] for spec in backends if spec.arm == arm], axis=0
            )
            for arm in arms
        }
    return Activity(
        edges_s=edges,
        running=sum(by_backend.values(), nothing),
        waiting=sum((timeline.waiting(spec.name, bounds) for spec in backends), nothing),
        batch=batch,
        sent_per_s=sent,
        power_w=power,
    )


def timeline_figures(seen: Activity, name: str) -> list[tuple[str, str]]:
    """(caption, image with its legend) of the four images of a run called `name`."""
    arms = list(seen.sent_per_s)
    arm_fills = dict(zip(arms, shades(len(arms)), strict=True))
    load = {"running": (seen.running, "#0072B2"), "waiting or prefilling": (seen.waiting, "#E69F00")}
    sent = {arm: (values, arm_fills[arm]) for arm, values in seen.sent_per_s.items()}
    power = {part: (values, arm_fills.get(part, ENERGY_COLOURS["idle"])) for part, values in seen.power_w.items()}
    return [
        ("load", _stack(seen.edges_s, load, y_label="requests in the system", title=f"Load over time, {name}")),
        ("batch of each backend", _heat(seen.edges_s, seen.batch, title=f"Batch of each backend over time, {name}")),
        ("arm", _stack(seen.edges_s, sent, y_label="requests sent per s, by arm", title=f"Arms over time, {name}")),
        ("power", _stack(seen.edges_s, power, y_label="power of all GPUs, W", title=f"Power over time, {name}")),
    ]


def _stack(edges_s: FloatArray, layers: Mapping[str, tuple[FloatArray, str]], *, y_label: str, title: str) -> str:
    """Layers on top of one another as steps, the first at the bottom, with a legend."""
    shown = {name: layer for name, layer in layers.items() if float(layer[0].max()) > 0.0}
    total = sum((values for values, _ in shown.values()), np.zeros(len(edges_s) - 1))
    frame = Frame(
        x_label="time, s",
        y_label=y_label,
        x_range=(float(edges_s[0]), float(edges_s[-1])),
        y_range=(0.0, float(total.max()) * 1.05 or 1.0),
        height=170.0,
    )
    below = np.zeros(len(edges_s) - 1)
    for name, (values, fill) in shown.items():
        above = below + values
        outline = _steps(frame, edges_s, above) + _steps(frame, edges_s, below)[::-1]
        told = element("title", words(f"{name}: mean {float(values.mean()):.4g}"))
        frame.marks.append(element("g", told, path(outline, closed=True, fill=fill)))
        below = above
    means = "; ".join(f"{name} mean {float(values.mean()):.4g}" for name, (values, _) in shown.items())
    image = frame.svg(title, f"{y_label}: {means or 'nothing'}; peak {float(total.max()):.4g}")
    return fill_legend(list(shown), [fill for _, fill in shown.values()]) + image


def _steps(frame: Frame, edges_s: FloatArray, values: FloatArray) -> list[tuple[float, float]]:
    points = []
    for index, value in enumerate(values):
        y = frame.y(float(value))
        points += [(frame.x(float(edges_s[index])), y), (frame.x(float(edges_s[index + 1])), y)]
    return points


def _heat(edges_s: FloatArray, rows: Mapping[str, FloatArray], *, title: str) -> str:
    """A strip per row, dark where the batch is large; neighbouring bins of one shade are one rectangle."""
    largest = max(float(values.max()) for values in rows.values()) or 1.0
    row_height, strip = 30.0, 14.0
    height = row_height * len(rows) + 34.0
    scale = Scale(float(edges_s[0]), float(edges_s[-1]), 6.0, WIDTH - 12.0)
    marks = []
    for number, (name, values) in enumerate(rows.items()):
        top = row_height * number
        marks.append(text(f"{name}, mean {float(values.mean()):.1f}, most {float(values.max()):.1f}", 6, top + 11,
                          class_="small"))  # fmt: skip
        fills = [shade(float(value) / largest) for value in values]
        begin = 0
        for index in range(1, len(fills) + 1):
            if index == len(fills) or fills[index] != fills[begin]:
                x = scale(float(edges_s[begin]))
                width = scale(float(edges_s[index])) - x
                marks.append(element("rect", x=x, y=top + 14, width=width, height=strip, fill=fills[begin]))
                begin = index
        frame = element("rect", x=scale.start, y=top + 14, width=scale.end - scale.start, height=strip, fill="none",
                        stroke="#999999", stroke_width=0.6)  # fmt: skip
        marks.append(frame)
    for tick in scale.ticks():
        marks.append(line(scale(tick), height - 34, scale(tick), height - 30, stroke="#555555"))
        marks.append(text(label(tick), scale(tick), height - 18, anchor="middle", class_="small"))
    marks.append(text("time, s", WIDTH - 12, height - 4, anchor="end"))
    described = "; ".join(f"{name} mean batch {float(values.mean()):.1f}" for name, values in rows.items())
    image = drawing(*marks, width=WIDTH, height=height, title=title, description=described)
    steps = [largest * part for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return fill_legend([f"{value:.3g}" for value in steps], [shade(value / largest) for value in steps]) + image
