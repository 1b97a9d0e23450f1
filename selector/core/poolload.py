"""What a planner reckons with: a demand, and a backend of one arm under a mix of demands as a function of its batch.

The formulas are those of `planner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selector.core.acceptance import AcceptanceModel
from selector.core.policy import BackendSpec
from selector.core.stalls import SHORT_ANSWER_FRAC, normal_deviate, stall_factor

DemandKey = tuple[str, float | None]
"""Text type and TBT target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests of one text type and target, at their present rate."""

    text_type: str
    tbt_target_ms: float | None
    requests_per_s: float
    prompt_tokens: float
    """Mean prompt to prefill."""
    output_tokens: float
    """Mean expected answer, at least 1."""
    burstiness: float = 0.0
    """c² above, of the prefill work of the whole fleet."""

    @property
    def key(self) -> DemandKey:
        """What requests of this demand have in common."""
        return self.text_type, self.tbt_target_ms

    @property
    def tokens_per_s(self) -> float:
        """Rate of accepted tokens asked for."""
        return self.requests_per_s * self.output_tokens


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A backend of a pool at one batch."""

    batch: float
    tokens_per_s: float
    power_w: float
    tbt_ms: float
    """Mean over the mix."""
    within_targets: bool


class PoolLoad:
    """One backend of an arm under a mix of demands, as a function of its batch."""

    def __init__(
        self, spec: BackendSpec, mix: Sequence[tuple[Demand, float]], acceptance: AcceptanceModel, quantile: float
    ) -> None:
        arm = spec.arm
        total = sum(rate for _, rate in mix) or 1.0
        shares = [(demand, rate / total if rate else 1.0 / len(mix)) for demand, rate in mix]
        inverse = context = prefill_s = 0.0
        self._limits: list[tuple[float, float, float]] = []
        self._deviate = normal_deviate(quantile)
        for demand, share in shares:
            inverse += share / acceptance.accept_length(arm, demand.text_type)
            ms, _ = spec.cost.prefill.cost(demand.prompt_tokens)
            prefill_s += share * ms / 1e3 / demand.output_tokens
            if demand.tbt_target_ms is not None:
                slow = acceptance.slow_accept_length(arm, demand.text_type, None, demand.output_tokens, quantile)
                work_per_ms = SHORT_ANSWER_FRAC * demand.output_tokens / slow / 1e3
                self._limits.append((demand.tbt_target_ms * slow, work_per_ms, demand.burstiness))
        self._accept = 1.0 / inverse
        for demand, share in shares:
            in_system = share / acceptance.accept_length(arm, demand.text_type) * self._accept
            context += in_system * (demand.prompt_tokens + demand.output_tokens / 2)
        self._spec = spec
        self._context = context
        self._prefill_s_per_token = prefill_s
        self._idle_w = spec.cost.idle.watts(1)
        self.largest_batch = max(1, min(spec.max_running_requests, int(spec.max_kv_tokens / max(1.0, context))))

    def _rates(self, batch: int) -> tuple[float, float, float, float]:
        """(step_ms, step_j, tokens/s, prefill share)."""
        step_ms, step_j = self._spec.cost.step.step(batch, self._context)
        decoding = batch * self._accept / (step_ms / 1e3)
        tokens_per_s = decoding / (1.0 + decoding * self._prefill_s_per_token)
        return step_ms, step_j, tokens_per_s, tokens_per_s * self._prefill_s_per_token

    def within_targets(self, batch: int, used_frac: float = 1.0) -> bool:
        """Whether every target is met at its quantile, by a backend that works for `used_frac` of its time."""
        step_ms, _, _, prefill_frac = self._rates(batch)
        prefill_frac *= used_frac
        pace_ms = step_ms / (1.0 - prefill_frac)
        return all(
            pace_ms * stall_factor(self._deviate, burstiness, prefill_frac, work_per_ms * step_ms) <= limit_ms
            for limit_ms, work_per_ms, burstiness in self._limits
        )

    def fractional_point(self) -> OperatingPoint:
        """Where even batch 1 without pause misses a target: the largest share of it that meets all, or all of it.

        A backend that rests part of the time prefills less, so fewer requests stall the one that runs.
        """
        low, high = 0.0, 1.0
        for _ in range(12):
            middle = 0.5 * (low + high)
            if self.within_targets(1, middle):
                low = middle
            else:
                high = middle
        full = self.point(1)
        if low < 0.01:
            return OperatingPoint(1.0, full.tokens_per_s, full.power_w, full.tbt_ms, False)
        return OperatingPoint(low, full.tokens_per_s * low, full.power_w * low, full.tbt_ms, True)

    def point(self, batch: int) -> OperatingPoint:
        """Rate and power above idle at a batch."""
        step_ms, step_j, tokens_per_s, prefill_frac = self._rates(batch)
        active_w = (step_j - self._idle_w * step_ms / 1e3) / (step_ms / 1e3)
        tbt_ms = step_ms / (self._accept * (1.0 - prefill_frac))
        return OperatingPoint(batch, tokens_per_s, (1.0 - prefill_frac) * active_w, tbt_ms, True)
