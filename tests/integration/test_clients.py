"""Clients that other projects made, unchanged, against the router and an emulated fleet: `bench/clients/run.py`, short.

OpenAI's client always runs. The load generators, each of which takes as long to start as many tests together, run when
TEST_CLIENTS is set, and skip unless `bench/clients/run.py --install` has installed them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REQUESTS = 4


def row_of(name: str, folder: Path) -> dict[str, Any]:
    """What the script says of one client."""
    output = folder / "clients.json"
    script = ROOT / "bench/clients/run.py"
    command = [sys.executable, script, "--only", name, "--requests", str(REQUESTS), "--output", output]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert output.exists(), ran.stderr
    row: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))["clients"][name]
    if "skipped" in row:
        pytest.skip(row["skipped"])
    assert (ran.returncode, "error" in row) == (0, False), row
    return row


def test_openai_s_client_gets_what_it_is_promised(tmp_path: Path) -> None:
    row = row_of("openai", tmp_path)
    assert set(row["steps"]) >= {"models", "streamed", "drafts", "tools_and_schema", "errors", "left"}
    assert "accepted" in row["steps"]["drafts"]
    # what the server refuses and the stream that was left; what the router itself refuses is never a request
    assert row["router_counted"]["cancelled"] == 2


@pytest.mark.skipif("TEST_CLIENTS" not in os.environ, reason="TEST_CLIENTS is not set")
@pytest.mark.parametrize(("name", "warm_up"), [("sglang", 1), ("guidellm", 0), ("aiperf", 0)])
def test_a_load_generator_gets_through(tmp_path: Path, name: str, warm_up: int) -> None:
    row = row_of(name, tmp_path)
    assert (row["completed"], row["failed"]) == (REQUESTS, 0)
    assert row["output_tokens"] == 32 * REQUESTS
    assert row["tpot_p50_ms"] > 0.0
    # whatever else it sent: each request was counted once
    assert row["router_counted"] == {"done": REQUESTS + warm_up}
    if name == "sglang":
        assert row["accept_length"] > 1.0
