"""What the router learns from answers: times between tokens from token counts, acceptance from the last chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from selector.core.types import Finish, Outcome
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import EAGLE3_K3, Exchange, FakeUpstream, Script, answering, streaming
from tests.integration.router.harness import CHAT, DONE, ROLE, chat_stream, delta, event, routed, sglext, usage
from tests.integration.router.raw_client import request

STREAM: Mapping[str, Any] = {**CHAT, "stream": True}


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def outcomes(router: RunningRouter) -> list[Outcome]:
    return [entry["outcome"] for entry in router.state.dispatcher.journal.recent if entry["event"] == "end"]  # type: ignore[misc] # the deque holds both kinds of entry


async def timed_outcome(
    timeline: Sequence[tuple[float, bytes]],
    *,
    path: str = "/v1/chat/completions",
    body: Mapping[str, Any] = STREAM,
    withheld: Sequence[bytes] = (),
) -> Outcome:
    """The outcome of a stream whose chunks come at these times (seconds after the request)."""
    clock = Clock()
    go_on = asyncio.Semaphore(0)

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for _, chunk in timeline:
            await go_on.acquire()
            await exchange.chunk(chunk)
        await exchange.end()

    async with FakeUpstream(script=script) as upstream, routed(upstream, clock=clock) as router:
        async with request(router.url, path, body) as answer:
            chunks = answer.chunks()
            for at_s, chunk in timeline:
                clock.now_s = 100.0 + at_s
                go_on.release()
                if chunk not in withheld:
                    assert await anext(chunks) == chunk
            assert [chunk async for chunk in chunks] == []
        return outcomes(router)[0]


async def test_tbt_is_time_over_tokens_when_chunks_carry_one_four_and_three_tokens() -> None:
    counted = usage(9)
    outcome = await timed_outcome(
        [
            (0.5, ROLE),
            (0.5, delta(content="a")),
            (0.6, delta(content="bcde")),
            (0.9, delta(content="fgh")),
            (0.9, delta(finish_reason="length")),
            (2.0, counted),
            (2.0, DONE),
        ],
        withheld=[counted],
    )
    assert outcome.ttft_ms == pytest.approx(500)
    assert outcome.tbt_ms == pytest.approx(400 / 8)
    assert outcome.accepted_tokens == 9
    assert outcome.prompt_tokens == 12
    assert outcome.finish is Finish.DONE


async def test_tbt_when_all_text_comes_in_one_chunk_at_the_end() -> None:
    """Tool parsing holds the text back; the role chunk came with the first token."""
    outcome = await timed_outcome(
        [
            (0.25, ROLE),
            (1.25, delta(tool_calls=[{"function": {"name": "f", "arguments": '{"a":1}'}}])),
            (1.25, delta(finish_reason="tool_calls")),
            (1.25, usage(41)),
            (1.25, DONE),
        ],
        body={**STREAM, "stream_options": {"include_usage": True}},
    )
    assert outcome.ttft_ms == pytest.approx(250)
    assert outcome.tbt_ms == pytest.approx(1000 / 40)


async def test_an_end_token_without_text_is_counted_with_its_time() -> None:
    outcome = await timed_outcome(
        [(1.0, ROLE), (1.0, delta(content="a")), (1.5, delta(finish_reason="stop")), (1.5, usage(2)), (1.5, DONE)],
        body={**STREAM, "stream_options": {"include_usage": True}},
    )
    assert outcome.tbt_ms == pytest.approx(500)


async def test_reasoning_tokens_count_as_the_completion_tokens_they_are() -> None:
    counted = usage(71).replace(b'"completion_tokens":71', b'"completion_tokens":71,"reasoning_tokens":64')
    outcome = await timed_outcome(
        [(1.0, ROLE), (1.0, delta(reasoning_content="hm")), (8.0, delta(content="x")), (8.0, counted), (8.0, DONE)],
        body={**STREAM, "stream_options": {"include_usage": True}},
    )
    assert outcome.accepted_tokens == 71
    assert outcome.tbt_ms == pytest.approx(100)


def generated(tokens: int, finish: object = None, **meta: object) -> bytes:
    counts = {"id": "x", "finish_reason": finish, "prompt_tokens": 5, "completion_tokens": tokens, **meta}
    return event({"text": "t" * tokens, "output_ids": list(range(tokens)), "meta_info": counts})


async def test_a_native_stream_counts_its_tokens_itself() -> None:
    outcome = await timed_outcome(
        [
            (1.0, generated(3)),
            (1.2, generated(5)),
            (1.6, generated(9, {"type": "length"}, spec_verify_ct=3, spec_num_correct_drafts=5)),
            (1.6, DONE),
        ],
        path="/generate",
        body={"text": "hello", "stream": True},
    )
    assert outcome.tbt_ms == pytest.approx(600 / 6)
    assert (outcome.verify_passes, outcome.accepted_drafts) == (3, 5)
    assert (outcome.accepted_tokens, outcome.prompt_tokens) == (9, 5)


async def test_interleaved_answers_have_tokens_but_no_time_between_them() -> None:
    outcome = await timed_outcome(
        [(1.0, ROLE), (1.0, delta(content="a")), (2.0, delta(content="b")), (2.0, usage(20)), (2.0, DONE)],
        body={**STREAM, "n": 2, "stream_options": {"include_usage": True}},
    )
    assert (outcome.accepted_tokens, outcome.tbt_ms) == (20, None)


GENERATIONS: Sequence[Mapping[str, Any]] = [
    {"spec_verify_ct": 4, "spec_num_correct_drafts": 9, "spec_num_proposed_drafts": 12, "spec_accept_rate": 0.75},
    {"spec_verify_ct": 4, "spec_accepted_drafts": 9, "spec_proposed_drafts": 12},
    {"spec_verify_ct": 4, "spec_accept_token_num": 9, "spec_draft_token_num": 12},
]


async def learnt_from(script: Script, path: str, body: Mapping[str, Any]) -> tuple[Outcome, Any]:
    async with (
        FakeUpstream(EAGLE3_K3, script=script) as upstream,
        routed(upstream, arms=["eagle3-k3"]) as router,
    ):
        async with request(router.url, path, body) as answer:
            await answer.body()
        return outcomes(router)[0], router.state.dispatcher.controller.context.acceptance


def answers_with(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Script]]:
    """The ways in which a backend may report on speculation, each with the request that asks for it."""
    meta = {"prompt_tokens": 5, "completion_tokens": 14, **report}
    whole_chat = {"choices": [], "usage": {"completion_tokens": 14}, "sglext": {"spec_tokens_details": report}}
    end = chat_stream("a", tokens=14)
    return [
        ("/generate", {"text": "hi", "stream": True}, streaming(generated(14, {"type": "stop"}, **report), DONE)),
        ("/generate", {"text": "hi"}, answering(200, orjson.dumps({"text": "x", "meta_info": meta}))),
        ("/v1/chat/completions", STREAM, streaming(*end[:-2], sglext(**report), *end[-2:])),
        ("/v1/chat/completions", CHAT, answering(200, orjson.dumps(whole_chat))),
    ]


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("report", GENERATIONS)
async def test_acceptance_is_learnt_from_each_generation_of_names(report: Mapping[str, Any], way: int) -> None:
    path, body, script = answers_with(report)[way]
    outcome, acceptance = await learnt_from(script, path, body)
    assert (outcome.verify_passes, outcome.accepted_drafts, outcome.accepted_tokens) == (4, 9, 14)
    assert acceptance.samples == 1


@pytest.mark.parametrize("way", range(4))
async def test_a_report_without_them_is_unknown_and_not_zero(way: int) -> None:
    path, body, script = answers_with({})[way]
    outcome, acceptance = await learnt_from(script, path, body)
    assert (outcome.verify_passes, outcome.accepted_drafts, outcome.accept_length) == (None, None, None)
    assert (acceptance.samples, acceptance.refused_samples) == (0, 0)


@pytest.mark.parametrize(
    ("report", "counted_as"),
    [
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": 13}, "acceptance_refused_samples"),
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": -1}, "acceptance_refused_samples"),
        ({"spec_verify_ct": 0, "spec_num_correct_drafts": 0}, "acceptance_refused_samples"),
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": 5, "spec_accept_rate": 1.25}, "refused_accept_rates"),
    ],
)
async def test_an_impossible_report_is_refused_and_counted(report: Mapping[str, Any], counted_as: str) -> None:
    path, body, script = answers_with(report)[2]
    async with (
        FakeUpstream(EAGLE3_K3, script=script) as upstream,
        routed(upstream, arms=["eagle3-k3"]) as router,
    ):
        acceptance = router.state.dispatcher.controller.context.acceptance
        before = acceptance.snapshot()
        async with request(router.url, path, body) as answer:
            await answer.body()
        assert acceptance.snapshot() == before
        metrics = router.state.metrics.render().decode()
    assert f"drafter_selector_{counted_as}_total 1.0" in metrics


async def test_a_native_answer_says_how_long_it_decoded() -> None:
    meta = {"prompt_tokens": 5, "completion_tokens": 11, "e2e_latency": 1.5, "first_token_latency": 0.5}
    script = answering(200, orjson.dumps({"text": "x", "meta_info": meta}))
    outcome, _ = await learnt_from(script, "/generate", {"text": "hi"})
    assert outcome.tbt_ms == pytest.approx(100)
    assert outcome.ttft_ms is None


async def test_a_whole_chat_answer_has_tokens_but_no_times() -> None:
    script = answering(200, orjson.dumps({"usage": {"completion_tokens": 11, "prompt_tokens": 7}}))
    outcome, _ = await learnt_from(script, "/v1/chat/completions", CHAT)
    assert (outcome.accepted_tokens, outcome.prompt_tokens) == (11, 7)
    assert (outcome.tbt_ms, outcome.ttft_ms) == (None, None)


async def test_the_tokens_of_a_native_batch_add_up() -> None:
    items = [{"text": "x", "meta_info": {"prompt_tokens": 5, "completion_tokens": n}} for n in (3, 4)]
    outcome, _ = await learnt_from(answering(200, orjson.dumps(items)), "/generate", {"text": ["a", "b"]})
    assert outcome.accepted_tokens == 7


async def test_a_refusal_by_the_backend_is_neither_met_nor_missed_and_a_fault_is_missed() -> None:
    async with FakeUpstream(script=answering(400, b"{}")) as upstream, routed(upstream) as router:
        async with request(router.url, body=CHAT) as answer:
            await answer.body()
        upstream.script = answering(500, b"{}")
        async with request(router.url, body=CHAT) as answer:
            await answer.body()
        assert [outcome.finish for outcome in outcomes(router)] == [Finish.CANCELLED, Finish.FAILED]
        metrics = router.state.metrics.render().decode()
    assert 'tbt_target_total{result="unknown",slo_class="chat"} 1.0' in metrics
    assert 'tbt_target_total{result="missed",slo_class="chat"} 1.0' in metrics


async def test_an_error_event_inside_a_stream_passes_and_counts_as_failed() -> None:
    sent = [ROLE, event({"error": {"message": "out of memory", "code": 500}}), DONE]
    async with FakeUpstream(script=streaming(*sent)) as upstream, routed(upstream) as router:
        async with request(router.url, body=STREAM) as answer:
            assert [chunk async for chunk in answer.chunks()] == sent
        assert outcomes(router)[0].finish is Finish.FAILED


async def test_the_named_events_of_the_newer_routes_are_understood() -> None:
    def named(name: str, **fields: object) -> bytes:
        return b"event: " + name.encode() + b"\n" + event({"type": name, **fields})

    anthropic = [
        named("message_start", message={"role": "assistant", "usage": {"input_tokens": 9, "output_tokens": 0}}),
        named("content_block_delta", delta={"type": "text_delta", "text": "Hi"}),
        named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 6}),
        named("message_stop"),
    ]
    counts = {"input_tokens": 9, "output_tokens": 6}
    responses = [
        named("response.created", response={"tools": [{"name": "not content"}]}),
        named("response.output_text.delta", delta="Hi"),
        named("response.completed", response={"usage": counts}),
    ]
    for path, sent in (("/v1/messages", anthropic), ("/v1/responses", responses)):
        async with FakeUpstream(script=streaming(*sent)) as upstream, routed(upstream) as router:
            async with request(router.url, path, {**STREAM, "input": "hello"}) as answer:
                assert [chunk async for chunk in answer.chunks()] == sent
            outcome = outcomes(router)[0]
            assert (outcome.finish, outcome.accepted_tokens, outcome.prompt_tokens) == (Finish.DONE, 6, 9)
