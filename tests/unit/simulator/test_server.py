"""One server: chunks that hold others up, a KV cache that is full, prefixes, and turns on a shared GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.core.contention import turns_energy, turns_slowdown
from selector.core.cost import ArmCost
from selector.core.graphpadding import padded_steps
from selector.core.prefillcost import PrefillCost
from selector.simulator.draws import AcceptDraws
from selector.simulator.server import Job, ServerModel
from tests.fleets import arm_cost

COST = arm_cost("none")


def job(key: int, prompt: int, output: int, **more: object) -> Job:
    fields = {"accept_length": 1.0, "accept_spread": 0.0, "arrived_s": 0.0} | more
    return Job(key=key, draw_key=key, prompt_tokens=prompt, output_tokens=output, **fields)  # type: ignore[arg-type]  # the fields vary by test


def server(cost: ArmCost = COST, *, overlaps: bool = True, **limits: int) -> ServerModel:
    fields = {"max_running_requests": 64, "max_kv_tokens": 400_000, "max_context_tokens": 8_192} | limits
    return ServerModel(cost, AcceptDraws(1), overlaps=overlaps, **fields)


def run(model: ServerModel, *jobs: Job) -> dict[object, Job]:
    """All jobs at once, to the end."""
    for each in jobs:
        model.enqueue(each, model.now_s)
    model.advance(model.now_s + 1e6)
    return {each.key: each for each in model.finished}


def test_a_long_prompt_holds_up_running_requests_for_all_its_chunks() -> None:
    """SGLang without mixed chunks: decoding stands still until the last chunk."""
    model = server(chunk_tokens=1_000)
    running = job(0, 100, 400)
    model.enqueue(running, 0.0)
    model.advance(0.5)
    before = running.delivered(model.step)
    late = job(1, 4_000, 2, arrived_s=0.5)
    model.enqueue(late, 0.5)
    model.advance(1e6)
    assert late.first_token_s is not None and late.prefill_started_s is not None
    prefill_s = COST.prefill.cost(4_000)[0] / 1e3
    assert late.first_token_s - late.prefill_started_s == pytest.approx(prefill_s)
    alone = run(server(), job(0, 100, 400))[0]
    assert running.finished_s is not None and alone.finished_s is not None
    assert running.finished_s - alone.finished_s == pytest.approx(prefill_s, rel=0.01)
    assert 0 < before < 400


def pass_of_two(model: ServerModel, tokens: int) -> tuple[float, float]:
    """Seconds and joules of the pass that two prompts of that length share which come at 0.5 s; all runs to its end."""
    late = [job(key, tokens, 2, arrived_s=0.5) for key in (1, 2)]
    for each in late:
        model.enqueue(each, 0.5)
    model.advance(1e6)
    first, second = late
    assert first.first_token_s == second.first_token_s
    assert first.first_token_s is not None and first.prefill_started_s is not None
    return first.first_token_s - first.prefill_started_s, first.prefill_j + second.prefill_j


def test_short_prompts_share_the_floor_of_a_pass_and_hold_up_running_requests_until_they_resume() -> None:
    prefill = PrefillCost([(1_000.0, 24.0, 16.0), (8_000.0, 200.0, 135.0)], floor_ms=14.0, floor_j=5.0, resume_ms=3.0)
    model = server(cost=replace(COST, prefill=prefill))
    running = job(0, 100, 400)
    model.enqueue(running, 0.0)
    assert model.next_boundary_s() == pytest.approx(0.014), "nobody decodes who would have to resume"
    model.advance(0.5)
    took_s, prefill_j = pass_of_two(model, 100)
    assert took_s == pytest.approx(0.017)
    idle_j = COST.idle.watts(1) * 0.003
    assert prefill_j == pytest.approx(5.0 + idle_j)


def test_prompts_that_share_a_pass_are_padded_to_a_graph_together() -> None:
    prefill = PrefillCost([(1_000.0, 24.0, 16.0), (8_000.0, 200.0, 135.0)], graphs=(256, 512))
    model = server(cost=replace(COST, prefill=prefill))
    model.enqueue(job(0, 300, 400), 0.0)
    assert model.next_boundary_s() == pytest.approx(512 * 24e-6)
    model.advance(0.5)
    took_s, prefill_j = pass_of_two(model, 197)
    assert took_s == pytest.approx(512 * 24e-6)
    assert prefill_j == pytest.approx(512 * 0.016)
    assert model.totals.prefill_tokens == 300 + 2 * 197, "what is counted is prompts"


def test_a_step_is_padded_to_a_graph() -> None:
    model = server(cost=replace(COST, step=padded_steps(COST.step, (16, 32))))
    for key in range(17):
        model.enqueue(job(key, 100, 400), 0.0)
    model.advance(0.2)
    assert model.batch == 17
    context = sum(each.prompt_tokens + each.delivered(model.step) for each in model.running) / 17
    end_s = model.next_boundary_s()
    assert end_s is not None
    assert 1e3 * (end_s - model.now_s) == pytest.approx(COST.step.step(32, context * 17 / 32)[0], rel=1e-3)


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_chunk_takes_several_prompts_up_to_its_size(overlaps: bool) -> None:
    model = server(chunk_tokens=1_000, overlaps=overlaps)
    for key in range(4):
        model.enqueue(job(key, 400, 50), 0.0)
    # The first starts alone, since it came to an idle server; then 400 + 400 + 200 of the last.
    ends = boundaries(model, 4 if overlaps else 3)
    assert [each for each in ends if each] == [[0], [1, 2], [3]]
    assert ends.count([]) == overlaps, "the step that was launched behind the first prompt"


def boundaries(model: ServerModel, count: int) -> list[list[object]]:
    """Whose first token came at each of the next boundaries."""
    came = []
    for _ in range(count):
        end_s = model.next_boundary_s()
        assert end_s is not None
        model.first_tokens.clear()
        model.advance(end_s)
        came.append([each.key for each in model.first_tokens])
    return came


@pytest.mark.parametrize(("overlaps", "steps"), [(True, 2), (False, 1)])
def test_who_comes_during_a_step_waits_for_its_end_and_for_the_step_launched_behind_it(
    overlaps: bool, steps: int
) -> None:
    model = server(overlaps=overlaps)
    model.enqueue(job(0, 100, 400), 0.0)
    model.advance(0.5)
    before, late = model.step, job(1, 1_000, 50, arrived_s=0.5)
    assert model.now_s < 0.5
    model.enqueue(late, 0.5)
    first_s = model.next_event_s()
    assert boundaries(model, steps) == [[]] * steps
    begins_s = model.now_s
    assert boundaries(model, 1) == [[1]]
    assert (model.step, late.prefill_started_s) == (before + steps, begins_s)
    assert late.first_token_s == pytest.approx(first_s)


@pytest.mark.parametrize(("overlaps", "came"), [(True, [[], [0], [1]]), (False, [[], [0, 1]])])
def test_who_comes_during_the_first_chunk_of_a_prompt_does_not_share_the_second_that_is_planned(
    overlaps: bool, came: list[list[object]]
) -> None:
    model = server(chunk_tokens=1_000, overlaps=overlaps)
    model.enqueue(job(0, 1_500, 50), 0.0)
    model.enqueue(job(1, 400, 50), 0.001)
    assert boundaries(model, len(came)) == came


def test_a_planned_pass_begins_when_the_last_request_is_removed() -> None:
    model = server()
    model.enqueue(job(0, 100, 400), 0.0)
    model.advance(0.5)
    model.enqueue(job(1, 1_000, 50), 0.5)
    boundaries(model, 1)
    at_s = model.now_s + 0.001
    assert model.remove(0, at_s)
    assert model.next_boundary_s() == pytest.approx(at_s + COST.prefill.cost(1_000)[0] / 1e3)


def test_who_comes_during_a_pass_lets_the_others_make_the_step_launched_behind_it() -> None:
    model = server()
    model.enqueue(job(0, 100, 400), 0.0)
    model.advance(0.5)
    model.enqueue(job(1, 1_000, 50), 0.5)
    boundaries(model, 2)
    model.enqueue(job(2, 1_000, 50), model.now_s + 0.001)
    assert boundaries(model, 3) == [[1], [], [2]]


def test_who_waits_for_a_place_gets_it_a_step_after_it_is_free() -> None:
    for overlaps in (True, False):
        model = server(max_running_requests=2, overlaps=overlaps)
        short = job(1, 100, 20)
        for each in (job(0, 100, 400), short):
            model.enqueue(each, 0.0)
        model.advance(0.05)
        last = job(2, 100, 50)
        model.enqueue(last, 0.05)
        model.advance(10.0)
        assert short.finished_s is not None and last.prefill_started_s is not None
        step_s = COST.step.step(1, 130)[0] / 1e3
        assert last.prefill_started_s - short.finished_s == pytest.approx(step_s * overlaps, rel=0.01)


def test_who_is_planned_behind_a_pass_leaves_room_for_those_in_it() -> None:
    """Of the second chunk: 1,000 + 900 beside what runs and 1,000 + 900 of the first, in 4,500 tokens."""
    for most_tokens, follows in ((4_500, False), (6_000, True)):
        model = server(chunk_tokens=1_000, max_kv_tokens=most_tokens)
        for key, tokens in enumerate((100, 900, 900)):
            model.enqueue(job(key, 1_000, tokens, max_new_tokens=tokens), 0.0)
        assert boundaries(model, 4) == [[0], [], [1], [2] if follows else []]
    places = server(chunk_tokens=1_000, max_running_requests=2)
    for key in range(3):
        places.enqueue(job(key, 1_000, 900), 0.0)
    assert boundaries(places, 4) == [[0], [], [1], []]


def test_a_planned_request_is_counted_once_and_can_be_removed() -> None:
    model = server(chunk_tokens=1_000)
    model.enqueue(job(0, 2_500, 50), 0.0)
    assert model.waiting == 1, "of three passes one runs and one is planned"
    model.enqueue(job(1, 700, 50), 0.001)
    assert model.waiting == 2
    assert model.remove(0, 0.002) and not model.remove(0, 0.002)
    model.advance(1e6)
    assert [each.key for each in model.finished] == [1]
    assert (model.waiting, model.kv_tokens) == (0, 0.0)


def test_a_request_waits_for_what_it_and_the_others_may_generate() -> None:
    """Not 1,000 + 4,096 beside 1,000 + 0.7 · 4,096 of the other in 8,000 tokens; with a bound of 500 it is taken."""
    for bound, waits in ((None, True), (500, False)):
        model = server(max_kv_tokens=8_000)
        model.enqueue(job(0, 1_000, 3_000), 0.0)
        model.advance(0.1)
        model.enqueue(job(1, 1_000, 100, max_new_tokens=bound), 0.1)
        model.advance(0.2)
        assert (model.batch, model.waiting) == ((1, 1) if waits else (2, 0))


def test_the_reservation_falls_with_the_steps_that_need_no_retraction() -> None:
    model = server(max_kv_tokens=8_000)
    done = run(model, job(0, 1_000, 3_000), job(1, 1_000, 100))
    first_s, last_s = done[1].first_token_s, done[0].finished_s
    assert first_s is not None and last_s is not None
    assert 0.5 < first_s < 0.5 * last_s
    assert model.totals.retractions == 0


def test_who_has_generated_least_is_retracted_and_goes_to_the_queues_end() -> None:
    model = server(max_kv_tokens=3_000, max_context_tokens=3_000)
    old, young = job(0, 700, 900, max_new_tokens=900), job(1, 700, 900, max_new_tokens=900)
    model.enqueue(old, 0.0)
    model.advance(1.0)
    model.enqueue(young, 1.0)
    model.advance(1e6)
    assert (old.retractions, young.retractions > 0) == (0, True)
    assert [each.key for each in model.finished] == [0, 1]
    assert model.totals.accepted_tokens == pytest.approx(1_800)
    assert model.kv_tokens == pytest.approx(0.0, abs=1e-6)


def test_a_prompt_that_is_known_is_not_prefilled_again() -> None:
    model = server()
    ids = tuple(range(4))
    first = job(0, 2_000, 10, prefix_ids=ids, prefix_block_tokens=512)
    again = job(1, 2_000, 10, prefix_ids=ids, prefix_block_tokens=512)
    longer = job(2, 2_500, 10, prefix_ids=(*ids[:3], 90, 91), prefix_block_tokens=512)
    for each in (first, again, longer):
        run(model, each)
    assert [each.cached_tokens for each in (first, again, longer)] == [0, 1_999, 1_536]
    assert first.prefill_j == pytest.approx(COST.prefill.cost(2_000)[1])
    assert again.prefill_j == pytest.approx(COST.prefill.cost(1, after=1_999)[1])
    assert longer.prefill_j == pytest.approx(COST.prefill.cost(964, after=1_536)[1])


def test_requests_that_share_a_prefix_have_it_once() -> None:
    model = server()
    ids = tuple(range(4))
    model.enqueue(job(0, 2_000, 400, prefix_ids=ids, prefix_block_tokens=512), 0.0)
    model.advance(0.5)
    alone = model.kv_tokens
    model.enqueue(job(1, 2_000, 400, prefix_ids=ids, prefix_block_tokens=512), 0.5)
    model.advance(0.6)
    assert model.batch == 2
    assert model.kv_tokens < alone + 100
    model.advance(1e6)
    assert model.kv_tokens == pytest.approx(0.0, abs=1e-6)


def test_a_full_cache_forgets_prefixes_before_it_retracts() -> None:
    model = server(max_kv_tokens=6_000, max_context_tokens=6_000)
    for key in range(5):
        ids = tuple((key, block) for block in range(4))
        run(model, job(key, 2_000, 10, prefix_ids=ids, prefix_block_tokens=512))
    assert model.totals.retractions == 0
    hits = []
    for key in (4, 0):
        each = job(10 + key, 2_000, 10, prefix_ids=tuple((key, block) for block in range(4)), prefix_block_tokens=512)
        run(model, each)
        hits.append(each.cached_tokens)
    assert hits == [1_999, 0]


@pytest.mark.parametrize("change_s", [0.005, 0.1, 0.4, 1.0])
def test_a_change_of_pace_counts_from_the_instant_it_happens(change_s: float) -> None:
    """In the midst of a prefill or a step alike: what was done before it stays done."""
    model, alone = server(), server()
    shared, single = job(0, 4_000, 200), job(0, 4_000, 200)
    run(alone, single)
    model.enqueue(shared, 0.0)
    model.advance(change_s)
    model.take_turns(2, change_s)
    model.advance(1e6)
    assert shared.finished_s is not None and single.finished_s is not None
    left_s = single.finished_s - change_s
    assert shared.finished_s == pytest.approx(change_s + left_s * turns_slowdown(2), rel=1e-9)
    alone_j, shared_j = single.decode_j + single.prefill_j, shared.decode_j + shared.prefill_j
    assert alone_j < shared_j < alone_j * turns_energy(2)
    assert shared_j == pytest.approx(model.totals.decode_j + model.totals.prefill_j)


def test_turns_that_come_and_go_within_a_step_leave_its_work_the_same() -> None:
    model, alone = server(), server()
    shared, single = job(0, 100, 50), job(0, 100, 50)
    run(alone, single)
    model.enqueue(shared, 0.0)
    model.advance(0.05)
    model.take_turns(2, 0.0500)
    model.advance(0.0510)
    model.take_turns(1, 0.0510)
    model.advance(0.0512)
    model.take_turns(3, 0.0512)
    model.advance(0.0520)
    model.take_turns(1, 0.0520)
    model.advance(1e6)
    lost_s = 0.0010 * (1 - 1 / turns_slowdown(2)) + 0.0008 * (1 - 1 / turns_slowdown(3))
    assert shared.finished_s is not None and single.finished_s is not None
    assert shared.finished_s == pytest.approx(single.finished_s + lost_s, rel=1e-9)
