"""A backend whose engine chooses its draft depth by targets is told those of its requests; no other backend is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD
from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream, answering
from tests.integration.router.harness import CHAT, fleet_of, made_up_profile
from tests.integration.router.raw_client import request

GENERATE: Mapping[str, Any] = {"text": "Hello", "sampling_params": {"max_new_tokens": 8}}


def fleet(url: str, *, told: bool) -> LoadedFleet:
    profile = made_up_profile()
    arm = profile.arms["eagle3-k3"].model_copy(update={"takes_tbt_target": told or None})
    profile = profile.model_copy(update={"arms": {**profile.arms, "eagle3-k3": arm}})
    plain = fleet_of([url], ["eagle3-k3"])
    trusting = plain.fleet.router.model_copy(update={"trust_text_type_header": True})
    return LoadedFleet(plain.fleet.model_copy(update={"router": trusting}), plain.where, {"made-up": profile})


async def sent(path: str, body: Mapping[str, Any], headers: Mapping[str, str], *, told: bool = True) -> dict[str, Any]:
    """The body as the backend got it."""
    policy = load_policy_file("least_loaded")
    async with (
        FakeUpstream(EAGLE3_K3, script=answering(200, b"{}")) as upstream,
        RunningRouter(fleet(upstream.url, told=told), policy, policy, port=0) as router,
    ):
        async with request(router.url, path, body, headers) as answer:
            assert answer.status == 200
        fields = orjson.loads(upstream.seen[-1].body)
    assert isinstance(fields, dict)
    return fields


@pytest.mark.parametrize(
    ("headers", "target_ms"), [({"x-tbt-target-ms": "12.5"}, 12.5), ({}, 25.0), ({"x-slo-class": "batch"}, None)]
)
async def test_target_and_text_type_stand_in_custom_params(headers: Mapping[str, str], target_ms: float | None) -> None:
    headers = {**headers, "x-text-type": "romansh"}
    chat = await sent("/v1/chat/completions", CHAT, headers)
    generate = await sent("/generate", GENERATE, headers)
    found = [chat["custom_params"], generate["sampling_params"]["custom_params"]]
    target = {} if target_ms is None else {TARGET_FIELD: target_ms}
    assert found == [{**target, TEXT_FIELD: "romansh"}] * 2
    assert generate["sampling_params"]["max_new_tokens"] == 8


async def test_what_the_client_has_there_is_kept() -> None:
    chat = await sent("/v1/chat/completions", {**CHAT, "custom_params": {"thinking_budget": 9}}, {})
    assert chat["custom_params"].items() >= {"thinking_budget": 9, TARGET_FIELD: 25.0}.items()


async def test_a_backend_that_does_not_take_targets_is_not_told() -> None:
    assert "custom_params" not in await sent("/v1/chat/completions", CHAT, {}, told=False)
    assert await sent("/generate", {**GENERATE, "rid": "r"}, {}, told=False) == {**GENERATE, "rid": "r"}
