"""`sweep --ray` on a real cluster of this machine: the results of local processes, and failures told."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from tests.fleets import FLEET_FILE

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'drafter-selector[ray]'")

pytestmark = [
    pytest.mark.timeout(300),
    # Ray's own: announcements of coming releases, and sockets of its client that it leaves to the collector.
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SWEEP = """\
version = 1
policies = ["static:none", "./own.py", "static:nope"]
tbt_targets_ms = [25]
text_mixes = ["code=0.5,romansh=0.5"]
[[traces]]
path = "conv.csv"
[[fleets]]
path = "fleet.toml"
"""

DEADLY = """
import os
from dataclasses import dataclass

@dataclass(frozen=True)
class Params:
    pass

def make_policy(params, context):
    os._exit(7)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two CPUs."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
    started = Cluster(initialize_head=True, head_node_args=small)
    yield started.address
    started.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"2023-11-16 18:15:{10 + 0.5 * n:09.6f},{200 + 10 * n},{20 + n}" for n in range(12)]
    (tmp_path / "conv.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    (tmp_path / "own.py").write_text((Path(__file__).parents[2] / "policies" / "least_loaded.py").read_text())
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def sweep(folder: Path, out: str, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """The cells of a sweep that has failures, by policy, without what differs from run to run."""
    given = ["sweep", "--config", str(folder / "sweep.toml"), "--out", str(folder / out), "--json", *options]
    assert cli.main(given) == 1
    walls = {"wall_s": 0.0, "simulated_requests_per_s": 0.0}
    cells = {}
    for record in json.loads(capsys.readouterr().out)["cells"]:
        record["result"] = record["result"] and record["result"] | walls
        cells[record["cell"]["policy"]] = record
    return cells


def test_a_cluster_gives_what_local_processes_give(
    cluster: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = sweep(folder, "here", capsys, "--jobs", "1")
    assert [name for name, record in here.items() if record["error"]] == ["static:nope"]

    (folder / "deadly.py").write_text(DEADLY)
    (folder / "sweep.toml").write_text(SWEEP.replace('"static:none"', '"static:none", "./deadly.py"'))
    there = sweep(folder, "there", capsys, "--ray", cluster)
    dead = there.pop("./deadly.py")
    assert there == here
    assert dead["result"] is None and dead["error"].startswith("WorkerCrashedError")


def test_a_cluster_that_is_not_there_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code = cli.main(
            ["sweep", "--config", str(folder / "sweep.toml"), "--out", str(folder / "out"), "--ray", address]
        )
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert f"--ray: no cluster answers at '{address}'" in captured.err
