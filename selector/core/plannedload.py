"""The load that a plan is made for, and whether it has moved since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from selector.core.poolload import Demand, DemandKey
from selector.core.prefillcost import PrefillCost


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """What is asked for, and what of the answers is expected to be accepted."""

    demands: Sequence[Demand]
    population: float | None
    """Requests in the system where clients wait for their answers; `None` where the rates are given."""
    accept_lengths: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By arm and text type, of the demands, as estimated."""
    rates: Mapping[DemandKey, float] = field(init=False)
    """Tokens per second of the demands."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", {demand.key: demand.tokens_per_s for demand in self.demands})

    def moved_from(self, other: PlannedLoad, shift_frac: float) -> bool:
        """Whether it differs from `other` by more than `shift_frac` of it, or an estimate by half as much."""
        known = other.accept_lengths
        for key, length in self.accept_lengths.items():
            if key in known and abs(length - known[key]) > 0.5 * shift_frac * known[key]:
                return True
        if (self.population is None) != (other.population is None):
            return True
        scale = 1.0
        if self.population is not None and other.population is not None:
            if abs(self.population - other.population) > shift_frac * other.population:
                return True
            # The plan itself decides the rates; what counts is their shares.
            scale = sum(self.rates.values()) / max(sum(other.rates.values()), 1e-9)
        now, before = self.rates, other.rates
        moved = sum([abs(rate - scale * before.get(key, 0.0)) for key, rate in now.items()])
        gone = sum([scale * rate for key, rate in before.items() if key not in now])
        return moved + gone > shift_frac * scale * sum(before.values())

    @property
    def output_tokens(self) -> float:
        """Mean answer; 1 without a demand."""
        requests_per_s = sum(demand.requests_per_s for demand in self.demands)
        return sum(self.rates.values()) / requests_per_s if requests_per_s else 1.0

    def prefill_frac(self, prefill: PrefillCost) -> float:
        """Share of its time that one GPU would need for the prefills of all demands."""
        return sum(each.requests_per_s * prefill.mean_stall(each.prompt_tokens)[0] / 1e3 for each in self.demands)
