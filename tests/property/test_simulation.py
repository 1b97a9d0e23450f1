"""Invariants of a whole simulation: fleets with shared and scarce resources, open and closed loads, any end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec, Policy
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.simulator.arrivals import ClosedLoop, OpenLoop
from selector.simulator.engine import Simulation
from selector.simulator.run import Fate, Run, SimulatedRequest
from selector.simulator.timeline import Timeline
from tests.fleets import acceptance_model, backend_spec, policy_context
from tests.owndepths import choosing, own_depth

ARMS = ("none", "dspark-8", "eagle3-k1", "own depth by plugin", "own depth by schedule")
TEXT = ("code", "romansh")
POLICIES = ("least_loaded", "round_robin", "greedy_energy", "min_energy")


@dataclass(frozen=True)
class Case:
    """A fleet, a load, and how the run ends."""

    specs: tuple[BackendSpec, ...]
    requests: tuple[SimulatedRequest, ...]
    clients: int | None
    until_s: float

    @property
    def load(self) -> OpenLoop | ClosedLoop:
        return OpenLoop(self.requests) if self.clients is None else ClosedLoop(self.requests, [(0.0, self.clients)])


@st.composite
def fleets(draw: st.DrawFn) -> tuple[BackendSpec, ...]:
    """Three backends on one, two or three GPUs, with few or many places and KV tokens."""
    gpus = draw(st.sampled_from(["aaa", "aab", "abc"]))
    arms = draw(st.permutations(ARMS))[: len(gpus)]
    return tuple(
        spec_of(
            f"b{number}",
            arm,
            gpu,
            places=draw(st.sampled_from([2, 64])),
            kv_tokens=draw(st.sampled_from([14_000, 400_000])),
        )
        for number, (arm, gpu) in enumerate(zip(arms, gpus, strict=True))
    )


def spec_of(name: str, arm: str, gpu: str, *, places: int, kv_tokens: int) -> BackendSpec:
    own = arm.removeprefix("own depth by ")
    fixed = backend_spec(name, arm if own == arm else "dspark-8", max_running_requests=places, max_kv_tokens=kv_tokens)
    return replace(fixed if own == arm else choosing(fixed, own_depth(own)), gpus=(gpu,))


@st.composite
def loads(draw: st.DrawFn) -> tuple[SimulatedRequest, ...]:
    """Requests with and without bounds, targets and common prefixes; some too long for every backend."""
    rows = draw(
        st.lists(
            st.tuples(
                st.floats(0.0, 0.4),  # gap to the one before
                st.integers(1, 8_500),  # prompt
                st.integers(1, 250),  # output
                st.sampled_from([0, 0, 1, 2]),  # whose prompt begins alike; 0: nobody's
                st.sampled_from([None, 25.0]),  # target
            ),
            min_size=1,
            max_size=30,
        )
    )
    at_s, made = 0.0, []
    for number, (gap, prompt, output, family, target_ms) in enumerate(rows):
        at_s += gap
        trace = TraceRequest(
            request_id=f"r{number}",
            arrival_s=at_s,
            prompt_tokens=prompt,
            output_tokens=output,
            max_output_tokens=500 if number % 3 else None,
            prefix_hashes=tuple(1_000 * family + block for block in range(-(-prompt // 512))) if family else (),
            prefix_block_tokens=512 if family else None,
        )
        made.append(
            SimulatedRequest(trace=trace, text_type=TEXT[number % 2], slo_class="chat", tbt_target_ms=target_ms)
        )
    return tuple(made)


cases = st.builds(
    Case,
    specs=fleets(),
    requests=loads(),
    clients=st.none() | st.integers(1, 8),
    until_s=st.just(inf) | st.floats(0.01, 8.0),
)


@dataclass
class Watching:
    """Passes everything on to a policy and keeps account of what it is told."""

    policy: Policy
    refuse_every: int = 0
    decided: list[tuple[RequestView, FleetView, Decision]] = field(default_factory=list)
    ended: list[Outcome] = field(default_factory=list)
    placed: int = 0

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        assert sum(view.batch for view in fleet.backends) == self.placed - len(self.ended)
        if self.decided:
            assert fleet.now_s >= self.decided[-1][1].now_s
        if self.ended:
            assert fleet.now_s >= self.ended[-1].finished_s - 1e-9
        if self.refuse_every and len(self.decided) % self.refuse_every == 0:
            decision = Decision(backend=None, reason="test")
        else:
            decision = self.policy.decide(request, fleet)
        self.decided.append((request, fleet, decision))
        self.placed += decision.backend is not None
        return decision

    def observe(self, outcome: Outcome) -> None:
        self.ended.append(outcome)
        self.policy.observe(outcome)


def simulate(
    case: Case,
    policy: str | Policy = "least_loaded",
    *,
    seed: int = 0,
    policy_seed: int = 0,
    refuse_every: int = 0,
    timeline: Timeline | None = None,
) -> tuple[Run, Watching]:
    context = policy_context(case.specs, seed=policy_seed)
    truth = acceptance_model()
    accepts = {
        (spec.name, text): AcceptancePrior(
            mean=truth.accept_length(spec.arm, text), request_spread=truth.request_spread(spec.arm, text)
        )
        for spec in case.specs
        for text in TEXT
    }
    made = load_policy_file(policy).make({}, context) if isinstance(policy, str) else policy
    watching = Watching(made, refuse_every)
    run = Simulation(context, watching, accepts, seed=seed, recorder=timeline).run(case.load, until_s=case.until_s)
    return run, watching


@given(cases, st.sampled_from(POLICIES), st.sampled_from([0, 4]))
@settings(max_examples=60)
def test_no_request_and_no_token_is_lost_or_invented(case: Case, policy: str, refuse_every: int) -> None:
    """At every decision what is placed and has not ended is in the view (`Watching`); at the end all have a fate."""
    run, watching = simulate(case, policy, refuse_every=refuse_every)
    fates = [record.fate for record in run.records]
    assert fates.count(Fate.DONE) == len(watching.ended)
    assert fates.count(Fate.REJECTED) == run.rejected == len(watching.decided) - watching.placed
    assert fates.count(Fate.UNFINISHED) == run.unfinished == watching.placed - len(watching.ended)
    assert len(run.records) + run.dropped <= len(case.requests)
    if case.until_s == inf:
        assert run.unfinished == 0
        assert len(run.records) + run.dropped == len(case.requests)
        assert run.accepted_tokens == sum(outcome.accepted_tokens for outcome in watching.ended)
    elif case.clients is None:
        arrived = sum(request.trace.arrival_s < case.until_s for request in case.requests)
        assert len(run.records) + run.dropped == arrived
    for outcome in watching.ended:
        assert outcome.accepted_tokens >= 1
        if outcome.verify_passes is not None and outcome.accepted_drafts is not None:
            assert outcome.verify_passes + outcome.accepted_drafts + 1 >= outcome.accepted_tokens
            assert outcome.verify_passes < outcome.accepted_tokens


@given(cases, st.sampled_from(POLICIES))
@settings(max_examples=60)
def test_energy_is_the_area_under_the_power_and_has_an_owner(case: Case, policy: str) -> None:
    timeline = Timeline()
    run, _ = simulate(case, policy, timeline=timeline)
    attributed_j = sum(record.energy_j for record in run.records)
    board_j = run.decode_j + run.prefill_j + run.idle_j
    assert attributed_j == pytest.approx(run.decode_j + run.prefill_j, abs=1e-9)
    assert timeline.energy_j() == pytest.approx(board_j, abs=1e-6)
    if run.duration_s > 0.0:
        edges = [run.duration_s * part / 5 for part in range(6)]
        assert sum(timeline.power_w(edges)) * run.duration_s / 5 == pytest.approx(board_j, rel=1e-6, abs=1e-6)
    boards = {gpu for spec in case.specs for gpu in spec.gpus}
    assert run.idle_j <= len(boards) * case.specs[0].cost.idle.served_w * run.duration_s * (1 + 1e-9) + 1e-9


@given(cases, st.sampled_from(POLICIES))
@settings(max_examples=40)
def test_clocks_never_run_backwards(case: Case, policy: str) -> None:
    timeline = Timeline()
    run, _ = simulate(case, policy, timeline=timeline)
    for stretches in timeline.stretches.values():
        assert all(stretch.start_s <= stretch.end_s <= run.duration_s + 1e-6 for stretch in stretches)
        assert all(before.end_s <= after.start_s + 1e-9 for before, after in pairwise(stretches))
    for spans in timeline.idle.values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    for record in run.records:
        if record.outcome is not None:
            outcome = record.outcome
            assert outcome.ttft_ms is not None and outcome.ttft_ms > 0.0
            assert record.arrived_s == outcome.dispatched_s
            assert outcome.dispatched_s + outcome.ttft_ms / 1e3 <= outcome.finished_s + 1e-9
            assert outcome.finished_s <= run.duration_s + 1e-6


def seen(watching: Watching, count: int) -> list[tuple[RequestView, FleetView, str | None]]:
    return [(request, fleet, decision.backend) for request, fleet, decision in watching.decided[:count]]


@given(cases, st.sampled_from(POLICIES), st.integers(0, 30), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_no_policy_sees_the_future(case: Case, policy: str, first: int, random: Random) -> None:
    """Other requests later on, and other true lengths of theirs, change nothing that was seen or decided before."""
    case = replace(case, clients=None, until_s=inf)
    later = list(case.requests[first:])
    random.shuffle(later)
    changed = [
        replace(
            one, trace=replace(one.trace, arrival_s=was.trace.arrival_s, output_tokens=1 + one.trace.prompt_tokens % 97)
        )
        for was, one in zip(case.requests[first:], later, strict=True)
    ]
    other = replace(case, requests=(*case.requests[:first], *changed))
    largest = max(spec.max_context_tokens for spec in case.specs)
    decided = sum(r.trace.prompt_tokens + r.trace.output_tokens <= largest for r in case.requests[:first])
    assert seen(simulate(case, policy)[1], decided) == seen(simulate(other, policy)[1], decided)


@given(cases, st.sampled_from(POLICIES))
@settings(max_examples=40)
def test_a_policy_learns_a_length_only_from_an_end(case: Case, policy: str) -> None:
    """Longer answers change nothing before the first of the shorter ones ends."""
    case = replace(case, until_s=inf)
    longer = replace(
        case,
        requests=tuple(
            replace(one, trace=replace(one.trace, output_tokens=one.trace.output_tokens + 20)) for one in case.requests
        ),
    )
    largest = max(spec.max_context_tokens for spec in case.specs)
    if any(r.trace.prompt_tokens + r.trace.output_tokens > largest for r in (*case.requests, *longer.requests)):
        return  # a dropped request is not seen at all
    _, short = simulate(case, policy)
    _, long = simulate(longer, policy)
    end_s = min(outcome.finished_s for outcome in short.ended)
    before = sum(fleet.now_s < end_s for _, fleet, _ in short.decided)
    assert seen(short, before) == seen(long, before)


@given(cases, st.sampled_from(POLICIES))
@settings(max_examples=20)
def test_equal_seeds_give_equal_runs(case: Case, policy: str) -> None:
    assert simulate(case, policy, seed=5)[0] == simulate(case, policy, seed=5)[0]


class AnyBackend:
    """Backends at random, by the policy's seed."""

    def __init__(self, specs: Sequence[BackendSpec], seed: int) -> None:
        self._names = [spec.name for spec in specs]
        self._random = Random(seed)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        return Decision(backend=self._random.choice(self._names), reason="test")

    def observe(self, outcome: Outcome) -> None:
        """Nothing."""


@given(loads(), st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=30)
def test_every_concern_has_a_random_stream_of_its_own(
    requests: tuple[SimulatedRequest, ...], seed: int, policy_seed: int
) -> None:
    """Accept lengths do not depend on what the policy draws, on which backend of an arm serves, or on the others."""
    specs = tuple(backend_spec(f"b{number}", "dspark-8") for number in range(3))
    fits = tuple(r for r in requests if r.trace.prompt_tokens <= 7_000)
    case = Case(specs, fits, None, inf)

    def drawn(run: Run) -> dict[str, tuple[int | None, int | None]]:
        ended = [record.outcome for record in run.records if record.outcome is not None]
        return {outcome.request_id: (outcome.verify_passes, outcome.accepted_drafts) for outcome in ended}

    def choices(watching: Watching) -> list[str | None]:
        return [decision.backend for _, _, decision in watching.decided]

    run, watching = simulate(case, AnyBackend(specs, policy_seed), seed=seed)
    other_policy, _ = simulate(case, AnyBackend(specs, policy_seed + 1), seed=seed)
    _, other_seed = simulate(case, AnyBackend(specs, policy_seed), seed=seed + 1)
    assert drawn(other_policy) == drawn(run)
    assert choices(other_seed) == choices(watching)
    fewer, _ = simulate(replace(case, requests=fits[: len(fits) // 2]), AnyBackend(specs, policy_seed), seed=seed)
    assert drawn(fewer).items() <= drawn(run).items()


def test_other_seeds_give_other_runs() -> None:
    specs = (backend_spec("b0", "dspark-8"),)
    requests = tuple(
        SimulatedRequest(
            trace=TraceRequest(request_id=f"r{n}", arrival_s=0.1 * n, prompt_tokens=300, output_tokens=200),
            text_type="code",
            slo_class="chat",
            tbt_target_ms=None,
        )
        for n in range(10)
    )
    case = Case(specs, requests, None, inf)
    assert simulate(case, seed=1)[0] != simulate(case, seed=2)[0]
