"""A live setting changes while requests run: the step under way ends as it began, the rest is at the new setting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from selector.core.controller import Controller
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.errors import DomainError, UsageError
from selector.files.decision_log import SettingsEvent, parse_decision_log
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.simulator.draws import AcceptDraws
from selector.simulator.engine import SimulatedRequest, Simulation
from selector.simulator.oracle import oracle
from selector.simulator.oracle.compared import compare_with_oracle
from selector.simulator.replay import replay
from selector.simulator.server import Job, ServerModel
from selector.simulator.trial import run_trial, simulate_policy, true_acceptance
from tests.livearms import ARM, QUARTER, WHOLE, fleet

SPEC = fleet().specs[0]
STEP_OF = {1.0: SPEC.settings[0].step, 0.25: SPEC.settings[1].step}


def server() -> ServerModel:
    return ServerModel(SPEC.cost, AcceptDraws(1), max_running_requests=64, max_kv_tokens=400_000)


def job(key: int, output: int, accept: float = 3.0) -> Job:
    return Job(
        key=key,
        draw_key=key,
        prompt_tokens=100,
        output_tokens=output,
        accept_length=accept,
        accept_spread=0.0,
        arrived_s=0.0,
    )


def test_the_step_under_way_ends_as_it_began_and_the_next_costs_the_new_setting() -> None:
    model = server()
    model.enqueue(job(0, 500), 0.0)
    model.advance(0.1)
    end_s = model.next_boundary_s()
    assert end_s is not None
    model.change_setting(STEP_OF[0.25], lambda job: (2.0, 0.0), 0.5 * (model.now_s + end_s))
    assert model.next_boundary_s() == pytest.approx(end_s)
    assert model.next_event_s() == pytest.approx(end_s)
    model.advance(end_s)
    assert model.now_s == pytest.approx(end_s)
    after_s = model.next_boundary_s()
    assert after_s is not None
    assert 1e3 * (after_s - end_s) == pytest.approx(STEP_OF[0.25].step(1, 100.0 + 500.0)[0], rel=1e-3)


@pytest.mark.parametrize(("before", "after"), [(3.0, 1.5), (1.5, 6.0), (3.0, 1.0), (1.0, 3.0), (1.0, 1.0)])
def test_every_token_is_delivered_once_and_the_rest_follows_the_new_accept_length(before: float, after: float) -> None:
    model = server()
    jobs = [job(key, 3_000, before) for key in range(8)]
    for each in jobs:
        model.enqueue(each, 0.0)
    model.advance(2.0)
    delivered, steps = [each.delivered(model.step) for each in jobs], model.step
    model.change_setting(STEP_OF[0.25], lambda job: (after, 0.0), 2.0)
    model.advance(1e4)
    assert [each.output_tokens for each in model.finished] == [3_000] * 8
    assert model.totals.accepted_tokens == pytest.approx(8 * 3_000)
    for each, had in zip(jobs, delivered, strict=True):
        assert sum(each.tokens_by_pass(each.verify_passes)) == 2_999
        rest = (each.output_tokens - had) / (each.verify_passes - (steps - 0))
        assert rest == pytest.approx(after, rel=0.12)
        assert sum(n * count for n, count in enumerate(each.passes_by_accepted_drafts())) == each.accepted_drafts


def test_a_change_to_the_same_setting_changes_nothing() -> None:
    runs = []
    for changes in (False, True):
        model = server()
        for key in range(4):
            model.enqueue(job(key, 300), 0.0)
        model.advance(0.5)
        if changes:
            model.change_setting(STEP_OF[1.0], lambda job: (3.0, 0.0), 0.5)
        model.advance(1e4)
        runs.append(sorted((each.key, each.finished_s, each.decode_j, each.verify_passes) for each in model.finished))  # type: ignore[type-var]  # keys are numbers here
    for one, other in zip(*runs, strict=True):
        assert one == pytest.approx(other)


def test_a_change_waits_for_nobody_when_the_last_request_leaves() -> None:
    model = server()
    model.enqueue(job(0, 500), 0.0)
    model.advance(0.1)
    model.change_setting(STEP_OF[0.25], lambda job: (2.0, 0.0), 0.101)
    assert model.remove(0, 0.102)
    model.advance(0.2)
    model.enqueue(job(1, 50), 0.2)
    model.advance(1e3)
    assert model.finished[0].decode_j == pytest.approx(
        model.finished[0].verify_passes * STEP_OF[0.25].step(1, 125.0)[1], rel=1e-2
    )


class Asking:
    """Everything to b0; from a time on it wants a quarter of the budget there."""

    def __init__(self, from_s: float) -> None:
        self.from_s = from_s
        self.seen: list[float] = []

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        self.seen.append(fleet.backends[0].settings["dspark_force_budget_frac"])
        return Decision(backend="b0", reason="test", settings=QUARTER if fleet.now_s >= self.from_s else {})

    def observe(self, outcome: Outcome) -> None:
        pass


def requests(count: int, gap_s: float) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            trace=TraceRequest(request_id=f"r{n}", arrival_s=n * gap_s, prompt_tokens=500, output_tokens=300),
            text_type="code",
            slo_class="default",
            tbt_target_ms=None,
        )
        for n in range(count)
    ]


def simulated(policy: Asking, load: Sequence[SimulatedRequest]) -> float:
    loaded = fleet()
    context = loaded.policy_context()
    return Simulation(context, policy, true_acceptance(loaded)).run(load).decode_j


def test_a_simulation_follows_decisions_and_shows_what_is_in_force() -> None:
    load = requests(60, 0.2)
    asking = Asking(6.0)
    energy_j = simulated(asking, load)
    assert asking.seen[:31] == [1.0] * 31 and set(asking.seen[31:]) == {0.25}
    never, always = simulated(Asking(1e9), load), simulated(Asking(0.0), load)
    assert min(never, always) < energy_j < max(never, always)


def test_a_simulated_log_with_changes_makes_every_decision_again() -> None:
    loaded, lines = fleet(), list[bytes]()
    policy = load_policy_file("min_energy")
    run_trial(loaded, requests(600, 0.15), policy, log=lines.append)
    events = list(parse_decision_log(b"".join(lines).decode(), "log"))
    changes = [event for event in events if isinstance(event, SettingsEvent)]
    assert QUARTER in [event.settings for event in changes]
    assert all(later.t_s - one.t_s >= 10.0 for one, later in pairwise(changes))
    context = loaded.policy_context()
    pairs = list(replay(events, Controller(context, policy.make({}, context))))
    assert len(pairs) == 600
    assert all(logged.backend == again.backend and logged.settings == again.settings for logged, again in pairs)
    assert all(logged.reason == again.reason for logged, again in pairs)


def test_the_setting_that_follows_the_load_costs_less_than_leaving_it_alone() -> None:
    load = requests(900, 0.12)
    followed = simulate_policy(fleet(), load, "min_energy")
    alone = simulate_policy(fleet(), load, f"static:{ARM}")
    assert followed.decode_j_per_accepted_token is not None and alone.decode_j_per_accepted_token is not None
    assert followed.decode_j_per_accepted_token < 0.97 * alone.decode_j_per_accepted_token


def test_the_oracle_refuses_arms_whose_steps_it_does_not_know_at_every_setting() -> None:
    with pytest.raises(DomainError, match="live settings"):
        oracle(fleet().specs, {}, requests(2, 1.0))
    with pytest.raises(UsageError, match="live settings"):
        compare_with_oracle(fleet(), requests(2, 1.0), [], seed=0)


def test_whole_is_what_the_server_is_launched_with() -> None:
    assert SPEC.settings[0].values == WHOLE and SPEC.settings[0].launched
