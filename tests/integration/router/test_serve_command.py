"""`drafter-selector serve`, as a process of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from selector.cli import main
from selector.files.decision_log import PollEvent, StartEvent, read_decision_log
from selector.files.profile import write_profile
from tests.integration.router.fake_upstream import Exchange, FakeUpstream, hanging, held
from tests.integration.router.harness import CHAT, DONE, ROLE, TARGET, chat_stream, made_up_profile
from tests.integration.router.raw_client import DEADLINE_S, connection, request, request_bytes

STREAM = {**CHAT, "stream": True}


def fleet_file(folder: Path, url: str, *, arm: str = "none", more: str = "") -> Path:
    write_profile(made_up_profile(), folder / "made-up.json")
    path = folder / "fleet.toml"
    path.write_text(
        f"""
        version = 1
        target = "{TARGET}"
        [[backends]]
        name = "b0"
        url = "{url}"
        arm = "{arm}"
        gpus = ["host0:0"]
        profile = "{folder / "made-up.json"}"
        [policy]
        name = "least_loaded"
        [router]
        port = 0
        {more}
        """,
        encoding="utf-8",
    )
    return path


@asynccontextmanager
async def serve(*options: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "selector",
        "serve",
        *map(str, options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(3 * DEADLINE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ready_url(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """The address it serves on, and its ready line."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    match = re.match(r"ready url=(http://127\.0\.0\.1:\d+) ", line)
    assert match, line
    return match.group(1), line


async def test_it_says_when_it_is_ready_serves_and_ends_on_sigterm_once_requests_are_over(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    log = tmp_path / "decisions.jsonl"
    async with FakeUpstream(script=held(go_on, *chat_stream("a"))) as upstream:
        options = ("--config", fleet_file(tmp_path, upstream.url), "--policy", "static:none", "--decision-log", log)
        async with serve(*options) as process:
            url, line = await ready_url(process)
            assert re.search(r"policy=static:none sha256=[0-9a-f]{12} ", line)
            assert line.endswith("backends: b0 (none): available\n")
            async with request(url, body=STREAM) as answer:
                chunks = answer.chunks()
                await anext(chunks)
                process.send_signal(signal.SIGTERM)
                while True:  # until the signal has arrived
                    async with request(url, "/ready", method="GET") as ready:
                        if ready.status == 503:
                            break
                assert process.returncode is None
                go_on.set()
                assert [chunk async for chunk in chunks][-1] == DONE
            out, err = await process.communicate()
    assert (out, err) == (b"", b"")
    assert await process.wait() == 0
    events = read_decision_log(log)
    assert isinstance(events[0], StartEvent)
    assert [event.event for event in events if not isinstance(event, PollEvent)][-1] == "end"


async def test_it_says_so_when_it_cuts_requests_off_at_the_drain_timeout(tmp_path: Path) -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        serve("--config", fleet_file(tmp_path, upstream.url, more="drain_timeout_s = 0.1")) as process,
    ):
        url, _ = await ready_url(process)
        async with connection(url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", STREAM))
            await upstream.next_exchange()
            process.send_signal(signal.SIGTERM)
            _, err = await process.communicate()
    assert process.returncode == 0
    assert err == b"serve: requests still running were cut off at the drain timeout\n"


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(ROLE)
        await exchange.wait_closed()

    async with (
        FakeUpstream(script=script) as upstream,
        serve("--config", fleet_file(tmp_path, upstream.url)) as process,
    ):
        url, _ = await ready_url(process)
        async with request(url, body=STREAM) as answer:
            await anext(answer.chunks())
            process.send_signal(signal.SIGINT)
            while True:
                async with request(url, "/ready", method="GET") as ready:
                    if ready.status == 503:
                        break
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
    assert process.returncode == 0
    assert err == b"serve: ended without waiting for running requests\n"


async def test_its_control_port_may_be_a_distance_from_its_port(tmp_path: Path) -> None:
    # The port that is asked for is free for certain only while nobody else looks for one: it is tried until it is.
    async with FakeUpstream() as upstream:
        config = fleet_file(tmp_path, upstream.url)
        for _ in range(20):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            async with serve("--config", config, "--port", str(port), "--control-port", "+1") as process:
                assert process.stdout is not None
                line = (await process.stdout.readline()).decode()
                if not line:
                    continue
                assert line.startswith(f"ready url=http://127.0.0.1:{port} control=http://127.0.0.1:{port + 1} target=")
                async with request(f"http://127.0.0.1:{port + 1}", "/metrics", method="GET") as answer:
                    assert answer.status == 200
                return
    raise AssertionError("no two ports in a row were free")


@pytest.mark.parametrize(
    ("more", "arm", "options", "complaint"),
    [
        ("unknown_key = 1", "none", (), "router.unknown_key: is not a known field"),
        ("", "no-such-arm", (), "backends[0].arm: 'no-such-arm' is not in profile"),
        ("", "none", ("--policy", "no_such_policy"), "no shipped policy has this name"),
        ("", "none", ("--policy", "static:no-such-arm"), "no-such-arm"),
        ("", "none", ("--host", "203.0.113.1"), "cannot listen there"),
        ("", "none", ("--decision-log", "/dev/null/x"), "cannot be written"),
        ("", "none", ("--decision-log", "FLEET"), "exists and is no decision log"),
        ("", "none", ("--port", "65000", "--control-port", "+1000"), "--control-port: is +1000, above port 65000"),
        ("", "none", ("--port", "0", "--control-port", "+1"), "--control-port: is +1, above port 0"),
        ("", "none", ("--control-host", "203.0.113.1", "--control-port", "0"), "cannot listen there"),
        ("[keys.alice]\nenv = 'NOT_SET_ANYWHERE'", "none", (), "keys.alice.env: names NOT_SET_ANYWHERE, which is not"),
        ("[security]\nca_file = 'gone.pem'", "none", (), "security.ca_file: gone.pem cannot be read"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, arm: str, options: tuple[str, ...], complaint: str
) -> None:
    config = fleet_file(tmp_path, "http://127.0.0.1:9", arm=arm, more=more)
    given = [str(config) if option == "FLEET" else option for option in options]
    assert main(["serve", "--config", str(config), *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err
    assert err.count("\n") == 1


def test_a_port_that_is_taken_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = fleet_file(tmp_path, "http://127.0.0.1:9")
        assert main(["serve", "--config", str(config), "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}: cannot listen there (Address already in use)" in capsys.readouterr().err
