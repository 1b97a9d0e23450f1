"""The bound of a steady load: exact where it can be reckoned, and below what policies reach in a closed loop."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from selector.errors import DomainError
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.simulator.arrivals import ClosedLoop
from selector.simulator.engine import Simulation, Window
from selector.simulator.oracle import steady_j_per_accepted_token
from selector.simulator.run import SimulatedRequest
from tests.fleets import policy_context, specs_of
from tests.oraclecases import TEXT, accepts

PROMPT, OUTPUT = 400, 160


def alike(count: int, *texts: str) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            trace=TraceRequest(request_id=f"r{number}", arrival_s=0.0, prompt_tokens=PROMPT, output_tokens=OUTPUT),
            text_type=texts[number % len(texts)],
            slo_class="chat",
            tbt_target_ms=None,
        )
        for number in range(count)
    ]


def bound(*arms: str, in_system: int, texts: tuple[str, ...] = ("code",), target_ms: float | None = None) -> float:
    specs = specs_of(*arms)
    return steady_j_per_accepted_token(
        specs, accepts(specs), alike(20, *texts), in_system=in_system, tbt_target_ms=target_ms
    )


def test_one_backend_is_reckoned_by_hand() -> None:
    spec = specs_of("none")[0]
    step_ms, step_j = spec.cost.step.step(8, PROMPT + OUTPUT / 2)
    prefill_ms, prefill_j = spec.cost.prefill.cost(PROMPT)
    by_hand = ((OUTPUT - 1) * step_j / 8 + prefill_j) / OUTPUT
    assert bound("none", in_system=8) == pytest.approx(by_hand, rel=0.003)
    # With a second GPU that idles meanwhile.
    answer_s = ((OUTPUT - 1) * step_ms / 8 + prefill_ms) / 1e3
    with_idle = by_hand + spec.cost.idle.watts(1) * answer_s / OUTPUT
    assert bound("none", "none", in_system=8) == pytest.approx(with_idle, rel=0.003)


def test_more_requests_and_more_choice_never_cost_more() -> None:
    by_load = [bound("none", "dspark-8", in_system=count) for count in (1, 4, 16, 64)]
    assert by_load == sorted(by_load, reverse=True)
    # The third GPU idles at least, and takes nothing away.
    assert bound("none", "dspark-8", in_system=100) < bound("none", in_system=100)


@pytest.mark.parametrize("policy", ["pack:dspark-8", "least_loaded", "greedy_energy"])
@pytest.mark.parametrize("in_system", [1, 6, 24])
def test_no_policy_beats_it_in_a_closed_loop(policy: str, in_system: int) -> None:
    specs = specs_of("none", "dspark-8")
    requests = alike(80 * in_system + 60, *TEXT)
    context = policy_context(specs)
    run = Simulation(context, load_policy_file(policy).make({}, context), accepts(specs)).run(
        ClosedLoop(requests, [(0.0, in_system)]), window=Window(from_s=2.0, to_s=22.0)
    )
    reached = (run.decode_j + run.prefill_j + run.idle_j) / run.accepted_tokens
    # A window of 20 s has its luck with accept lengths.
    assert bound("none", "dspark-8", in_system=in_system, texts=TEXT) <= 1.03 * reached


def test_it_is_close_to_the_best_fixed_choice() -> None:
    specs = specs_of("none", "none")
    requests = alike(2_000, "code")
    context = policy_context(specs)
    run = Simulation(context, load_policy_file("pack:none").make({}, context), accepts(specs)).run(
        ClosedLoop(requests, [(0.0, 20)]), window=Window(from_s=2.0, to_s=22.0)
    )
    reached = (run.decode_j + run.prefill_j + run.idle_j) / run.accepted_tokens
    assert bound("none", "none", in_system=20) <= reached <= 1.05 * bound("none", "none", in_system=20)


def test_a_load_that_changes_costs_what_its_parts_do_by_their_tokens() -> None:
    specs, requests = specs_of("none"), alike(20, "code")

    def changing(time_at: dict[int, float]) -> float:
        return steady_j_per_accepted_token(specs, accepts(specs), requests, in_system=time_at)

    quiet, busy = bound("none", in_system=2), bound("none", in_system=16)
    assert changing({2: 3.0}) == pytest.approx(quiet, rel=1e-3)
    assert busy < changing({2: 1.0, 16: 1.0}) < quiet
    # More tokens come at 16, so that the mean lies nearer to it.
    assert changing({2: 1.0, 16: 1.0}) < 0.5 * (quiet + busy)
    assert changing({2: 1.0, 16: 9.0}) < changing({2: 1.0, 16: 1.0})


def test_no_fleet_of_so_many_gpus_does_better_than_any_arms_on_them() -> None:
    specs = specs_of("none", "dspark-8")
    any_arms = steady_j_per_accepted_token(specs, accepts(specs), alike(20, *TEXT), in_system=24, any_arms_on_gpus=2)
    fleets = [("none", "none"), ("none", "dspark-8"), ("dspark-8", "dspark-8")]
    best = min(bound(*arms, in_system=24, texts=TEXT) for arms in fleets)
    assert 0.9 * best < any_arms <= best * (1.0 + 1e-3)
    # One arm alone leaves nothing to choose.
    alone = specs_of("none")
    same = steady_j_per_accepted_token(alone, accepts(alone), alike(20, "code"), in_system=9, any_arms_on_gpus=2)
    assert same == pytest.approx(bound("none", "none", in_system=9), rel=1e-3)


def test_a_target_leaves_fewer_allocations() -> None:
    free = bound("none", "none", in_system=40)
    assert bound("none", "none", in_system=40, target_ms=100.0) == free
    assert bound("none", "none", in_system=40, target_ms=7.0) > free
    assert bound("none", "none", in_system=40, target_ms=5.0) == inf


def test_what_it_does_not_cover_is_refused() -> None:
    specs = specs_of("none", "dspark-8")
    with pytest.raises(DomainError, match="no steady load"):
        steady_j_per_accepted_token(specs, accepts(specs), [], in_system=4)
    with pytest.raises(DomainError, match="0 of them in the system"):
        bound("none", in_system=0)
    shared = tuple(replace(spec, gpus=("g",)) for spec in specs)
    with pytest.raises(DomainError, match="own GPUs"):
        steady_j_per_accepted_token(shared, accepts(shared), alike(4, "code"), in_system=4)
    wide = (replace(specs[0], gpus=("a", "b")), specs[1])
    with pytest.raises(DomainError, match="one GPU"):
        steady_j_per_accepted_token(wide, accepts(wide), alike(4, "code"), in_system=4, any_arms_on_gpus=2)
    small = (specs[0], replace(specs[1], max_context_tokens=500))
    with pytest.raises(DomainError, match="every backend's context"):
        steady_j_per_accepted_token(small, accepts(small), alike(4, "code"), in_system=4)
