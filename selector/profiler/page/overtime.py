"""Power, clock and temperature of the board over the time it was metered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from selector.page.frame import Frame
from selector.page.picture import Picture
from selector.page.scales import padded
from selector.page.svg import line, path, text
from selector.profiler.cells import Cell, DecodeCell, IdleCell, Metered, PrefillCell
from selector.profiler.page.subject import Subject
from selector.profiler.page.trace import BoardSample, binned

_MOST_POINTS = 600


def overtime_picture(subject: Subject) -> Picture:
    """From the meter's recording where there is one, otherwise from the windows of the cells in the order measured."""
    if subject.samples:
        samples = binned(subject.samples, _MOST_POINTS)
        told = "Power by the energy counter, clock and temperature as read, from what the meter recorded."
    else:
        samples = window_samples(subject.cells)
        told = "Means over the measured windows, one after another as they came; what lies between is left out."
    if not samples:
        told = "Neither a recording of the meter nor raw cells are beside this profile."
    limit_w = subject.profile.gpu.power_limit_w
    panels = [
        _panel(subject, samples, "Power", "W, all GPUs", lambda sample: sample.power_w, limit_w),
        _panel(subject, samples, "SM clock", "MHz", lambda sample: sample.sm_mhz, None),
        _panel(subject, samples, "Temperature", "°C", lambda sample: sample.temperature_c, None),
    ]
    return Picture(
        name="over-time",
        title=f"The board over time: {subject.profile.target.name} on {subject.profile.gpu.name}",
        panels=[panel for panel in panels if panel is not None],
        columns=3,
        told=(told,),
    )


def window_samples(cells: Sequence[Cell]) -> list[BoardSample]:
    """One sample per metered window."""
    samples: list[BoardSample] = []
    at_s = 0.0
    for window in (window for cell in cells for window in _windows(cell)):
        samples.append(
            BoardSample(
                start_s=at_s,
                end_s=at_s + window.duration_s,
                power_w=window.watts_mean,
                sm_mhz=window.sm_mhz_mean,
                temperature_c=window.temperature_c,
            )
        )
        at_s += window.duration_s
    return samples


def _windows(cell: Cell) -> Iterable[Metered]:
    if isinstance(cell, DecodeCell):
        return [repeat.energy for repeat in cell.repeats if repeat.energy is not None]
    if isinstance(cell, IdleCell):
        return [cell.energy]
    return [cell.energy] if isinstance(cell, PrefillCell) and cell.energy is not None else []


def _panel(
    subject: Subject,
    samples: Sequence[BoardSample],
    caption: str,
    unit: str,
    value: Callable[[BoardSample], float | None],
    limit: float | None,
) -> tuple[str, str] | None:
    known = [(sample, found) for sample in samples if (found := value(sample)) is not None]
    if not known:
        return None
    values = [found for _, found in known]
    frame = Frame(
        x_label="metered time, min",
        y_label=unit,
        x_range=(0.0, samples[-1].end_s / 60.0),
        y_range=padded([*values, *([limit] if limit else [])], floor=0.0),
        height=200.0,
    )
    if limit is not None:
        y = frame.y(limit)
        frame.marks.append(line(frame.left, y, frame.x.end, y, stroke="#555555", stroke_dasharray="3 3"))
        frame.marks.append(text(f"limit {limit:g} W", frame.left + 4, y - 4, class_="small"))
    route = []
    for sample, found in known:
        route += [(frame.x(sample.start_s / 60.0), frame.y(found)), (frame.x(sample.end_s / 60.0), frame.y(found))]
    frame.marks.append(path(route, fill="none", stroke="#0072B2", stroke_width=1.2))
    described = f"from {min(values):.0f} to {max(values):.0f} {unit}"
    return caption, frame.svg(f"{subject.name}: {caption.lower()} over time", described)
