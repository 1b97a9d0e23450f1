"""`demo` as a process: it ends by itself, leaves nothing behind, and what it measured live is what it simulates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from selector.files.trace import load_trace

POLICIES = ("static:none", "min_energy")
ARMS = {"none", "eagle3-k3", "dspark-8", "dflash-16"}


@dataclass(frozen=True, slots=True)
class Demo:
    """A finished demo."""

    process_group: int
    exit_code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def document(self) -> Mapping[str, Any]:
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Two seconds of arrivals under two policies."""
    folder = tmp_path_factory.mktemp("demo")
    options = ["--seconds", "2", "--json", "--keep", str(folder)]
    for policy in POLICIES:
        options += ["--policy", policy]
    # A group of its own, so that whatever it starts can be told from what runs here anyway.
    with subprocess.Popen(
        [sys.executable, "-m", "selector", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Demo(process.pid, process.returncode, stdout, stderr, folder)


def test_it_ends_by_itself_and_leaves_no_process_behind(demo: Demo) -> None:
    assert (demo.exit_code, demo.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.process_group, 0)


def test_its_json_is_all_it_prints_and_covers_every_policy(demo: Demo) -> None:
    document = demo.document
    assert demo.stdout.count("\n") == 1
    for part in ("live", "simulated"):
        assert tuple(result["policy"] for result in document[part]) == POLICIES
    assert document["emulator_lag_p99_ms"] > 0.0
    assert document["client_lag_p99_ms"] > 0.0


def test_every_request_was_answered_in_full(demo: Demo) -> None:
    document = demo.document
    assert document["requests"] > 10
    for live, simulated in zip(document["live"], document["simulated"], strict=True):
        assert (live["failed"], live["first_error"]) == (0, None)
        assert live["requests"] == simulated["requests"] == document["requests"]
        assert live["accepted_tokens"] == simulated["accepted_tokens"]
        assert sum(live["decisions_by_arm"].values()) == document["requests"]


def test_live_and_simulated_agree(demo: Demo) -> None:
    """To 10 % on a slice this short, in which a late event loop shows; on longer ones they are closer."""
    for live, simulated in zip(demo.document["live"], demo.document["simulated"], strict=True):
        parts_j = live["decode_j"] + live["prefill_j"] + live["idle_j"]
        assert live["energy_j"] == pytest.approx(parts_j, rel=1e-6)
        assert live["prefill_j"] == pytest.approx(simulated["prefill_j"], rel=0.05)
        assert live["j_per_accepted_token"] == pytest.approx(simulated["j_per_accepted_token"], rel=0.1)


def test_a_fixed_arm_serves_alone(demo: Demo) -> None:
    fixed, planned = demo.document["live"]
    assert set(fixed["decisions_by_arm"]) == {"none"}
    assert set(planned["decisions_by_arm"]) <= ARMS


def test_its_fleet_file_and_decision_logs_can_be_used_further(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = demo.folder / "decisions-min_energy.jsonl"
    trace = load_trace(log, strict=True)
    assert (trace.kind, len(trace.requests)) == ("decisions", demo.document["requests"])
    monkeypatch.setattr(cli, "_COMMANDS", ("simulate",))
    options = ["--trace", str(log), "--fleet", str(demo.folder / "fleet.toml"), "--policy", "least_loaded", "--json"]
    assert cli.main(["simulate", *options]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["requests"] == demo.document["requests"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "static:none", "--policy", "nope"], "policy 'nope': no shipped policy has this name"),
        (["--policy", "static:ngram-8"], "policy static: arm: is 'ngram-8', which no backend runs"),
        (["--profile", "nowhere"], "no shipped profile has this name"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_started(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *options]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
