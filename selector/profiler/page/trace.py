"""A board's power, clock and temperature over time, from the lines that `EnergyMeter` records.

Any part of such a file can be read: the counter only rises, so leaving lines out loses detail and no energy. Files of
several runs may follow one another; each run's clock begins anew, and time between two runs is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from selector.errors import InputError
from selector.files.validation import read_text

_APART_S = 60.0
"""A pause this long within one GPU's lines is one between two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSample:
    """All GPUs of a server between two counter readings, or over one window of a cell."""

    start_s: float
    """Metered seconds since the first sample: time between runs does not count."""
    end_s: float
    power_w: float
    sm_mhz: float | None
    temperature_c: float | None


def read_trace(paths: Sequence[Path]) -> list[BoardSample]:
    """Samples of recorded files, in the order given; of several GPUs, those of the first. Raises `InputError`."""
    samples: list[BoardSample] = []
    for path in paths:
        rows = [
            _row(line, f"{path}:{number}")
            for number, line in enumerate(read_text(path, "trace", InputError).splitlines(), start=1)
        ]
        gpus = sorted({row.gpu for row in rows})
        _extend(samples, [row for row in rows if row.gpu == gpus[0]])
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    gpu: str
    t_s: float
    counter_mj: int
    sm_mhz: float | None
    temperature_c: float | None


def _row(line: str, where: str) -> _Row:
    try:
        data = json.loads(line)
        return _Row(
            gpu=data["gpu"],
            t_s=data["t_s"],
            counter_mj=data["counter_mj"],
            sm_mhz=data["sm_mhz"],
            temperature_c=data["temperature_c"],
        )
    except (ValueError, KeyError, TypeError) as bad:
        raise InputError(where, f"is no reading of an energy meter ({bad!r})", "remove that line") from None


def _extend(samples: list[BoardSample], rows: Sequence[_Row]) -> None:
    at_s = samples[-1].end_s if samples else 0.0
    for before, after in pairwise(rows):
        seconds = after.t_s - before.t_s
        if not 0 < seconds < _APART_S or after.counter_mj < before.counter_mj:
            continue
        samples.append(
            BoardSample(
                start_s=at_s,
                end_s=at_s + seconds,
                power_w=(after.counter_mj - before.counter_mj) / 1e3 / seconds,
                sm_mhz=after.sm_mhz,
                temperature_c=after.temperature_c,
            )
        )
        at_s += seconds


def binned(samples: Sequence[BoardSample], most: int) -> list[BoardSample]:
    """At most about so many samples: neighbours together, power weighted by time, so that energy stays what it is."""
    each = max(1, -(-len(samples) // most))
    return [_together(samples[first : first + each]) for first in range(0, len(samples), each)]


def _together(some: Sequence[BoardSample]) -> BoardSample:
    seconds = sum(sample.end_s - sample.start_s for sample in some)
    return BoardSample(
        start_s=some[0].start_s,
        end_s=some[-1].end_s,
        power_w=sum(sample.power_w * (sample.end_s - sample.start_s) for sample in some) / seconds,
        sm_mhz=_mean(sample.sm_mhz for sample in some),
        temperature_c=_mean(sample.temperature_c for sample in some),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
