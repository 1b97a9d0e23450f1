"""Loads: who sends what when, and how a run with clients, a window or an end accounts for every request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.acceptance import AcceptancePrior
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.errors import DomainError
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.simulator.arrivals import ClosedLoop, Load, OpenLoop
from selector.simulator.engine import Simulation
from selector.simulator.run import WHOLE_RUN, Fate, Run, SimulatedRequest, Window
from selector.simulator.timeline import Timeline
from tests.fleets import policy_context, specs_of


def requests_of(count: int, *, prompt: int = 400, output: int = 60, every_s: float = 0.1) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            trace=TraceRequest(
                request_id=f"r{n}", arrival_s=n * every_s, prompt_tokens=prompt, output_tokens=output + n % 7
            ),
            text_type="code",
            slo_class="chat",
            tbt_target_ms=25.0,
        )
        for n in range(count)
    ]


class Watching:
    """Least loaded, and keeps the number of requests in the system at each decision."""

    def __init__(self, refuse_until_s: float = 0.0) -> None:
        self.refuse_until_s = refuse_until_s
        self.seen: list[tuple[float, int]] = []

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        if fleet.now_s < self.refuse_until_s:
            return Decision(backend=None, reason="test")
        self.seen.append((fleet.now_s, sum(view.batch for view in fleet.backends)))
        return Decision(backend=min(fleet.backends, key=lambda view: view.batch).name, reason="test")

    def observe(self, outcome: Outcome) -> None:
        """Nothing."""


def simulate(
    load: Load | Sequence[SimulatedRequest],
    policy: Watching | None = None,
    *,
    window: Window = WHOLE_RUN,
    until_s: float = inf,
    recorder: Timeline | None = None,
) -> Run:
    context = policy_context(specs_of("none", "dspark-8"))
    made = policy or load_policy_file("least_loaded").make({}, context)
    truth = {(spec.name, "code"): AcceptancePrior(mean=min(3.0, spec.cost.verify_tokens)) for spec in context.backends}
    return Simulation(context, made, truth, recorder=recorder).run(load, window=window, until_s=until_s)


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    policy = Watching()
    run = simulate(ClosedLoop(requests_of(60), [(0.0, 8)]), policy)
    assert [count for _, count in policy.seen[:8]] == list(range(8))
    # Two that end with the same step leave two places for an instant.
    counts = [count for _, count in policy.seen[8:]]
    assert max(counts) == 7 and sum(count < 7 for count in counts) < 20
    assert len(run.records) == 60
    ends = sorted(record.outcome.finished_s for record in run.records if record.outcome)
    starts = [at_s for at_s, _ in policy.seen]
    assert starts[8:] == pytest.approx(ends[:52], abs=1e-6)


def test_clients_follow_a_schedule() -> None:
    policy = Watching()
    run = simulate(ClosedLoop(requests_of(3_000), [(0.0, 1), (10.0, 21), (20.0, 1)]), policy, until_s=25.0)
    in_system = {at_s: count + 1 for at_s, count in policy.seen}
    for at_s, count in in_system.items():
        planned = 1 + 2 * at_s if at_s <= 10.0 else max(1.0, 1 + 2 * (20.0 - at_s))
        assert count <= planned + 1
    assert max(in_system.values()) == 21
    assert max(count for at_s, count in in_system.items() if at_s > 21.0) == 1
    assert run.unfinished == 1


def test_a_jump_in_the_schedule_starts_all_clients_at_once() -> None:
    policy = Watching()
    simulate(ClosedLoop(requests_of(90), [(1.0, 2), (3.0, 2), (3.0, 6)]), policy)
    assert [at_s for at_s, _ in policy.seen[:2]] == [1.0, 1.0]
    assert sum(at_s == 3.0 for at_s, _ in policy.seen) in (4, 5)


def test_a_refused_client_waits_before_it_tries_again() -> None:
    policy = Watching(refuse_until_s=2.5)
    run = simulate(ClosedLoop(requests_of(20), [(0.0, 2)], retry_s=1.0), policy)
    assert run.rejected == 6
    assert policy.seen[0][0] == 3.0
    assert len(run.records) == 20


def test_a_load_can_be_run_again() -> None:
    for load in (ClosedLoop(requests_of(30), [(0.0, 4)]), OpenLoop(requests_of(30))):
        assert simulate(load) == simulate(load)


@pytest.mark.parametrize("clients_at", [[], [(0.0, -1)], [(-1.0, 1)], [(2.0, 1), (1.0, 1)], [(inf, 1)]])
def test_an_impossible_schedule_is_refused(clients_at: list[tuple[float, int]]) -> None:
    with pytest.raises(DomainError):
        ClosedLoop(requests_of(1), clients_at)
    with pytest.raises(DomainError):
        ClosedLoop(requests_of(1), [(0.0, 1)], retry_s=0.0)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(DomainError):
        Window(from_s=2.0, to_s=2.0)


def test_no_requests_make_an_empty_run() -> None:
    for load in (OpenLoop([]), ClosedLoop([], [(0.0, 4)])):
        run = simulate(load)
        assert (run.records, run.duration_s, run.idle_j) == ([], 0.0, 0.0)


def test_what_is_unfinished_at_the_end_is_counted() -> None:
    run = simulate(requests_of(100), until_s=3.05)
    fates = [record.fate for record in run.records]
    assert run.unfinished == fates.count(Fate.UNFINISHED) > 0
    assert len(run.records) == 31
    assert run.duration_s == 3.05
    attributed_j = sum(record.energy_j for record in run.records)
    assert attributed_j == pytest.approx(run.decode_j + run.prefill_j)


@given(st.floats(0.2, 4.0), st.floats(0.1, 4.0), st.booleans())
@settings(max_examples=25, deadline=None)
def test_windows_that_meet_add_up_to_the_run(first_s: float, further_s: float, closed: bool) -> None:
    """Every joule, token and request is in exactly one of the windows, wherever they are cut."""
    requests = requests_of(80)
    load = ClosedLoop(requests, [(0.0, 6)]) if closed else OpenLoop(requests)
    cuts = [0.0, first_s, first_s + further_s, inf]
    whole = simulate(load)
    parts = [simulate(load, window=Window(from_s=a, to_s=b)) for a, b in pairwise(cuts)]
    for name in ("decode_j", "prefill_j", "idle_j", "duration_s"):
        assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(whole, name), abs=1e-6)
    assert sum(part.accepted_tokens for part in parts) == pytest.approx(whole.accepted_tokens, abs=3)
    together = [record for part in parts for record in part.records]
    by_id = {record.request.trace.request_id: record for record in whole.records}
    assert len(together) == len(whole.records) == 80
    for record in together:
        same = by_id[record.request.trace.request_id]
        assert record.fate is same.fate is Fate.DONE
        assert record.arrived_s == pytest.approx(same.arrived_s)
        assert record.energy_j == pytest.approx(same.energy_j)


@given(st.floats(0.05, 9.0), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_energy_is_the_area_under_the_recorded_power(until_s: float, closed: bool) -> None:
    requests = requests_of(60)
    load = ClosedLoop(requests, [(0.0, 6)]) if closed else OpenLoop(requests)
    timeline = Timeline()
    run = simulate(load, until_s=until_s, recorder=timeline)
    energy_j = run.decode_j + run.prefill_j + run.idle_j
    assert timeline.energy_j() == pytest.approx(energy_j)
    edges = [run.duration_s * part / 7 for part in range(8)]
    assert sum(timeline.power_w(edges)) * run.duration_s / 7 == pytest.approx(energy_j)
    for stretches in timeline.stretches.values():
        for before, after in pairwise(stretches):
            assert before.start_s <= before.end_s <= after.start_s + 1e-9


def test_a_timeline_gives_means_over_bins() -> None:
    timeline = Timeline()
    run = simulate(ClosedLoop(requests_of(400), [(0.0, 12)]), until_s=4.0, recorder=timeline)
    batches = sum(timeline.batch(name, [2.0, 3.0])[0] + timeline.waiting(name, [2.0, 3.0])[0] for name in ("b0", "b1"))
    assert batches == pytest.approx(12.0, rel=0.05)
    assert timeline.working_frac("b0", [2.0, 3.0])[0] == pytest.approx(1.0)
    assert timeline.batch("no such backend", [0.0, 1.0]).tolist() == [0.0]
    assert run.unfinished == 12
