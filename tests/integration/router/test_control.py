"""What the router says about itself and its fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.router.fake_upstream import (
    EAGLE3_K3,
    IDLE_LOAD,
    SERVER_INFO,
    FakeUpstream,
    hanging,
    streaming,
)
from tests.integration.router.harness import CHAT, TARGET, chat_stream, routed, sglext
from tests.integration.router.raw_client import answer_from, connection, request, request_bytes

DRAFTING_LOAD: Mapping[str, Any] = {
    **IDLE_LOAD,
    "num_running_reqs": 3,
    "num_waiting_reqs": 1,
    "num_used_tokens": 900,
    "decode_moments": [10, 20, 1e6, 40, 2e6, 60],
    "speculative": {"accept_length": 3.0, "accept_rate": 0.7},
}


async def get(url: str, path: str) -> Any:
    async with request(url, path, method="GET") as answer:
        assert answer.status == 200
        return await answer.json()


async def test_server_info_and_loads_speak_for_the_whole_fleet() -> None:
    async with FakeUpstream() as plain, FakeUpstream(EAGLE3_K3) as drafting:
        plain.loads = {"loads": [{**IDLE_LOAD, "decode_moments": [10, 20, 1e6, 40, 2e6, 20]}]}
        drafting.loads = {"loads": [None, DRAFTING_LOAD, None]}  # ranks that have not reported
        async with routed(plain, drafting, arms=["none", "eagle3-k3"]) as router:
            info = await get(router.url, "/server_info")
            assert info == await get(router.url, "/get_server_info")
            assert info["internal_states"] == [{"avg_spec_accept_length": 80 / 40}]
            assert info["model_path"] == SERVER_INFO["model_path"]
            assert (info["version"], info["max_running_requests"], info["status"]) == ("0.5.23", 128, "ready")
            assert [(b["name"], b["arm"], b["state"], b["avg_spec_accept_length"]) for b in info["backends"]] == [
                ("b0", "none", "available", None),
                ("b1", "eagle3-k3", "available", 3.0),
            ]
            loads = (await get(router.url, "/v1/loads"))["loads"]
            assert [(load["num_running_reqs"], load["num_waiting_reqs"], load["backend"]) for load in loads] == [
                (0, 0, "b0"),
                (3, 1, "b1"),
            ]
            assert (await get(router.url, "/model_info"))["served_model_name"] == TARGET


async def test_loads_of_several_ranks_are_added_up() -> None:
    async with FakeUpstream(EAGLE3_K3) as upstream:
        other = {**DRAFTING_LOAD, "decode_moments": [1, 60, 1, 1, 1, 60], "speculative": {"accept_length": 1.0}}
        upstream.loads = {"loads": [DRAFTING_LOAD, other]}
        async with routed(upstream, arms=["eagle3-k3"]) as router:
            load = (await get(router.url, "/v1/loads"))["loads"][0]
            assert (load["num_running_reqs"], load["num_used_tokens"], load["max_total_num_tokens"]) == (
                6,
                1800,
                800_000,
            )
            # weighted by the request steps of the ranks: 20 at 3.0 and 60 at 1.0
            assert load["speculative"]["accept_length"] == pytest.approx(1.5)


async def noticed_to_be_down(url: str, backend: int) -> None:
    """Returns once the router has noticed."""
    while (await get(url, "/v1/loads"))["loads"][backend]["available"]:
        pass


async def test_a_backend_that_is_down_counts_for_nothing() -> None:
    async with FakeUpstream() as gone, FakeUpstream(EAGLE3_K3) as left:
        gone.loads = left.loads = {"loads": [DRAFTING_LOAD]}
        async with routed(gone, left, arms=["none", "eagle3-k3"]) as router:
            assert (await get(router.url, "/server_info"))["max_running_requests"] == 128
            await gone.refuse_connections()
            await noticed_to_be_down(router.url, 0)
            info = await get(router.url, "/server_info")
            assert (info["max_running_requests"], info["max_total_num_tokens"], info["status"]) == (
                64,
                400_000,
                "ready",
            )
            first, second = (await get(router.url, "/v1/loads"))["loads"]
            assert (first["available"], first["num_running_reqs"], first["num_used_tokens"]) == (False, None, None)
            assert (second["available"], second["num_running_reqs"]) == (True, 3)
            assert second["polled_age_s"] >= 0.0
            await left.refuse_connections()
            await noticed_to_be_down(router.url, 1)
            assert (await get(router.url, "/server_info"))["status"] == "unavailable"
            async with (
                request(router.url, "/ready", method="GET") as ready,
                request(router.url, "/health", method="GET") as health,
            ):
                assert (ready.status, health.status) == (503, 200)


async def test_models_come_from_a_backend_or_else_from_the_fleet_file() -> None:
    async with FakeUpstream() as upstream:
        async with routed(upstream) as router:
            assert await get(router.url, "/v1/models") == {"object": "list", "data": [{"id": TARGET}]}
        await upstream.refuse_connections()
        async with routed(upstream) as router:
            card = await get(router.url, f"/v1/models/{TARGET}")
            assert await get(router.url, "/v1/models") == {"object": "list", "data": [card]}
            assert (card["id"], card["max_model_len"]) == (TARGET, 2048)


def cards(*names: str, max_model_len: int | None = None) -> object:
    length = {} if max_model_len is None else {"max_model_len": max_model_len}
    return {"object": "list", "data": [{"id": name, "object": "model", **length} for name in names]}


@pytest.mark.parametrize(
    ("first", "second", "listed"),
    [
        # an adapter that only one has would be found by chance
        (cards(TARGET, "adapter"), cards(TARGET), [TARGET]),
        (cards(TARGET, "adapter"), cards("adapter", TARGET), [TARGET, "adapter"]),
        # one target under two names
        (cards("one"), cards("other"), ["one", "other"]),
        (cards(TARGET), {"data": [None, {"id": 7}]}, [TARGET]),
        (cards(TARGET), "nonsense", [TARGET]),
        ([], {}, [TARGET]),
    ],
)
async def test_the_models_are_those_that_a_client_finds_wherever_its_request_goes(
    first: object, second: object, listed: list[str]
) -> None:
    async with FakeUpstream() as one, FakeUpstream() as other:
        one.models, other.models = first, second
        async with routed(one, other) as router:
            assert [card["id"] for card in (await get(router.url, "/v1/models"))["data"]] == listed
            assert (await get(router.url, f"/v1/models/{listed[0]}"))["id"] == listed[0]
            async with request(router.url, "/v1/models/a/b", method="GET") as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")


async def test_a_model_is_as_long_as_the_longest_context_that_is_sent_anywhere() -> None:
    async with FakeUpstream() as short, FakeUpstream() as long:
        short.models, long.models = cards(TARGET, max_model_len=1024), cards(TARGET, max_model_len=32_768)
        async with routed(short, long) as router:  # the fleet file's limit is 2,048 for both
            assert (await get(router.url, f"/v1/models/{TARGET}"))["max_model_len"] == 2048
        async with routed(short) as router:
            assert (await get(router.url, f"/v1/models/{TARGET}"))["max_model_len"] == 1024


async def test_state_and_decisions_explain_what_happens() -> None:
    async with FakeUpstream(script=streaming(*chat_stream("a"))) as upstream, routed(upstream) as router:
        async with request(router.url, body={**CHAT, "stream": True}) as answer:
            await answer.body()
        state = await get(router.url, "/router/state")
        assert state["policy"]["label"] == "least_loaded"
        assert len(state["policy"]["sha256"]) == 64
        assert [(b["name"], b["state"], b["batch"]) for b in state["backends"]] == [("b0", "available", 0)]
        decision, end = (await get(router.url, "/router/decisions?n=2"))["events"]
        assert (decision["event"], decision["backend"], decision["reason"]) == (
            "decision",
            "b0",
            "least loaded: 0 requests",
        )
        assert (end["event"], end["outcome"]["finish"]) == ("end", "done")


async def test_metrics_count_decisions_outcomes_and_targets() -> None:
    spec = sglext(spec_verify_ct=3, spec_num_correct_drafts=5)
    sent = [*chat_stream("a", "b")[:-2], spec, *chat_stream("a", "b")[-2:]]
    async with (
        FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream,
        routed(upstream, arms=["eagle3-k3"]) as router,
    ):
        for _ in range(2):
            async with request(router.url, body={**CHAT, "stream": True}) as answer:
                await answer.body()
        async with request(router.url, "/metrics", method="GET") as answer:
            text = (await answer.body()).decode()
    for line in (
        'drafter_selector_decisions_total{arm="eagle3-k3",reason="least loaded"} 2.0',
        'drafter_selector_outcomes_total{arm="eagle3-k3",finish="done"} 2.0',
        'drafter_selector_tbt_target_total{result="met",slo_class="chat"} 2.0',
        'drafter_selector_tbt_seconds_count{slo_class="chat"} 2.0',
        'drafter_selector_ttft_seconds_count{slo_class="chat"} 2.0',
        'drafter_selector_in_flight_requests{arm="eagle3-k3",backend="b0"} 0.0',
        'drafter_selector_backend_available{arm="eagle3-k3",backend="b0"} 1.0',
        "drafter_selector_acceptance_samples_total 2.0",
        "drafter_selector_policy_failures_total 0.0",
    ):
        assert line in text.splitlines()


async def test_kinds_of_reasons_are_bounded_however_many_reasons_there_are() -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        kinds = {router.state.metrics.reason_kind("".join(map(chr, range(97, 98 + i)))) for i in range(26)}
        kinds |= {router.state.metrics.reason_kind("z" * i) for i in range(2, 50)}
        assert len(kinds) == 33
        assert "other" in kinds


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/nothing", 404, {"detail": "Not Found"}),
        ("POST", "/v1/nothing", 404, {"detail": "Not Found"}),
        ("GET", "/v1/chat/completions", 405, {"detail": "Method Not Allowed"}),
        ("POST", "/v1/models", 405, {"detail": "Method Not Allowed"}),
    ],
)
async def test_unknown_paths_and_wrong_methods_are_answered_as_sglang_does(
    method: str, path: str, status: int, body: object
) -> None:
    async with (
        FakeUpstream() as upstream,
        routed(upstream) as router,
        request(router.url, path, method=method) as answer,
    ):
        assert (answer.status, await answer.json()) == (status, body)


async def test_an_abort_goes_to_the_backend_that_has_the_request() -> None:
    async with (
        FakeUpstream(script=hanging) as first,
        FakeUpstream(script=hanging) as second,
        routed(first, second) as router,
        connection(router.url) as (_, writer),
    ):
        writer.write(request_bytes("/v1/chat/completions", {**CHAT, "rid": "mine"}))
        await first.next_exchange()
        async with request(router.url, "/abort_request", {"rid": "mine"}) as answer:
            assert answer.status == 200
        assert (first.aborts, second.aborts) == ([b'{"rid":"mine"}'], [])
        # Not one of ours: another router may have sent it to either.
        async with request(router.url, "/abort_request", {"rid": "somebody's"}) as answer:
            assert answer.status == 200
        assert (len(first.aborts), len(second.aborts)) == (2, 1)
        # SGLang matches by prefix: an empty name would abort everything.
        async with request(router.url, "/abort_request", {"rid": ""}) as answer:
            assert answer.status == 200
        assert (len(first.aborts), len(second.aborts)) == (2, 1)
        async with request(router.url, "/abort_request", b"nonsense") as answer:
            assert answer.status == 400


async def test_an_abort_that_is_too_large_is_refused_before_all_of_it_has_come() -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router, connection(router.url) as (reader, writer):
        writer.write(b"POST /abort_request HTTP/1.1\r\nHost: r\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 65_537)
        answer = await answer_from(reader, writer)
        assert (answer.status, answer.header("connection")) == (413, "close")
        assert upstream.aborts == []


async def test_an_abort_whose_client_left_is_none() -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        async with connection(router.url) as (_, writer):
            writer.write(b'POST /abort_request HTTP/1.1\r\nHost: r\r\nContent-Length: 20\r\n\r\n{"rid"')
            await writer.drain()
        async with request(router.url, "/abort_request", {"rid": "mine"}) as answer:
            assert answer.status == 200
        assert upstream.aborts == [b'{"rid":"mine"}']


async def test_a_request_can_be_aborted_by_the_name_that_the_router_gave_it() -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        routed(upstream) as router,
        connection(router.url) as (_, writer),
    ):
        writer.write(request_bytes("/v1/chat/completions", CHAT))
        rid = (await upstream.next_exchange()).json["rid"]
        async with request(router.url, "/abort_request", {"rid": rid}):
            assert len(upstream.aborts) == 1
