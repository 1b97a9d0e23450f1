"""A whole simulation: what goes in comes out, energy adds up, and no policy sees the future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec, Policy
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.errors import PolicyError, SimulationError
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.simulator.engine import Run, SimulatedRequest, Simulation
from selector.simulator.report import summarise
from selector.simulator.server import ServerModel
from tests.fleets import ARMS, acceptance_model, backend_spec, policy_context, specs_of

TEXT = ("code", "romansh")


def requests_of(rows: Sequence[tuple[float, int, int]], *, target_ms: float | None = 25.0) -> list[SimulatedRequest]:
    """(gap, prompt, output) rows as requests."""
    at_s, made = 0.0, []
    for number, (gap, prompt, output) in enumerate(rows):
        at_s += gap
        trace = TraceRequest(request_id=f"r{number}", arrival_s=at_s, prompt_tokens=prompt, output_tokens=output)
        text_type = TEXT[number % 2]
        made.append(SimulatedRequest(trace=trace, text_type=text_type, slo_class="chat", tbt_target_ms=target_ms))
    return made


def simulate(
    specs: Sequence[BackendSpec], requests: Sequence[SimulatedRequest], policy: str | Policy, seed: int = 0
) -> Run:
    context = policy_context(specs, seed=seed)
    truth = acceptance_model({spec.arm for spec in specs})
    accepts = {
        (spec.name, text): AcceptancePrior(
            mean=truth.accept_length(spec.arm, text), request_spread=truth.request_spread(spec.arm, text)
        )
        for spec in specs
        for text in TEXT
    }
    made = load_policy_file(policy).make({}, context) if isinstance(policy, str) else policy
    return Simulation(context, made, accepts, seed=seed).run(requests)


class Recording:
    """Sends everything to the first backend and keeps what it saw."""

    def __init__(self, backend: str | None = "b0") -> None:
        self.backend = backend
        self.views: list[tuple[RequestView, FleetView]] = []
        self.outcomes: list[Outcome] = []

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        self.views.append((request, fleet))
        return Decision(backend=self.backend, reason="test")

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


rows = st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 9_000), st.integers(1, 300)), min_size=1, max_size=40)


@given(rows, st.sampled_from(["least_loaded", "greedy_energy", "min_energy", "goodput"]), st.booleans())
@settings(max_examples=40)
def test_requests_tokens_and_energy_are_conserved(
    rows: list[tuple[float, int, int]], policy: str, shared: bool
) -> None:
    specs = specs_of(*ARMS)
    if shared:
        specs = tuple(replace(spec, gpus=("g",)) for spec in specs)
    requests = requests_of(rows)
    run = simulate(specs, requests, policy)
    done = [record for record in run.records if record.outcome is not None]
    assert len(run.records) + run.dropped == len(requests)
    assert len(done) + run.rejected + run.unfinished == len(run.records)
    assert run.accepted_tokens == sum(record.request.trace.output_tokens for record in done)
    assert run.accepted_tokens == sum(record.outcome.accepted_tokens for record in done if record.outcome)
    assert sum(record.energy_j for record in done) == pytest.approx(run.decode_j + run.prefill_j)
    gpus = 1 if shared else len(specs)
    most_idle_w = specs[0].cost.idle.watts(len(specs) if shared else 1) * gpus
    assert 0.0 <= run.idle_j <= most_idle_w * run.duration_s * (1 + 1e-9) + 1e-9
    for record in done:
        outcome = record.outcome
        assert outcome is not None
        assert outcome.dispatched_s == record.request.trace.arrival_s
        assert outcome.finished_s <= run.duration_s + 1e-9
        assert outcome.ttft_ms is not None and outcome.ttft_ms > 0


@given(rows)
@settings(max_examples=10)
def test_equal_seeds_give_equal_runs(rows: list[tuple[float, int, int]]) -> None:
    requests = requests_of(rows)
    first, again = (simulate(specs_of(*ARMS), requests, "min_energy", seed=5) for _ in range(2))
    assert first == again


def test_another_seed_gives_another_run() -> None:
    requests = requests_of([(0.1, 500, 200)] * 10)
    assert simulate(specs_of("dspark-8"), requests, "least_loaded", 1) != simulate(
        specs_of("dspark-8"), requests, "least_loaded", 2
    )


def test_a_policy_sees_nothing_of_output_lengths() -> None:
    """Until something ends, decisions and views are the same whatever the true lengths are."""
    short, long = requests_of([(0.01, 600, 300)] * 12), requests_of([(0.01, 600, 3_000)] * 12)
    seen = []
    for requests in (short, long):
        policy = Recording()
        simulate(specs_of("none"), requests, policy)
        seen.append(policy.views)
    assert seen[0] == seen[1]


def test_views_show_what_was_dispatched_and_ended() -> None:
    policy = Recording()
    simulate(specs_of("none", "none"), requests_of([(0.0, 500, 20), (0.0, 500, 20), (5.0, 500, 20)]), policy)
    assert [fleet.backends[0].batch for _, fleet in policy.views] == [0, 1, 0]
    assert len(policy.outcomes) == 3


@pytest.mark.parametrize("target_ms", [None, 25.0])
def test_an_outcome_tells_the_target_that_the_request_had(target_ms: float | None) -> None:
    policy = Recording()
    simulate(specs_of("none"), requests_of([(0.0, 500, 20)], target_ms=target_ms), policy)
    assert [outcome.tbt_target_ms for outcome in policy.outcomes] == [target_ms]
    assert policy.outcomes[0].within_target is (None if target_ms is None else True)


def test_a_lone_request_costs_what_the_model_says() -> None:
    (spec,) = specs_of("none")
    run = simulate((spec,), requests_of([(0.0, 1_000, 101)]), "least_loaded")
    prefill_ms, prefill_j = spec.cost.prefill.cost(1_000)
    steps = [spec.cost.step.step(1, 1_001 + step) for step in range(100)]
    assert run.prefill_j == pytest.approx(prefill_j)
    assert run.decode_j == pytest.approx(sum(j for _, j in steps), rel=1e-3)
    assert run.duration_s == pytest.approx((prefill_ms + sum(ms for ms, _ in steps)) / 1e3, rel=1e-3)
    assert run.idle_j == pytest.approx(0.0)
    (record,) = run.records
    assert record.outcome is not None and record.outcome.ttft_ms == pytest.approx(prefill_ms)


def test_a_backend_that_does_not_plan_ahead_prefills_a_step_earlier() -> None:
    (spec,) = specs_of("none")
    ttft_ms = []
    for overlaps in (True, False):
        run = simulate(
            (replace(spec, overlaps=overlaps),), requests_of([(0.0, 100, 200), (0.5, 500, 2)]), "least_loaded"
        )
        (late,) = (record for record in run.records if record.arrived_s == 0.5)
        assert late.outcome is not None
        ttft_ms.append(late.outcome.ttft_ms or 0.0)
    step_ms = spec.cost.step.step(1, 200)[0]
    assert ttft_ms[0] - ttft_ms[1] == pytest.approx(step_ms, rel=0.01)


def test_idle_power_is_counted_once_per_gpu_and_for_unused_ones_too() -> None:
    rows = [(0.0, 100, 2), (10.0, 100, 2)]
    alone = simulate(specs_of("none"), requests_of(rows), "least_loaded")
    beside_idle = simulate(specs_of("none", "dspark-8"), requests_of(rows), Recording())
    idle_w = specs_of("none")[0].cost.idle.watts(1)
    assert alone.idle_j == pytest.approx(idle_w * (alone.duration_s - busy_s(alone)), rel=1e-6)
    assert beside_idle.idle_j == pytest.approx(alone.idle_j + idle_w * alone.duration_s)
    shared = tuple(replace(spec, gpus=("g",)) for spec in specs_of("none", "dspark-8"))
    together = simulate(shared, requests_of(rows), Recording())
    assert together.idle_j == pytest.approx(alone.idle_j * specs_of("none")[0].cost.idle.watts(2) / idle_w)


def busy_s(run: Run) -> float:
    return sum(
        record.outcome.finished_s - record.outcome.dispatched_s for record in run.records if record.outcome is not None
    )


def test_servers_on_one_gpu_take_turns() -> None:
    """Steps add up in time and energy, and switching costs a little.

    Two busy servers were measured: 8.30 s and 4,916 J at once, 7.63 s and 4,745 J one after the other.
    """
    requests = requests_of([(0.0, 100, 400), (0.0, 100, 400)], target_ms=None)
    apart = simulate(specs_of("none", "none"), requests, "round_robin")
    shared = tuple(replace(spec, gpus=("g",)) for spec in specs_of("none", "none"))
    together = simulate(shared, requests, "round_robin")
    assert together.duration_s == pytest.approx(2 * apart.duration_s * 8.30 / 7.63, rel=0.005)
    assert together.decode_j == pytest.approx(apart.decode_j * 4_916 / 4_745, rel=0.005)
    assert together.idle_j == pytest.approx(0.0)


def test_a_request_over_every_context_is_dropped_before_any_policy_sees_it() -> None:
    policy = Recording()
    run = simulate(specs_of("none"), requests_of([(0.0, 8_000, 300), (0.0, 100, 10)]), policy)
    assert run.dropped == 1
    assert [request.request_id for request, _ in policy.views] == ["r1"]


def test_a_prompt_that_a_kv_cache_cannot_hold_goes_where_it_can_be() -> None:
    specs = [backend_spec("small", "none", max_kv_tokens=4_000), backend_spec("large", "none")]
    run = simulate(specs, requests_of([(0.0, 4_000, 50), (0.0, 3_990, 50)]), "least_loaded")
    told = {outcome.request_id: outcome for record in run.records if (outcome := record.outcome)}
    assert (told["r0"].backend, told["r0"].accepted_tokens) == ("large", 50)
    assert (told["r1"].backend, told["r1"].accepted_tokens) == ("small", 10), "cut where the cache ends"


def test_a_refused_request_counts_as_a_miss() -> None:
    run = simulate(specs_of("none"), requests_of([(0.0, 100, 10)] * 3), Recording(backend=None))
    result = summarise(run, policy="p", policy_sha256="0", wall_s=1.0)
    assert (result.requests, result.requests_rejected, result.tbt_attainment) == (0, 3, 0.0)
    assert result.j_per_accepted_token is None


def test_attainment_leaves_out_requests_without_a_target_or_a_tbt() -> None:
    run = simulate(specs_of("none"), requests_of([(0.0, 100, 1), (0.0, 100, 50)]), Recording())
    assert summarise(run, policy="p", policy_sha256="0", wall_s=1.0).tbt_attainment == 1.0
    run = simulate(specs_of("none"), requests_of([(0.0, 100, 50)], target_ms=1.0), Recording())
    assert summarise(run, policy="p", policy_sha256="0", wall_s=1.0).attainment_by_text_type == {"code": 0.0}
    run = simulate(specs_of("none"), requests_of([(0.0, 100, 50)], target_ms=None), Recording())
    assert summarise(run, policy="p", policy_sha256="0", wall_s=1.0).tbt_attainment is None


def test_a_policy_that_breaks_its_contract_stops_the_run() -> None:
    with pytest.raises(PolicyError, match="nowhere"):
        simulate(specs_of("none"), requests_of([(0.0, 100, 10)]), Recording(backend="nowhere"))
    small = (backend_spec("b0", "none", max_context_tokens=200), backend_spec("b1", "none"))
    with pytest.raises(PolicyError, match="unfit"):
        simulate(small, requests_of([(0.0, 500, 10)]), Recording())


def test_the_truth_may_change_with_request_and_time() -> None:
    """Requests of one text type get fewer steps while they are accepted better, by the clock or by what they ask."""
    specs = specs_of("dspark-8")
    requests = requests_of([(1.0, 100, 200)] * 40)
    requests = [replace(each, text_type="code", temperature=float(number % 2)) for number, each in enumerate(requests)]

    def truth(backend: str, request: SimulatedRequest, now_s: float) -> AcceptancePrior | None:
        if now_s > 20.5:
            return None
        return AcceptancePrior(mean=6.0 if request.temperature == 0.0 else 2.0)

    context = policy_context(specs)
    run = Simulation(context, load_policy_file("least_loaded").make({}, context), truth).run(requests)
    lengths: dict[tuple[bool, float | None], list[float]] = {}
    for record in run.records:
        assert record.outcome is not None
        key = record.outcome.dispatched_s > 20.5, record.request.temperature
        lengths.setdefault(key, []).append(record.outcome.accept_length or 0.0)
    means = {key: sum(values) / len(values) for key, values in lengths.items()}
    assert means[False, 0.0] == pytest.approx(6.0, rel=0.1)
    assert means[False, 1.0] == pytest.approx(2.0, rel=0.1)
    assert means[True, 0.0] == means[True, 1.0] == 1.0


@pytest.mark.interpreted
def test_a_run_that_cannot_go_on_says_where_it_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerModel, "next_event_s", lambda self: None)
    with pytest.raises(SimulationError, match=r"2 requests are in flight \(2 on b0\) and no server"):
        simulate(specs_of("none"), requests_of([(0.0, 100, 10)] * 2), Recording())
