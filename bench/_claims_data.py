"""What `paper_claims.py` compares: the shipped profiles, and what is found of a claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from selector.errors import DomainError
from selector.files.profile import NO_DRAFTER, Acceptance, Profile, load_profile
from selector.files.shipped import profile_names

RESULTS = Path(__file__).parent / "results"
LENDER = "Qwen3-8B"
"""The target that published accept lengths are of; other targets' arms borrow them, and every figure says so."""
LENDER_PROFILE = "h200__qwen3-8b"
MIXTURES = {
    "Qwen3-Coder-30B-A3B",
    "Qwen3-30B-A3B",
    "Qwen3.6-35B-A3B",
    "gemma-4-26B-A4B",
    "GLM-4.7-Flash",
    "JoyAI-LLM-Flash",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim on one target, or on all of them."""

    claim: str
    paper: str
    target: str
    ours: str
    agrees: bool | None
    """`None` where it cannot be said."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A shipped profile and its name; `variant` tells special launches apart (`no-graphs`), empty for the usual one."""

    name: str
    profile: Profile
    variant: str = ""
    lent: Mapping[str, Mapping[str, Acceptance]] = field(default_factory=dict)
    """Accept lengths of the lender's arms by arm and text type, for arms that have none of their own."""

    @property
    def target(self) -> str:
        return self.profile.target.name

    @property
    def is_mixture(self) -> bool:
        return self.target in MIXTURES

    def step(self, arm: str, batch: int, context: float) -> tuple[float, float] | None:
        """(ms, J) of a step, `None` outside the measured batches."""
        cost = self.profile.cost(arm).step
        if not cost.min_batch <= batch <= cost.max_batch:
            return None
        try:
            return cost.step(batch, context)
        except DomainError:
            return None

    def drafters(self) -> Iterable[str]:
        return (name for name in self.profile.arms if name != NO_DRAFTER)

    def accept(self, arm: str, text_type: str) -> float | None:
        """Tokens per step: the arm's own, or those of the same kind of drafter of the lender."""
        value = self.profile.arms[arm].acceptance.get(text_type) or self._borrowed(arm, text_type)
        return None if value is None else value.mean

    def origin(self, arm: str, text_type: str) -> str:
        """Kind of provenance of `accept`."""
        own = self.profile.arms[arm].acceptance.get(text_type)
        return f"{LENDER}'s" if own is None else self.profile.provenance[own.provenance].kind

    def is_lent(self, arm: str, text_type: str) -> bool:
        """Whether `accept` is that of the lender's arm."""
        return arm != NO_DRAFTER and text_type not in self.profile.arms[arm].acceptance

    def measured_on(self, arm: str) -> str | None:
        """The day on which the steps of an arm were first measured."""
        date = self.profile.provenance[self.profile.arms[arm].cells[0].provenance].date
        return date and date.partition("T")[0]

    def _borrowed(self, arm: str, text_type: str) -> Acceptance | None:
        like = arm if arm in self.lent else arm.replace("mtp-", "eagle3-")
        return self.lent.get(like, {}).get(text_type)


def shipped() -> list[Measured]:
    """The profiles that come with the project; of several of one target and variant, the one with most cells."""
    lent = {arm: value.acceptance for arm, value in load_profile(LENDER_PROFILE).arms.items()}
    best: dict[tuple[str, str], Measured] = {}
    for name in profile_names():
        profile = load_profile(name)
        variant = "no-graphs" if name.endswith("-no-graphs") else ""
        one = Measured(name, profile, variant, lent)
        key = (profile.target.name, variant)
        if key not in best or _cells(one) > _cells(best[key]):
            best[key] = one
    return list(best.values())


def _cells(one: Measured) -> int:
    return sum(len(arm.cells) for arm in one.profile.arms.values())
