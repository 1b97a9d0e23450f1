"""The oracle's own behaviour: what it asks, what it answers, and that its prices are allowed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from selector.core.policy import BackendSpec
from selector.errors import DomainError
from selector.files.trace import TraceRequest
from selector.simulator.engine import Simulation
from selector.simulator.oracle import Effort, OracleBound, oracle
from selector.simulator.oracle.end import End
from selector.simulator.oracle.kinds import Kind
from selector.simulator.oracle.sharing import Prices, cells_of
from selector.simulator.oracle.windows import windows_of
from selector.simulator.oracle.work import Work, work_of
from selector.simulator.run import SimulatedRequest
from tests.fleets import backend_spec, policy_context, specs_of
from tests.oraclecases import Assigned, accepts

BRIEF = Effort(scan_rounds=3, rounds=12, rates=(1.0,), cases=8)


def request(number: int, at_s: float, prompt: int, output: int, target_ms: float | None = None) -> SimulatedRequest:
    trace = TraceRequest(request_id=f"r{number}", arrival_s=at_s, prompt_tokens=prompt, output_tokens=output)
    return SimulatedRequest(trace=trace, text_type="code", slo_class="chat", tbt_target_ms=target_ms)


def stream(count: int, *, gap_s: float = 0.1, target_ms: float | None = None) -> list[SimulatedRequest]:
    return [request(number, number * gap_s, 300, 120, target_ms) for number in range(count)]


def bound(
    specs: Sequence[BackendSpec], requests: Sequence[SimulatedRequest], *, attainment: float | None = None
) -> OracleBound:
    return oracle(specs, accepts(specs), requests, attainment=attainment, effort=BRIEF)


def work(specs: Sequence[BackendSpec], requests: Sequence[SimulatedRequest]) -> Work:
    return work_of(specs, accepts(specs), requests, seed=0, session_prefixes=False)


def test_one_request_on_one_backend_is_known_to_a_thousandth() -> None:
    specs = specs_of("dspark-8")
    requests = [request(0, 0.0, 900, 200)]
    run = Simulation(policy_context(specs), Assigned(["b0"]), accepts(specs)).run(requests)
    energy_j = run.decode_j + run.prefill_j + run.idle_j
    found = bound(specs, requests)
    assert found.accepted_tokens == run.accepted_tokens == 200
    assert 0.999 * energy_j <= found.energy_j <= energy_j


def test_requests_that_no_backend_can_serve_are_left_out() -> None:
    specs = (backend_spec("b", "none", max_context_tokens=2_000),)
    served = [request(0, 0.0, 100, 50)]
    too_long = request(1, 0.1, 3_000, 50)
    assert bound(specs, [*served, too_long]).requests == 1
    assert bound(specs, [too_long]).j_per_accepted_token is None


def test_a_request_that_every_policy_refuses_is_a_miss() -> None:
    specs = (backend_spec("b", "none", max_context_tokens=2_000),)
    asks_too_much = request(1, 0.1, 100, 50, target_ms=50.0)
    asks_too_much = replace(asks_too_much, trace=replace(asks_too_much.trace, max_output_tokens=4_000))
    requests = [request(0, 0.0, 100, 50, target_ms=50.0), asks_too_much]
    assert bound(specs, requests, attainment=0.5).j_per_accepted_token == pytest.approx(
        bound(specs, requests).j_per_accepted_token
    )
    assert bound(specs, requests, attainment=0.6).j_per_accepted_token == float("inf")


def test_where_answers_are_cut_the_bound_counts_the_tokens_of_each_choice() -> None:
    specs = (backend_spec("long", "none"), backend_spec("short", "none", max_context_tokens=600))
    requests = [request(number, 5.0 * number, 500, 400) for number in range(4)]
    results = []
    for backend in ("long", "short"):
        run = Simulation(policy_context(specs), Assigned([backend] * 4), accepts(specs)).run(requests)
        results.append((run.decode_j + run.prefill_j + run.idle_j) / run.accepted_tokens)
    found = bound(specs, requests).j_per_accepted_token
    assert found is not None
    assert 0.9 * min(results) <= found <= min(results)


def test_meeting_more_targets_never_costs_less() -> None:
    specs = specs_of("none", "none", "none", "none")
    # A full batch is cheapest and too slow for the target.
    requests = [request(number, 0.0, 20, 120, target_ms=5.6) for number in range(40)]
    costs = [bound(specs, requests, attainment=share).energy_j for share in (0.0, 0.5, 1.0)]
    assert costs[0] < costs[1] < costs[2]


@pytest.mark.parametrize("attainment", [-0.1, 1.5])
def test_a_share_that_is_none_is_refused(attainment: float) -> None:
    with pytest.raises(DomainError, match="between 0 and 1"):
        bound(specs_of("none"), stream(2), attainment=attainment)


def test_a_prefix_cache_at_its_best_is_reckoned_with() -> None:
    specs = specs_of("none")
    requests = [request(number, 2.0 * number, 3_000, 20) for number in range(3)]
    alike = [
        replace(each, trace=replace(each.trace, prefix_hashes=tuple(range(6)), prefix_block_tokens=512))
        for each in requests
    ]
    run = Simulation(policy_context(specs), Assigned(["b0"] * 3), accepts(specs)).run(alike)
    assert any(record.cached_tokens for record in run.records)
    found, without = bound(specs, alike), bound(specs, requests)
    assert 0.97 * (run.decode_j + run.prefill_j + run.idle_j) <= found.energy_j
    assert found.energy_j <= run.decode_j + run.prefill_j + run.idle_j < without.energy_j


def test_the_fixed_part_of_a_step_is_never_charged_twice() -> None:
    specs = specs_of("none", "dspark-8")
    some = work(specs, stream(12, gap_s=0.05))
    cells = cells_of(some, windows_of(some))
    prices = Prices(some, cells)
    fixed_j = np.array([2.0, 3.0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        prices.pay_j(fixed_j)
        charged_j = np.bincount(cells.cell, weights=prices.kappa_j)
        assert np.all(prices.kappa_j >= 0.0)
        assert np.all(charged_j <= fixed_j[cells.cell_kind] * (1 + 1e-9))
        prices.raise_used(rng.random(len(some.request)), 1.0, 0.3)


def test_every_step_falls_into_its_window_once() -> None:
    specs = specs_of("none", "dspark-8")
    some = work(specs, stream(12, gap_s=0.05))
    cells = cells_of(some, windows_of(some))
    assert np.bincount(cells.pair, weights=cells.steps).tolist() == some.steps.tolist()
    last = np.append(np.flatnonzero(np.diff(cells.pair)), len(cells.pair) - 1)
    assert np.all(np.arange(len(cells.pair)) + cells.reach <= last[np.searchsorted(last, np.arange(len(cells.pair)))])


def test_the_weights_of_the_end_are_idle_power() -> None:
    specs = specs_of("none", "dspark-8")
    some = work(specs, stream(5))
    end = End(some)
    rng = np.random.default_rng(0)
    for _ in range(10):
        # Whoever goes where, at whatever fractions: cost and constant are idle power times an end not too late.
        share = np.zeros(len(some.request))
        share[some.starts + rng.integers(0, 2, 5)] = 1.0
        latest_s = 5.0 * (some.first_token_s.max() + some.decode_s.max())
        assert float((share * end.cost_j()).sum()) + end.constant_j() <= some.idle_w * latest_s
        assert float(end.time_w().sum()) <= some.idle_w * (1 + 1e-9)
        end.raise_late(share, 1.0)


def test_kinds_are_backends_that_differ_in_nothing() -> None:
    specs = specs_of("none", "dspark-8", "none")
    assert [kind.backends for kind in work(specs, stream(1)).kinds] == [("b0", "b2"), ("b1",)]
    apart = (specs[0], specs[1], replace(specs[2], max_running_requests=8))
    assert len(work(apart, stream(1)).kinds) == 3
    apart = (specs[0], specs[1], replace(specs[2], overlaps=False))
    assert len(work(apart, stream(1)).kinds) == 3


@pytest.mark.parametrize("arm", ["none", "dflash-16"])
def test_a_kind_encloses_what_steps_cost(arm: str) -> None:
    spec = backend_spec("b", arm)
    requests = [request(0, 0.0, 10, 20), request(1, 0.0, 4_000, 300)]
    kind: Kind = work([spec], requests).kinds[0]
    idle_w = spec.cost.idle.watts(1)
    for batch in (1, 2, 7, 33, 64):
        for context in (10.0, 300.0, 2_000.0, 4_300.0):
            ms, j = spec.cost.step.step(batch, context)
            tokens = batch * context
            assert kind.alpha_j[batch - 1] + kind.beta_j * tokens <= j - idle_w * ms / 1e3 + 1e-9
            assert kind.least_step_s[batch - 1] + kind.least_s_per_token * tokens <= ms / 1e3 + 1e-12
            assert kind.most_step_s[batch - 1] + kind.most_s_per_token * tokens >= ms / 1e3 - 1e-12
