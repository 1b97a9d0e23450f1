"""What a sweep measured, one JSON line a cell, on disk as soon as it is known: `cells.jsonl`.

A line stands alone: it carries where and how it was measured. A sweep that was killed in the middle of a line leaves a
part of one, which the next run cuts off. Refused and failed cells get a line too, so that nothing is left out silently.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from selector.errors import InputError
from selector.files.validation import FileModel
from selector.profiler.config import Method
from selector.profiler.energy import EnergyWindow

Pass = Literal["main", "drift"]
Count = Annotated[int, Field(ge=0)]


class Origin(FileModel):
    """Where and how a cell was measured."""

    argv: tuple[str, ...] = ()
    """Command line of the server; empty for one that was running already, or for none at all."""
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None
    engine: str | None = None
    gpu: str | None = None
    driver: str | None = None
    power_limit_w: PositiveFloat | None = None
    host: str
    weights: Literal["dummy", "real"]
    date: str
    """UTC, ISO 8601."""
    launch_s: float | None = None
    """How long the server took to be ready."""
    launch: str = ""
    """Tells the launches of one sweep apart: cells of one launch shared a server."""


class Metered(FileModel):
    """An `EnergyWindow` on disk."""

    duration_s: float
    energy_j: float
    watts_mean: float
    counter_updates: int
    update_interval_s: float
    integrated_j: float | None = None
    disagreement_frac: float | None = None
    power_capped_frac: float | None = None
    sm_mhz_mean: float | None = None
    temperature_c: float | None = None
    flags: tuple[str, ...] = ()

    @classmethod
    def of(cls, window: EnergyWindow) -> Metered:
        """The window's facts."""
        return cls(**{name: getattr(window, name) for name in cls.model_fields})


class DecodeRepeat(FileModel):
    """One measurement of a decode cell."""

    seed: int
    step_ms: PositiveFloat
    step_j: PositiveFloat | None
    host_step_j: float | None = None
    accept_length: Annotated[float, Field(ge=1)]
    context_tokens: float
    """Mean context of a request over the window."""
    steps: PositiveFloat
    window_s: PositiveFloat
    energy: Metered | None


class DecodeCell(FileModel):
    """Decode steps of a closed batch."""

    kind: Literal["decode"] = "decode"
    arm: str
    sweep_pass: Pass
    batch: PositiveInt
    prompt_tokens: PositiveInt
    method: Method
    setting: float | None = None
    """Of the arm's live setting; `None` as launched."""
    repeats: tuple[DecodeRepeat, ...] = Field(min_length=1)
    origin: Origin


class PrefillCell(FileModel):
    """Prefill of prompts of one length, back to back."""

    kind: Literal["prefill"] = "prefill"
    arm: str
    prompt_tokens: PositiveInt
    alone: bool = False
    """Each in a pass of its own: what a pass takes at least, if the prompt is short."""
    prompts_at_once: PositiveInt
    prompts: PositiveInt
    ms: PositiveFloat
    """Per prompt."""
    j: PositiveFloat | None
    energy: Metered | None
    origin: Origin


class InterruptionCell(FileModel):
    """What a lone prompt costs the requests that run (see `interruption.py`)."""

    kind: Literal["interruption"] = "interruption"
    arm: str
    running: PositiveInt
    """Requests that were decoding."""
    prompt_tokens: PositiveInt
    """Of the lone prompts."""
    prompts: PositiveInt
    stall_ms: PositiveFloat
    """By which a prompt puts their next step off, its pass included."""
    step_ms: PositiveFloat
    """Of their steps without."""
    window_s: PositiveFloat
    origin: Origin


class IdleCell(FileModel):
    """Power without work; `arm` is `None` where no server runs."""

    kind: Literal["idle"] = "idle"
    arm: str | None
    sweep_pass: Pass = "main"
    """`drift` after the last server."""
    energy: Metered
    origin: Origin


class AnswerCounts(FileModel):
    """What one answer of a measurement of acceptance was counted as."""

    prompt: str
    prompt_tokens: Count
    completion_tokens: Count
    verify_passes: Count
    accepted_drafts: Count
    accepted_histogram: tuple[Count, ...] | None = None
    """Verify passes by the number of drafts they accepted, from 0 on; `None` where the server does not say."""


class AcceptanceCell(FileModel):
    """Answers of one arm to prompts of one text type."""

    kind: Literal["acceptance"] = "acceptance"
    arm: str
    text_type: str
    repeat: Count
    answer_tokens: PositiveInt
    """Bound on an answer's length."""
    temperature: Annotated[float, Field(ge=0)]
    answers: tuple[AnswerCounts, ...] = Field(min_length=1)
    refused: Count = 0
    """Prompts that the server refused, over its context for one."""
    origin: Origin


class FailedStep(FileModel):
    """A cell or a launch that gave nothing, and why."""

    kind: Literal["failed"] = "failed"
    step: str
    reason: str
    origin: Origin


Cell = DecodeCell | PrefillCell | InterruptionCell | IdleCell | AcceptanceCell | FailedStep
_CELL: TypeAdapter[Cell] = TypeAdapter(Annotated[Cell, Field(discriminator="kind")])


def append_cell(path: Path, cell: Cell) -> None:
    """Adds a cell as one line, written at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write(cell.model_dump_json() + "\n")


def mend(path: Path) -> bool:
    """Cuts off a last line that a killed sweep did not finish; whether there was one."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) == len(data):
        return False
    path.write_bytes(whole)
    return True


def read_cells(path: Path) -> list[Cell]:
    """Every cell of a file, none for a file that is not there. Raises `InputError` for a line that is no cell."""
    if not path.exists():
        return []
    cells = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            cells.append(_CELL.validate_python(json.loads(line)))
        except (ValueError, ValidationError) as bad:
            problem = f"is no cell of a sweep ({str(bad).splitlines()[0]})"
            raise InputError(f"{path}: line {number}", problem, "remove that line") from None
    return cells
