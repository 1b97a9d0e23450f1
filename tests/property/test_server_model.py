"""Invariants of the server model: tokens and energy are conserved, jumps equal steps, clocks never run backwards."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.depthbatch import UNTOLD, DepthRequest
from selector.simulator.draws import AcceptDraws
from selector.simulator.server import Job, ServerModel
from tests.fleets import backend_spec
from tests.owndepths import choosing_spec

arrivals = st.lists(
    st.tuples(
        st.floats(0.0, 0.3),  # gap to the one before
        st.integers(1, 12_000),  # prompt tokens
        st.integers(1, 250),  # output tokens
        st.sampled_from([0, 1, 2]),  # whose prompt begins alike; 0: nobody's
    ),
    min_size=1,
    max_size=25,
)
Row = tuple[float, int, int, int]
servers = st.tuples(
    st.sampled_from(["none", "eagle3-k1", "dspark-8", "dflash-16", "own depth by plugin", "own depth by schedule"]),
    st.integers(1, 12),
    st.sampled_from([13_000, 20_000, 40_000, 400_000]),
    st.booleans(),  # whether it plans a batch ahead
)
What = tuple[str, int, int, bool]
changes = st.lists(st.floats(0.0, 3.0), max_size=6, unique=True)


def run(server: ServerModel, requests: list[Row], *, by_step: bool, turns_at: Sequence[float] = ()) -> list[Job]:
    """Drives the server to the end, event by event or step by step; a neighbour starts and stops at `turns_at`."""
    jobs, done, at_s = [], [], 0.0
    for key, (gap, prompt, output, family) in enumerate(requests):
        at_s += gap
        jobs.append(
            Job(
                key=key,
                draw_key=key,
                prompt_tokens=prompt,
                output_tokens=output,
                arrived_s=at_s,
                accept_length=min(2.5, server.cost.verify_tokens),
                accept_spread=0.15,
                told=[UNTOLD, DepthRequest("code", 4.0), DepthRequest("romansh", 8.0)][key % 3],
                prefix_ids=tuple((family, block) for block in range(prompt // 256)) if family else (),
                prefix_block_tokens=256,
            )
        )
    pending = list(reversed(jobs))
    changes = sorted(turns_at, reverse=True)
    last_s = 0.0
    for _ in range(1_000_000):
        event_s = server.next_boundary_s() if by_step else server.next_event_s()
        arrival_s = pending[-1].arrived_s if pending else inf
        if event_s is None and arrival_s == inf:
            break
        now_s = min(inf if event_s is None else event_s, arrival_s, changes[-1] if changes else inf)
        server.advance(now_s)
        assert server.now_s >= last_s
        last_s = server.now_s
        assert server.batch <= server.max_running_requests
        # No event is told too late.
        assert all(job.first_token_s == pytest.approx(now_s) for job in server.first_tokens)
        assert all(job.finished_s == pytest.approx(now_s) for job in server.finished)
        server.first_tokens.clear()
        if changes and now_s == changes[-1]:
            changes.pop()
            server.take_turns(1 + len(changes) % 2, now_s)
        if now_s == arrival_s:
            server.enqueue(pending.pop(), now_s)
        done.extend(server.finished)
        server.finished.clear()
    else:
        pytest.fail("the server does not come to an end")
    return done


def new_server(arm: str, places: int, kv_tokens: int, overlaps: bool) -> ServerModel:
    own = arm.removeprefix("own depth by ")
    backend = choosing_spec("b", own) if own != arm else backend_spec("b", arm)
    return ServerModel(
        backend.cost,
        AcceptDraws(3),
        max_running_requests=places,
        max_kv_tokens=kv_tokens,
        overlaps=overlaps,
        backend=backend,
    )


@given(servers, arrivals, changes)
@settings(max_examples=60)
def test_tokens_energy_and_places_are_conserved(what: What, requests: list[Row], turns_at: list[float]) -> None:
    server = new_server(*what)
    done = run(server, requests, by_step=False, turns_at=turns_at)
    totals = server.totals
    assert sorted(job.key for job in done) == list(range(len(requests)))
    assert totals.accepted_tokens == pytest.approx(sum(output for _, _, output, _ in requests))
    assert sum(job.decode_j for job in done) == pytest.approx(totals.decode_j, rel=1e-9, abs=1e-9)
    assert sum(job.prefill_j for job in done) == pytest.approx(totals.prefill_j, rel=1e-9, abs=1e-9)
    assert totals.moments[5] == pytest.approx(sum(output - 1 for _, _, output, _ in requests))
    assert totals.moments[2] == pytest.approx(totals.decode_s * 1e6)
    assert (server.batch, server.waiting, server.kv_tokens) == (0, 0, 0.0)
    for job in done:
        assert job.first_token_s is not None and job.finished_s is not None
        assert job.arrived_s < job.first_token_s <= job.finished_s
        assert job.delivered(server.step) == job.output_tokens


@given(servers, arrivals, changes)
@settings(max_examples=40)
def test_jumping_is_the_same_as_stepping(what: What, requests: list[Row], turns_at: list[float]) -> None:
    jumping, stepping = new_server(*what), new_server(*what)
    jumped = run(jumping, requests, by_step=False, turns_at=turns_at)
    stepped = run(stepping, requests, by_step=True, turns_at=turns_at)
    assert [job.key for job in jumped] == [job.key for job in stepped]
    assert jumping.step == stepping.step
    assert jumping.now_s == pytest.approx(stepping.now_s, rel=1e-9)
    assert jumping.totals.decode_j == pytest.approx(stepping.totals.decode_j, rel=1e-9)
    # A step exactly on the edge of the measured cells falls to either side by rounding.
    edge_j = 2 * jumping.cost.step.step(12, 12_000)[1]
    assert jumping.totals.extrapolated_j == pytest.approx(stepping.totals.extrapolated_j, rel=1e-6, abs=edge_j)
    assert jumping.totals.retractions == stepping.totals.retractions
    for one, other in zip(jumped, stepped, strict=True):
        assert one.finished_s == pytest.approx(other.finished_s, rel=1e-9)
        assert one.verify_passes == other.verify_passes
        assert one.cached_tokens == other.cached_tokens


@given(servers, arrivals, st.data())
@settings(max_examples=40)
def test_aborting_leaves_nothing_behind(what: What, requests: list[Row], data: st.DataObject) -> None:
    server = new_server(*what)
    at_s, keys = 0.0, []
    for key, (gap, prompt, output, _) in enumerate(requests):
        at_s += gap
        server.advance(at_s)
        server.enqueue(
            Job(
                key=key,
                draw_key=key,
                prompt_tokens=prompt,
                output_tokens=output,
                arrived_s=at_s,
                accept_length=1.5,
                accept_spread=0.0,
            ),
            at_s,
        )
        keys.append(key)
    ended = {job.key for job in server.finished}
    for key in data.draw(st.permutations(keys)):
        assert server.remove(key, at_s) == (key not in ended)
        assert not server.remove(key, at_s)
    server.advance(at_s + 1_000.0)
    assert {job.key for job in server.finished} == ended
    assert (server.batch, server.waiting, server.busy) == (0, 0, False)
    assert server.kv_tokens == pytest.approx(0.0, abs=1e-6)
