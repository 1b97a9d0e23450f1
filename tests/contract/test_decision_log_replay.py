"""A router's decision log, replayed, makes every decision again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from selector.core.controller import Controller
from selector.core.types import Decision
from selector.errors import TraceError
from selector.files.decision_log import LogEvent, StartEvent, parse_decision_log, read_decision_log, runs
from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.simulator.replay import replay
from tests.integration.router.fake_upstream import EAGLE3_K3, Exchange, FakeUpstream, broken
from tests.integration.router.harness import CHAT, DONE, ROLE, chat_stream, fleet_of, routed, sglext
from tests.integration.router.raw_client import connection, request, request_bytes

ARMS = ("none", "eagle3-k3", "eagle3-k3")
POLICIES = ("least_loaded", "round_robin", "affinity", "goodput", "greedy_energy", "min_energy")
TEXTS = ("def f(x):\n    return x + 1\n", "Tell me about your day.", "Solve x^2 = 4 for x.", "Co vai cun tei?")


async def recorded(log: Path, policy: str) -> LoadedFleet:
    """A log with everything in it: overlapping streams, a leaver, a refusal, failures, a kill and a recovery."""

    failed_once: set[str] = set()

    async def script(exchange: Exchange) -> None:
        host = exchange.header("host")
        assert host is not None
        if host not in failed_once and len(failed_once) < 2:
            failed_once.add(host)
            await broken(exchange)
            return
        await exchange.stream_head()
        await exchange.chunk(ROLE)
        spec = sglext(spec_verify_ct=5, spec_num_correct_drafts=7, spec_accept_rate=0.5)
        for chunk in (*chat_stream("a", "b", tokens=13)[1:-2], spec, *chat_stream("a", "b", tokens=13)[-2:]):
            await exchange.chunk(chunk)
        await exchange.end()

    async def ask(url: str, text: str, target_ms: int) -> bytes:
        body = {**CHAT, "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 50}
        async with request(url, body=body, headers={"x-tbt-target-ms": str(target_ms)}) as answer:
            return await answer.body()

    async with (
        FakeUpstream(script=script) as first,
        FakeUpstream(EAGLE3_K3, script=script) as second,
        FakeUpstream(EAGLE3_K3, script=script) as third,
        routed(first, second, third, arms=ARMS, policy=policy, decision_log=log) as router,
    ):
        for target_ms in (10, 100):
            bodies = await asyncio.gather(*(ask(router.url, text, target_ms) for text in TEXTS))
            assert all(body.endswith(DONE) for body in bodies)
        await first.refuse_connections()
        await asyncio.gather(*(ask(router.url, text, 50) for text in TEXTS))
        await first.listen()
        await first.polled_afresh()
        for text in TEXTS:
            await ask(router.url, text, 50)
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", {**CHAT, "stream": True}))
        await asyncio.gather(*(ask(router.url, text, 50) for text in TEXTS))
    return fleet_of([first.url, second.url, third.url], ARMS)


def replayed(fleet: LoadedFleet, policy: str, events: Sequence[LogEvent]) -> list[tuple[Decision, Decision]]:
    context = fleet.policy_context()
    chosen, fallback = load_policy_file(policy), load_policy_file("least_loaded")
    controller = Controller(context, chosen.make({}, context), fallback=fallback.make({}, context))
    return list(replay(events, controller))


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_decision_is_made_again(policy: str, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    fleet = await recorded(log, policy)
    events = read_decision_log(log)
    kinds = [event.event for event in events]
    assert {"start", "decision", "retract", "end", "poll", "health"} == set(kinds)
    pairs = replayed(fleet, policy, events)
    assert len(pairs) == kinds.count("decision") > 16
    assert [logged for logged, _ in pairs] == [again for _, again in pairs]
    assert kinds.count("decision") == kinds.count("retract") + kinds.count("end")


async def test_a_tampered_log_differs(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    fleet = await recorded(log, "least_loaded")
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    untouched = replayed(fleet, "least_loaded", read_decision_log(log))
    assert [logged for logged, _ in untouched] == [again for _, again in untouched]
    without_ends = [line for line in lines if line["event"] != "end"]
    other_backend = [dict(line) for line in lines]
    decision = next(line for line in other_backend if line["event"] == "decision")
    decision["backend"] = "b1" if decision["backend"] == "b0" else "b0"
    for tampered in (without_ends, other_backend):
        text = "\n".join(orjson.dumps(line).decode() for line in tampered)
        pairs = replayed(fleet, "least_loaded", list(parse_decision_log(text, "tampered")))
        assert [logged for logged, _ in pairs] != [again for _, again in pairs]


async def test_a_difference_does_not_make_others(tmp_path: Path) -> None:
    """What happened stays what the log says, so another policy is asked the same questions."""
    log = tmp_path / "decisions.jsonl"
    fleet = await recorded(log, "least_loaded")
    events = read_decision_log(log)
    other = replayed(fleet, "round_robin", events)
    own = replayed(fleet, "least_loaded", events)
    assert [logged for logged, _ in other] == [logged for logged, _ in own]
    assert any(logged.backend != again.backend for logged, again in other)


async def test_no_prompt_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    await recorded(log, "least_loaded")
    text = log.read_text(encoding="utf-8")
    assert not any(words in text for words in ("return x", "your day", "Solve", "Co vai", "Hello"))


async def test_a_second_run_in_one_file_is_a_run_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    fleet = await recorded(log, "least_loaded")
    await recorded(log, "round_robin")
    events = read_decision_log(log)
    first, second = runs(events)
    assert isinstance(first[0], StartEvent)
    assert isinstance(second[0], StartEvent)
    assert (first[0].policy.label, second[0].policy.label) == ("least_loaded", "round_robin")
    for policy, run in (("least_loaded", first), ("round_robin", second)):
        pairs = replayed(fleet, policy, run)
        assert [logged for logged, _ in pairs] == [again for _, again in pairs]
    with pytest.raises(TraceError, match="second run"):
        replayed(fleet, "least_loaded", events)
