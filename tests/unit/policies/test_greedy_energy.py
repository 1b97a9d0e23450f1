"""`greedy_energy` takes the smallest marginal energy, and so walks into the trap that `pack` does not."""

from __future__ import annotations

from collections import Counter

import pytest

from selector.core.controller import Controller
from selector.core.policy import PolicyContext
from selector.files.policy import load_policy_file
from tests.fleets import ARMS, acceptance_model, fleet_view, policy_context, request_view, specs_of

REQUESTS = 64
"""As many as one backend has places."""


def placed_by_arm(label: str, text_type: str) -> dict[str, int]:
    """How many of `REQUESTS` requests that arrive one by one, and stay, each arm gets."""
    context = policy_context(specs_of(*ARMS))
    controller = Controller(context, load_policy_file(label).make({}, context))
    arms: Counter[str] = Counter()
    for number in range(REQUESTS):
        decision = controller.decide(request_view(f"r{number}", text_type=text_type), 0.1 * number)
        arms[context.spec(str(decision.backend)).arm] += 1
    return dict(arms)


def j_per_accepted_token(context: PolicyContext, placed: dict[str, int], text_type: str) -> float:
    """Step energy over accepted tokens, summed at equal time: power over token rate."""
    power_w = tokens_per_s = 0.0
    for spec in context.backends:
        if batch := placed.get(spec.arm, 0):
            step_ms, step_j = spec.cost.step.step(batch, 625.0)
            power_w += 1e3 * step_j / step_ms
            tokens_per_s += 1e3 * batch * context.acceptance.accept_length(spec.arm, text_type) / step_ms
    return power_w / tokens_per_s


def test_the_trap() -> None:
    greedy, packed = placed_by_arm("greedy_energy", "romansh"), placed_by_arm("pack:eagle3-k1", "romansh")
    assert greedy == {"dflash-16": REQUESTS}, "cheapest for the first request, and marginally for every later one"
    assert packed == {"eagle3-k1": REQUESTS}
    context = policy_context(specs_of(*ARMS))
    spent_greedily = j_per_accepted_token(context, greedy, "romansh")
    assert spent_greedily > 2.0 * j_per_accepted_token(context, packed, "romansh")
    assert spent_greedily > 2.0 * j_per_accepted_token(context, {"none": REQUESTS}, "romansh")


def test_the_marginal_energy_is_what_it_compares() -> None:
    context = policy_context(specs_of("none", "eagle3-k1"))
    policy = load_policy_file("greedy_energy").make({}, context)
    decision = policy.decide(request_view(text_type="romansh"), fleet_view(context.backends))
    by_arm = {candidate.arm: candidate.marginal_j_per_accepted_token for candidate in decision.candidates}
    accept = acceptance_model().accept_length("eagle3-k1", "romansh")
    # Step energy less idle energy (95 W with one server) over the accept length, at batch 1 and 625 tokens of context.
    assert by_arm["none"] == pytest.approx(2.6 - 0.095 * 5.1, rel=0.01)
    assert by_arm["eagle3-k1"] == pytest.approx((2.9 - 0.095 * 6.0) / accept, rel=0.01)
    assert (decision.backend, decision.reason) == ("b1", f"least marginal energy: {by_arm['eagle3-k1']:.3f} J/token")


def test_a_feasible_backend_comes_before_a_cheaper_one_that_misses_the_target() -> None:
    context = policy_context(specs_of("dflash-16", "none"))
    policy = load_policy_file("greedy_energy").make({}, context)
    fleet = fleet_view(context.backends, [30, 0])
    assert policy.decide(request_view(text_type="romansh"), fleet).backend == "b0"
    assert policy.decide(request_view(text_type="romansh", tbt_target_ms=6.0), fleet).backend == "b1"


def test_without_a_feasible_backend_the_fastest_wins() -> None:
    context = policy_context(specs_of("none", "none", "none"))
    policy = load_policy_file("greedy_energy").make({}, context)
    decision = policy.decide(request_view(tbt_target_ms=5.0), fleet_view(context.backends, [40, 16, 60]))
    assert decision.backend == "b1"
    assert decision.reason == "no place within target, least violation: 5.7 of 5 ms"
