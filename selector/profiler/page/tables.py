"""Tables: every cell with its checks, the checks summed up, what was refused, accept lengths, provenance."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from selector.files.profile import NO_DRAFTER, Arm, StepCell
from selector.page.svg import element, words
from selector.page.tables import Cell, number, percent, table
from selector.profiler.cells import FailedStep, Pass
from selector.profiler.checks import leave_one_out, out_of_order
from selector.profiler.config import Method
from selector.profiler.merge import main_method, merged_cells
from selector.profiler.page.subject import Subject
from selector.profiler.report import against, idle_drift_frac
from selector.profiler.roofline import least_verified

_CELL_COLUMNS = (
    "arm", "batch", "context", "step, ms", "step, J", "mean W", "SM, MHz", "°C", "at power limit", "metered, s",
    "repeats", "spread ms", "spread J", "of roofline", "of energy floor", "left out: ms", "left out: J",
)  # fmt: skip
_CHECK_COLUMNS = (
    "arm", "cells", "repeat spread ms, median", "worst", "spread J, median", "worst", "left out ms, median", "worst",
    "left out J, median", "worst", "of roofline, most", "out of order",
)  # fmt: skip


def checks_table(subject: Subject) -> str:
    """A row per arm: how repeatable, smooth and possible its cells are."""
    rows: list[list[Cell | str]] = []
    for name, arm in subject.profile.arms.items():
        errors = [error for error in leave_one_out(*arm.points()) if error.inside]
        achieved = [share for cell in arm.cells if (share := _achieved(subject, arm, cell)) is not None]
        rows.append(
            [
                name,
                str(len(arm.cells)),
                *_median_and_worst(cell.spread_ms_frac for cell in arm.cells),
                *_median_and_worst(cell.spread_j_frac for cell in arm.cells),
                *_median_and_worst(error.ms_error_frac for error in errors),
                *_median_and_worst(error.j_error_frac for error in errors),
                percent(max(achieved, default=None)),
                _out_of_order(subject, name),
            ]
        )
    told = (
        "Spread: largest less smallest repeat over their mean; a dash where a cell has one repeat. Left out: the error "
        "of the interpolation at a cell that it was not given and that the others surround. A step above 100 % of the "
        "roofline is refused when a profile is made."
    )
    return element("p", words(told)) + table(_CHECK_COLUMNS, rows, caption="checks")


def cells_table(subject: Subject) -> str:
    """A row per cell."""
    rows: list[list[Cell | str]] = []
    for name, arm in subject.profile.arms.items():
        errors = {(error.batch, error.context_tokens): error for error in leave_one_out(*arm.points())}
        for cell in arm.cells:
            error = errors.get((cell.batch, cell.context_tokens))
            mark = "" if error is None or error.inside else " *"
            rows.append(
                [
                    name,
                    str(cell.batch),
                    number(cell.context_tokens, 0),
                    number(cell.step_ms, 3),
                    number(cell.step_j, 3),
                    number(cell.watts, 0),
                    number(cell.sm_mhz, 0),
                    number(cell.temperature_c, 0),
                    percent(cell.power_capped_frac, 0),
                    number(cell.window_s, 1),
                    "–" if cell.repeats is None else str(cell.repeats),
                    percent(cell.spread_ms_frac),
                    percent(cell.spread_j_frac),
                    percent(_achieved(subject, arm, cell)),
                    percent(_energy_floor_frac(subject, arm, cell)),
                    percent(None if error is None else error.ms_error_frac) + mark,
                    percent(None if error is None else error.j_error_frac) + mark,
                ]
            )
    told = (
        "* the others do not surround this cell: its context is extrapolated. Of roofline: least time by bytes and "
        "operations over the step's. Of energy floor: what the bare board draws at rest in that least time, over the "
        "step's energy."
    )
    return table(_CELL_COLUMNS, rows, caption="cells") + element("p", words(told), class_="note")


def prefill_table(subject: Subject) -> str:
    """Prefill of every arm by prompt length, and the least that a pass takes where it was measured."""
    profile, ceiling = subject.profile, subject.ceiling
    rows: list[list[Cell | str]] = []
    for name, arm in profile.arms.items():
        least = arm.prefill_pass
        for alone in () if least is None else least.every_length:
            rows.append([name, Cell(text="alone in a pass", prose=True), f"{alone.prompt_tokens:,}",
                         number(alone.ms, 2), number(alone.j, 3), "–", "–"])  # fmt: skip
        for point in (profile.prefill if name == NO_DRAFTER else arm.prefill) or ():
            floor_ms = None if ceiling is None else ceiling.prefill_floor_ms(point.prompt_tokens)
            rows.append([name, Cell(text="busy server", prose=True), f"{point.prompt_tokens:,}",
                         number(point.ms, 2), number(point.j, 3), percent(point.spread_frac),
                         percent(None if floor_ms is None else floor_ms / point.ms)])  # fmt: skip
    told = "Arms that are not listed take the prefill of the arm without a drafter."
    columns = ("arm", "how", "prompt tokens", "ms a prompt", "J a prompt", "spread ms", "of roofline")
    return table(columns, rows, caption="prefill") + element("p", words(told), class_="note")


def drift_table(subject: Subject) -> str:
    """The baseline measured again at the end, and cells measured by another method; says so where there are none."""
    rows: list[list[Cell | str]] = []
    method = main_method(subject.cells)
    if method is not None:
        other: Method = "steady" if method == "difference" else "difference"
        again: list[tuple[str, Pass, Method]] = [
            ("again at the end", "drift", method),
            (f"by {other} instead of {method}", "main", other),
        ]
        for name in subject.profile.arms:
            main = merged_cells(subject.cells, name, "main", method)
            for what, sweep_pass, by in again:
                for row in against(main, merged_cells(subject.cells, name, sweep_pass, by)):
                    shape = f"batch {row['batch']}, prompt {row['prompt_tokens']}"
                    prose = [Cell(text=text, prose=True) for text in (what, shape)]
                    rows.append([name, *prose, f"{row['ms_frac']:+.2%}", f"{row['j_frac']:+.2%}"])
    idle_frac = idle_drift_frac(subject.cells)
    if idle_frac is not None:
        prose = [Cell(text=text, prose=True) for text in ("again at the end", "bare board, idle power")]
        rows.append(["–", *prose, "–", f"{idle_frac:+.2%}"])
    if not rows:
        return element("p", words("No cell was measured again, at the end of the sweep or by another method."))
    return table(("arm", "measured", "cell", "step time", "step energy"), rows, caption="drift and methods")


def refused_table(subject: Subject) -> str:
    """Windows and launches that gave nothing, with the reason that was recorded."""
    if not subject.cells:
        return element("p", words("No raw cells are beside this profile, so what was refused is not known here."))
    rows: list[list[Cell | str]] = [
        [Cell(text=cell.step, prose=True), Cell(text=cell.reason, prose=True), cell.origin.date]
        for cell in subject.cells
        if isinstance(cell, FailedStep)
    ]
    if not rows:
        return element("p", words("Nothing was refused, and no server failed."))
    return table(("step", "reason", "launched, UTC"), rows, caption="refused windows")


def accept_table(subject: Subject) -> str:
    """Accept length of every arm on every text type, with where it is from."""
    profile = subject.profile
    arms = [name for name in profile.arms if name != NO_DRAFTER]
    if not subject.text_types:
        return element("p", words("This profile has no accept lengths."))
    rows: list[list[Cell | str]] = []
    for text_type in subject.text_types:
        row: list[Cell | str] = [text_type]
        for name in arms:
            known = profile.arms[name].acceptance.get(text_type)
            if known is None:
                row.append("–")
            else:
                row.append(f"{known.mean:.2f} {profile.provenance[known.provenance].kind}")
        rows.append(row)
    heads = [f"{name} ({profile.arms[name].verify_tokens} verified)" for name in arms]
    return table(("text type", *heads), rows, caption="accept lengths")


def source_table(subject: Subject) -> str:
    """Every entry of the profile's provenance."""
    rows: list[list[Cell | str]] = [
        [
            key,
            Cell(text=entry.kind, prose=True),
            Cell(text=entry.host or "–", prose=True),
            Cell(text=entry.gpu or "–", prose=True),
            Cell(text=entry.driver or "–", prose=True),
            Cell(text=entry.engine or "–", prose=True),
            Cell(text=entry.weights or "–", prose=True),
            Cell(text=entry.date or "–", prose=True),
            Cell(text=f"{entry.source}{f' ({entry.note})' if entry.note else ''}", prose=True),
        ]
        for key, entry in subject.profile.provenance.items()
    ]
    columns = ("entry", "kind", "host", "GPU", "driver", "engine", "weights", "date, UTC", "source")
    return element("div", table(columns, rows, caption="provenance"), class_="numbers")


def _achieved(subject: Subject, arm: Arm, cell: StepCell) -> float | None:
    ceiling = subject.ceiling
    if ceiling is None:
        return None
    return ceiling.step_floor_ms(cell.batch, cell.context_tokens, least_verified(arm)) / cell.step_ms


def _energy_floor_frac(subject: Subject, arm: Arm, cell: StepCell) -> float | None:
    """Energy of the bare board at rest for the least time of the step, over the step's."""
    achieved = _achieved(subject, arm, cell)
    if achieved is None:
        return None
    return subject.profile.idle.bare_w * achieved * cell.step_ms / 1e3 / cell.step_j


def _out_of_order(subject: Subject, name: str) -> Cell:
    method = main_method(subject.cells)
    if method is None:
        return Cell(text="–", prose=True)
    merged = merged_cells(subject.cells, name, "main", method)
    found = out_of_order((cell.batch, cell.prompt_tokens, cell.point) for cell in merged)
    return Cell(text="; ".join(found) or "none", prose=True)


def _median_and_worst(values: Iterable[float | None]) -> tuple[str, str]:
    known = [abs(value) for value in values if value is not None]
    return percent(median(known) if known else None, 2), percent(max(known, default=None), 2)
