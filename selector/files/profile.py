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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from selector.core.cost import ArmCost, IdlePower, StepCost
from selector.core.graphpadding import padded_steps
from selector.core.livesettings import ArmSetting
from selector.core.prefillcost import PrefillCost
from selector.errors import DomainError, ProfileError
from selector.files.arm import (
    RAGGED_VERIFY,
    Acceptance,
    Arm,
    Launch,
    LiveSetting,
    LonePass,
    PrefillPass,
    PrefillPoint,
    SettingValue,
    Slope,
    StepCell,
    step_cost,
)
from selector.files.armdepths import depths_problem, with_those_of_the_deepest
from selector.files.launchflags import graph_batches, overlaps, prefill_graphs
from selector.files.provenance import Provenance, provenance_keys
from selector.files.shipped import profile_path
from selector.files.validation import FileModel, read_text, validated

__all__ = [
    "FORMAT",
    "NO_DRAFTER",
    "Acceptance",
    "Arm",
    "Gpu",
    "Idle",
    "Launch",
    "LiveSetting",
    "LonePass",
    "PrefillPass",
    "PrefillPoint",
    "Profile",
    "Provenance",
    "SettingValue",
    "Slope",
    "StepCell",
    "Target",
    "load_profile",
    "parse_profile",
    "write_profile",
]

FORMAT = "drafter-selector/profile"
NO_DRAFTER = "none"
"""The arm without speculation; every profile has it, since break-even is relative to it."""

NonNegative = Annotated[float, Field(ge=0)]


class Target(FileModel):
    """The served model."""

    name: str
    model: str | None = None
    """Where its weights are found by default (a Hugging Face id), as `Launch.draft_model` is for a drafter."""
    parameters: PositiveFloat
    non_embedding_parameters: PositiveFloat
    kv_bytes_per_token: PositiveFloat
    active_parameters: PositiveFloat | None = None
    """Of the non-embedding ones, what one token uses; `None` where the file does not say (a dense target: all)."""
    sliding_kv_bytes_per_token: NonNegative | None = None
    """Of `kv_bytes_per_token`, what layers with a sliding window cache, and the window: they keep no more than it."""
    sliding_window: PositiveInt | None = None
    provenance: str


class Gpu(FileModel):
    """The board that was profiled."""

    name: str
    count: PositiveInt = 1
    """GPUs that one server uses (tensor parallel); all energy is their sum."""
    power_limit_w: PositiveFloat
    peak_tflops: PositiveFloat | None = None
    """Dense 16-bit rate of all GPUs by the datasheet, as the bandwidth below: ceilings that nothing measured passes."""
    bandwidth_tb_s: PositiveFloat | None = None
    provenance: str


class Idle(FileModel):
    """Power of one GPU without work."""

    bare_w: PositiveFloat
    served_w: PositiveFloat
    """With at least one server resident."""
    provenance: str


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

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, data: Any) -> Any:
        """What an arm with depths leaves out is that of its deepest."""
        if not isinstance(data, dict) or not isinstance(data.get("arms"), dict):
            return data
        return {**data, "arms": with_those_of_the_deepest(data["arms"])}

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        if NO_DRAFTER not in self.arms:
            raise ValueError(f"arms has no {NO_DRAFTER!r}, the baseline that break-even is relative to")
        for place, key in provenance_keys(self):
            if key not in self.provenance:
                raise ValueError(f"{place} names provenance {key!r}, which the table does not have")
        for name in self.arms:
            if problem := depths_problem(name, self.arms):
                raise ValueError(f"arms.{name}.depths {problem}")
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

    @property
    def served_idle_w(self) -> float:
        """Power of all GPUs of a server while it has no request."""
        return self.gpu.count * self.idle.served_w

    def with_flags(self, flags: Sequence[str]) -> Profile:
        """The same of servers that all have `flags` beside its own; of one given twice the first holds: theirs."""
        return self.model_copy(update={"common_flags": (*flags, *self.common_flags)})

    def launched_with(self, name: str, flags: Sequence[str] = ()) -> tuple[str, ...]:
        """The flags of a server of an arm, `flags` of its own among them; of one given twice the first holds."""
        return (*flags, *self.arm(name).launch.flags, *self.common_flags)

    def step_graphs(self, name: str, flags: Sequence[str] = ()) -> tuple[int, ...]:
        """Batches that steps of such a server are padded to, rising; empty where its flags name none.

        Where only a part of the drafts is verified, graphs are of so many tokens, not requests, and none are told here.
        """
        by_tokens = self.arm(name).launch.env.get(RAGGED_VERIFY, "").lower() == "compact"
        return () if by_tokens else graph_batches(self.launched_with(name, flags))

    def overlaps(self, name: str, flags: Sequence[str] = ()) -> bool:
        """Whether such a server plans a batch while the one before runs."""
        return overlaps(self.launched_with(name, flags))

    def prefill_cost(self, name: str, flags: Sequence[str] = ()) -> PrefillCost:
        """The cost model of prefill on an arm, served with `flags` beyond the profile's."""
        arm = self.arm(name)
        points = [(p.prompt_tokens, p.ms, p.j) for p in arm.prefill or self.prefill]
        floor = arm.prefill_pass
        beside_ms, beside_j = self._beside(points, floor.longer) if floor and floor.longer else (0.0, 0.0)
        return PrefillCost(
            points,
            beside_ms=beside_ms,
            beside_j=beside_j,
            floor_ms=floor.ms if floor else 0.0,
            floor_j=floor.j if floor else 0.0,
            resume_ms=floor.resume_ms if floor else 0.0,
            graphs=prefill_graphs(self.launched_with(name, flags)),
        )

    def _beside(self, points: Sequence[tuple[float, float, float]], alone: Sequence[LonePass]) -> tuple[float, float]:
        """(ms, J) by which prompts alone in a pass exceed their work, in the mean; a board idles at least."""
        work = PrefillCost(points).work
        ms = max(0.0, fmean(one.ms - work(one.prompt_tokens)[0] for one in alone))
        j = fmean(one.j - work(one.prompt_tokens)[1] for one in alone)
        return ms, max(j, self.served_idle_w * ms / 1e3)

    def cost(self, name: str, flags: Sequence[str] = ()) -> ArmCost:
        """The cost model of an arm, as launched, with `flags` beyond the profile's.

        Cells are what a batch costs in a graph of its own; where the flags name graphs, others are padded to them.
        """
        arm, graphs = self.arm(name), self.step_graphs(name, flags)
        return ArmCost(
            arm=name,
            verify_tokens=arm.verify_tokens,
            step=padded_steps(step_cost(arm.cells, arm.context_slope), graphs),
            prefill=self.prefill_cost(name, flags),
            idle=IdlePower(bare_w=self.idle.bare_w, served_w=self.idle.served_w),
            graphs=graphs,
        )

    def settings(self, name: str, flags: Sequence[str] = ()) -> tuple[ArmSetting, ...]:
        """What the live settings of an arm can be, as launched first; empty for an arm without."""
        arm, graphs = self.arm(name), self.step_graphs(name, flags)
        if arm.live_setting is None:
            return ()
        knob, launched = arm.live_setting.name, arm.live_setting.launched

        def step(cells: Iterable[StepCell]) -> StepCost:
            return padded_steps(step_cost(cells, arm.context_slope), graphs)

        return (
            ArmSetting(values={knob: launched}, step=step(arm.cells), launched=True),
            *(ArmSetting(values={knob: other.value}, step=step(other.cells)) for other in arm.live_setting.others),
        )

    def acceptances(self, name: str, *, named: str | None = None) -> Iterable[tuple[str, Mapping[str, Acceptance]]]:
        """Accept lengths of an arm at each of its live settings, with the name it has there (see `ArmSetting.named`).

        With `named`, names are made of that instead of the arm's.
        """
        arm = self.arm(name)
        yield named or name, arm.acceptance
        for setting, other in zip(self.settings(name)[1:], arm.other_settings, strict=True):
            yield setting.named(named or name), other.acceptance


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
    for name, arm in profile.arms.items():
        try:
            profile.cost(name)
            profile.settings(name)
        except DomainError as bad:
            raise ProfileError(f"{where}: arms.{name}", str(bad), "measure those cells again") from None
        for index, other in enumerate(arm.other_settings):
            if missing := sorted(arm.acceptance.keys() - other.acceptance.keys()):
                place = f"{where}: arms.{name}.live_setting.others[{index}].acceptance"
                problem = f"lacks {', '.join(missing)}, which the arm has"
                raise ProfileError(place, problem, "an accept length belongs to a setting; derive it, and say so")
    return profile


def write_profile(profile: Profile, path: Path) -> None:
    """Writes a profile so that a crash leaves the old file or the new one."""
    text = json.dumps(profile.model_dump(mode="json", exclude_none=True), indent=1, ensure_ascii=False)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
