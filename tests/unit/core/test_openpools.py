"""Pools to which requests come at random: what they turn away, and how often that is there where it goes."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import numpy as np
import pytest

from selector.core.openpools import Asked, Places, mean_open_run
from selector.core.poolload import Demand, Mix, OperatingPoint, PoolCurve, PoolLoad
from tests.fleets import acceptance_model, specs_of

pytestmark = pytest.mark.interpreted
QUANTILE = 0.9
CODE = Demand("code", None, 1.0, 500.0, 250.0)
ROMANSH = Demand("romansh", None, 1.0, 500.0, 250.0)


class Made(PoolLoad):
    """A backend of so many places whose rate is a given function of its batch."""

    def __init__(self, places: int, rate_at: Callable[[float], float]) -> None:
        self.largest_batch = places
        self._rate_at = rate_at

    def point(self, batch: float) -> OperatingPoint:
        return OperatingPoint(batch, self._rate_at(batch), 100.0 + batch)


def made_curve(places: int, rate_at: Callable[[float], float]) -> PoolCurve:
    load = Made(places, rate_at)
    return PoolCurve(load, load.point(places))


def curve_of(arm: str, mix: Mix) -> PoolCurve:
    load = PoolLoad(specs_of(arm)[0], mix, acceptance_model(), QUANTILE)
    return PoolCurve(load, load.full())


@pytest.mark.parametrize(("places", "offered"), [(6, 1.0), (6, 5.0), (12, 15.0)])
def test_requests_that_do_not_slow_each_other_are_turned_away_by_erlangs_formula(places: int, offered: float) -> None:
    pool = Places(made_curve(places, lambda batch: 10.0 * batch), 1, 10.0 * offered)
    weights = [offered**n / factorial(n) for n in range(places + 1)]
    assert pool.away_frac == pytest.approx(weights[-1] / sum(weights))
    assert pool.requests == pytest.approx(offered * (1.0 - pool.away_frac))
    assert pool.away == pytest.approx(10.0 * offered * pool.away_frac)


def test_backends_of_one_arm_are_filled_one_after_the_other() -> None:
    """Twice the places, and the second backend draws its power only while more than one can hold are there."""
    curve = made_curve(4, lambda batch: 10.0 * batch)
    pool = Places(curve, 2, 30.0)
    weights = np.array([3.0**n / factorial(n) for n in range(9)])
    chances = weights / weights.sum()
    power_at = [sum(100.0 + k for k in (min(n, 4), max(0, n - 4)) if k) for n in range(9)]
    assert pool.power_w == pytest.approx(float(chances @ np.array(power_at)))


def chain_busy_frac(places: int, offered: float, most: float) -> tuple[float, float]:
    """(share of the time with guests, mean guests) of a queue with one server and of those that it turns away.

    A Markov chain of n requests in a queue of `places` served at `most`, and m guests that each leave at rate 1; its
    stationary distribution, by solving the balance equations.
    """
    guests = 60
    states = (places + 1) * (guests + 1)

    def index(n: int, m: int) -> int:
        return n * (guests + 1) + m

    rates = np.zeros((states, states))
    for n in range(places + 1):
        for m in range(guests + 1):
            if n < places:
                rates[index(n, m), index(n + 1, m)] += offered
            elif m < guests:
                rates[index(n, m), index(n, m + 1)] += offered
            if n:
                rates[index(n, m), index(n - 1, m)] += most
            if m:
                rates[index(n, m), index(n, m - 1)] += m
    rates -= np.diag(rates.sum(axis=1))
    balance = np.vstack([rates.T, np.ones(states)])
    solution = np.linalg.lstsq(balance, np.concatenate([np.zeros(states), [1.0]]), rcond=None)[0]
    by_guests = solution.reshape(places + 1, guests + 1).sum(axis=0)
    return float(1.0 - by_guests[0]), float(by_guests @ np.arange(guests + 1))


@pytest.mark.parametrize(("offered", "most"), [(8.0, 10.0), (10.0, 10.0), (14.0, 10.0)])
def test_guests_come_in_bunches_as_in_the_chain_of_a_full_server(offered: float, most: float) -> None:
    """Of a server that works at the same rate however many are there, as full ones nearly do."""
    places = 12
    busy, mean = chain_busy_frac(places, offered, most)
    host = Places(made_curve(places, lambda batch: most * (1.0 + 1e-6 * batch)), 1, offered)
    assert host.away_frac * offered == pytest.approx(mean, rel=1e-3)
    assert host.busy_frac(1.0, 1.0) == pytest.approx(busy, rel=0.12)


def test_half_of_the_guests_are_there_more_than_half_as_often() -> None:
    host = Places(made_curve(12, lambda batch: 10.0 + 1e-6 * batch), 1, 9.0)
    whole, half, few = (host.busy_frac(part, 1.0) for part in (1.0, 0.5, 1e-6))
    assert 0.5 * whole < half < whole
    assert few == pytest.approx(1e-6 * host.away_frac * 9.0, rel=1e-3)


def at_fill(fill: float, arms: tuple[str, ...]) -> Asked:
    curve = curve_of(arms[0], [(CODE, 1.0)])
    return Asked(CODE, fill * curve.most_tokens_per_s, arms)


def test_a_pool_that_is_nearly_full_wakes_the_next_arm() -> None:
    backends = {"dspark-8": 1, "none": 1}
    extra_w = {}
    for fill in (0.3, 0.95):
        alone, beside = (
            mean_open_run([at_fill(fill, arms)], backends, curve_of) for arms in (("dspark-8",), ("dspark-8", "none"))
        )
        extra_w[fill] = beside.power_w - alone.power_w
        assert beside.tokens_per_s == pytest.approx(at_fill(fill, ("dspark-8",)).tokens_per_s, rel=1e-3)
    assert abs(extra_w[0.3]) < 1.0
    assert extra_w[0.95] > 20.0
    assert mean_open_run([at_fill(0.95, ("dspark-8", "none"))], backends, curve_of).woken == ("none",)


def test_what_is_planned_beyond_a_pool_keeps_the_next_arm_busy_all_the_time() -> None:
    """Far beyond its places chance is nothing: as much power as both arms take at what each of them holds."""
    asked = at_fill(1.6, ("dspark-8", "none"))
    run = mean_open_run([asked], {"dspark-8": 1, "none": 4}, curve_of)
    first, second = curve_of("dspark-8", [(CODE, 1.0)]), curve_of("none", [(CODE, 1.0)])
    beyond = asked.tokens_per_s - first.most_tokens_per_s
    whole, rest = divmod(beyond, second.most_tokens_per_s)
    planned_w = first.at(first.most_tokens_per_s)[1] + whole * second.lines[2][-1] + second.partial(rest)[1]
    assert run.power_w == pytest.approx(planned_w, rel=0.03)
    assert run.tokens_per_s == pytest.approx(asked.tokens_per_s)


def test_guests_of_an_arm_that_works_cost_what_they_add() -> None:
    """On an arm that serves another text anyway they wake nobody."""
    backends = {"dspark-8": 1, "none": 1}
    host = at_fill(0.95, ("dspark-8", "none"))
    other = Asked(ROMANSH, 0.3 * curve_of("none", [(ROMANSH, 1.0)]).most_tokens_per_s, ("none",))
    separate = mean_open_run([host], backends, curve_of).power_w + mean_open_run([other], backends, curve_of).power_w
    together = mean_open_run([host, other], backends, curve_of)
    assert together.power_w < separate - 5.0
    assert together.woken == ()


def test_without_a_next_arm_some_find_no_place() -> None:
    asked = at_fill(0.95, ("dspark-8",))
    run = mean_open_run([asked], {"dspark-8": 1}, curve_of)
    assert 0.9 * asked.tokens_per_s < run.tokens_per_s < asked.tokens_per_s
    assert mean_open_run([asked._replace(tokens_per_s=0.0)], {"dspark-8": 1}, curve_of) == (0.0, 0.0, 0.0, ())
