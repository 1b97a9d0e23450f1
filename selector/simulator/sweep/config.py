"""The TOML file of a sweep. Every combination of its axes is one cell.

    version = 1
    seeds = 3                                      # 0, 1, 2; or a list
    tbt_targets_ms = ["classes", "none", 25, 10]   # classes: those of the fleet file
    rate_scales = [1, 2]
    text_mixes = ["own", "code=0.5,romansh=0.5"]   # own: the trace's own kind

    policies = ["least_loaded", "static:none"]     # names or paths, or tables:
    [[policies]] …

    [[traces]]
    path = "conv.csv"                              # from the folder of this file
    name = "conv"                                  # default: the file's stem
    slice_s = [0, 3600]                            # these three as the options of `simulate`
    spread_arrivals_s = 3
    limit = 5000

    [[fleets]]
    path = "fleet4.toml"

Only traces, fleets and policies must be given. A trace that says its text types itself is run once, whatever the mixes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from selector.errors import UsageError
from selector.files.validation import FileModel, read_toml, validated

OWN_MIX = "own"

_REMEDIES = {
    "policies": "give one of them another label",
    "traces": "give one of them another name",
    "fleets": "give one of them another name",
}
"""What to do about two entries that results would call the same."""


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _listed(value: object) -> object:
    return tuple(range(value)) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else value


class SweptPolicy(FileModel):
    """A policy, and parameters for it."""

    name: str
    """A shipped name, `name:argument`, or a path from the folder of the file."""
    label: str | None = None
    """How results call it; default: its name."""
    params: dict[str, Any] | None = None
    """Default: the fleet file's if that names this policy, else none."""

    @property
    def called(self) -> str:
        """How results call it."""
        return self.label or self.name


class SweptFile(FileModel):
    """A trace or a fleet."""

    path: str
    name: str | None = None

    @property
    def called(self) -> str:
        """How results call it."""
        return self.name or Path(self.path).stem


class SweptTrace(SweptFile):
    """A trace, or a part of it: see `load_trace` and `spread`."""

    slice_s: tuple[NonNegativeFloat, PositiveFloat] | None = None
    """From the first to before the second."""
    spread_arrivals_s: PositiveFloat | None = None
    limit: PositiveInt | None = None

    @model_validator(mode="after")
    def _rising(self) -> SweptTrace:
        if self.slice_s is not None and self.slice_s[0] >= self.slice_s[1]:
            raise ValueError(f"slice_s runs from {self.slice_s[0]:g} to {self.slice_s[1]:g}")
        return self


class SweepConfig(FileModel):
    """The file."""

    version: Literal[1]
    policies: tuple[Annotated[SweptPolicy, BeforeValidator(_named)], ...] = Field(min_length=1)
    traces: tuple[SweptTrace, ...] = Field(min_length=1)
    fleets: tuple[SweptFile, ...] = Field(min_length=1)
    tbt_targets_ms: tuple[PositiveFloat | Literal["none", "classes"], ...] = Field(default=("classes",), min_length=1)
    seeds: Annotated[tuple[int, ...], BeforeValidator(_listed), Field(min_length=1)] = (0,)
    rate_scales: tuple[PositiveFloat, ...] = Field(default=(1.0,), min_length=1)
    text_mixes: tuple[str, ...] = Field(default=(OWN_MIX,), min_length=1)

    @model_validator(mode="after")
    def _told_apart(self) -> SweepConfig:
        axes: dict[str, tuple[object, ...]] = {
            "policies": tuple(policy.called for policy in self.policies),
            "traces": tuple(trace.called for trace in self.traces),
            "fleets": tuple(fleet.called for fleet in self.fleets),
            "tbt_targets_ms": self.tbt_targets_ms,
            "seeds": self.seeds,
            "rate_scales": self.rate_scales,
            "text_mixes": self.text_mixes,
        }
        for axis, values in axes.items():
            for value in values:
                if values.count(value) > 1:
                    remedy = _REMEDIES.get(axis, "keep one")
                    raise ValueError(f"{axis} has {value!r} twice; {remedy}")
        return self


def load_sweep_config(path: Path) -> SweepConfig:
    """Reads a sweep file. Raises `UsageError`."""
    return validated(SweepConfig, read_toml(path, "sweep file", UsageError), str(path), UsageError)
