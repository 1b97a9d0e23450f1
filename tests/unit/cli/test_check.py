"""`check`: exit codes, what goes to which stream, and that launch commands can be pasted."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from selector.cli import check
from selector.files.fleet import LoadedFleet
from selector.files.fleetcheck import Finding
from selector.router.probe import Probe
from tests.profiles import PROFILE

POLICY = """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Params:
    pass

def make_policy(params, context):
    return object()
"""

FLEET = f"""\
version = 1
target = "Qwen3-8B"

[[backends]]
name = "b0"
url = "http://127.0.0.1:30000"
arm = "none"
gpus = ["host0:0"]
profile = "{PROFILE}"

[[backends]]
name = "b1"
url = "http://127.0.0.1:30001"
arm = "dspark-8"
gpus = ["host0:1"]
profile = "{PROFILE}"

[policy]
name = "POLICY"
fallback = "POLICY"
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `drafter-selector check` on a fleet file of that text."""
    monkeypatch.setattr(cli, "_COMMANDS", ("check",))
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "policy.py").write_text(POLICY)

    def ran(text: str, *args: str) -> tuple[int, str, str]:
        path = tmp_path / "fleet.toml"
        path.write_text(text.replace("POLICY", str(tmp_path / "policy.py")))
        code = cli.main(["check", "--config", str(path), *args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def document(run: Run, text: str, *args: str) -> dict[str, Any]:
    code, out, err = run(text, *args, "--json")
    found: dict[str, Any] = json.loads(out)
    assert err == ""
    assert code == (0 if found["ok"] else 2)
    return found


def test_a_good_file_is_ok(run: Run) -> None:
    code, out, err = run(FLEET)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ok      ") and "2 backend(s) of Qwen3-8B: none, dspark-8" in lines[0]
    assert [line for line in lines if line.startswith("ok      policy ") and "sha256" in line]
    assert [
        line for line in lines if line.startswith("ok      faults: up to 3 retries from a budget of 20% of requests")
    ]
    assert document(run, FLEET + "\n[faults]\nretries = 0\n")["faults"]["retries"] == 0
    assert [line for line in lines if line.startswith("warning ") and "arms.dspark-8.acceptance" in line]


def test_every_error_is_a_line_and_the_exit_code_is_two(run: Run) -> None:
    code, out, _ = run(FLEET.replace('"none"', '"nine"').replace("30001", "30000"))
    errors = [line for line in out.splitlines() if line.startswith("error   ")]
    assert code == 2
    assert len(errors) == 2
    assert "backends[1].url" in errors[0] and "backends[0].arm: 'nine' is not in profile" in errors[1]


@pytest.mark.usefixtures("run")
def test_a_missing_file_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--config", "absent.toml"]) == 2
    assert capsys.readouterr().out == "error   absent.toml: there is no such fleet file; check the path\n"


def test_the_json_document(run: Run) -> None:
    good = document(run, FLEET)
    assert good["ok"] is True and good["errors"] == []
    assert set(good["policy"]) == {"name", "path", "sha256"}
    assert all(set(warning) == {"where", "problem", "remedy"} for warning in good["warnings"])
    assert "launch_commands" not in good and "live" not in good
    bad = document(run, FLEET.replace("version = 1", "version = 3"))
    assert bad["ok"] is False
    assert bad["errors"][0]["problem"] == "version is 3; this release reads version 1"
    assert bad["policy"] is None


def test_launch_commands_are_a_shell_script_and_findings_go_elsewhere(run: Run, tmp_path: Path) -> None:
    code, out, err = run(FLEET, "--launch-commands", "--model-path", "/m x", "--draft-path", "dspark-8=/d")
    assert code == 0
    assert err.startswith("ok      ")
    commands = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert len(commands) == 2
    # Run the script with a python3 that only says how it was called.
    fake = tmp_path / "python3"
    fake.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" "$#" "$4"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-eu"], input=out, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    counts = [len(shlex.split(command)) - 2 for command in commands]
    assert done.stdout.splitlines() == [f"0 {counts[0]} /m x", f"1 {counts[1]} /m x"]
    assert "--speculative-draft-model-path /d" in commands[1]


def test_launch_commands_in_json(run: Run) -> None:
    first, second = document(run, FLEET, "--launch-commands")["launch_commands"]
    assert set(first) == {"backend", "arm", "machine", "env", "argv", "shell", "notes"}
    assert (second["backend"], second["arm"], second["machine"]) == ("b1", "dspark-8", "host0")
    assert shlex.split(second["shell"]) == ["CUDA_VISIBLE_DEVICES=1", *second["argv"]]


def test_a_file_with_errors_gives_no_launch_commands(run: Run) -> None:
    code, out, err = run(FLEET.replace('"none"', '"nine"'), "--launch-commands")
    assert (code, out) == (2, "")
    assert "'nine' is not in profile" in err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--model-path", "/m"], "fill in launch commands; add --launch-commands"),
        (["--launch-commands", "--draft-path", "dspark-8"], "--draft-path: is 'dspark-8'; give ARM=PATH"),
        (["--launch-commands", "--draft-path", "=x"], "--draft-path: is '=x'; give ARM=PATH"),
        (["--launch-commands", "--draft-path", "ngram-8=/d"], "names 'ngram-8', an arm of no backend; use dspark-8"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(run: Run, args: list[str], expected: str) -> None:
    code, out, err = run(FLEET, *args)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_live_findings_count(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def probes(loaded: LoadedFleet) -> tuple[Probe, ...]:
        wrong = Finding(level="error", where="backends[1] b1", problem="does not run dspark-8", remedy="restart it")
        return (
            Probe(backend="b0", findings=(), summary="ready, SGLang 0.5.17, 0 running, 0 waiting"),
            Probe(backend="b1", findings=(wrong,), summary=None),
        )

    monkeypatch.setattr(check, "probe_fleet", probes)
    code, out, _ = run(FLEET, "--live")
    assert code == 2
    assert "ok      b0: ready, SGLang 0.5.17" in out
    assert "error   backends[1] b1: does not run dspark-8; restart it" in out
    live = document(run, FLEET, "--live")
    assert live["live"][1] == {"backend": "b1", "summary": None}
    assert live["errors"][0]["problem"] == "does not run dspark-8"


def test_live_asks_nobody_when_the_file_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(loaded: LoadedFleet) -> None:
        raise AssertionError("probed a fleet that does not load")

    monkeypatch.setattr(check, "probe_fleet", never)
    assert run(FLEET.replace('"none"', '"nine"'), "--live")[0] == 2
