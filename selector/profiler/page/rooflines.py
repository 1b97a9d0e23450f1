"""Where each arm sits under the roofline: useful operations per second over operations per byte."""

from __future__ import annotations

from selector.page.frame import Frame
from selector.page.lines import Line, Mark, draw, log_range
from selector.page.picture import Picture
from selector.page.svg import path, text
from selector.profiler.page.subject import Subject
from selector.profiler.roofline import Ceiling, least_verified


def roofline_picture(subject: Subject) -> Picture:
    """All cells of every arm; without panels where the profile lacks the GPU's ceilings."""
    ceiling = subject.ceiling
    told = (
        "Operations and bytes are the least that a step needs (target's weights and KV cache read once, every verified "
        "token through every weight it uses), the ceilings those of the datasheet: nothing measured can be above the "
        "line. An arm's line follows its batches, from left to right.",
    )
    if ceiling is None:
        told = ("This profile does not state the GPU's ceilings, so no roofline is drawn.",)
    return Picture(
        name="roofline",
        title=f"Roofline: {subject.profile.target.name} on {subject.profile.gpu.name}",
        panels=[] if ceiling is None else [("Decode steps under the roofline", _chart(subject, ceiling))],
        legend=list(subject.styles.items()),
        columns=1,
        told=told,
    )


def _chart(subject: Subject, ceiling: Ceiling) -> str:
    lines = [
        Line(name=name, style=subject.styles[name], marks=_marks(subject, name, ceiling)) for name in subject.styles
    ]
    marks = [mark for line in lines for mark in line.marks]
    balance = ceiling.flop_per_s / ceiling.bytes_per_s
    low, high = log_range([*(mark.x for mark in marks), 2.0 * balance])
    top = ceiling.flop_per_s / 1e12
    frame = Frame(
        x_label="operations per byte read",
        y_label="TFLOP/s achieved, least work over step time",
        x_range=(low, high),
        y_range=(min(mark.y for mark in marks) / 1.5, top * 1.5),
        height=300.0,
        x_log=True,
        y_log=True,
    )
    roof = [(low, low * ceiling.bytes_per_s / 1e12), (balance, top), (high, top)]
    frame.marks.append(path([(frame.x(x), frame.y(y)) for x, y in roof], fill="none", stroke="#999999", stroke_width=3))
    turn = f"{ceiling.bytes_per_s / 1e12:g} TB/s, {top:g} TFLOP/s: {balance:.0f} op/byte"
    frame.marks.append(text(turn, frame.x.end, frame.y(top) - 5, anchor="end", class_="small"))
    draw(frame, lines, size=3.5)
    described = "; ".join(
        f"{line.name} {line.marks[0].y:.3g} to {line.marks[-1].y:.3g} TFLOP/s" for line in lines if line.marks
    )
    return frame.svg(f"{subject.name}: roofline", described)


def _marks(subject: Subject, name: str, ceiling: Ceiling) -> list[Mark]:
    arm = subject.profile.arms[name]
    marks = []
    for batch in subject.batches(name):
        cell = min(
            (cell for cell in arm.cells if cell.batch == batch),
            key=lambda cell: abs(cell.context_tokens - subject.context_tokens),
        )
        flop = ceiling.step_flop(batch, least_verified(arm))
        tflop_per_s = flop / (cell.step_ms / 1e3) / 1e12
        floor_ms = ceiling.step_floor_ms(batch, cell.context_tokens, least_verified(arm))
        told = f"{name}, batch {batch}, {cell.context_tokens:,.0f} tokens: {tflop_per_s:.1f} TFLOP/s, "
        told += f"{floor_ms / cell.step_ms:.0%} of the roofline"
        marks.append(Mark(x=flop / ceiling.step_bytes(batch, cell.context_tokens), y=tflop_per_s, told=told))
    return marks
