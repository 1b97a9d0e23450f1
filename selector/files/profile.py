"""A profile: what every arm of one target costs on one kind of GPU, and how many tokens it gets accepted.

One JSON file, `profiles/<gpu>__<target>.json`. Every number names its provenance by a key into the table `provenance`:

    measured    by this project's profiler or script: GPU, driver, versions, flags, window
    published   by somebody else: the source
    derived     computed from other numbers: how
    assumed     nobody measured it: the reasoning; shown as an assumption wherever it is used

Version 1. Readers refuse other versions rather than guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from selector.core.acceptance import HALF_LIFE_REQUESTS, REFINE_KEYS, AcceptanceModel, AcceptancePrior
from selector.core.cost import ArmCost, ContextSlope, IdlePower, PrefillCost, StepCost, StepPoint
from selector.core.types import TEXT_TYPES, Capability
from selector.errors import DomainError, ProfileError
from selector.files.shipped import profile_path
from selector.files.validation import FileModel, read_text, validated

FORMAT = "drafter-selector/profile"
NO_DRAFTER = "none"
"""The arm without speculation; every profile has it, since break-even is relative to it."""

NonNegative = Annotated[float, Field(ge=0)]


class Provenance(FileModel):
    """Where numbers come from."""

    kind: Literal["measured", "published", "derived", "assumed"]
    source: str = Field(min_length=1)
    """Measured: the command or file; published: the address; derived: the formula; assumed: the reasoning."""
    gpu: str | None = None
    driver: str | None = None
    engine: str | None = None
    weights: Literal["dummy", "real"] | None = None
    host: str | None = None
    date: str | None = None
    note: str | None = None


class Target(FileModel):
    """The served model."""

    name: str
    model: str | None = None
    """Where its weights are found by default (a Hugging Face id), as `Launch.draft_model` is for a drafter."""
    parameters: PositiveFloat
    non_embedding_parameters: PositiveFloat
    kv_bytes_per_token: PositiveFloat
    provenance: str


class Gpu(FileModel):
    """The board that was profiled."""

    name: str
    count: PositiveInt = 1
    """GPUs that one server uses (tensor parallel); all energy is their sum."""
    power_limit_w: PositiveFloat
    provenance: str


class Idle(FileModel):
    """Power of one GPU without work."""

    bare_w: PositiveFloat
    served_w: PositiveFloat
    """With at least one server resident."""
    provenance: str


class PrefillPoint(FileModel):
    """Prefill of one prompt of `prompt_tokens` on a busy server, on which short prompts share passes."""

    prompt_tokens: PositiveInt
    ms: PositiveFloat
    j: PositiveFloat
    provenance: str
    repeats: PositiveInt | None = None
    spread_frac: NonNegative | None = None


class PrefillPass(FileModel):
    """The least that a prefill pass takes: one over a single short prompt."""

    prompt_tokens: PositiveInt
    ms: PositiveFloat
    j: PositiveFloat
    provenance: str
    repeats: PositiveInt | None = None


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
    launch: Launch = Launch()
    context_slope: Slope | None = None
    prefill: tuple[PrefillPoint, ...] | None = None
    """Where this arm's was measured, its draft's part included; else the profile's."""
    prefill_pass: PrefillPass | None = None
    cells: tuple[StepCell, ...] = Field(min_length=1)
    acceptance: dict[str, Acceptance] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _within_verify_width(self) -> Arm:
        for text_type, value in self.acceptance.items():
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


class Profile(FileModel):
    """The file."""

    format: Literal["drafter-selector/profile"]
    version: Literal[1]
    target: Target
    gpu: Gpu
    idle: Idle
    prefill: tuple[PrefillPoint, ...] = Field(min_length=1)
    common_flags: tuple[str, ...] = ()
    """SGLang flags that every arm was launched with: costs compare only under equal flags."""
    arms: dict[str, Arm]
    provenance: dict[str, Provenance]

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        if NO_DRAFTER not in self.arms:
            raise ValueError(f"arms has no {NO_DRAFTER!r}, the baseline that break-even is relative to")
        for place, key in provenance_keys(self):
            if key not in self.provenance:
                raise ValueError(f"{place} names provenance {key!r}, which the table does not have")
        return self

    def arm(self, name: str) -> Arm:
        """The arm of that name. Raises `ProfileError` with the names there are."""
        if name not in self.arms:
            raise ProfileError(
                f"profile {self.gpu.name} {self.target.name}",
                f"has no arm {name!r}",
                f"choose one of {', '.join(sorted(self.arms))}",
            )
        return self.arms[name]

    def prefill_cost(self, name: str) -> PrefillCost:
        """The cost model of prefill on an arm."""
        arm = self.arm(name)
        floor = arm.prefill_pass
        return PrefillCost(
            [(p.prompt_tokens, p.ms, p.j) for p in arm.prefill or self.prefill],
            floor_ms=floor.ms if floor else 0.0,
            floor_j=floor.j if floor else 0.0,
        )

    def cost(self, name: str) -> ArmCost:
        """The cost model of an arm."""
        arm = self.arm(name)
        slope = arm.context_slope
        return ArmCost(
            arm=name,
            verify_tokens=arm.verify_tokens,
            step=StepCost(
                [
                    StepPoint(batch=c.batch, context_tokens=c.context_tokens, step_ms=c.step_ms, step_j=c.step_j)
                    for c in arm.cells
                ],
                ContextSlope(ms_per_token=slope.ms_per_token, j_per_token=slope.j_per_token) if slope else None,
            ),
            prefill=self.prefill_cost(name),
            idle=IdlePower(bare_w=self.idle.bare_w, served_w=self.idle.served_w),
        )


def acceptance_model(
    profiles: Iterable[tuple[str, Profile]],
    *,
    half_life_requests: float = HALF_LIFE_REQUESTS,
    refine_keys: int = REFINE_KEYS,
) -> AcceptanceModel:
    """The acceptance model of a fleet from (arm, profile) pairs; the first profile of an arm decides its prior."""
    priors: dict[str, dict[str, AcceptancePrior]] = {}
    widths: dict[str, int] = {}
    for name, profile in profiles:
        if name in widths:
            continue
        arm = profile.arm(name)
        widths[name] = arm.verify_tokens
        priors[name] = {
            text_type: AcceptancePrior(mean=value.mean, request_spread=value.request_spread, survival=value.survival)
            for text_type, value in arm.acceptance.items()
        }
    return AcceptanceModel(priors, widths, half_life_requests=half_life_requests, refine_keys=refine_keys)


def load_profile(name_or_path: str) -> Profile:
    """A shipped profile by name, or any by path. Raises `ProfileError`."""
    path = profile_path(name_or_path)
    return parse_profile(read_text(path, "profile", ProfileError), str(path))


def parse_profile(text: str, where: str) -> Profile:
    """A profile from JSON text; `where` names it in errors. Raises `ProfileError`."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as bad:
        raise ProfileError(where, f"is not JSON ({bad})", "restore the file or profile again") from None
    if not isinstance(data, dict):
        raise ProfileError(where, "is not a JSON object", "restore the file or profile again")
    if data.get("format") != FORMAT:
        raise ProfileError(f"{where}: format", f"is {data.get('format')!r}", f"a profile says {FORMAT!r}")
    if data.get("version") != 1:
        raise ProfileError(f"{where}: version", f"is {data.get('version')!r}", "this release reads version 1")
    profile = validated(Profile, data, where, ProfileError)
    try:
        profile.prefill_cost(NO_DRAFTER)
    except DomainError as bad:
        raise ProfileError(f"{where}: prefill", str(bad), "measure those points again") from None
    for name in profile.arms:
        try:
            profile.cost(name)
        except DomainError as bad:
            raise ProfileError(f"{where}: arms.{name}", str(bad), "measure those cells again") from None
    return profile


def write_profile(profile: Profile, path: Path) -> None:
    """Writes a profile so that a crash leaves the old file or the new one."""
    text = json.dumps(profile.model_dump(mode="json", exclude_none=True), indent=1, ensure_ascii=False)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def provenance_keys(profile: Profile) -> Iterable[tuple[str, str]]:
    """Every place of a profile that names its provenance, and the key it names."""
    yield "target", profile.target.provenance
    yield "gpu", profile.gpu.provenance
    yield "idle", profile.idle.provenance
    for index, point in enumerate(profile.prefill):
        yield f"prefill[{index}]", point.provenance
    for name, arm in profile.arms.items():
        if arm.context_slope:
            yield f"arms.{name}.context_slope", arm.context_slope.provenance
        for index, cell in enumerate(arm.cells):
            yield f"arms.{name}.cells[{index}]", cell.provenance
        for text_type, value in arm.acceptance.items():
            yield f"arms.{name}.acceptance.{text_type}", value.provenance
            if value.request_spread_provenance:
                yield f"arms.{name}.acceptance.{text_type}", value.request_spread_provenance
