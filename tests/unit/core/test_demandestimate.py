"""Demands from arrivals, and whether clients wait for their answers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import pytest

from selector.core.demandestimate import DemandEstimate
from selector.core.stalls import PrefillWork
from selector.core.types import Outcome
from tests.fleets import ENDED, request_view

NO_WORK = PrefillWork()


def outcome(sent_s: float, ended_s: float) -> Outcome:
    return replace(ENDED, dispatched_s=sent_s, finished_s=ended_s)


def open_arrivals(rate_per_s: float, seconds: float, answer_s: float) -> DemandEstimate:
    """Independent clients; answers take an exponential time."""
    estimate, random, now_s = DemandEstimate(window_s=15.0), Random(1), 0.0
    ends: list[tuple[float, float]] = []
    while (now_s := now_s + random.expovariate(rate_per_s)) < seconds:
        while ends and ends[0][0] <= now_s:
            end_s, sent_s = heappop(ends)
            estimate.ended(outcome(sent_s, end_s))
        estimate.arrived(request_view(), now_s)
        heappush(ends, (now_s + random.expovariate(1.0 / answer_s), now_s))
    return estimate


def closed_arrivals(
    clients: int,
    seconds: float,
    answer_s: float,
    *,
    think_s: float = 0.0,
    growing: bool = False,
    sharing_gpus: bool = False,
) -> DemandEstimate:
    """Clients that ask again `think_s` after each answer; all at once, or one more every tenth of a second."""
    estimate, random = DemandEstimate(window_s=15.0, sharing_gpus=sharing_gpus), Random(2)
    arrivals = [(0.1 * number if growing else 0.0) for number in range(clients)]
    events = [(at_s, 1, at_s) for at_s in arrivals]
    events.sort()
    while events and events[0][0] < seconds:
        now_s, arrives, sent_s = heappop(events)
        if arrives:
            estimate.arrived(request_view(), now_s)
            heappush(events, (now_s + random.expovariate(1.0 / answer_s), 0, now_s))
        else:
            estimate.ended(outcome(sent_s, now_s))
            heappush(events, (now_s + think_s, 1, now_s + think_s))
    return estimate


@pytest.mark.parametrize(("rate_per_s", "answer_s"), [(1.0, 2.0), (10.0, 1.5), (40.0, 3.0), (20.0, 0.2)])
def test_independent_clients_are_open(rate_per_s: float, answer_s: float) -> None:
    assert not open_arrivals(rate_per_s, 300.0, answer_s).closed


@pytest.mark.parametrize(("clients", "answer_s"), [(1, 1.0), (8, 2.0), (64, 3.0), (200, 4.0)])
@pytest.mark.parametrize("growing", [False, True])
def test_clients_that_wait_are_closed(clients: int, answer_s: float, growing: bool) -> None:
    """Whether they all start at once or one after the other."""
    assert closed_arrivals(clients, 60.0, answer_s, growing=growing).closed


def test_where_servers_share_a_gpu_more_evidence_is_asked_for() -> None:
    def closed_after_s(*, sharing_gpus: bool) -> int:
        return next(s for s in range(1, 60) if closed_arrivals(16, float(s), 1.0, sharing_gpus=sharing_gpus).closed)

    assert closed_after_s(sharing_gpus=False) < closed_after_s(sharing_gpus=True) < 30


def test_a_network_between_answer_and_next_request_does_not_hide_it() -> None:
    assert closed_arrivals(32, 60.0, 2.0, think_s=0.03).closed


def test_clients_that_think_for_long_are_open() -> None:
    assert not closed_arrivals(64, 120.0, 1.0, think_s=10.0).closed


def test_it_is_open_until_something_has_ended() -> None:
    estimate = DemandEstimate(window_s=15.0)
    for number in range(1_000):
        estimate.arrived(request_view(), 0.05 * number)
    assert not estimate.closed


def test_rates_and_lengths_are_those_of_the_window() -> None:
    estimate = DemandEstimate(window_s=10.0)
    for number in range(600):
        view = request_view(text_type="code" if number % 3 else "romansh", prompt_tokens=300 + number % 3)
        key = estimate.arrived(view, 0.1 * number)
        assert key == (view.text_type, None)
    demands = {demand.text_type: demand for demand in estimate.demands(60.0, NO_WORK)}
    assert demands["code"].requests_per_s == pytest.approx(10 * 2 / 3, rel=0.1)
    assert demands["romansh"].requests_per_s == pytest.approx(10 / 3, rel=0.1)
    assert demands["romansh"].prompt_tokens == pytest.approx(300.0)
    assert estimate.demands(1_000.0, NO_WORK) == []


def test_a_rise_can_be_looked_ahead_of_and_nothing_else() -> None:
    """By 12 s there have been s² arrivals: 24 a second, and 2 more each second."""
    rising, falling = DemandEstimate(window_s=15.0), DemandEstimate(window_s=15.0)
    for number in range(145):
        rising.arrived(request_view(), math.sqrt(number))
        falling.arrived(request_view(), 12.0 - math.sqrt(144 - number))

    def rate(estimate: DemandEstimate, ahead_s: float) -> float:
        (demand,) = estimate.demands(12.0, NO_WORK, ahead_s=ahead_s)
        return demand.requests_per_s

    now, later = rate(rising, 0.0), rate(rising, 4.0)
    assert 3.0 < later - now < 8.0, "less what chance explains"
    assert rate(falling, 4.0) == rate(falling, 0.0)


def test_a_rate_that_jumps_is_followed_within_a_part_of_the_window() -> None:
    estimate = DemandEstimate(window_s=15.0)
    now_s = 0.0
    for number in range(200):  # 5 a second, then 20
        now_s += 0.2 if number < 100 else 0.05
        estimate.arrived(request_view(), now_s)
        estimate.demands(now_s, NO_WORK)
    assert now_s == pytest.approx(25.0)
    (demand,) = estimate.demands(now_s, NO_WORK)
    assert demand.requests_per_s == pytest.approx(20.0, rel=0.25), "the window alone says 9"
    assert demand.prompt_tokens == pytest.approx(request_view().prompt_tokens)


def test_a_steady_rate_is_that_of_the_whole_window() -> None:
    estimate, random, now_s = DemandEstimate(window_s=15.0), Random(3), 0.0
    rates = []
    for _ in range(4_000):
        now_s += random.expovariate(10.0)
        estimate.arrived(request_view(), now_s)
        rates.append(estimate.demands(now_s, NO_WORK)[0].requests_per_s)
    settled = rates[1_000:]
    mean = sum(settled) / len(settled)
    deviation = (sum((rate - mean) ** 2 for rate in settled) / len(settled)) ** 0.5
    # The window alone deviates by the square root of rate / 2 window: 0.58; its last part alone by 1.3.
    assert deviation < 0.85


def test_a_rate_that_rises_is_followed_without_lag() -> None:
    """Ten times as many in a minute and a half. The window alone is 7.5 a second behind, its last part 1.5."""
    behind = []
    for seed in range(30):
        estimate, random, now_s = DemandEstimate(window_s=15.0), Random(seed), 0.0
        looked_s = 0.0
        while (now_s := now_s + random.expovariate(50.0)) < 90.0:
            if random.random() * 50.0 < 5.0 + 0.5 * now_s:
                estimate.arrived(request_view(), now_s)
            if now_s >= looked_s:
                looked_s += 1.0
                rates = [demand.requests_per_s for demand in estimate.demands(now_s, NO_WORK)]
        behind.append(50.0 - rates[0])  # of the last second
    assert abs(sum(behind) / len(behind)) < 2.5


def test_a_steep_fall_is_no_jump() -> None:
    """The last part of the window is three seconds behind, 18 a second too high: that much is expected of it."""
    estimate, now_s, looked_s = DemandEstimate(window_s=15.0), 0.0, 0.0
    while now_s < 62.0:
        now_s += 1.0 / (400.0 - 6.0 * now_s)
        estimate.arrived(request_view(), now_s)
        if now_s >= looked_s:
            looked_s += 1.0
            (demand,) = estimate.demands(now_s, NO_WORK)
            if now_s > 40.0:
                assert demand.requests_per_s == pytest.approx(400.0 - 6.0 * now_s, abs=7.0)


def test_a_jump_leaves_no_slope_behind() -> None:
    """From 20 a second to 5: what came before is forgotten, and a line through both would go far below 5."""
    rates = []
    for seed in range(30):
        estimate, random, now_s, looked_s = DemandEstimate(window_s=15.0), Random(seed), 0.0, 0.0
        while now_s < 58.0:
            now_s += random.expovariate(20.0 if now_s < 30.0 else 5.0)
            estimate.arrived(request_view(), now_s)
            if now_s >= looked_s:
                looked_s += 1.0
                (demand,) = estimate.demands(now_s, NO_WORK)
                if now_s > 45.0:
                    rates.append(demand.requests_per_s)
    assert sum(rates) / len(rates) == pytest.approx(5.0, rel=0.1)


def test_a_demand_whose_rate_has_fallen_to_nothing_is_there_until_it_is_forgotten() -> None:
    estimate = DemandEstimate(window_s=15.0)
    for number in range(1_000):
        estimate.arrived(request_view(), 0.001 * number)
    (demand,) = estimate.demands(5.0, NO_WORK)
    assert demand.requests_per_s == 1e-3
    assert demand.tokens_per_s > 0.0


def bunches(random: Random, now_s: float, until_s: float, *, bunches_per_s: float, of: int) -> Iterator[float]:
    """Arrival times of bunches of so many within a second, which come at random."""
    while (now_s := now_s + 1.0 + random.expovariate(bunches_per_s)) < until_s:
        yield from sorted(now_s + random.random() for _ in range(of))


def test_bursts_that_are_a_habit_are_no_jumps() -> None:
    """With the deviation of independent arrivals the rate deviates by 2.3 instead of 1.2 around 8.4."""
    estimate, rates = DemandEstimate(window_s=15.0), []
    for now_s in bunches(Random(4), 0.0, 1_000.0, bunches_per_s=0.7, of=20):
        estimate.arrived(request_view(), now_s)
        if now_s > 100.0:
            rates.append(estimate.demands(now_s, NO_WORK)[0].requests_per_s)
    mean = sum(rates) / len(rates)
    assert mean == pytest.approx(20.0 / (1.0 + 1.0 / 0.7), rel=0.15)
    assert (sum((rate - mean) ** 2 for rate in rates) / len(rates)) ** 0.5 < 1.8


def test_a_jump_is_followed_in_bursts_too() -> None:
    estimate, random = DemandEstimate(window_s=15.0), Random(5)
    before = list(bunches(random, 0.0, 100.0, bunches_per_s=0.7, of=10))
    for now_s in [*before, *bunches(random, before[-1], before[-1] + 9.0, bunches_per_s=5.0, of=50)]:
        estimate.arrived(request_view(), now_s)
        (demand,) = estimate.demands(now_s, NO_WORK)
    assert demand.requests_per_s > 30.0, "of 42 after 4 a second; the window alone says 20"


def test_beyond_a_number_of_demands_the_nearest_takes_a_new_one() -> None:
    estimate = DemandEstimate(window_s=10.0)
    keys = deque(estimate.arrived(request_view(tbt_target_ms=10.0 + number), 0.0) for number in range(40))
    assert keys[31] == ("code", 41.0)
    assert keys[39] == ("code", 41.0), "the nearest target of its type"
    assert estimate.arrived(request_view(text_type="news", tbt_target_ms=10.2), 0.0) == ("code", 10.0)
