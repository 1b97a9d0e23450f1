"""How far a sweep is, on standard error."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from selector.profiler.cells import (
    AcceptanceCell,
    Cell,
    DecodeCell,
    FailedStep,
    IdleCell,
    InterruptionCell,
    PrefillCell,
)


class Watcher:
    """Shows a sweep's progress on standard error: a bar on a terminal, lines otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="?")

    def __enter__(self) -> Watcher:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def planned(self, steps: int, done: int, left_s: float) -> None:
        self._progress.update(self._task, total=steps, completed=done, left=minutes(left_s))
        self._say(f"{steps} steps, {done} done before, about {minutes(left_s)} left")

    def launching(self, arm: str, left_s: float) -> None:
        self._progress.update(self._task, description=f"{arm}: starting the server", left=minutes(left_s))
        self._say(f"{arm}: starting the server")

    def measured(self, cell: Cell, left_s: float) -> None:
        text = described(cell)
        self._progress.update(self._task, advance=1, description=text, left=minutes(left_s))
        self._say(f"{text}  [{minutes(left_s)} left]")

    def failed(self, step: str, reason: str, left_s: float) -> None:
        self._progress.update(self._task, left=minutes(left_s))
        self._say(f"FAILED {step}: {reason}")

    def stopped(self, left_s: float) -> None:
        self._say(f"stopping in time; about {minutes(left_s)} are left for the next run")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()


def described(cell: Cell) -> str:
    """A cell in one line."""
    if isinstance(cell, DecodeCell):
        ms = ", ".join(f"{repeat.step_ms:.3f}" for repeat in cell.repeats)
        j = ", ".join("-" if repeat.step_j is None else f"{repeat.step_j:.3f}" for repeat in cell.repeats)
        accepted = cell.repeats[0].accept_length
        context = cell.repeats[0].context_tokens
        return (
            f"{cell.arm} b={cell.batch} prompt={cell.prompt_tokens} context={context:.0f}: step {ms} ms, {j} J, "
            f"a={accepted:.3f}{' (drift)' if cell.sweep_pass == 'drift' else ''}"
        )
    if isinstance(cell, PrefillCell):
        j = "-" if cell.j is None else f"{cell.j:.3f}"
        alone = " alone" if cell.alone else ""
        return f"{cell.arm} prefill {cell.prompt_tokens}{alone}: {cell.ms:.2f} ms, {j} J a prompt"
    if isinstance(cell, InterruptionCell):
        return (
            f"{cell.arm} prompts of {cell.prompt_tokens} among {cell.running} running: "
            f"a stall of {cell.stall_ms:.2f} ms ({cell.prompts} prompts, steps of {cell.step_ms:.3f} ms)"
        )
    if isinstance(cell, IdleCell):
        where = "bare" if cell.arm is None else f"with {cell.arm} up"
        again = " (drift)" if cell.sweep_pass == "drift" else ""
        return f"idle {where}: {cell.energy.watts_mean:.1f} W{again}"
    if isinstance(cell, AcceptanceCell):
        passes = sum(answer.verify_passes for answer in cell.answers)
        accepted = sum(answer.accepted_drafts for answer in cell.answers)
        length = f"{1 + accepted / passes:.3f}" if passes else "-"
        return f"{cell.arm} on {cell.text_type}: accept length {length} over {len(cell.answers)} answers"
    return f"{cell.step}: {cell.reason}" if isinstance(cell, FailedStep) else ""


def minutes(seconds: float) -> str:
    """Seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
