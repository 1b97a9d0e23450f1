"""Energy against latency: every arm at every batch, and who is beaten by nobody."""

from __future__ import annotations

from collections.abc import Sequence

from selector.page.frame import Frame
from selector.page.front import Point, unbeaten
from selector.page.lines import Line, Mark, draw, log_range
from selector.page.picture import Picture
from selector.page.svg import line, path, text
from selector.profiler.page.costs import text_type_lines
from selector.profiler.page.subject import Subject


def front_picture(subject: Subject) -> Picture:
    """J per accepted token against TBT per text type, with the targets."""
    panels = []
    for group in subject.alike:
        caption = subject.caption(group)
        image = _chart(_lines(subject, group[0]), subject.tbt_targets_ms, f"{subject.name}, {caption}: front")
        panels.append((caption, image))
    targets = ", ".join(f"{target:g}" for target in subject.tbt_targets_ms)
    told = (
        "Each marker is an arm at one batch, largest batches lowest. The grey line joins those that no other beats in "
        f"both; left of a dashed line the mean TBT is within that target ({targets} ms).",
    )
    return Picture(
        name="front",
        title=f"Energy against latency: {subject.profile.target.name} on {subject.profile.gpu.name}",
        panels=panels,
        legend=list(subject.styles.items()),
        told=told,
        note=subject.note,
    )


def _lines(subject: Subject, text_type: str) -> list[Line]:
    energy = text_type_lines(subject, text_type, lambda ms, j, batch, accept: j / (batch * accept))
    times = text_type_lines(subject, text_type, lambda ms, j, batch, accept: ms / accept)
    return [
        Line(
            name=joules.name,
            style=joules.style,
            marks=[
                Mark(
                    x=ms.y,
                    y=j.y,
                    told=f"{joules.name}, batch {j.x:g}: {j.y:.4f} J per accepted token, TBT {ms.y:.2f} ms",
                    sure=j.sure,
                )
                for j, ms in zip(joules.marks, time.marks, strict=True)
            ],
        )
        for joules, time in zip(energy, times, strict=True)
    ]


def _chart(lines: Sequence[Line], targets_ms: Sequence[float], title: str) -> str:
    marks = [mark for each in lines for mark in each.marks]
    frame = Frame(
        x_label="time between tokens, ms",
        y_label="J per accepted token, decode",
        x_range=log_range([*(mark.x for mark in marks), *targets_ms]),
        y_range=log_range([mark.y for mark in marks]),
        x_log=True,
        y_log=True,
    )
    points = [Point(name=mark.told, style=each.style, x=mark.x, y=mark.y) for each in lines for mark in each.marks]
    best = [(frame.x(point.x), frame.y(point.y)) for point in unbeaten(points, more_is_better=False)]
    frame.marks.append(path(best, fill="none", stroke="#999999", stroke_width=5, stroke_opacity=0.45))
    for target_ms in targets_ms:
        x = frame.x(target_ms)
        frame.marks.append(line(x, frame.y.end, x, frame.bottom, stroke="#555555", stroke_dasharray="3 3"))
        frame.marks.append(text(f"{target_ms:g} ms", x - 3, frame.y.end + 10, anchor="end", class_="small"))
    draw(frame, lines)
    least = min(points, key=lambda point: point.y)
    fastest = min(points, key=lambda point: point.x)
    return frame.svg(title, f"Least energy: {least.name}. Fastest: {fastest.name}")
