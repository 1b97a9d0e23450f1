"""Pictures over the batch: what a step costs, J per accepted token, TBT, and from which accept length an arm saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from selector.files.profile import NO_DRAFTER
from selector.page.frame import Frame
from selector.page.lines import Line, Mark, batch_ticks, draw, log_range
from selector.page.picture import Picture
from selector.profiler.page.subject import Subject

Value = Callable[[float, float, int, float], float]
"""A figure of (step_ms, step_j, batch, accept length)."""


def step_picture(subject: Subject) -> Picture:
    """Step time, and step energy per request, as measured."""
    time = _step_lines(subject, lambda ms, j, batch: ms)
    energy = _step_lines(subject, lambda ms, j, batch: j / batch)
    panels = [
        ("Time of a step", _chart(time, "ms per decode step", f"{subject.name}: step time")),
        ("Energy of a step, per request", _chart(energy, "J per decode step and request", f"{subject.name}: energy")),
    ]
    told = (
        f"What a decode step takes at about {subject.context_tokens:,.0f} tokens of context per request: the measured "
        "cell nearest to it at each batch. No accept length is in these.",
    )
    return _picture(subject, "steps", "What a decode step costs", panels, told, columns=2)


def energy_picture(subject: Subject) -> Picture:
    """J per accepted token per text type."""
    told = (
        f"Decode alone, at {subject.context_tokens:,.0f} tokens of context per request: step energy over batch and "
        "accept length. A hollow marker lies outside the measured cells. Text types with the same accept lengths share "
        "a panel; a star marks those that nobody measured or published, and the table of accept lengths says more.",
    )
    panels = _by_text_type(subject, "J per accepted token, decode", lambda ms, j, batch, accept: j / (batch * accept))
    return _picture(subject, "energy", "Energy per accepted token over batch", panels, told)


def tbt_picture(subject: Subject) -> Picture:
    """Mean TBT per text type."""
    told = ("Step time over accept length: the mean time between tokens without prefill in between.",)
    panels = _by_text_type(subject, "time between tokens, ms", lambda ms, j, batch, accept: ms / accept)
    return _picture(subject, "tbt", "Time between tokens over batch", panels, told)


def break_even_picture(subject: Subject) -> Picture:
    """Step energy of an arm over that of `none`."""
    plain = subject.profile.cost(NO_DRAFTER).step
    context = subject.context_tokens
    lines = []
    for name in subject.profile.arms:
        if name == NO_DRAFTER:
            continue
        own = subject.profile.cost(name).step
        marks = []
        for batch in subject.batches(name):
            if plain.min_batch <= batch <= plain.max_batch:
                ratio = own.step(batch, context)[1] / plain.step(batch, context)[1]
                sure = own.covers(batch, context) and plain.covers(batch, context)
                marks.append(Mark(x=batch, y=ratio, told=f"{name}, batch {batch}: {ratio:.3f}", sure=sure))
        lines.append(Line(name=name, style=subject.styles[name], marks=marks))
    lines = [line for line in lines if line.marks]
    told = (
        "An arm saves energy on text that it gets more tokens per step accepted of than this, and costs energy on the "
        "rest. Step energy of the arm over that of no drafter, same batch and context.",
    )
    panels = []
    if lines:
        panels = [
            ("Break-even accept length", _chart(lines, "break-even tokens per step", f"{subject.name}: break-even"))
        ]
    return _picture(subject, "break-even", "Break-even accept length over batch", panels, told, columns=1)


def _step_lines(subject: Subject, value: Callable[[float, float, int], float]) -> list[Line]:
    lines = []
    for name, arm in subject.profile.arms.items():
        marks = []
        for batch in subject.batches(name):
            cell = min(
                (cell for cell in arm.cells if cell.batch == batch),
                key=lambda cell: abs(cell.context_tokens - subject.context_tokens),
            )
            y = value(cell.step_ms, cell.step_j, batch)
            told = (
                f"{name}, batch {batch}, {cell.context_tokens:,.0f} tokens: {cell.step_ms:.3f} ms, {cell.step_j:.3f} J"
            )
            marks.append(Mark(x=batch, y=y, told=told))
        lines.append(Line(name=name, style=subject.styles[name], marks=marks))
    return lines


def text_type_lines(subject: Subject, text_type: str, value: Value) -> list[Line]:
    """A line per arm whose accept length on that type is known, a mark per measured batch."""
    lines = []
    for name in subject.profile.arms:
        accept = subject.accept(name, text_type)
        if accept is None:
            continue
        cost = subject.profile.cost(name).step
        marks = []
        for batch in subject.batches(name):
            ms, j = cost.step(batch, subject.context_tokens)
            y = value(ms, j, batch, accept)
            told = f"{name}, batch {batch}: {y:.4g} at {accept:.2f} tokens per step"
            marks.append(Mark(x=batch, y=y, told=told, sure=cost.covers(batch, subject.context_tokens)))
        lines.append(Line(name=name, style=subject.styles[name], marks=marks))
    return lines


def _by_text_type(subject: Subject, y_label: str, value: Value) -> list[tuple[str, str]]:
    drawn = {subject.caption(group): text_type_lines(subject, group[0], value) for group in subject.alike}
    every = [mark.y for lines in drawn.values() for line in lines for mark in line.marks]
    return [
        (
            caption,
            _chart(lines, y_label, f"{subject.name}, {caption}: {y_label}", y_range=log_range(every)),
        )
        for caption, lines in drawn.items()
    ]


def _chart(lines: Sequence[Line], y_label: str, title: str, y_range: tuple[float, float] | None = None) -> str:
    marks = [mark for line in lines for mark in line.marks]
    frame = Frame(
        x_label="batch, requests",
        y_label=y_label,
        x_range=log_range([mark.x for mark in marks]),
        y_range=y_range or log_range([mark.y for mark in marks]),
        x_log=True,
        y_log=True,
    )
    draw(frame, lines)
    ends = "; ".join(f"{line.name} {line.marks[0].y:.3g} to {line.marks[-1].y:.3g}" for line in lines)
    return frame.svg(title, f"Smallest to largest batch: {ends}", x_ticks=batch_ticks(lines))


def _picture(
    subject: Subject, name: str, title: str, panels: Sequence[tuple[str, str]], told: Sequence[str], columns: int = 3
) -> Picture:
    return Picture(
        name=name,
        title=f"{title}: {subject.profile.target.name} on {subject.profile.gpu.name}",
        panels=panels,
        legend=list(subject.styles.items()),
        columns=columns,
        told=told,
        note=subject.note,
    )
