"""The oracle is a bound on every policy, and close to the best of all assignments."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.policy import BackendSpec
from selector.data import CODE_TRACE, CONVERSATION_TRACE, path
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest, load_trace
from selector.simulator.engine import Run, SimulatedRequest, Simulation
from selector.simulator.oracle import Effort, oracle
from selector.simulator.report import attainment
from tests.fleets import ARMS, backend_spec, policy_context, specs_of, with_graphs
from tests.oraclecases import TEXT, accepts, every_assignment, small_case

POLICIES = (
    "affinity", "batch_threshold", "goodput", "greedy_energy", "least_loaded", "min_energy", "pack", "round_robin",
    "static",
)  # fmt: skip
BRIEF = Effort(scan_rounds=3, rounds=12, rates=(1.0,), cases=8)

backends = st.tuples(
    st.sampled_from(ARMS),
    st.sampled_from([1, 3, 64]),  # places
    st.sampled_from([9_000, 30_000, 400_000]),  # KV tokens
    st.sampled_from([2_500, 8_192]),  # context
    st.sampled_from(["own", "own", "g", "h"]),  # GPU
    st.booleans(),  # padded to CUDA graphs
)
arrivals = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.02, 0.3, 4.0]), st.integers(1, 3_000), st.integers(1, 250), st.sampled_from(TEXT)
    ),
    min_size=1,
    max_size=40,
)


def j_per_token(run: Run) -> float:
    return (run.decode_j + run.prefill_j + run.idle_j) / run.accepted_tokens


def simulate(specs: tuple[BackendSpec, ...], requests: list[SimulatedRequest], policy: str, seed: int) -> Run:
    if policy in ("pack", "static"):
        policy = f"{policy}:{specs[seed % len(specs)].arm}"
    context = policy_context(specs, seed=seed)
    return Simulation(context, load_policy_file(policy).make({}, context), accepts(specs), seed=seed).run(requests)


@given(
    st.lists(backends, min_size=1, max_size=4),
    arrivals,
    st.sampled_from(POLICIES),
    st.sampled_from([None, 4.0, 8.0, 25.0]),
    st.integers(0, 9),
)
@settings(max_examples=40)
def test_no_policy_beats_it(
    fleet: list[tuple[str, int, int, int, str, bool]],
    rows: list[tuple[float, int, int, str]],
    policy: str,
    target_ms: float | None,
    seed: int,
) -> None:
    specs = []
    for index, (arm, places, kv, context, gpu, graphed) in enumerate(fleet):
        spec = backend_spec(
            f"b{index}", arm, max_running_requests=places, max_kv_tokens=kv, max_context_tokens=min(context, kv)
        )
        spec = replace(spec, gpus=(f"own-{index}" if gpu == "own" else gpu,))
        specs.append(with_graphs(spec) if graphed else spec)
    if policy == "batch_threshold" and not {"none"} < {spec.arm for spec in specs}:
        policy = "round_robin"
    at_s, requests = 0.0, []
    for number, (gap_s, prompt, output, text) in enumerate(rows):
        at_s += gap_s
        trace = TraceRequest(request_id=f"r{number}", arrival_s=at_s, prompt_tokens=prompt, output_tokens=output)
        target = target_ms if number % 5 else None
        requests.append(SimulatedRequest(trace=trace, text_type=text, slo_class="chat", tbt_target_ms=target))
    run = simulate(tuple(specs), requests, policy, seed)
    bound = oracle(specs, accepts(specs), requests, seed=seed, attainment=attainment(run.records), effort=BRIEF)
    if run.accepted_tokens == 0:
        assert bound.j_per_accepted_token is None
        return
    assert bound.j_per_accepted_token is not None
    assert bound.accepted_tokens >= run.accepted_tokens
    assert bound.requests == len(run.records) - run.rejected
    assert 0.0 <= bound.j_per_accepted_token <= j_per_token(run)


@pytest.mark.parametrize("trace", [CONVERSATION_TRACE, CODE_TRACE])
def test_no_policy_beats_it_on_the_shipped_traces(trace: str) -> None:
    specs = specs_of("none", "eagle3-k1", "dspark-8", "dspark-8")
    requests = [
        SimulatedRequest(trace=request, text_type=TEXT[number % 2], slo_class="chat", tbt_target_ms=None)
        for number, request in enumerate(load_trace(path(trace)).requests[:200])
    ]
    bound = oracle(specs, accepts(specs), requests, seed=1).j_per_accepted_token
    results = {policy: j_per_token(simulate(specs, requests, policy, 1)) for policy in POLICIES}
    assert bound is not None
    assert all(bound <= result for result in results.values())
    assert min(results.values()) <= 1.1 * bound


@pytest.mark.parametrize("number", range(14))
def test_it_is_within_a_tenth_of_the_best_assignment(number: int) -> None:
    specs, requests = small_case(number)
    best = min(j_per_token(run) for run in every_assignment(specs, requests, number))
    bound = oracle(specs, accepts(specs), requests, seed=number).j_per_accepted_token
    assert bound is not None
    assert 0.9 * best <= bound <= best


@pytest.mark.parametrize("number", [0, 3, 9, 17, 22])
def test_the_same_at_every_attainment(number: int) -> None:
    specs, requests = small_case(number, target_ms=6.0)
    runs = [(attainment(run.records), j_per_token(run)) for run in every_assignment(specs, requests, number)]
    for reached in {reached for reached, _ in runs}:
        assert reached is not None
        best = min(j for other, j in runs if other is not None and other >= reached)
        bound = oracle(specs, accepts(specs), requests, seed=number, attainment=reached).j_per_accepted_token
        assert bound is not None
        assert 0.9 * best <= bound <= best


@pytest.mark.parametrize("number", [3, 9, 17, 22])
def test_servers_that_share_a_gpu(number: int) -> None:
    specs, requests = small_case(number, shared=True)
    best = min(j_per_token(run) for run in every_assignment(specs, requests, number))
    bound = oracle(specs, accepts(specs), requests, seed=number).j_per_accepted_token
    assert bound is not None
    assert 0.85 * best <= bound <= best


def test_what_no_policy_attains_has_no_finite_bound() -> None:
    specs, requests = small_case(3, target_ms=0.5)
    assert {attainment(run.records) for run in every_assignment(specs, requests, 3)} == {0.0}
    assert oracle(specs, accepts(specs), requests, seed=3, attainment=1.0).j_per_accepted_token == inf
