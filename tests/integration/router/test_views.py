"""Explanations, what the dashboard shows, and the metrics of what was predicted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from selector.router.live import bounded
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream, broken, hanging, streaming
from tests.integration.router.harness import CHAT, chat_stream, routed, sglext
from tests.integration.router.raw_client import connection, request, request_bytes

SPEC = sglext(spec_verify_ct=3, spec_num_correct_drafts=5)
SENT = [*chat_stream("a", "b")[:-2], SPEC, *chat_stream("a", "b")[-2:]]


async def get(router: RunningRouter, path: str, status: int = 200) -> Any:
    async with request(router.url, path, method="GET") as answer:
        assert answer.status == status
        return await answer.json()


async def test_a_request_is_explained_by_the_routers_name_and_the_clients() -> None:
    async with (
        FakeUpstream(script=streaming(*SENT)) as first,
        FakeUpstream(EAGLE3_K3, script=streaming(*SENT)) as second,
        routed(first, second, arms=["none", "eagle3-k3"], policy="min_energy") as router,
    ):
        async with request(router.url, body={**CHAT, "stream": True, "rid": "mine"}) as answer:
            await answer.body()
            rid = answer.header("x-drafter-selector-rid")
            header_ms = answer.header("x-drafter-selector-predicted-tbt-ms")
            arm = answer.header("x-drafter-selector-arm")
        told = await get(router, f"/explain?rid={rid}")
        assert told == await get(router, "/explain?rid=mine")
        (decision,) = told["decisions"]
        assert (told["rid"], told["client_rids"], decision["arm"]) == (rid, ["mine"], arm)
        assert {each["backend"] for each in decision["candidates"]} == {"b0", "b1"}
        assert header_ms is not None
        assert told["predicted"]["tbt_ms"] == pytest.approx(float(header_ms), abs=1e-3)
        assert told["predicted"]["marginal_j_per_accepted_token"] > 0
        came = told["came"]
        assert (came["finish"], came["accepted_tokens"], came["joules"]) == ("done", 2, None)
        assert came["accept_length"] == pytest.approx(1 + 5 / 3)
        assert told["acceptance"]["samples"] == 0
        assert 0 < told["acceptance"]["samples_now"] <= 1
        assert decision["reason"] in told["in_words"]


async def test_an_unknown_request_is_not_explained() -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        for path in ("/explain?rid=none-such", "/explain", "/explain?rid="):
            assert "no request of that name" in (await get(router, path, 404))["detail"]


async def test_an_explanation_names_backends_that_failed_before() -> None:
    async with (
        FakeUpstream(script=broken) as first,
        FakeUpstream(script=streaming(*chat_stream("a"))) as second,
        routed(first, second) as router,
    ):
        async with request(router.url, body={**CHAT, "stream": True}) as answer:
            await answer.body()
            told = await get(router, f"/explain?rid={answer.header('x-drafter-selector-rid')}")
        assert [each["backend"] for each in told["decisions"]] == ["b0", "b1"]
        assert told["decisions"][0]["retracted"]
        assert "before that b0 (" in told["in_words"]
        async with request(router.url, "/metrics", method="GET") as answer:
            assert b'drafter_selector_retries_total{backend="b0"} 1.0' in await answer.body()


async def test_a_request_under_way_has_nothing_come_yet() -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        routed(upstream) as router,
        connection(router.url) as (_, writer),
    ):
        writer.write(request_bytes("/v1/chat/completions", {**CHAT, "stream": True, "rid": "slow"}))
        await upstream.next_exchange()
        told = await get(router, "/explain?rid=slow")
        assert told["came"] is None
        assert told["in_words"].endswith("under way")
        live = await get(router, "/router/live")
        assert live["summary"]["in_flight"] == 1
        assert live["decisions"][0]["came"] is None


async def test_the_live_document_tells_of_load_predictions_acceptance_and_plan() -> None:
    looks = itertools.count()
    async with (
        FakeUpstream(script=streaming(*SENT)) as first,
        FakeUpstream(EAGLE3_K3, script=streaming(*SENT)) as second,
        # On a clock that goes on by a microsecond a look, no machine is too busy for a prediction to hold.
        routed(
            first, second, arms=["none", "eagle3-k3"], policy="min_energy", clock=lambda: next(looks) / 1e6
        ) as router,
    ):
        for _ in range(3):
            async with request(router.url, body={**CHAT, "stream": True}) as answer:
                await answer.body()
        live = await get(router, "/router/live")
        assert (live["summary"]["attainment"], live["summary"]["window"]) == (1.0, 3)
        assert live["summary"]["tbt_within_prediction"] == 1.0
        assert sum(backend["requests"] for backend in live["backends"]) == 3
        assert live["meters"] is None
        assert len(live["decisions"]) == 3
        assert live["plan"]["plan"][0]["text_type"] == "conversation"
        assert {each["arm"] for each in live["acceptance"]["arms"]} == {"none", "eagle3-k3"}
        async with request(router.url, "/metrics", method="GET") as answer:
            text = (await answer.body()).decode()
    arm = live["decisions"][0]["arm"]
    assert f'drafter_selector_tbt_prediction_ratio_count{{arm="{arm}"}} 3.0' in text
    assert f'drafter_selector_accept_length_samples{{arm="{arm}",text_type="conversation"}}' in text


def test_what_a_policy_says_is_cut_to_size() -> None:
    assert bounded({"a": [1, 2.5, None, True, "x"]}) == {"a": [1, 2.5, None, True, "x"]}
    assert bounded(float("nan")) == "nan"
    assert bounded(object()).__class__ is str
    many = bounded({str(i): list(range(100)) for i in range(1000)})
    assert isinstance(many, dict)
    assert sum(len(value) + 1 if isinstance(value, list) else 1 for value in many.values()) <= 402
    nested: list[object] = []
    for _ in range(100):
        nested = [nested]
    assert "…" in str(bounded(nested))
