"""The engine follows the server model: same tokens, same times, whatever the event loop does in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.depthbatch import UNTOLD, UNTOLD_TEXT, DepthRequest
from selector.emulator.engine import EmulatedEngine
from selector.emulator.generation import DuplicateRid, Generation, Order, QueueFull
from selector.emulator.gpu import EmulatedGpu
from selector.simulator.draws import AcceptDraws
from selector.simulator.server import Job, ServerModel
from tests.emulators import ManualClock, turns
from tests.fleets import acceptance_model, backend_spec
from tests.owndepths import choosing_spec

_RIDS = itertools.count()


def engine_on(
    clock: ManualClock, arm: str = "dspark-8", gpus: Sequence[EmulatedGpu] | None = None, **limits: int
) -> EmulatedEngine:
    queued = limits.pop("max_queued_requests", None)
    own = arm.removeprefix("own depth by ")
    spec = backend_spec("b", arm, **limits) if own == arm else choosing_spec("b", own, **limits)
    boards = gpus or [EmulatedGpu("g", spec.cost.idle)]
    return EmulatedEngine(spec, acceptance_model(), boards, clock, seed=5, max_queued_requests=queued)


def order(
    answer_tokens: int = 40,
    *,
    prompt_tokens: int = 500,
    draw_key: int = 1,
    rid: str | None = None,
    tbt_target_ms: float | None = None,
    told_text_type: str = UNTOLD_TEXT,
) -> Order:
    return Order(
        rid=rid or f"r{next(_RIDS)}",
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        text_type="code",
        draw_key=draw_key,
        tbt_target_ms=tbt_target_ms,
        told_text_type=told_text_type,
    )


def finish(clock: ManualClock) -> None:
    while clock.step():
        pass


def times(generation: Generation) -> tuple[float, float]:
    job = generation.job
    assert job.first_token_s is not None and job.finished_s is not None
    return job.first_token_s, job.finished_s


@pytest.mark.parametrize("arm", ["dspark-8", "own depth by plugin", "own depth by schedule"])
def test_tokens_and_times_are_those_of_the_server_model(arm: str) -> None:
    clock = ManualClock()
    engine = engine_on(clock, arm)
    generations = [engine.submit(order(30 + 20 * key, draw_key=key)) for key in range(6)]
    finish(clock)
    spec = engine.spec
    model = ServerModel(spec.cost, AcceptDraws(5), max_running_requests=64, max_kv_tokens=400_000, backend=spec)
    acceptance = acceptance_model()
    jobs = [
        Job(
            key=key,
            draw_key=key,
            prompt_tokens=500,
            output_tokens=30 + 20 * key,
            accept_length=acceptance.accept_length("dspark-8", "code"),
            accept_spread=acceptance.request_spread("dspark-8", "code"),
            arrived_s=0.0,
        )
        for key in range(6)
    ]
    for job in jobs:
        model.enqueue(job, 0.0)
    model.advance(1e9)
    for generation, job in zip(generations, jobs, strict=True):
        assert generation.delivered == job.output_tokens
        assert times(generation) == pytest.approx((job.first_token_s, job.finished_s))
    assert engine.totals.decode_j == pytest.approx(model.totals.decode_j)
    assert engine.totals.moments == pytest.approx(model.totals.moments)


def test_only_an_engine_that_heeds_targets_is_told_them() -> None:
    found = {}
    for by in ("plugin", "schedule"):
        engine = engine_on(ManualClock(), f"own depth by {by}")
        orders = order(), order(tbt_target_ms=2.0, told_text_type="romansh")
        found[by] = [engine.submit(each).job.told for each in orders]
    assert found == {"plugin": [UNTOLD, DepthRequest("romansh", 2.0)], "schedule": [UNTOLD, UNTOLD]}


@pytest.mark.parametrize("by", ["plugin", "schedule"])
def test_who_is_aborted_leaves_an_engine_that_chooses_its_depth_to_the_others(by: str) -> None:
    clock = ManualClock()
    engine = engine_on(clock, f"own depth by {by}")
    kept, aborted = engine.submit(order(300)), engine.submit(order(300, draw_key=2))
    while not kept.ended:
        clock.step()
        if kept.delivered > 100:
            engine.abort(aborted)
    assert aborted.aborted and 0 < aborted.delivered < 300
    assert kept.delivered == 300
    assert engine.totals.accepted_tokens == pytest.approx(300 + aborted.delivered)


def test_every_step_delivers_several_tokens_when_drafts_are_accepted() -> None:
    clock = ManualClock()
    engine = engine_on(clock)
    generation = engine.submit(order(60))
    seen = [0]
    while clock.step():
        seen.append(generation.delivered)
    gained = [after - before for before, after in itertools.pairwise(seen)]
    assert gained[0] == 1  # the prefill gives the first
    assert max(gained) > 1
    assert all(1 <= tokens <= 8 for tokens in gained)
    assert sum(gained) == 60
    assert sum(generation.job.passes_by_accepted_drafts()) == len(gained) - 1


def test_drafts_accepted_beyond_the_end_of_an_answer_are_counted() -> None:
    clock = ManualClock()
    engine = engine_on(clock)
    generations = [engine.submit(order(20, draw_key=key)) for key in range(30)]
    finish(clock)
    surpluses = []
    for generation in generations:
        histogram = generation.job.passes_by_accepted_drafts()
        drafts = sum(accepted * count for accepted, count in enumerate(histogram))
        assert drafts == generation.job.accepted_drafts
        assert sum(histogram) == generation.job.verify_passes
        surpluses.append(1 + sum(histogram) + drafts - generation.delivered)
    assert min(surpluses) == 0 and 0 < max(surpluses) < 8


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=12), st.integers(1, 4))
@settings(max_examples=40)
def test_waking_late_changes_nothing_but_the_lag(pauses_s: list[float], requests: int) -> None:
    def run(pauses: Sequence[float]) -> tuple[EmulatedEngine, list[Generation]]:
        clock = ManualClock()
        engine = engine_on(clock, max_running_requests=2)
        generations = [engine.submit(order(25 * (key + 1), draw_key=key)) for key in range(requests)]
        for pause_s in pauses:
            clock.advance_to(clock.now_s() + pause_s)
        finish(clock)
        return engine, generations

    late, late_generations = run(pauses_s)
    prompt, prompt_generations = run([])
    assert [times(g) for g in late_generations] == [times(g) for g in prompt_generations]
    assert late.totals.moments == prompt.totals.moments
    assert prompt.lag_ms(1.0) == (0.0,)
    if any(pause_s > 0.05 for pause_s in pauses_s):
        assert late.lag_ms(1.0)[0] > 0.0


def test_a_request_that_comes_while_the_loop_is_late_still_comes_after_what_was_due() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none")
    first = engine.submit(order(2))
    due_s = clock.next_due_s
    assert due_s is not None
    clock.set(due_s + 3.0)  # the loop comes back much too late, and to a new request first
    second = engine.submit(order(2))
    assert first.job.first_token_s == pytest.approx(due_s)
    assert second.job.arrived_s == pytest.approx(due_s + 3.0)
    assert first.ended  # its one step was due before


async def test_more_waits_for_tokens_and_end_for_the_end() -> None:

    clock = ManualClock()
    engine = engine_on(clock, "none")
    generation, other = engine.submit(order(3)), engine.submit(order(3))
    reading, ending = asyncio.ensure_future(generation.more(0)), asyncio.ensure_future(other.end())
    await turns()
    assert not reading.done()
    while generation.delivered < 1:
        clock.step()
    await turns()
    assert reading.result() == 1
    assert await generation.more(0) == 1  # there are more than 0 already
    assert not ending.done()
    await clock.play()
    assert ending.done()
    assert await generation.more(3) == 3  # it has ended: nothing to wait for


def test_who_comes_during_a_step_waits_for_another_one_where_the_server_plans_ahead() -> None:
    waited_steps = []
    for overlaps in (True, False):
        clock = ManualClock()
        spec = replace(backend_spec("b", "none"), overlaps=overlaps)
        engine = EmulatedEngine(spec, acceptance_model(), [EmulatedGpu("g", spec.cost.idle)], clock)
        engine.submit(order(200))
        for _ in range(10):
            clock.step()
        late, step = engine.submit(order(2)), engine.totals.steps
        while late.delivered < 1:
            clock.step()
        waited_steps.append(engine.totals.steps - step)
    assert waited_steps == [2, 1]


def test_a_decoding_request_is_aborted_when_its_step_ends() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none")
    kept, aborted = engine.submit(order(50)), engine.submit(order(50))
    while engine.running < 2:
        clock.step()
    clock.step()
    energy_before = engine.totals.decode_j
    engine.abort(aborted)
    engine.abort(aborted)  # asked twice, aborted once
    assert not aborted.ended
    clock.step()
    assert aborted.ended and aborted.aborted
    assert engine.running == 1
    two_j = engine.spec.cost.step.step(2, 505)[1]
    assert engine.totals.decode_j - energy_before == pytest.approx(two_j, rel=0.01)  # the step was done for both
    finish(clock)
    assert kept.delivered == 50 and not kept.aborted
    assert aborted.delivered == 3
    assert engine.aborted_requests == 1
    assert engine.totals.accepted_tokens == pytest.approx(53)


def test_a_waiting_request_is_aborted_at_once_and_the_rest_moves_up() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none", max_running_requests=1)
    first, second, third = (engine.submit(order(5)) for _ in range(3))
    clock.step()
    assert (engine.running, engine.waiting) == (1, 2)
    engine.abort(second)
    assert second.aborted and second.delivered == 0
    assert (engine.running, engine.waiting) == (1, 1)
    finish(clock)
    assert first.delivered == third.delivered == 5


def test_what_waits_for_kv_cache_begins_when_the_last_running_request_is_aborted() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none", max_kv_tokens=1_000)
    large, blocked = engine.submit(order(300, prompt_tokens=600)), engine.submit(order(5, prompt_tokens=600))
    while not engine.running:
        clock.step()
    engine.abort(large)
    finish(clock)
    assert blocked.delivered == 5


def test_ids_are_aborted_by_prefix_once_one_is_known() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none")
    rids = ("a", "ab", "b")
    generations = {rid: engine.submit(order(5, rid=rid)) for rid in rids}
    engine.abort_rid("x")
    engine.abort_rid("a")
    finish(clock)
    assert {rid: generations[rid].aborted for rid in rids} == {"a": True, "ab": True, "b": False}


def test_an_id_can_be_used_again_after_the_request_ended_but_not_before() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none")
    engine.submit(order(2, rid="same"))
    with pytest.raises(DuplicateRid, match="same"):
        engine.submit(order(2, rid="same"))
    finish(clock)
    assert engine.submit(order(2, rid="same")).job.key is not None


def test_requests_beyond_the_queue_are_refused() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none", max_running_requests=1, max_queued_requests=1)
    engine.submit(order(20))
    with pytest.raises(QueueFull):
        engine.submit(order(20))  # the first is still being prefilled: in the queue, as far as a queue limit goes
    clock.step()
    engine.submit(order(20))
    with pytest.raises(QueueFull):
        engine.submit(order(20))


def test_an_answer_of_no_tokens_costs_its_prefill_and_gives_nothing() -> None:
    clock = ManualClock()
    engine = engine_on(clock, "none")
    generation = engine.submit(order(0))
    finish(clock)
    assert generation.ended and generation.delivered == 0
    assert engine.totals.prefill_j > 0 and engine.totals.decode_j == 0


def test_servers_on_one_gpu_take_turns() -> None:
    def tbt_ms(neighbour: bool) -> float:
        clock = ManualClock()
        gpu = EmulatedGpu("g", backend_spec("b", "none").cost.idle)
        engine, other = engine_on(clock, "none", [gpu]), engine_on(clock, "none", [gpu])
        generation = engine.submit(order(200))
        if neighbour:
            other.submit(order(2_000))
        while not generation.ended:
            clock.step()
        first_s, last_s = times(generation)
        return 1e3 * (last_s - first_s) / 199

    assert tbt_ms(neighbour=True) == pytest.approx(2 * 1.09 * tbt_ms(neighbour=False), rel=0.02)


def test_throughput_and_accept_length_are_means_over_the_last_forty_steps() -> None:
    clock = ManualClock()
    engine = engine_on(clock)
    generation = engine.submit(order(600))
    assert engine.interval.tokens_per_s == 0.0
    finish(clock)
    first_s, last_s = times(generation)
    assert engine.interval.tokens_per_s == pytest.approx(599 / (last_s - first_s), rel=0.25)
    assert engine.interval.accept_length == pytest.approx(4.5, rel=0.25)
