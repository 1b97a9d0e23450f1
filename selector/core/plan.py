"""A plan: which arms serve which demands, how full their backends are, and at which live settings they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from selector.core.poolload import DemandKey

VIOLATION_J_PER_TOKEN = 1e1
"""Price of a token served outside its target: above any real cost, below not serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the per-request choice follows."""

    arms_of: Mapping[DemandKey, tuple[str, ...]]
    """Arms by preference: the planned one first, then where its overflow goes."""
    batch_of: Mapping[str, int]
    """Requests up to which a backend of the arm is filled before the next one: its planned mean and a deviation, or
    the mean alone where clients are `split`."""
    backends_of: Mapping[str, int] = field(default_factory=dict)
    """Backends of the arm that share its requests evenly; an arm that is not named fills one after the other."""
    power_w: float
    """Power above idle of the whole plan, penalties included."""
    score: float
    """What plans are compared by."""
    split: bool = False
    """Whether clients of one demand are split between several arms, each with its planned part of them."""
    tokens_per_s_of: Mapping[str, float] = field(default_factory=dict)
    """Planned rate by arm."""
    settings_of: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Live settings of the backends of each planned arm that has some."""
    within_targets: bool = True
    """Whether every demand has places within its target, and all clients do where they wait for answers."""
    hopeless: bool = False
    """Whether clients wait for answers to a demand that no batch of its arms serves within its target."""
    apart: frozenset[str] = frozenset()
    """Arms that have places within the targets of all that is planned for them, and serve nothing else: they are
    followed even if others are hopeless."""
    instead_of: Plan | None = None
    """The assignment in force planned for the same load, where this one costs less."""

    @property
    def closed(self) -> bool:
        """Whether it is for clients that wait for their answers: their requests are shared between backends."""
        return bool(self.backends_of)

    def state(self, rates: Mapping[DemandKey, float]) -> dict[str, object]:
        """As JSON; `rates` are the tokens per second that each demand was planned with."""
        return {
            "plan": [
                {
                    "text_type": text_type,
                    "tbt_target_ms": target_ms,
                    "tokens_per_s": rates.get((text_type, target_ms)),
                    "arms": list(arms),
                }
                for (text_type, target_ms), arms in self.arms_of.items()
            ],
            "arms": [
                {
                    "arm": arm,
                    "batch": batch,
                    "tokens_per_s": self.tokens_per_s_of.get(arm),
                    "settings": dict(self.settings_of.get(arm, {})),
                }
                for arm, batch in self.batch_of.items()
            ],
            "power_w": self.power_w,
            "within_targets": self.within_targets,
        }
