"""How much a backend can do."""

from __future__ import annotations

from selector.core.acceptance import AcceptanceModel
from selector.core.policy import BackendSpec
from selector.core.poolload import Demand, PoolLoad


def most_tokens_per_s(
    spec: BackendSpec,
    text_type: str,
    prompt_tokens: float,
    output_tokens: float,
    acceptance: AcceptanceModel,
    *,
    tbt_target_ms: float | None = None,
    quantile: float = 0.9,
) -> float:
    """Accepted tokens per second of a backend that is always full, its prompts prefilled in between.

    Full means its batch limit, its KV cache or, with a target, the largest batch that meets it at `quantile`; 0 where
    none does.
    """
    demand = Demand(
        text_type=text_type,
        tbt_target_ms=tbt_target_ms,
        requests_per_s=1.0,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    full = PoolLoad(spec, [(demand, 1.0)], acceptance, quantile).full()
    return full.tokens_per_s if full.within_targets else 0.0
