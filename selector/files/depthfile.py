"""The file that the engine plugin chooses depths by: costs, survivals and options, all that it needs at run time.

Written by `drafter-selector export depths`, read inside the engine's process, which has pydantic and neither scipy nor
this project's profiles: costs come as plain lines (`core.depthtable`). Version 1; readers refuse other versions.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from selector.core.depthacceptance import HALF_LIFE_REQUESTS, PRIOR_REQUESTS
from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthsurvival import DEFAULT_OUTPUT_TOKENS, DEFAULT_QUANTILE, SlowRequests
from selector.core.depthtable import DepthTable
from selector.core.depthtexts import DepthAcceptances
from selector.core.prefillcost import PrefillCost
from selector.core.prefillshare import EnginePrefillShare
from selector.errors import DomainError, InputError
from selector.files.validation import FileModel, read_text, validated

VARIABLE = "DRAFTER_SELECTOR_DEPTHS"
"""Of the environment: names the file to the plugin in an engine."""
FORMAT: Literal["drafter-selector/depths"] = "drafter-selector/depths"

_Line = tuple[float, float, float, float, float]
_Frac = Annotated[float, Field(ge=0, lt=1)]
_DEFAULTS = ChoiceOptions()


class Depth(FileModel):
    """One depth: `rows[batch - 1]` is the chain of lines (context, ms, ms per token, J, J per token) of a batch."""

    depth: NonNegativeInt
    arm: str
    """The measured arm, or `interpolated`."""
    rows: tuple[tuple[_Line, ...], ...]


class Options(FileModel):
    """`ChoiceOptions` on disk."""

    margin_frac: _Frac = _DEFAULTS.margin_frac
    clear_frac: _Frac = _DEFAULTS.clear_frac
    dwell_steps: NonNegativeInt = _DEFAULTS.dwell_steps
    headroom_frac: _Frac = _DEFAULTS.headroom_frac
    trial_every_steps: NonNegativeInt = _DEFAULTS.trial_every_steps
    trial_requests: PositiveInt = _DEFAULTS.trial_requests
    most_trial_steps: NonNegativeInt = _DEFAULTS.most_trial_steps
    open_load: bool = _DEFAULTS.open_load
    idle_w: NonNegativeFloat = _DEFAULTS.idle_w


class Prefill(FileModel):
    """The time of passes over prompts, as in `core.prefillshare`."""

    arm: str
    points: tuple[tuple[PositiveFloat, PositiveFloat], ...] = Field(min_length=1)
    """(prompt tokens, ms)."""
    floor_ms: NonNegativeFloat = 0.0
    beside_ms: NonNegativeFloat = 0.0
    resume_ms: NonNegativeFloat = 0.0
    graphs: tuple[PositiveInt, ...] = ()
    """Tokens of the CUDA graphs that passes are padded to; none: no pass is."""


class DepthFile(FileModel):
    """The file."""

    format: Literal["drafter-selector/depths"]
    version: Literal[1]
    profile: str
    target: str
    algorithm: str
    notes: tuple[str, ...] = ()
    depths: tuple[Depth, ...] = Field(min_length=1)
    survivals: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1)
    """P(the k-th draft is accepted), k = 1 …, before anything was seen."""
    survivals_from: str
    """Where they are from, in words."""
    survivals_of: dict[str, tuple[Annotated[float, Field(ge=0, le=1)], ...]] = Field(default_factory=dict)
    """Those of text types; of any other, and of requests without one, `survivals`."""
    prefill: Prefill | None = None
    """What prompts cost; without it they are taken to cost nothing."""
    prior_requests: PositiveFloat = PRIOR_REQUESTS
    half_life_requests: PositiveFloat = HALF_LIFE_REQUESTS
    quantile: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_QUANTILE
    spread_frac: Annotated[float, Field(ge=0)] = 0.0
    output_tokens: PositiveFloat = DEFAULT_OUTPUT_TOKENS
    tbt_target_ms: PositiveFloat | None = None
    """Of requests that bring no target of their own; `None` leaves those unbounded."""
    options: Options = Options()

    def table(self) -> DepthTable:
        """Step costs by depth. Raises `DomainError`."""
        return DepthTable({each.depth: each.rows for each in self.depths})

    def slow(self) -> SlowRequests:
        """The request that targets are judged by."""
        return SlowRequests.at(self.quantile, spread_frac=self.spread_frac, output_tokens=self.output_tokens)

    def choice(self, *, start_depth: int, candidates: tuple[int, ...] | None = None) -> DepthChoice:
        """A choice of depth that has seen nothing yet, among the `candidates` of the file's depths.

        It starts at `start_depth`, or at the deepest one below it. Raises `DomainError` when no depth is left.
        """
        table = self.table()
        if candidates is not None:
            table = table.only(candidates)
        start = max((depth for depth in table.depths if depth <= start_depth), default=table.depths[0])
        acceptance = DepthAcceptances(
            self.survivals,
            self.slow(),
            priors=self.survivals_of,
            prior_requests=self.prior_requests,
            half_life_requests=self.half_life_requests,
        )
        options = ChoiceOptions(**self.options.model_dump())
        return DepthChoice(table, acceptance, options, start_depth=start, prefill=self.prefill_share())

    def prefill_share(self) -> EnginePrefillShare:
        """What prompts take of the time, before any was there. Raises `DomainError`."""
        known = self.prefill
        if known is None:
            return EnginePrefillShare()
        if list(known.points) != sorted(known.points):
            raise DomainError(f"the points of a prefill must rise with the prompt: {list(known.points)}")
        points = [(tokens, ms, 0.0) for tokens, ms in known.points]  # what they take in joules does not count here
        cost = PrefillCost(
            points,
            floor_ms=known.floor_ms,
            beside_ms=known.beside_ms,
            resume_ms=known.resume_ms,
            graphs=known.graphs,
        )
        return EnginePrefillShare(cost)


def options_of(options: ChoiceOptions) -> Options:
    """The options as they go into a file."""
    return Options(**asdict(options))


def load_depth_file(path: Path) -> DepthFile:
    """The file at a path. Raises `InputError`."""
    return parse_depth_file(read_text(path, "depth file", InputError), str(path))


def parse_depth_file(text: str, where: str) -> DepthFile:
    """A depth file from JSON text; `where` names it in errors. Raises `InputError`."""
    remedy = "export it again: drafter-selector export depths"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise InputError(where, f"is not JSON ({bad})", remedy) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != 1:
        raise InputError(where, f"is no {FORMAT} of version 1", remedy)
    file = validated(DepthFile, data, where, InputError)
    try:
        file.choice(start_depth=0)
    except DomainError as bad:
        raise InputError(where, str(bad), remedy) from None
    return file
