"""A live run: the process it starts, the energy it reads, and the numbers it makes of answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from selector.errors import UpstreamError
from selector.loadgen import live
from selector.loadgen.live import EnergyReading, LiveResult, read_energy, running_process, summarise
from selector.loadgen.replay import Answer, TimedRequest
from tests.profiles import PROFILE

# ---- what answers and readings amount to


def answer(
    *,
    tokens: int = 10,
    tbt_ms: float | None = 10.0,
    ttft_ms: float | None = 100.0,
    target_ms: float | None = 25.0,
    arm: str | None = "none",
    finished_s: float = 1.0,
    error: str | None = None,
) -> Answer:
    return Answer(
        request=TimedRequest(number=0, due_s=0.0, body={}, headers={}, text_type="code", tbt_target_ms=target_ms),
        arm=arm,
        status=200,
        tokens=tokens,
        ttft_ms=ttft_ms,
        tbt_ms=tbt_ms,
        finished_s=finished_s,
        error=error,
        late_ms=0.0,
    )


def reading(total_j: float, decode_j: float | None = None) -> EnergyReading:
    """With a decode figure, the rest is half prefill and half idle."""
    rest_j = None if decode_j is None else (total_j - decode_j) / 2
    return EnergyReading(total_j=total_j, decode_j=decode_j, prefill_j=rest_j, idle_j=rest_j)


def summary(*answers: Answer, after: EnergyReading | None = None) -> LiveResult:
    return summarise("p", answers, reading(100.0, 50.0), after or reading(400.0, 150.0), [0.1, 0.2, 5.0])


def test_energy_is_the_difference_of_the_readings_over_the_tokens_of_complete_answers() -> None:
    result = summary(answer(tokens=60), answer(tokens=40), answer(tokens=7, error="cut"))
    assert (result.policy, result.requests, result.failed, result.accepted_tokens) == ("p", 2, 1, 100)
    assert (result.energy_j, result.decode_j, result.prefill_j, result.idle_j) == (300.0, 100.0, 100.0, 100.0)
    assert result.j_per_accepted_token == pytest.approx(3.0)
    assert result.decode_j_per_accepted_token == pytest.approx(1.0)


def test_a_meter_that_cannot_split_leaves_the_parts_unknown() -> None:
    whole, split = reading(0.0), reading(0.0, 0.0)
    for before, after in ((whole, reading(10.0)), (split, reading(10.0)), (whole, reading(10.0, 4.0))):
        result = summarise("p", [answer()], before, after, [])
        assert (result.energy_j, result.j_per_accepted_token) == (10.0, 1.0)
        assert (result.decode_j, result.prefill_j, result.idle_j) == (None, None, None)
        assert result.decode_j_per_accepted_token is None


def test_attainment_is_over_requests_with_a_target_and_a_failed_one_missed_it() -> None:
    met, slow = answer(tbt_ms=25.0), answer(tbt_ms=25.1)
    failed = answer(tbt_ms=None, error="HTTP 503: full")
    failed_fast = answer(tbt_ms=1.0, error="the stream ended without [DONE]")
    no_target, one_token = answer(target_ms=None, tbt_ms=90.0), answer(tokens=1, tbt_ms=None)
    assert summary(met, met, met, slow).tbt_attainment == 0.75
    assert summary(met, failed).tbt_attainment == 0.5
    assert summary(met, failed_fast).tbt_attainment == 0.5
    assert summary(met, no_target, one_token).tbt_attainment == 1.0
    assert summary(answer(target_ms=None, error="cut"), no_target, one_token).tbt_attainment is None


def test_times_are_those_of_complete_answers() -> None:
    answers = [answer(tbt_ms=float(n), ttft_ms=10.0 * n, finished_s=float(n)) for n in range(1, 102)]
    result = summary(*answers, answer(tbt_ms=1e6, ttft_ms=1e6, finished_s=120.0, error="cut"))
    assert (result.tbt_p50_ms, result.tbt_p99_ms) == (51.0, 100.0)
    assert (result.ttft_p50_ms, result.ttft_p99_ms) == (510.0, 1_000.0)
    assert result.duration_s == 120.0
    assert result.client_lag_p99_ms == pytest.approx(4.904)


def test_arms_are_counted_where_one_was_chosen() -> None:
    result = summary(answer(arm="none"), answer(arm="dspark-8"), answer(arm="none", error="cut"), answer(arm=None))
    assert result.decisions_by_arm == {"none": 2, "dspark-8": 1}


def test_the_first_failure_is_told() -> None:
    assert summary(answer(), answer(error="first"), answer(error="second")).first_error == "first"
    assert summary(answer()).first_error is None


def test_a_run_in_which_nothing_was_answered_has_no_numbers_to_show() -> None:
    result = summarise("p", [answer(tbt_ms=None, ttft_ms=None, error="cut")], reading(0.0, 0.0), reading(9.0, 3.0), [])
    assert (result.requests, result.failed, result.accepted_tokens) == (0, 1, 0)
    assert (result.j_per_accepted_token, result.decode_j_per_accepted_token) == (None, None)
    assert (result.tbt_p50_ms, result.ttft_p99_ms, result.tbt_attainment) == (None, None, 0.0)
    empty = summarise("p", [], reading(0.0), reading(0.0), [])
    assert (empty.duration_s, empty.client_lag_p99_ms, empty.tbt_attainment) == (0.0, 0.0, None)


# ---- energy over HTTP


def gpu(name: str, energy_mj: int, **parts: int) -> dict[str, Any]:
    return {"id": name, "energy_mj": energy_mj, "timestamp_ns": 1, **parts}


@asynccontextmanager
async def answering(bodies: Mapping[str, object]) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A server with these bodies by path (JSON, or text as it is); a client and the server's url."""

    async def handle(request: web.Request) -> web.Response:
        body = bodies[request.path]
        if isinstance(body, web.HTTPException):
            raise body
        text = body if isinstance(body, str) else orjson.dumps(body).decode()
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            yield session, f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_every_gpu_counts_once_however_many_servers_report_it() -> None:
    parts = {"decode_mj": 500, "prefill_mj": 300, "idle_mj": 200}
    first = {"gpus": [gpu("a", 1_000, **parts), gpu("shared", 2_000, decode_mj=2_000, prefill_mj=0, idle_mj=0)]}
    second = {"gpus": [gpu("shared", 2_000, decode_mj=2_000, prefill_mj=0, idle_mj=0)]}
    async with answering({"/1": first, "/2": second}) as (session, url):
        read = await read_energy(session, [f"{url}/1", f"{url}/2"])
    assert read == EnergyReading(total_j=3.0, decode_j=2.5, prefill_j=0.3, idle_j=0.2)


async def test_a_real_meter_has_no_parts_and_one_gpu_without_them_leaves_the_sum_unknown() -> None:
    split = {"gpus": [gpu("a", 1_000, decode_mj=500, prefill_mj=300, idle_mj=200)]}
    async with answering({"/split": split, "/whole": {"gpus": [gpu("b", 12_000)]}}) as (session, url):
        whole = await read_energy(session, [f"{url}/whole"])
        both = await read_energy(session, [f"{url}/split", f"{url}/whole"])
    assert whole == EnergyReading(total_j=12.0, decode_j=None, prefill_j=None, idle_j=None)
    assert both == EnergyReading(total_j=13.0, decode_j=None, prefill_j=None, idle_j=None)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>not found</html>",
        "null",
        '{"gpus": 3}',
        '{"gpus": ["a"]}',
        '{"detail": "Not Found"}',
        '{"gpus": [{"energy_mj": 5}]}',
        '{"gpus": [{"id": "a"}]}',
        '{"gpus": [{"id": "a", "energy_mj": "much"}]}',
        '{"gpus": [{"id": "a", "energy_mj": 5, "decode_mj": null}]}',
        web.HTTPNotFound(text="nothing here"),
    ],
    ids=str,
)
async def test_what_is_no_reading_is_refused_with_its_address(body: object) -> None:
    async with answering({"/energy": body}) as (session, url):
        with pytest.raises(UpstreamError, match=f"{url}/energy gives no energy reading"):
            await read_energy(session, [f"{url}/energy"])


async def test_no_gpu_is_no_reading() -> None:
    async with answering({"/energy": {"gpus": []}}) as (session, url):
        with pytest.raises(UpstreamError, match=f"no GPU has an energy counter at {url}/energy"):
            await read_energy(session, [f"{url}/energy"])
        with pytest.raises(UpstreamError, match="no GPU has an energy counter at any address"):
            await read_energy(session, [])


async def test_a_meter_that_is_not_there_is_refused_with_its_address() -> None:
    async with answering({}) as (_, url):
        pass
    async with aiohttp.ClientSession() as session:
        with pytest.raises(UpstreamError, match=f"{url}/energy gives no energy reading"):
            await read_energy(session, [f"{url}/energy"])


# ---- the process under it


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Makes the process a shell script, whatever its arguments."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def runs(pid_file: Path) -> bool:
    """Whether the process that wrote its id there is still known to the system."""
    return Path(f"/proc/{pid_file.read_text().strip()}").exists()


async def test_a_process_serves_while_it_is_used_and_is_gone_afterwards() -> None:
    arguments = ("emulate", "--profile", PROFILE, "--arm", "dspark-8", "--port", "0", "--time-scale", "50")
    async with aiohttp.ClientSession() as session:
        async with running_process(*arguments) as lines:
            assert lines[0].startswith("energy url=")
            assert lines[-1].startswith("ready url=")
            energy_url = lines[0].removeprefix("energy url=")
            first = await read_energy(session, [energy_url])
            second = await read_energy(session, [energy_url])
            assert None not in (first.decode_j, first.prefill_j, first.idle_j)
            assert second.total_j >= first.total_j
        with pytest.raises(UpstreamError):
            await read_energy(session, [energy_url])


async def test_a_process_that_ends_before_it_is_ready_shows_what_it_said() -> None:
    with pytest.raises(UpstreamError) as failed:
        async with running_process("emulate", "--profile", "nowhere", "--arm", "none", "--port", "0"):
            raise AssertionError("it cannot be ready")
    message = str(failed.value)
    assert message.startswith("drafter-selector emulate ended before it was ready: drafter-selector emulate: ")
    assert "no shipped profile has this name" in message
    assert "\n" not in message


async def test_a_process_that_is_never_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "echo warming up; exec sleep 600")
    monkeypatch.setattr(live, "_START_TIMEOUT_S", 0.3)
    with pytest.raises(UpstreamError, match=r"drafter-selector serve was not ready in 0\.3 s: "):
        async with running_process("serve"):
            raise AssertionError("it cannot be ready")


async def test_a_process_is_asked_to_end_and_has_time_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = tmp_path / "drained"
    stand_in(
        tmp_path,
        monkeypatch,
        "sleep 600 > /dev/null 2>&1 & sleeping=$!\n"
        f"trap 'kill $sleeping; echo yes > {drained}; exit 0' TERM; echo ready url=x; wait",
    )
    async with running_process("serve"):
        assert not drained.exists()
    assert drained.exists()


async def test_a_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    stand_in(
        tmp_path, monkeypatch, f"trap '' TERM; echo $$ > {pid_file}; echo ready url=x; while :; do sleep 0.1; done"
    )
    monkeypatch.setattr(live, "_STOP_TIMEOUT_S", 0.3)
    async with running_process("serve") as lines:
        assert lines == ["ready url=x"]
        assert runs(pid_file)
    assert not runs(pid_file)


async def test_a_process_ends_when_its_user_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    stand_in(tmp_path, monkeypatch, f"echo $$ > {pid_file}; echo ready url=x; exec sleep 600")
    with pytest.raises(ZeroDivisionError):
        async with running_process("serve"):
            raise ZeroDivisionError
    assert not runs(pid_file)


async def test_a_talkative_process_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more output than a pipe holds, before the marker that shows it got through."""
    marker = tmp_path / "marker"
    stand_in(
        tmp_path,
        monkeypatch,
        f"mkfifo {marker}; echo ready url=x; yes | head -c 1000000; echo done > {marker}; exec sleep 600",
    )
    async with running_process("serve"):
        reader = await asyncio.create_subprocess_exec("cat", str(marker), stdout=asyncio.subprocess.PIPE)
        out, _ = await reader.communicate()
        assert out == b"done\n"
