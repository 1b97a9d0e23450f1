"""What events tell of times, tokens and acceptance."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from selector.core.speccounts import SpecCounts
from selector.core.stream import StreamObserver


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def chat(*, finish_reason: str | None = None, usage: object = None, **delta: object) -> bytes:
    chunk: dict[str, object] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
    return event(chunk if usage is None else {**chunk, "usage": usage})


def counted(tokens: int) -> dict[str, object]:
    return {"prompt_tokens": 5, "completion_tokens": tokens}


def observed(timeline: Iterable[tuple[float, bytes]]) -> StreamObserver:
    observer = StreamObserver()
    for now_s, data in timeline:
        observer.event(data, now_s)
    return observer


DONE = b"data: [DONE]\n\n"
ROLE = chat(role="assistant", content="")
USAGE = event({"choices": [], "usage": counted(9)})


class TestTbt:
    def test_is_time_over_tokens_whatever_the_chunks_carry(self) -> None:
        seen = observed(
            [
                (1.0, ROLE),
                (1.0, chat(content="a")),
                (1.1, chat(content="bcde")),
                (1.8, chat(content="fgh")),
                (1.8, chat(finish_reason="length")),
                (9.0, USAGE),
                (9.0, DONE),
            ]
        )
        assert seen.tbt_ms == pytest.approx(100)
        assert (seen.first_s, seen.last_s, seen.chunks, seen.done) == (1.0, 1.8, 3, True)
        assert seen.longest_gap_s == pytest.approx(0.7)

    def test_of_text_held_back_until_the_end_is_counted_from_the_role_chunk(self) -> None:
        call = chat(tool_calls=[{"function": {"arguments": "{}"}}])
        assert observed([(1.0, ROLE), (2.6, call), (2.6, USAGE)]).tbt_ms == pytest.approx(200)

    def test_with_running_counts_starts_at_the_count_of_the_first_chunk(self) -> None:
        steps = [(1.0, counted(3)), (1.5, counted(5)), (2.0, counted(9))]
        timeline = [(now_s, chat(content="x", usage=usage)) for now_s, usage in steps]
        assert observed(timeline).tbt_ms == pytest.approx(1000 / 6)
        # The role chunk in the same read changes nothing; one that came before stands for the first token.
        assert observed([(1.0, ROLE), *timeline]).tbt_ms == pytest.approx(1000 / 6)
        assert observed([(0.2, ROLE), *timeline]).tbt_ms == pytest.approx(1800 / 8)

    def test_of_a_native_stream_uses_its_counts(self) -> None:
        def native(tokens: int) -> bytes:
            meta: dict[str, object] = {"finish_reason": None, **counted(tokens)}
            return event({"text": "t", "output_ids": [1], "meta_info": meta})

        assert observed([(1.0, native(1)), (3.0, native(5))]).tbt_ms == pytest.approx(500)

    @pytest.mark.parametrize(
        "timeline",
        [
            [],
            [(1.0, ROLE), (2.0, chat(content="a"))],  # no count
            [(1.0, ROLE), (2.0, chat(content="a")), (2.0, event({"choices": [], "usage": counted(1)}))],  # one token
            [(1.0, chat(content="a")), (1.0, USAGE)],  # all at once
            [(1.0, USAGE)],  # nothing but a count
        ],
    )
    def test_is_unknown_where_it_cannot_be_told(self, timeline: list[tuple[float, bytes]]) -> None:
        assert observed(timeline).tbt_ms is None

    def test_of_a_whole_native_answer_is_what_the_server_says(self) -> None:
        seen = StreamObserver()
        meta = {**counted(11), "e2e_latency": 3.5, "first_token_latency": 0.5}
        seen.answer(json.dumps({"meta_info": meta}).encode(), 9.0)
        assert seen.tbt_ms == pytest.approx(300)


def test_text_that_looks_like_counts_or_errors_is_only_text() -> None:
    quoting = chat(content='{"usage":{"completion_tokens":99},"error":{"message":"no"},"finish_reason":"stop"}')
    seen = observed([(1.0, ROLE), (2.0, quoting), (3.0, chat(content="b"))])
    assert (seen.completion_tokens, seen.error, seen.last_s) == (None, None, 3.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (event({"error": {"message": "out of memory", "code": 500}}), "out of memory"),
        (event({"error": "short"}), "short"),
        (event({"object": "error", "message": "flat"}), "flat"),
        (event({"error": None}), None),
    ],
)
def test_an_error_event_is_seen(data: bytes, message: str | None) -> None:
    assert observed([(1.0, data)]).error == message


@pytest.mark.parametrize(
    "junk", [b"data: {oops\n\n", b"\xff\xfe\n\n", b'data: {"usage":{\n\n', b"data: 7\n\n", b"\n\n"]
)
def test_junk_is_passed_over(junk: bytes) -> None:
    seen = observed([(1.0, ROLE), (2.0, junk), (3.0, USAGE)])
    assert (seen.completion_tokens, seen.error) == (9, None)


def test_a_body_that_is_no_json_tells_nothing() -> None:
    seen = StreamObserver()
    seen.answer(b"<html>", 1.0)
    assert (seen.completion_tokens, seen.spec, seen.done) == (None, None, True)


def test_the_choices_of_one_request_add_up() -> None:
    details = [{"spec_verify_ct": n, "spec_num_correct_drafts": 2 * n, "spec_accept_rate": 0.1 * n} for n in (1, 2)]
    seen = observed([(1.0, event({"choices": [], "sglext": {"spec_tokens_details": details}}))])
    assert seen.spec == SpecCounts(verify_passes=3, accepted_drafts=6, accept_rate=0.2)


def test_meta_info_of_a_choice_is_read() -> None:
    seen = StreamObserver()
    meta = {"spec_verify_ct": 4, "spec_num_correct_drafts": 9}
    seen.answer(json.dumps({"choices": [{"meta_info": meta}], "usage": counted(14)}).encode(), 1.0)
    assert seen.spec == SpecCounts(verify_passes=4, accepted_drafts=9)


def test_a_native_batch_adds_its_running_counts_up() -> None:
    def native(index: int, tokens: int, finish: object = None) -> bytes:
        meta = {"finish_reason": finish, **counted(tokens)}
        return event({"text": "t", "output_ids": [1], "index": index, "meta_info": meta})

    seen = observed(
        [(1.0, native(0, 1)), (1.1, native(1, 1)), (2.0, native(0, 7, {"type": "stop"})), (3.0, native(1, 4))]
    )
    assert seen.completion_tokens == 11


class TestNamedEvents:
    def test_of_messages(self) -> None:
        def named(name: str, **fields: object) -> bytes:
            return b"event: " + name.encode() + b"\n" + event({"type": name, **fields})

        seen = observed(
            [
                (1.0, named("message_start", message={"role": "assistant", "usage": {"input_tokens": 7}})),
                (1.0, named("content_block_start", content_block={"type": "tool_use", "name": "f"})),
                (2.0, named("content_block_delta", delta={"partial_json": "{"})),
                (3.0, named("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5})),
                (3.0, named("message_stop")),
            ]
        )
        assert (seen.first_s, seen.last_s, seen.done) == (1.0, 3.0, True)
        assert (seen.completion_tokens, seen.prompt_tokens) == (5, 7)
        assert seen.tbt_ms == pytest.approx(500)

    def test_of_responses_begin_with_text_not_with_an_echo_of_the_request(self) -> None:
        def named(name: str, **fields: object) -> bytes:
            return b"event: " + name.encode() + b"\n" + event({"type": name, **fields})

        usage = {"input_tokens": 7, "output_tokens": 5}
        seen = observed(
            [
                (1.0, named("response.created", response={"tools": [{"name": "f"}], "input": [{"role": "user"}]})),
                (2.0, named("response.output_text.delta", delta="Hi")),
                (3.0, named("response.output_text.delta", delta="!")),
                (3.5, named("response.completed", response={"usage": usage})),
            ]
        )
        assert (seen.first_s, seen.last_s, seen.done) == (2.0, 3.0, True)
        assert (seen.completion_tokens, seen.prompt_tokens) == (5, 7)


def test_an_impossible_choice_is_not_hidden_among_possible_ones() -> None:
    details = [
        {"spec_verify_ct": 10, "spec_num_correct_drafts": 20},
        {"spec_verify_ct": 10, "spec_num_correct_drafts": -5},
    ]
    seen = observed([(1.0, event({"choices": [], "sglext": {"spec_tokens_details": details}}))])
    assert seen.spec == SpecCounts(verify_passes=10, accepted_drafts=-5)
