"""The worst server of a kind is worse than a real one with any part of its requests."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selector.core.policy import BackendSpec
from selector.files.trace import TraceRequest
from selector.simulator.draws import AcceptDraws
from selector.simulator.oracle.windows import Clock, windows_of
from selector.simulator.oracle.work import work_of
from selector.simulator.run import SimulatedRequest
from selector.simulator.server import Job, ServerModel
from tests.fleets import backend_spec, with_graphs
from tests.oraclecases import accepts


def requests_of(rows: list[tuple[float, int, int, bool]]) -> list[SimulatedRequest]:
    """(seconds after the one before, prompt, answer, whether it is sent at all): the last is the test's."""
    at_s, requests = 0.0, []
    for number, (gap_s, prompt, output, _) in enumerate(rows):
        at_s += gap_s
        trace = TraceRequest(request_id=f"{number}", arrival_s=at_s, prompt_tokens=prompt, output_tokens=output)
        requests.append(SimulatedRequest(trace=trace, text_type="code", slo_class="chat", tbt_target_ms=None))
    return requests


def server_of(spec: BackendSpec) -> ServerModel:
    return ServerModel(
        spec.cost,
        AcceptDraws(5),
        max_running_requests=spec.max_running_requests,
        max_kv_tokens=spec.max_kv_tokens,
        max_context_tokens=8_192,
        overlaps=spec.overlaps,
    )


@given(
    st.sampled_from(["none", "eagle3-k1", "dspark-8", "dflash-16"]),
    st.sampled_from([1, 2, 5, 64]),
    st.sampled_from([12_000, 40_000, 400_000]),
    st.lists(
        st.tuples(st.floats(0.0, 0.3), st.integers(1, 5_000), st.integers(1, 200), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=80)
def test_every_request_is_done_no_later_and_no_earlier_than_its_window_says(
    arm: str, places: int, kv_tokens: int, rows: list[tuple[float, int, int, bool]], graphed: bool, overlaps: bool
) -> None:
    spec = backend_spec("b", arm, max_running_requests=places, max_kv_tokens=kv_tokens)
    spec = replace(with_graphs(spec) if graphed else spec, overlaps=overlaps)
    requests = requests_of(rows)
    truth = accepts([spec])
    work = work_of([spec], truth, requests, seed=5, session_prefixes=False)
    windows = windows_of(work)
    server = server_of(spec)
    sent = [number for number, row in enumerate(rows) if row[3]]
    for number in sent:
        trace, prior = requests[number].trace, truth["b", "code"]
        server.advance(trace.arrival_s)
        server.enqueue(
            Job(
                key=number,
                draw_key=number,
                prompt_tokens=trace.prompt_tokens,
                output_tokens=trace.output_tokens,
                accept_length=prior.mean,
                accept_spread=prior.request_spread,
                arrived_s=trace.arrival_s,
            ),
            trace.arrival_s,
        )
    server.advance(1e6)
    assert len(server.finished) == len(sent)
    for job in server.finished:
        pair = int(str(job.key))
        assert job.first_token_s is not None and job.finished_s is not None
        assert job.verify_passes == work.steps[pair]
        assert job.first_token_s >= work.first_token_s[pair] - 1e-9
        assert job.finished_s - job.first_token_s >= work.decode_s[pair] - 1e-9
        assert job.finished_s <= windows.latest_end_s[pair] + 1e-9


@given(
    st.sampled_from([1, 3, 64]),
    st.sampled_from([12_000, 30_000, 400_000]),
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.01, 0.05]), st.sampled_from([5, 300, 900]), st.integers(2, 40), st.booleans()
        ),
        min_size=4,
        max_size=20,
    ),
    st.booleans(),
)
@settings(max_examples=80)
@example(
    3, 12_000, [(0.009, 620, 22, True), (0.012, 6, 59, True), (0.008, 290, 49, True), (0.1, 900, 20, False)], False
)
@example(64, 400_000, [(0.01, 1, 16, True), (0.02, 300, 18, True), (0.0, 300, 9, True), (0.01, 1, 9, True)], True)
def test_at_every_step_a_real_server_is_no_later(
    places: int, kv_tokens: int, rows: list[tuple[float, int, int, bool]], overlaps: bool
) -> None:
    spec = backend_spec("b", "none", max_running_requests=places, max_kv_tokens=kv_tokens)
    spec = replace(spec, overlaps=overlaps)
    requests = requests_of(rows)
    work = work_of([spec], accepts([spec]), requests, seed=5, session_prefixes=False)
    windows = windows_of(work)
    server = server_of(spec)
    pending = [number for number, row in enumerate(rows) if row[3]]
    jobs: dict[int, Job] = {}
    seen: set[tuple[int, int]] = set()
    while pending or server.busy:
        boundary_s = server.next_boundary_s()
        arrival_s = requests[pending[0]].trace.arrival_s if pending else inf
        now_s = min(inf if boundary_s is None else boundary_s, arrival_s)
        server.advance(now_s)
        for number, job in jobs.items():
            # Without a drafter every step gives one token.
            steps = job.delivered(server.step) - 1
            if steps > 0 and (number, steps) not in seen and windows.latest_end_s[number] < inf:
                seen.add((number, steps))
                on_worst = windows.last_step[number] - work.steps[number] + steps
                ended_s = server.now_s if job.finished_s is None else job.finished_s
                assert ended_s <= windows.clocks[0].when(np.array([on_worst]))[0] + 1e-6
        if now_s == arrival_s:
            number = pending.pop(0)
            trace = requests[number].trace
            jobs[number] = Job(
                key=number,
                draw_key=number,
                prompt_tokens=trace.prompt_tokens,
                output_tokens=trace.output_tokens,
                accept_length=1.0,
                accept_spread=0.0,
                arrived_s=arrival_s,
            )
            server.enqueue(jobs[number], arrival_s)


def test_a_request_alone_has_hardly_any_choice() -> None:
    spec = backend_spec("b", "none")
    trace = TraceRequest(request_id="r", arrival_s=1.0, prompt_tokens=500, output_tokens=100)
    request = SimulatedRequest(trace=trace, text_type="code", slo_class="chat", tbt_target_ms=None)
    work = work_of([spec], accepts([spec]), [request], seed=0, session_prefixes=False)
    windows = windows_of(work)
    assert windows.largest_batch.tolist() == [1]
    assert windows.latest_end_s[0] == pytest.approx(work.first_token_s[0] + work.decode_s[0], rel=0.005)


def test_after_a_burst_the_worst_server_recovers() -> None:
    spec = backend_spec("b", "none", max_running_requests=4)
    times = [0.0] * 12 + [60.0]
    requests = [
        SimulatedRequest(
            trace=TraceRequest(request_id=f"{number}", arrival_s=at_s, prompt_tokens=100, output_tokens=200),
            text_type="code",
            slo_class="chat",
            tbt_target_ms=None,
        )
        for number, at_s in enumerate(times)
    ]
    windows = windows_of(work_of([spec], accepts([spec]), requests, seed=0, session_prefixes=False))
    assert windows.largest_batch.tolist() == [4] * 12 + [1]
    assert windows.latest_end_s[11] > 2.9 * windows.latest_end_s[0]
    assert windows.latest_end_s[12] < 62.0


def test_the_clock_tells_the_first_and_the_last_time_of_a_step_count() -> None:
    clock = Clock(at_s=np.array([0.0, 1.0, 3.0, 4.0]), steps=np.array([0.0, 10.0, 10.0, 20.0]))
    asked = np.array([5.0, 10.0, 15.0, 20.0, 21.0])
    assert clock.when(asked).tolist() == [0.5, 1.0, 3.5, 4.0, inf]
    assert clock.until(asked).tolist() == [0.5, 3.0, 3.5, inf, inf]
