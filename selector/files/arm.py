"""An arm in a profile: how it is launched, and at each live setting what its steps cost and what it gets accepted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from selector.core.cost import ContextSlope, StepCost, StepPoint
from selector.core.types import TEXT_TYPES, Capability
from selector.files.validation import FileModel

VERIFY_BUDGET = "dspark_force_budget_frac"
"""The live setting of DSPARK: the share of the drafts that is verified, in (0, 1]."""

RAGGED_VERIFY = "SGLANG_RAGGED_VERIFY_MODE"
"""In the environment of a DSPARK server: whether its budget counts (`compact`)."""

NonNegative = Annotated[float, Field(ge=0)]


class PrefillPoint(FileModel):
    """Prefill of one prompt of `prompt_tokens` on a busy server, on which short prompts share passes."""

    prompt_tokens: PositiveInt
    ms: PositiveFloat
    j: PositiveFloat
    provenance: str
    repeats: PositiveInt | None = None
    spread_frac: NonNegative | None = None


class LonePass(FileModel):
    """A pass over a single prompt that is no short one."""

    prompt_tokens: PositiveInt
    ms: PositiveFloat
    j: PositiveFloat
    repeats: PositiveInt | None = None


class PrefillPass(FileModel):
    """The least that a prefill pass takes: one over a single short prompt."""

    prompt_tokens: PositiveInt
    ms: PositiveFloat
    j: PositiveFloat
    provenance: str
    repeats: PositiveInt | None = None
    longer: tuple[LonePass, ...] | None = None
    """Measured alike: what a pass takes beside its work."""
    resume_ms: NonNegative = 0.0
    """After any pass, until those who were decoding go on."""
    resume_provenance: str | None = None

    @property
    def every_length(self) -> tuple[LonePass, ...]:
        """The pass and the longer ones, shortest first."""
        return (
            LonePass(prompt_tokens=self.prompt_tokens, ms=self.ms, j=self.j, repeats=self.repeats),
            *(self.longer or ()),
        )


class Slope(FileModel):
    """Derived cost per step of one more context token of one request."""

    ms_per_token: NonNegative
    j_per_token: NonNegative
    provenance: str


class StepCell(FileModel):
    """One measured decode step: `batch` requests with `context_tokens` each."""

    batch: PositiveInt
    context_tokens: NonNegative
    step_ms: PositiveFloat
    step_j: PositiveFloat
    provenance: str
    imposed_accept_length: Annotated[float, Field(ge=1)] | None = None
    window_s: PositiveFloat | None = None
    repeats: PositiveInt | None = None
    spread_ms_frac: NonNegative | None = None
    """Largest less smallest over the mean, across repeats."""
    spread_j_frac: NonNegative | None = None
    watts: PositiveFloat | None = None
    sm_mhz: PositiveFloat | None = None
    temperature_c: float | None = None
    power_capped_frac: NonNegative | None = None


class Acceptance(FileModel):
    """Accept length of one arm on one text type."""

    mean: Annotated[float, Field(ge=1)]
    provenance: str
    request_spread: NonNegative = 0.0
    """Relative standard deviation between requests' means."""
    request_spread_provenance: str | None = None
    survival: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None
    """P(the k-th draft is accepted), k = 1 …, where it was measured."""
    samples: PositiveInt | None = None
    published_mean: Annotated[float, Field(ge=1)] | None = None
    published_verify_tokens: PositiveInt | None = None


class Launch(FileModel):
    """How SGLang serves the arm; `{target}` and `{draft}` stand for model paths."""

    flags: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    draft_model: str | None = None


class SettingValue(FileModel):
    """The arm at one value of its live setting."""

    value: float
    cells: tuple[StepCell, ...] = Field(min_length=1)
    acceptance: dict[str, Acceptance] = Field(default_factory=dict)
    """Of every text type that the arm has it for."""


class LiveSetting(FileModel):
    """A knob of the engine that turns while it serves; cells and acceptance of the arm are those as launched."""

    name: str = Field(min_length=1)
    """By which the server takes it (`server_args` of `/set_internal_state`)."""
    launched: float
    others: tuple[SettingValue, ...] = Field(min_length=1)
    """The other values that are known."""

    @model_validator(mode="after")
    def _distinct(self) -> LiveSetting:
        values = [self.launched, *(other.value for other in self.others)]
        if len(set(values)) < len(values):
            raise ValueError(f"others has a value twice, or the launched one: {values}")
        return self


class Arm(FileModel):
    """One way to serve the target."""

    algorithm: str
    """SGLang's name (EAGLE3, DFLASH, DSPARK, NGRAM …) or `none`."""
    verify_tokens: PositiveInt
    draft_steps: PositiveInt | None = None
    topk: PositiveInt | None = None
    max_context_tokens: PositiveInt | None = None
    """The draft model's own limit where it is below the target's."""
    cannot_serve: tuple[Capability, ...] = ()
    takes_tbt_target: bool | None = None
    """Its engine chooses its draft depth by the targets of its requests, and the router tells it them."""
    depths: tuple[str, ...] | None = None
    """Where its engine chooses its draft depth: the arms whose costs and acceptance its depths have, shallowest first.

    `launch` says how it chooses (`files.owndepth`). `cells` and `acceptance` may then be left out: the deepest's count.
    """
    launch: Launch = Launch()
    context_slope: Slope | None = None
    prefill: tuple[PrefillPoint, ...] | None = None
    """Where this arm's was measured, its draft's part included; else the profile's."""
    prefill_pass: PrefillPass | None = None
    cells: tuple[StepCell, ...] = Field(min_length=1)
    acceptance: dict[str, Acceptance] = Field(default_factory=dict)
    live_setting: LiveSetting | None = None

    @property
    def other_settings(self) -> tuple[SettingValue, ...]:
        """What is known of the arm besides as launched."""
        return () if self.live_setting is None else self.live_setting.others

    def points(self) -> tuple[list[StepPoint], ContextSlope | None]:
        """The cells as launched and the slope as the cost model takes them."""
        return step_points(self.cells, self.context_slope)

    @model_validator(mode="after")
    def _within_verify_width(self) -> Arm:
        everywhere = [self.acceptance, *(other.acceptance for other in self.other_settings)]
        for text_type, value in [item for acceptance in everywhere for item in acceptance.items()]:
            if text_type not in TEXT_TYPES:
                raise ValueError(f"acceptance has {text_type!r}, which is no text type ({', '.join(TEXT_TYPES)})")
            survival = value.survival or ()
            if len(survival) >= self.verify_tokens or any(later > one for one, later in pairwise(survival)):
                raise ValueError(
                    f"acceptance.{text_type}.survival rises, or has more than {self.verify_tokens - 1} drafts"
                )
            if value.mean > self.verify_tokens:
                raise ValueError(
                    f"acceptance.{text_type}.mean {value.mean} is above the verify width {self.verify_tokens}"
                )
        return self


def step_points(cells: Iterable[StepCell], slope: Slope | None) -> tuple[list[StepPoint], ContextSlope | None]:
    """Cells and slope as the cost model takes them."""
    return (
        [StepPoint(batch=c.batch, context_tokens=c.context_tokens, step_ms=c.step_ms, step_j=c.step_j) for c in cells],
        ContextSlope(ms_per_token=slope.ms_per_token, j_per_token=slope.j_per_token) if slope else None,
    )


def step_cost(cells: Iterable[StepCell], slope: Slope | None) -> StepCost:
    """The cost model of the cells of an arm, or of one of its settings. Raises `DomainError`."""
    return StepCost(*step_points(cells, slope))
