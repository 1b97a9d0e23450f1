"""Where the numbers of a profile come from: an entry of its table `provenance`, and every place that names one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from selector.files.arm import Arm, SettingValue
from selector.files.validation import FileModel

if TYPE_CHECKING:
    from selector.files.profile import Profile


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


def provenance_keys(profile: Profile) -> Iterable[tuple[str, str]]:
    """Every place of a profile that names its provenance, and the key it names."""
    yield "target", profile.target.provenance
    yield "gpu", profile.gpu.provenance
    yield "idle", profile.idle.provenance
    for index, point in enumerate(profile.prefill):
        yield f"prefill[{index}]", point.provenance
    for name, arm in profile.arms.items():
        for index, point in enumerate(arm.prefill or ()):
            yield f"arms.{name}.prefill[{index}]", point.provenance
        if arm.prefill_pass:
            yield f"arms.{name}.prefill_pass", arm.prefill_pass.provenance
            if arm.prefill_pass.resume_provenance:
                yield f"arms.{name}.prefill_pass.resume_ms", arm.prefill_pass.resume_provenance
        if arm.context_slope:
            yield f"arms.{name}.context_slope", arm.context_slope.provenance
        yield from _of_costs(f"arms.{name}", arm)
        for index, other in enumerate(arm.other_settings):
            yield from _of_costs(f"arms.{name}.live_setting.others[{index}]", other)


def _of_costs(place: str, part: Arm | SettingValue) -> Iterable[tuple[str, str]]:
    for index, cell in enumerate(part.cells):
        yield f"{place}.cells[{index}]", cell.provenance
    for text_type, value in part.acceptance.items():
        yield f"{place}.acceptance.{text_type}", value.provenance
        if value.request_spread_provenance:
            yield f"{place}.acceptance.{text_type}", value.request_spread_provenance
