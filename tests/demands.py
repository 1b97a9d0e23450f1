"""Demands and planners over the made-up fleet, for tests of plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import strategies as st

from selector.core.planner import Planner
from selector.core.poolload import Demand
from tests.fleets import ARMS, acceptance_model, specs_of

QUANTILE = 0.9


def demand(text_type: str, requests_per_s: float, *, target_ms: float | None = None, output: float = 250.0) -> Demand:
    return Demand(
        text_type=text_type,
        tbt_target_ms=target_ms,
        requests_per_s=requests_per_s,
        prompt_tokens=500.0,
        output_tokens=output,
    )


def planner(*arms: str) -> Planner:
    return Planner(specs_of(*(arms or ARMS)), acceptance_model(), QUANTILE)


def exhaustive(solver: Planner, demands: Sequence[Demand], *, population: float | None = None) -> float:
    """The best score over all assignments of demands to `ARMS`."""
    keys = [each.key for each in demands]
    return min(
        solver.evaluate(demands, dict(zip(keys, choice, strict=True)), population=population).score
        for choice in product(ARMS, repeat=len(demands))
    )


def demand_rows(most_per_s: float, fewest: int) -> st.SearchStrategy[list[tuple[str, float, float | None]]]:
    """(text type, requests per second, target) of up to three demands."""
    row = st.tuples(
        st.sampled_from(["code", "romansh", "math"]), st.floats(0.1, most_per_s), st.sampled_from([None, 8.0, 25.0])
    )
    return st.lists(row, min_size=fewest, max_size=3, unique_by=lambda each: (each[0], each[2]))
