"""A stretch of GPU time runs to its end without a GPU, on emulated servers, and leaves what it measured."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selector.profiler.cells import DecodeCell, InterruptionCell, PrefillCell, read_cells

ROOT = Path(__file__).parents[3]
CAMPAIGN = ROOT / "bench" / "h200" / "campaign.sh"


def free_prefix() -> int:
    """Digits before the last of ten ports that nobody listens on; 1 to 9 after them are."""
    for prefix in range(2_200 + os.getpid() % 400, 2_900):
        sockets = []
        try:
            for last in range(1, 10):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", 10 * prefix + last))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return prefix
    raise AssertionError("no ten ports in a row are free")


def campaign(*words: object, **env: object) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "HOME": os.environ.get("HOME", "/"), **{name: str(value) for name, value in env.items()}}
    return subprocess.run(
        ["bash", CAMPAIGN, *map(str, words)], capture_output=True, text=True, timeout=170, check=False, env=own
    )


def keys(results: Path) -> list[str]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in results.read_text().splitlines()]
    return [row["key"] for row in rows]


def measured_before() -> list[str]:
    """What was measured of all but the mixed texts on three servers, as lines."""
    rows = (ROOT / "bench" / "results" / "h200_live.jsonl").read_text().splitlines()
    return [line for line in rows if not json.loads(line)["text"].startswith("half")]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "models" / "Qwen3-8B").mkdir(parents=True)
    (folder / "models" / "Qwen3-8B" / "config.json").write_text('{"vocab_size": 32000}')
    earlier = folder / "earlier"
    earlier.mkdir()
    (earlier / "results.jsonl").write_text("".join(line + "\n" for line in measured_before()))
    ports = {"DRY_FIRST": free_prefix(), "DRY_SECOND": free_prefix() + 1}
    ran = campaign("dry", folder / "models", folder / "work", 105, "live", 1, earlier, DRY_STEP_S=21, **ports)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "servers of four-on-one are up" in ran.stdout
    assert (folder / "work" / "done").exists()
    with pytest.raises(ConnectionRefusedError):  # the servers are gone
        socket.create_connection(("127.0.0.1", 10 * ports["DRY_FIRST"] + 1), timeout=5)
    return folder / "work"


def test_live_cells_go_on_after_those_that_are_there(work: Path) -> None:
    before = [json.loads(line)["key"] for line in measured_before()]
    after = keys(work / "live" / "results.jsonl")
    assert after[: len(before)] == before
    new = [key.split(" | ")[0] for key in after[len(before) :]]
    assert new and set(new) <= {"four-on-one", "three-on-one"}
    assert len(set(after)) == len(after)


def test_what_the_held_servers_measured_joins_the_raw_cells(work: Path) -> None:
    name = "h200__qwen3-8b"
    raw = ROOT / "profiles" / "raw"
    gathered = campaign("gather", raw, work / "sweeps", name)
    (work / "all.jsonl").write_text(gathered.stdout)
    known = read_cells(raw / f"{name}.cells.jsonl")
    cells = read_cells(work / "all.jsonl")
    assert cells[: len(known)] == known
    new = cells[len(known) :]
    assert any(isinstance(cell, PrefillCell) and (cell.arm, cell.prompt_tokens) == ("none", 1024) for cell in new)
    assert not any(isinstance(cell, DecodeCell) and cell.arm == "none" for cell in new), "these are there"
    assert all(isinstance(cell, PrefillCell | InterruptionCell) for cell in new)


def test_an_unknown_stretch_is_refused(tmp_path: Path, work: Path) -> None:
    refused = campaign("run", work, 5, "nothing", DRY=1)
    assert refused.returncode != 0 and "stretch_nothing" in refused.stderr
