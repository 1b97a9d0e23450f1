"""A router that is restarted, however roughly: its log keeps every line that was complete, and goes on."""

from __future__ import annotations

import signal
from pathlib import Path

from selector.files.decision_log import DecisionEvent, EndEvent, StartEvent, read_decision_log
from selector.files.trace import load_trace
from tests.integration.router.fake_upstream import FakeUpstream, streaming
from tests.integration.router.harness import CHAT, DONE, chat_stream
from tests.integration.router.raw_client import request
from tests.integration.router.test_serve_command import fleet_file, ready_url, serve

STREAM = {**CHAT, "stream": True}


async def asked(url: str, times: int) -> list[str]:
    """Asks so often; the router's names of the requests."""
    rids = []
    for _ in range(times):
        async with request(url, body=STREAM) as answer:
            assert (await answer.body()).endswith(DONE)
            rids.append(answer.header("x-drafter-selector-rid") or "")
    return rids


async def test_restarts_lose_no_completed_line(tmp_path: Path) -> None:
    log, told = tmp_path / "decisions.jsonl", []
    async with FakeUpstream(script=streaming(*chat_stream("a", "b"))) as upstream:
        config = fleet_file(tmp_path, upstream.url)
        for _ in range(2):
            async with serve("--config", config, "--decision-log", log) as process:
                url, _ = await ready_url(process)
                told += await asked(url, 5)
                process.send_signal(signal.SIGTERM)
                await process.communicate()
    events = read_decision_log(log)
    assert [event.outcome.request_id for event in events if isinstance(event, EndEvent)] == told
    assert [event.request.request_id for event in events if isinstance(event, DecisionEvent)] == told
    assert sum(isinstance(event, StartEvent) for event in events) == 2
    assert len(load_trace(log).requests) == len(told) == 10


async def test_a_killed_router_leaves_whole_lines_and_the_next_one_goes_on_after_them(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with FakeUpstream(script=streaming(*chat_stream("a", "b"))) as upstream:
        config = fleet_file(tmp_path, upstream.url)
        async with serve("--config", config, "--decision-log", log) as process:
            url, _ = await ready_url(process)
            (first,) = await asked(url, 1)
            while first.encode() not in log.read_bytes():
                await asked(url, 1)
            process.kill()
            await process.wait()
        before = log.read_bytes()
        log.write_bytes(before + b'{"v":1,"event":"decision","t_s":1.0,"requ')  # as a crash of the machine leaves it
        async with serve("--config", config, "--decision-log", log) as process:
            url, _ = await ready_url(process)
            (last,) = await asked(url, 1)
            process.send_signal(signal.SIGTERM)
            await process.communicate()
    whole = before[: before.rfind(b"\n") + 1]  # the kill may come in the middle of a write
    assert first.encode() in whole
    assert log.read_bytes().startswith(whole)
    ended = [event.outcome.request_id for event in read_decision_log(log) if isinstance(event, EndEvent)]
    assert (ended[0], ended[-1]) == (first, last)
