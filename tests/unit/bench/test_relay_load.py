"""The relay benchmark's own two ends: the stub streams as asked, and the client counts what a reader notices."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[3] / "bench" / "relay"


@pytest.fixture(scope="module")
def stub() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(HERE / "stub.py"), json.dumps({str(port): {}})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def seen(url: str, **fields: Any) -> dict[str, Any]:
    given = json.dumps({"url": url, "connections": 2, "requests": 4, "limit_s": 30.0, **fields})
    ran = subprocess.run(
        [sys.executable, str(HERE / "load.py"), given], capture_output=True, text=True, timeout=60, check=True
    )
    counted: dict[str, Any] = json.loads(ran.stdout)
    return counted


@pytest.mark.parametrize("pace_ms", [0, 2])
def test_every_chunk_is_counted_once_and_timed(stub: str, pace_ms: int) -> None:
    counted = seen(stub, tokens=5, pace_ms=pace_ms)
    assert (counted["completed"], counted["failed"], counted["chunks"]) == (4, 0, 20)
    assert (counted["merged_chunks"], counted["split_chunks"]) == (0, 0)
    assert (len(counted["ttfb_ms"]), len(counted["gap_ms"]), len(counted["latency_ms"])) == (4, 16, 4)
    assert all(way_ms >= 0 for way_ms in counted["way_ms"])
    if pace_ms:
        assert min(counted["latency_ms"]) > 3 * pace_ms  # timers may be a little early


def test_whole_answers_have_a_latency_and_no_chunks(stub: str) -> None:
    counted = seen(stub, stream=False)
    assert (counted["completed"], counted["chunks"], len(counted["latency_ms"])) == (4, 0, 4)


def test_a_server_that_never_answers_is_a_failure() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        counted = seen(f"http://127.0.0.1:{silent.getsockname()[1]}", limit_s=0.3)
    assert counted["completed"] == 0
    assert "cut off at the time limit" in counted["failures"]
