"""Servers as real processes: started with the pinned command line, stopped with their children, dying with a reason."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from selector.errors import UpstreamError
from selector.profiler.clock import MonotonicClock
from selector.profiler.config import SweepConfig
from selector.profiler.server import ProcessLauncher, RunningLauncher, tail

SERVES = """\
import http.server, subprocess, sys, pathlib
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path({pids!r}).write_text(f"{{child.pid}}")
print("serving", *sys.argv[1:], flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""

DIES = "import sys; print('loading weights'); print('out of memory', file=sys.stderr); sys.exit(3)\n"


def launcher(tmp_path: Path, program: str, timeout_s: float = 60.0) -> tuple[ProcessLauncher, SweepConfig]:
    script = tmp_path / "server.py"
    script.write_text(program)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = SweepConfig.model_validate(
        {
            "version": 1,
            "output_name": "x",
            "target": {"name": "M", "model": "m"},
            "gpu": {"name": "H200", "peak_tflops": 989, "bandwidth_tb_s": 4.8},
            "server": {
                "python": str(python),
                "port": port,
                "context_length": 2048,
                "flags": ["--max-running-requests", "64"],
                "startup_timeout_s": timeout_s,
            },
            "grid": [{"batches": [1], "prompt_tokens": [16]}],
            "arms": [{"name": "none", "algorithm": "none", "verify_tokens": 1}],
        }
    )
    return ProcessLauncher(config, tmp_path, tmp_path / "logs", MonotonicClock()), config


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_server_runs_for_the_length_of_its_context_and_its_children_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    start, config = launcher(tmp_path, SERVES.format(pids=str(pids)))
    async with start.launch(config.arms[0]) as server:
        child = int(pids.read_text())
        assert await server.client.healthy()
        assert server.launch_s is not None and server.launch_s > 0
        assert server.owns(child)
        assert not server.owns(os.getpid())
        assert not server.owns(2**22 + 1)
        assert runs(child)
    assert not runs(child)
    log = (tmp_path / "logs" / "none.log").read_text()
    assert " ".join(server.argv) in log
    assert "serving -m sglang.launch_server --model-path" in log


async def test_a_server_that_dies_at_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    start, config = launcher(tmp_path, DIES)
    with pytest.raises(UpstreamError, match=r"ended with status 3:\n(.*\n)*.*out of memory"):
        async with start.launch(config.arms[0]):
            pytest.fail("it never was ready")


async def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    start, config = launcher(tmp_path, "import time; time.sleep(600)\n", timeout_s=0.2)
    with pytest.raises(UpstreamError, match="not ready in 0 s"):
        async with start.launch(config.arms[0]):
            pytest.fail("it never was ready")


async def test_a_failure_under_a_living_server_is_passed_on(tmp_path: Path) -> None:
    start, config = launcher(tmp_path, SERVES.format(pids=str(tmp_path / "pids")))
    with pytest.raises(UpstreamError, match=r"^/v1/loads answered no JSON"):
        async with start.launch(config.arms[0]) as server:
            await server.client.step_totals()


async def test_a_python_that_is_not_there_is_reported(tmp_path: Path) -> None:
    start, config = launcher(tmp_path, DIES)
    (tmp_path / "python").unlink()
    with pytest.raises(UpstreamError, match=r"cannot run .*python"):
        async with start.launch(config.arms[0]):
            pytest.fail("nothing could start")


async def test_a_running_server_that_does_not_answer_is_reported() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        config = SweepConfig.model_validate(
            {
                "version": 1,
                "output_name": "x",
                "target": {"name": "M", "model": "m"},
                "gpu": {"name": "H200", "peak_tflops": 989, "bandwidth_tb_s": 4.8},
                "server": {"url": url, "context_length": 2048},
                "grid": [{"batches": [1], "prompt_tokens": [16]}],
                "arms": [{"name": "none", "algorithm": "none", "verify_tokens": 1}],
            }
        )
        with pytest.raises(UpstreamError, match=f"no server for arm none answers at {url}"):
            async with RunningLauncher(url + "/", MonotonicClock()).launch(config.arms[0]):
                pytest.fail("nothing answers there")


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(map(str, range(100))))
    assert tail(log, lines=2) == "98\n99"
    assert tail(tmp_path / "none.log") == "(no log)"
