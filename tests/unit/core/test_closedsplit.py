"""How clients of one demand are split between arms: against every split, on the lines of the measured costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from selector.core.assignment import Held
from selector.core.closedsplit import Part, rate, split
from selector.core.poolload import PoolCurve, PoolLoad
from tests.demands import QUANTILE, demand
from tests.fleets import acceptance_model, specs_of

IDLE_W = 500.0


def pool(arm: str, backends: int, *, text_type: str = "code", target_ms: float | None = None) -> Held:
    asked = demand(text_type, 1.0, target_ms=target_ms)
    load = PoolLoad(specs_of(arm)[0], [(asked, 1.0)], acceptance_model(), QUANTILE)
    return Held(arm, PoolCurve(load, load.full()), 0.0, backends)


def joules_per_token(pools: list[Held], parts: list[Part]) -> float:
    rates = [rate(each, part) for each, part in zip(pools, parts, strict=True)]
    watts = [
        part.backends * each.curve.at(served / part.backends)[1]
        for each, part, served in zip(pools, parts, rates, strict=True)
    ]
    return (IDLE_W + sum(watts)) / sum(rates)


def every_split(pools: list[Held], population: int) -> list[list[Part]]:
    """Whole requests on any number of backends; of two pools."""
    one, other = pools
    return [
        [Part(here, some), Part(population - here, others)]
        for here, some, others in product(
            range(population + 1), range(1, one.backends + 1), range(1, other.backends + 1)
        )
        if here <= some * one.curve.full.batch and population - here <= others * other.curve.full.batch
    ]


@pytest.mark.parametrize("text_type", ["code", "romansh"])
@pytest.mark.parametrize("arms", [("dspark-8", "dflash-16"), ("dflash-16", "dspark-8"), ("eagle3-k1", "none")])
@pytest.mark.parametrize("backends", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("population", [1, 9, 40, 64, 100])
def test_no_split_costs_clearly_less(
    text_type: str, arms: tuple[str, str], backends: tuple[int, int], population: int
) -> None:
    pools = [pool(arm, count, text_type=text_type) for arm, count in zip(arms, backends, strict=True)]
    parts = split(pools, float(population), IDLE_W)
    assert sum(part.requests for part in parts) == pytest.approx(population)
    least = min(joules_per_token(pools, each) for each in every_split(pools, population))
    assert joules_per_token(pools, parts) <= 1.01 * least


def test_an_arm_gets_some_before_another_is_full() -> None:
    pools = [pool("dspark-8", 1), pool("dflash-16", 1)]
    parts = split(pools, pools[0].curve.full.batch, IDLE_W)
    assert min(part.requests for part in parts) > 5.0


def test_places_within_the_target_are_kept_to_and_too_few_of_them_are_all_full() -> None:
    pools = [pool("dspark-8", 2, target_ms=8.0), pool("dflash-16", 1, target_ms=8.0)]
    full = [each.curve.full.batch for each in pools]
    for population in (full[0], 2.0 * full[0] + 1.0, 2.0 * full[0] + 0.5 * full[1]):
        parts = split(pools, population, 0.1 * IDLE_W)
        assert all(part.requests <= part.backends * batch + 1e-6 for part, batch in zip(parts, full, strict=True))
    assert split(pools, 1_000.0, IDLE_W) == [Part(2.0 * full[0], 2), Part(full[1], 1)]


@pytest.mark.parametrize(("missed_frac", "used"), [(0.0, True), (0.5, False)])
def test_what_misses_its_target_has_its_price(missed_frac: float, used: bool) -> None:
    one, other = pool("dspark-8", 1), pool("dflash-16", 1)
    load = PoolLoad(specs_of("dflash-16")[0], [(demand("code", 1.0), 1.0)], acceptance_model(), QUANTILE)
    late = replace(other, curve=PoolCurve(load, replace(load.full(), missed_frac=missed_frac)))
    assert (split([one, late], one.curve.full.batch, IDLE_W)[1].requests > 0.0) is used
