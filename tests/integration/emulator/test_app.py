"""What a client sees: streams, whole answers, counts, refusals, aborts. In memory, on a clock that the test turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from selector.core.stream import StreamObserver
from selector.emulator.app import EmulatorApp
from selector.emulator.asks import Limits
from selector.emulator.engine import EmulatedEngine
from selector.emulator.gpu import EmulatedGpu, energy_report
from selector.emulator.info import Site
from selector.files.acceptancepriors import acceptance_model
from tests.emulators import PROFILE, Answer, Client, ManualClock, fleet_of, turns

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/generate"


class Server:
    """One emulated server and an in-memory client for it."""

    def __init__(
        self, arm: str = "dspark-8", *, api_key: str | None = None, queue: int | None = None, **limits: object
    ):
        self.clock = ManualClock()
        spec = fleet_of(arm, **limits).specs[0]
        gpu = EmulatedGpu("gpu0", spec.cost.idle)
        self.engine = EmulatedEngine(
            spec, acceptance_model([(arm, PROFILE)]), [gpu], self.clock, seed=1, max_queued_requests=queue
        )
        site = Site(
            profile=PROFILE,
            arm=PROFILE.arm(arm),
            spec=spec,
            limits=Limits(context_tokens=8_192, kv_tokens=spec.max_kv_tokens),
            host="127.0.0.1",
            port=30_000,
            max_queued_requests=queue,
        )
        app = EmulatorApp(site, self.engine, lambda: energy_report([gpu], self.clock), api_key=api_key)
        self.client = Client(app, self.clock)

    async def call(self, path: str, body: object = None, **options: Any) -> Answer:
        return await self.client.call(path, body, **options)


def chat(tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "def f(x): return x + 1  # explain this python code"}
    return {"model": "smol", "messages": [message], "max_tokens": tokens, "ignore_eos": True, **fields}


def streamed(tokens: int, **fields: Any) -> dict[str, Any]:
    return chat(tokens, stream=True, stream_options={"include_usage": True}, **fields)


def generate(tokens: int, **fields: Any) -> dict[str, Any]:
    return {"text": "x" * 400, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, **fields}


def texts(events: list[Any]) -> list[str]:
    """Content of the events that have some."""
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    return [delta["content"] for delta in deltas if delta.get("content")]


def observed(answer: Answer) -> StreamObserver:
    observer = StreamObserver()
    for at_s, chunk in answer.chunks:
        if chunk:
            observer.event(chunk, at_s)
    return observer


@pytest.mark.parametrize("arm", ["none", "dspark-8"])
async def test_tbt_observed_from_the_stream_is_the_models(arm: str) -> None:
    server = Server(arm)
    observer = observed(await server.call(CHAT, streamed(200)))
    assert observer.done
    assert observer.completion_tokens == 200
    assert observer.tbt_ms == pytest.approx(1e3 * server.engine.totals.decode_s / 199, rel=1e-9)
    one_token_ms = PROFILE.cost(arm).step.step(1, 200)[0] / (1.0 if arm == "none" else 5.2)
    assert observer.tbt_ms == pytest.approx(one_token_ms, rel=0.25)


async def test_a_step_is_an_event_and_carries_what_it_accepted() -> None:
    server = Server()
    answer = await server.call(CHAT, streamed(100))
    pieces = texts(answer.events())
    words = [len(piece.split()) for piece in pieces]
    assert sum(words) == 100
    assert words[0] == 1 and 1 < max(words) <= 8
    assert len(pieces) == int(server.engine.totals.moments[0]) + 1
    content_times = [at_s for at_s, chunk in answer.chunks if b'"content":" ' in chunk]
    assert len(set(content_times)) == len(pieces)


async def test_the_text_is_the_same_streamed_whole_and_native() -> None:
    key = {"x-emulated-draw-key": "77"}
    pieces = texts((await Server().call(CHAT, streamed(50), headers=key)).events())
    whole = (await Server().call(CHAT, chat(50), headers=key)).json()
    native = (await Server().call(GENERATE, generate(50), headers=key)).json()
    assert "".join(pieces) == whole["choices"][0]["message"]["content"] == native["text"]
    assert len(native["text"].split()) == len(native["output_ids"]) == 50
    by_word = dict(zip(native["text"].split(), native["output_ids"], strict=True))
    assert len(set(by_word.values())) == len(by_word)


async def test_continuous_usage_counts_every_event() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await Server().call(CHAT, chat(60, stream=True, stream_options=options))).events()
    counted = [event for event in events if event["choices"] and event.get("usage")]
    words = 0
    for event in counted:
        words += len(event["choices"][0]["delta"]["content"].split())
        assert event["usage"]["completion_tokens"] == words
    assert events[-1]["usage"]["completion_tokens"] == words == 60
    assert events[-1]["usage"]["total_tokens"] == 60 + events[-1]["usage"]["prompt_tokens"]


async def test_an_end_token_is_counted_and_has_no_text() -> None:
    body = chat(500, stream=True, stream_options={"include_usage": True}) | {"ignore_eos": False}
    events = (await Server("none").call(CHAT, body, headers={"x-emulated-draw-key": "3"})).events()
    finish, usage = events[-2:]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert finish["choices"][0]["matched_stop"] == 2
    assert usage["usage"]["completion_tokens"] == len("".join(texts(events)).split()) + 1
    ending = {"text": "hi", "sampling_params": {"max_new_tokens": 500}}
    native = (await Server("none").call(GENERATE, ending, headers={"x-emulated-draw-key": "3"})).json()
    assert native["output_ids"][-1] == 2
    assert native["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert len(native["text"].split()) == len(native["output_ids"]) - 1 == usage["usage"]["completion_tokens"] - 1


async def test_a_batch_of_prompts_is_answered_as_a_list_and_runs_together() -> None:
    server = Server("none")
    batch = generate(50) | {"text": ["one", "two", "three"], "rid": "b"}
    answers = (await server.call(GENERATE, batch)).json()
    assert [answer["meta_info"]["id"] for answer in answers] == ["b_0", "b_1", "b_2"]
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [50, 50, 50]
    steps, request_steps, *_ = (await server.call("/v1/loads")).json()["loads"][0]["decode_moments"]
    assert steps < 60 and request_steps == 3 * 49
    assert len((await server.call(GENERATE, generate(2) | {"text": None, "input_ids": [[5, 6]]})).json()) == 1


async def test_lengths_of_a_batch_may_differ_and_must_fit_its_prompts() -> None:
    server = Server("none")
    each = [{"max_new_tokens": tokens, "ignore_eos": True} for tokens in (2, 9)]
    answers = (await server.call(GENERATE, {"text": ["a", "b"], "sampling_params": each, "rid": ["x", "y"]})).json()
    assert [(one["meta_info"]["id"], one["meta_info"]["completion_tokens"]) for one in answers] == [("x", 2), ("y", 9)]
    for bad in ({"rid": ["x"]}, {"sampling_params": each[:1]}):
        refused = await server.call(GENERATE, generate(2) | {"text": ["a", "b"]} | bad)
        assert refused.status == 400, bad
    streamed = await server.call(GENERATE, generate(2) | {"text": ["a", "b"], "stream": True})
    assert "one prompt per request" in streamed.body.decode()


async def test_a_batch_that_does_not_fit_the_queue_leaves_nothing_behind() -> None:
    server = Server("none", queue=1, max_running_requests=1)
    assert (await server.call(GENERATE, generate(5) | {"text": ["a", "b", "c", "d"]})).status == 503
    await server.clock.play()
    assert (server.engine.running, server.engine.waiting) == (0, 0)


async def test_speculation_counts_agree_with_the_tokens() -> None:
    answer = await Server().call(CHAT, streamed(120, return_spec_tokens_details=True))
    *_, extension, usage = answer.events()
    details = extension["sglext"]["spec_tokens_details"]
    passes, drafts = details["spec_verify_ct"], details["spec_num_correct_drafts"]
    # The last pass may have accepted drafts beyond the end.
    assert 119 <= passes + drafts < 119 + 8
    assert details["spec_num_proposed_drafts"] == 7 * passes
    assert details["spec_accept_rate"] == pytest.approx(drafts / (7 * passes))
    assert details["spec_accept_length"] == pytest.approx(120 / passes)
    histogram = details["spec_correct_drafts_histogram"]
    assert sum(histogram) == passes and sum(k * count for k, count in enumerate(histogram)) == drafts
    assert observed(answer).spec is not None
    assert usage["usage"]["completion_tokens"] == 120


async def test_a_server_without_a_drafter_reports_no_speculation() -> None:
    server = Server("none")
    events = (await server.call(CHAT, streamed(20, return_spec_tokens_details=True))).events()
    assert not any("sglext" in event for event in events)
    assert "spec_verify_ct" not in (await server.call(GENERATE, generate(5))).json()["meta_info"]
    assert "speculative" not in (await server.call("/v1/loads")).json()["loads"][0]
    assert "avg_spec_accept_length" not in (await server.call("/server_info")).json()["internal_states"][0]


async def test_accept_lengths_follow_the_text_type() -> None:
    async def accept_length(**headers: str) -> float:
        server = Server()
        await server.call(GENERATE, generate(2_000), headers=headers)
        info = (await server.call("/server_info")).json()
        return float(info["internal_states"][0]["avg_spec_accept_length"])

    code = await accept_length(**{"x-emulated-text-type": "code"})
    romansh = await accept_length(**{"x-emulated-text-type": "romansh"})
    assert (code, romansh) == (pytest.approx(5.2, rel=0.1), pytest.approx(1.7, rel=0.1))


async def test_equal_draw_keys_give_equal_steps() -> None:
    async def histogram(key: str) -> list[int]:
        headers = {"x-emulated-draw-key": key, "x-emulated-text-type": "code"}
        answer = await Server().call(GENERATE, generate(100), headers=headers)
        return list(answer.json()["meta_info"]["spec_correct_drafts_histogram"])

    assert await histogram("5") == await histogram("5")
    assert await histogram("5") != await histogram("6")


async def test_times_in_the_metadata_are_emulated() -> None:
    server = Server("none")
    server.clock.advance_to(100.0)
    meta = (await server.call(GENERATE, generate(11))).json()["meta_info"]
    unix_s = server.clock.unix_s
    assert meta["request_received_ts"] == unix_s(100.0)
    assert meta["prefill_finished_time"] == pytest.approx(unix_s(100.0) + meta["first_token_latency"])
    assert meta["e2e_latency"] == pytest.approx(server.clock.now_s() - 100.0)
    assert meta["decode_throughput"] == pytest.approx(10 / (meta["e2e_latency"] - meta["first_token_latency"]))


async def test_decode_moments_are_those_of_the_steps() -> None:
    server = Server("none")
    assert (await server.call("/v1/loads")).json()["loads"][0]["decode_moments"] is None
    await server.call(CHAT, chat(41))
    load = (await server.call("/v1/loads?include=core")).json()["loads"][0]
    steps, request_steps, step_us, squares, weighted_us, tokens = load["decode_moments"]
    assert (steps, request_steps, squares, tokens) == (40, 40, 40, pytest.approx(40))
    assert step_us == weighted_us == pytest.approx(40 * 1e3 * PROFILE.cost("none").step.step(1, 33)[0], rel=0.01)
    assert "memory" not in load


async def test_load_counts_running_and_waiting_requests() -> None:
    server = Server("none", max_running_requests=1)
    exchanges = [server.client.open(CHAT, streamed(30)) for _ in range(3)]
    await turns()
    server.clock.step()
    load = (await server.call("/v1/loads")).json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 2)
    assert load["num_used_tokens"] > 0
    assert load["num_total_tokens"] > load["num_used_tokens"]
    await server.clock.play()
    assert all(exchange.answer.complete for exchange in exchanges)
    assert (await server.call("/v1/loads")).json()["loads"][0]["num_used_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_request(stream: bool) -> None:
    server = Server("none")
    exchange = server.client.open(CHAT, streamed(5_000) if stream else chat(5_000))
    await turns()
    for _ in range(5):
        server.clock.step()
        await turns()
    assert server.engine.running == 1
    exchange.disconnect()
    await turns()
    server.clock.step()  # the step under way ends first
    await turns()
    assert (server.engine.running, server.engine.waiting) == (0, 0)
    assert server.engine.aborted_requests == 1
    assert exchange.task.done()
    assert server.clock.next_due_s is None


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    server = Server("none", max_running_requests=1)
    server.client.open(CHAT, chat(50))
    waiting = server.client.open(CHAT, chat(50))
    await turns()
    server.clock.step()
    waiting.disconnect()
    await turns()
    assert (server.engine.running, server.engine.waiting) == (1, 0)
    await server.clock.play()


async def test_requests_are_aborted_by_id() -> None:
    server = Server("none")
    kept, ended = server.client.open(CHAT, streamed(40, rid="keep")), server.client.open(CHAT, streamed(40, rid="end"))
    await turns()
    for _ in range(6):
        server.clock.step()
        await turns()
    assert (await server.call("/abort_request", {"rid": "end"})).status == 200
    await server.clock.play()
    assert ended.answer.events()[-2]["choices"][0]["finish_reason"] == "abort"
    assert ended.answer.events()[-1]["usage"]["completion_tokens"] == len("".join(texts(ended.answer.events())).split())
    assert kept.answer.events()[-1]["usage"]["completion_tokens"] == 40


async def test_an_id_in_use_is_refused() -> None:
    server = Server("none")
    server.client.open(CHAT, chat(40, rid="same"))
    await turns()
    answer = await server.call(CHAT, chat(40, rid="same"))
    assert answer.status == 400
    assert answer.json()["message"] == "Duplicate request ID detected: same"
    await server.clock.play()


async def test_a_full_queue_refuses_with_503_or_an_event() -> None:
    server = Server("none", queue=1, max_running_requests=1)
    server.client.open(CHAT, chat(100))
    await turns()
    server.clock.step()
    server.client.open(CHAT, chat(100))
    await turns()
    whole = await server.call(CHAT, chat(5))
    assert (whole.status, whole.json()["message"]) == (503, "The request queue is full.")
    stream = await server.call(CHAT, chat(5, stream=True))
    assert stream.status == 200
    assert stream.events() == [{"error": whole.json() | {"type": "SERVICE_UNAVAILABLE"}}]
    await server.clock.play()


async def test_an_api_key_protects_all_but_the_probes() -> None:
    server = Server(api_key="secret")
    for path in ("/v1/models", "/v1/loads", "/server_info", "/energy", "/nope"):
        answer = await server.call(path)
        assert (answer.status, answer.body) == (401, b'{"error":"Unauthorized"}'), path
    for wrong in ("secret", "Bearer ", "Bearer secrets", "Basic secret", "Bearer sécret"):
        assert (await server.call("/v1/models", headers={"authorization": wrong})).status == 401
    assert (await server.call("/v1/models", headers={"authorization": "Bearer secret"})).status == 200
    for path in ("/ready", "/health", "/health_generate", "/metrics"):
        assert (await server.call(path)).status == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/nope", "GET", 404), (CHAT, "GET", 405), (GENERATE, "GET", 405), ("/v1/loads", "POST", 405)],
)
async def test_paths_and_methods_that_are_not_there(path: str, method: str, status: int) -> None:
    answer = await Server().call(path, method=method)
    assert answer.status == status
    assert list(answer.json()) == ["detail"]
    assert ("allow" in answer.headers) == (status == 405)


async def test_more_than_one_choice_is_refused_in_each_shape() -> None:
    server = Server()
    flat = (await server.call(CHAT, chat(5, n=2))).json()
    assert (flat["object"], flat["type"], flat["code"]) == ("error", "BadRequestError", 400)
    native = await server.call(GENERATE, {"text": "hi", "sampling_params": {"n": 2}})
    assert (native.status, list(native.json())) == (400, ["error"])
    stream = await server.call(GENERATE, {"text": "hi", "stream": True, "sampling_params": {"n": 2}})
    assert (stream.status, stream.events()[0]["error"]["code"]) == (200, 400)


async def test_openai_routes_want_json_as_content_type() -> None:
    answer = await Server().call(CHAT, chat(5), headers={"content-type": "text/plain"})
    assert answer.status == 400
    assert "Only 'application/json' is allowed" in answer.json()["message"]


async def test_sections_of_the_load_that_are_unknown_fail_as_they_do_in_sglang() -> None:
    answer = await Server().call("/v1/loads?include=core,nonsense")
    assert (answer.status, answer.body) == (500, b"Internal Server Error")


async def test_the_arm_can_be_told_from_the_server_info() -> None:
    info = (await Server("dspark-8", queue=7).call("/get_server_info")).json()
    assert info["speculative_algorithm"] == "DSPARK"
    assert info["speculative_num_draft_tokens"] == 8
    assert info["max_queued_requests"] == 7
    assert info["served_model_name"] == "smol"
    assert (await Server("none").call("/server_info")).json()["speculative_algorithm"] is None
    assert not {"cuda_graph_bs_prefill", "cuda_graph_bs_decode"} & info.keys()
    flags = ["--cuda-graph-bs-prefill", "512", "64", "--cuda-graph-bs-decode", "8"]
    padding = (await Server("none", launch_flags=flags).call("/server_info")).json()
    assert (padding["cuda_graph_bs_prefill"], padding["cuda_graph_bs_decode"]) == ([64, 512], [8])
    assert info["disable_overlap_schedule"] is False
    alone = (await Server("none", launch_flags=["--disable-overlap-schedule"]).call("/server_info")).json()
    assert alone["disable_overlap_schedule"] is True


async def test_the_energy_of_a_request_is_on_the_counter() -> None:
    server = Server("none")
    before = (await server.call("/energy")).json()["gpus"][0]
    meta = (await server.call(GENERATE, generate(101))).json()["meta_info"]
    after = (await server.call("/energy")).json()["gpus"][0]
    spent_j = server.engine.totals.decode_j + server.engine.totals.prefill_j
    assert spent_j > 200.0
    assert after["energy_mj"] - before["energy_mj"] == pytest.approx(1e3 * spent_j, abs=1.0)
    assert after["timestamp_ns"] - before["timestamp_ns"] == pytest.approx(1e9 * meta["e2e_latency"], rel=1e-4)
    assert after["id"] == "gpu0"
    assert after["energy_mj"] == after["decode_mj"] + after["prefill_mj"] + after["idle_mj"]
    assert after["decode_mj"] == pytest.approx(1e3 * server.engine.totals.decode_j, abs=1.0)


async def test_a_lagging_emulation_says_so() -> None:
    server = Server("none")
    server.client.open(CHAT, chat(20))
    await turns()
    server.clock.advance_to(3.0)
    document = (await server.call("/emulator")).json()
    assert (document["arm"], document["time_scale"], document["boundaries"]) == ("none", 1.0, 20)
    assert 2_800.0 < document["lag_p50_ms"] < document["lag_p99_ms"] < 3_000.0


async def test_a_late_writer_joins_steps_and_loses_no_token() -> None:
    server = Server("none")
    exchange = server.client.open(CHAT, streamed(30))
    await turns()
    server.clock.advance_to(10.0)  # all steps were due while the event loop was elsewhere
    await turns()
    await exchange.task
    assert [len(piece.split()) for piece in texts(exchange.answer.events())] == [30]


async def test_flush_cache_works_only_when_nothing_runs() -> None:
    server = Server("none")
    assert (await server.call("/flush_cache", method="POST")).status == 200
    server.client.open(CHAT, chat(40))
    await turns()
    assert (await server.call("/flush_cache", method="POST")).status == 400
    await server.clock.play()


async def test_metrics_count_requests_by_kind() -> None:
    server = Server()
    await server.call(CHAT, chat(10))
    await server.call(CHAT, streamed(20))
    lines = dict(line.rsplit(" ", 1) for line in (await server.call("/metrics")).body.decode().splitlines())
    kind = 'engine_type="unified",is_streaming="{}",model_name="smol"'
    assert lines[f"sglang:generation_tokens_total{{{kind.format('false')}}}"] == "10.0"
    assert lines[f"sglang:generation_tokens_total{{{kind.format('true')}}}"] == "20.0"
    assert json.dumps(lines).count("num_aborted_requests_total") == 0
