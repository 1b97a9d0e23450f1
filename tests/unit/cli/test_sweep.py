"""`sweep`: every combination once, resumed where it stopped, whatever fails on the way; and its summaries."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from tests.fleets import FLEET_FILE
from tests.loglines import decision_line, end_line

TRACE = "\n".join(
    ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    + [f"2023-11-16 18:15:{10 + 0.5 * n:09.6f},{200 + 10 * n},{20 + n}" for n in range(12)]
)

OWN_POLICY = """
from dataclasses import dataclass
from selector.core.types import Decision

@dataclass(frozen=True)
class Params:
    backend: str = "plain"

class Fixed:
    def __init__(self, backend):
        self.backend = backend

    def decide(self, request, fleet):
        return Decision(backend=self.backend, reason="fixed")

    def observe(self, outcome):
        pass

def make_policy(params, context):
    {before}
    return Fixed(params.backend)
"""

SWEEP = """\
version = 1
policies = ["static:none", "static:dspark-8"]
tbt_targets_ms = ["none", 25]
seeds = 2
[[traces]]
path = "conv.csv"
[[fleets]]
path = "fleet.toml"
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `sweep` on a file of that text, on one process unless told otherwise."""
    monkeypatch.setattr(cli, "_COMMANDS", ("sweep",))
    (tmp_path / "conv.csv").write_text(TRACE)
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    (tmp_path / "own.py").write_text(OWN_POLICY.replace("{before}", "pass"))

    def ran(*options: object, sweep: str | None = SWEEP) -> tuple[int, str, str]:
        given: list[str] = []
        if sweep is not None:
            (tmp_path / "sweep.toml").write_text(sweep)
            given = ["--config", str(tmp_path / "sweep.toml")]
            if not {"--jobs", "--ray"} & set(options):
                given += ["--jobs", "1"]
        code = cli.main(["sweep", "--out", str(tmp_path / "out"), *given, *map(str, options)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def document(run: Run, *options: object, code: int = 0, **given: Any) -> dict[str, Any]:
    ended, out, err = run(*options, "--json", **given)
    assert (ended, err, out.count("\n")) == (code, "", 1)
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "out" / "cells.jsonl").read_text().splitlines()]


# ---- what is run


def test_every_combination_is_run_once(run: Run, tmp_path: Path) -> None:
    sweep = SWEEP.replace("seeds = 2", 'seeds = [3, 5]\nrate_scales = [1, 2]\ntext_mixes = ["own", "code"]')
    answer = document(run, sweep=sweep.replace('path = "conv.csv"', 'path = "conv.csv"\nlimit = 2'))
    cells = [record["cell"] for record in answer["cells"]]
    assert len(cells) == len({cell["key"] for cell in cells}) == len(lines(tmp_path)) == 2 * 2 * 2 * 2 * 2
    assert {cell["seed"] for cell in cells} == {3, 5}
    assert {cell["rate_scale"] for cell in cells} == {1.0, 2.0}
    assert [json.dumps(cell["text_mix"]) for cell in cells].count('{"code": 1.0}') == 16
    assert {cell["tbt_target_ms"] for cell in cells} == {"none", 25.0}
    assert (answer["missing"], answer["failed"], len(answer["cases"])) == (0, 0, 8)


def test_a_cell_is_what_simulate_says(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = document(run)
    monkeypatch.setattr(cli, "_COMMANDS", ("simulate",))
    assert cli.main(
        ["simulate", "--trace", str(tmp_path / "conv.csv"), "--fleet", str(tmp_path / "fleet.toml"), "--seed", "1",
         "--policy", "static:dspark-8", "--tbt-target-ms", "25", "--html", str(tmp_path / "x.html")]
    ) == 0  # fmt: skip
    (record,) = (
        record for record in answer["cells"]
        if (record["cell"]["seed"], record["cell"]["policy"]) == (1, "static:dspark-8")
        and record["cell"]["tbt_target_ms"] == 25.0
    )  # fmt: skip
    assert f"{record['result']['j_per_accepted_token']:.4f}" in (tmp_path / "x.html").read_text()
    assert record["result"]["tbt_target_ms"] == 25.0


def test_a_part_of_a_trace_is_a_trace_of_its_own(run: Run) -> None:
    part = 'path = "conv.csv"\nname = "{name}"\n{given}\n'
    parts = (("whole", ""), ("first", "limit = 3"), ("middle", "slice_s = [1, 3]"), ("slow", "spread_arrivals_s = 2"))
    traces = "[[traces]]\n".join(part.format(name=name, given=given) for name, given in parts)
    answer = document(run, sweep=SWEEP.replace('path = "conv.csv"\n', traces).replace("seeds = 2", "seeds = 1"))
    done = {case["trace"]: case["policies"][0]["requests"] for case in answer["cases"]}
    assert done == {"whole": 12, "first": 3, "middle": 4, "slow": 12}
    assert len({record["cell"]["key"] for record in answer["cells"]}) == 16


def test_processes_give_what_one_process_gives(run: Run, tmp_path: Path) -> None:
    def results(answer: dict[str, Any]) -> dict[str, Any]:
        walls = {"wall_s": 0.0, "simulated_requests_per_s": 0.0}
        return {record["cell"]["key"]: record["result"] | walls for record in answer["cells"]}

    alone = results(document(run))
    (tmp_path / "out" / "cells.jsonl").unlink()
    assert results(document(run, "--jobs", 2)) == alone


def test_a_policy_s_parameters_are_the_cell_s(run: Run) -> None:
    sweep = SWEEP.replace(
        '["static:none", "static:dspark-8"]',
        '["./own.py", {name = "own.py", label = "drafting", params = {backend = "block"}}]',
    )
    answer = document(run, sweep=sweep)
    sent = {record["cell"]["policy"]: record["result"]["decisions_by_arm"] for record in answer["cells"]}
    assert sent == {"./own.py": {"none": 12, "dspark-8": 0}, "drafting": {"none": 0, "dspark-8": 12}}


def test_a_trace_that_says_its_text_types_is_run_once_whatever_the_mixes(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, (decision_line(), end_line()))))
    sweep = SWEEP.replace("conv.csv", "log.jsonl").replace("seeds = 2", 'text_mixes = ["own", "code", "math"]')
    answer = document(run, sweep=sweep)
    assert len(answer["cells"]) == 4 and {str(record["cell"]["text_mix"]) for record in answer["cells"]} == {"None"}


# ---- resuming


def test_a_second_run_runs_nothing(run: Run, tmp_path: Path) -> None:
    first = document(run)
    before = lines(tmp_path)
    assert document(run) == first
    assert lines(tmp_path) == before
    assert "8 cells, 8 of them finished before" in run()[2]


def test_only_what_is_missing_is_run(run: Run, tmp_path: Path) -> None:
    document(run, sweep=SWEEP.replace("seeds = 2", "seeds = 1"))
    kept = lines(tmp_path)
    document(run)
    assert lines(tmp_path)[:4] == kept and len(lines(tmp_path)) == 8


@pytest.mark.parametrize(
    ("file", "change", "again"),
    [
        ("own.py", lambda text: text + "# changed\n", 2),
        ("conv.csv", lambda text: text + "\n2023-11-16 18:15:30.0,100,10\n", 4),
        ("fleet.toml", lambda text: text + "# changed\n", 4),
    ],
)
def test_what_depends_on_a_changed_file_is_run_again(
    run: Run, tmp_path: Path, file: str, change: Callable[[str], str], again: int
) -> None:
    sweep = SWEEP.replace('"static:dspark-8"', '"./own.py"').replace('["none", 25]', "[25]")
    keys = [record["cell"]["key"] for record in document(run, sweep=sweep)["cells"]]
    (tmp_path / file).write_text(change((tmp_path / file).read_text()))
    answer = document(run, sweep=sweep)
    assert len(lines(tmp_path)) == 4 + again
    assert len(answer["cells"]) == 4, "what the old file gave is no part of the answer"
    assert len(set(keys) - {record["cell"]["key"] for record in answer["cells"]}) == again


def test_a_line_cut_by_a_crash_is_run_again(run: Run, tmp_path: Path) -> None:
    first = document(run)
    path = tmp_path / "out" / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert document(run, "--report", sweep=None)["missing"] == 1
    again = document(run)
    assert {record["cell"]["key"] for record in again["cells"]} == {record["cell"]["key"] for record in first["cells"]}
    assert len(lines(tmp_path)) == 8


# ---- failing


def test_a_failing_cell_is_told_and_the_others_go_on(run: Run, tmp_path: Path) -> None:
    sweep = SWEEP.replace('"static:dspark-8"', '"static:nope"')
    code, out, err = run(sweep=sweep)
    assert code == 1
    assert "failed: static:nope on conv, fleet, target none, rate 1, seed 0: PolicyError: " in err
    assert err.endswith(f"4 cells failed; {tmp_path / 'out' / 'cells.jsonl'} has their tracebacks\n")
    assert "2 failed" in out and "4 cells failed and 0 have not been run" in out
    answer = document(run, "--report", sweep=None, code=1)
    assert (answer["failed"], answer["missing"]) == (4, 0)
    assert all((record["error"] is None) == (record["result"] is not None) for record in answer["cells"])
    assert "Traceback" in next(line["traceback"] for line in lines(tmp_path) if line["error"])


def test_a_failed_cell_is_tried_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        OWN_POLICY.replace("{before}", f"open({str(tmp_path / 'there')!r}).close()")  # fails until that file is there
    )
    sweep = SWEEP.replace('"static:dspark-8"', '"./own.py"')
    assert document(run, sweep=sweep, code=1)["failed"] == 4
    (tmp_path / "there").touch()
    assert document(run, sweep=sweep)["failed"] == 0
    assert len(lines(tmp_path)) == 12


def test_a_cell_that_kills_its_process_fails_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_POLICY.replace("{before}", "import os; os._exit(9)"))
    sweep = SWEEP.replace('"static:dspark-8"', '"./own.py"').replace('["none", 25]', "[25]").replace("= 2", "= 1")
    answer = document(run, "--jobs", 2, sweep=sweep, code=1)
    failed = {record["cell"]["policy"] for record in answer["cells"] if record["error"]}
    assert failed == {"./own.py"} and (answer["failed"], answer["missing"]) == (1, 0)
    assert "its process died" in next(record["error"] for record in answer["cells"] if record["error"])


def test_ctrl_c_keeps_what_is_finished_and_leaves_no_process(run: Run, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    waiting = (
        f"open({str(stuck)!r} + str(__import__('os').getpid()), 'w').close(); __import__('threading').Event().wait()"
    )
    (tmp_path / "own.py").write_text(OWN_POLICY.replace("{before}", waiting))
    (tmp_path / "sweep.toml").write_text(SWEEP.replace('"static:dspark-8"', '"./own.py"'))
    command = [sys.executable, "-m", "selector", "sweep", "--config", "sweep.toml", "--out", "out", "--jobs", "2"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        deadline = time.monotonic() + 90
        while len(list(tmp_path.glob("stuck*"))) < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "cells to go; the same command goes on from here" in err and "Traceback" not in err
    finished = lines(tmp_path)
    assert len(finished) >= 1 and all(line["cell"]["policy"] == "static:none" for line in finished)
    for path in tmp_path.glob("stuck*"):
        assert not Path(f"/proc/{path.name.removeprefix('stuck')}").exists()


def test_two_sweeps_do_not_write_to_one_folder(run: Run, tmp_path: Path) -> None:
    from selector.simulator.sweep.folder import SweepFolder, SweepWriter

    with SweepWriter(SweepFolder(tmp_path / "out")):
        code, out, err = run()
    assert (code, out, err.count("\n")) == (2, "", 1) and "written to by another sweep" in err
    assert run()[0] == 0


# ---- summaries


def test_means_are_over_seeds(run: Run) -> None:
    answer = document(run)
    (case,) = (case for case in answer["cases"] if case["tbt_target_ms"] == 25.0)
    summary = {each["policy"]: each for each in case["policies"]}["static:dspark-8"]
    own = [
        record["result"]["j_per_accepted_token"] for record in answer["cells"]
        if record["cell"]["policy"] == "static:dspark-8" and record["cell"]["tbt_target_ms"] == 25.0
    ]  # fmt: skip
    assert len(own) == summary["seeds"] == 2 and own[0] != own[1]
    assert summary["j_per_accepted_token"] == pytest.approx(sum(own) / 2)


def test_the_report_needs_no_sweep_file(run: Run, tmp_path: Path) -> None:
    table = run()[1]
    page, cells = tmp_path / "report.html", tmp_path / "cells.csv"
    code, out, err = run("--report", "--html", page, "--csv", cells, sweep=None)
    assert (code, err, out) == (0, "", table)
    assert "conv, fleet, target 25 ms" in out and "◀" in out
    text = page.read_text()
    assert "<script" not in text and "static:dspark-8" in text and "conv, fleet, target 25 ms" in text
    rows = list(csv.DictReader(cells.read_text().splitlines()))
    by_key = {record["cell"]["key"]: record["result"] for record in document(run)["cells"]}
    assert len(rows) == 8
    for row in rows:
        assert float(row["energy_j"]) == by_key[row["key"]]["energy_j"]
        assert json.loads(row["decisions_by_arm"]) == by_key[row["key"]]["decisions_by_arm"]


# ---- bad input


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("version = 1\n", "sweep.toml: policies: is missing"),
        (SWEEP + "[x]\n", "sweep.toml: x: is not a known field"),
        (SWEEP.replace("seeds", "seedz"), "did you mean 'seeds'?"),
        (SWEEP.replace('["none", 25]', "[0]"), "sweep.toml: tbt_targets_ms"),
        (SWEEP.replace("seeds = 2", "seeds = 0"), "sweep.toml: seeds"),
        (SWEEP.replace("seeds = 2", "seeds = [1, 1]"), "seeds has 1 twice"),
        (SWEEP.replace('"static:dspark-8"', '"static:none"'), "policies has 'static:none' twice; give one of them"),
        (SWEEP.replace("version = 1", "version = 2"), "sweep.toml: version"),
        (SWEEP.replace("seeds = 2", 'text_mixes = ["cod=1"]'), "text_mixes: 'cod' is no text type"),
        (SWEEP.replace("conv.csv", "nope.csv"), "nope.csv: there is no such trace"),
        (SWEEP.replace("fleet.toml", "nope.toml"), "nope.toml: there is no such fleet file"),
        (SWEEP.replace('"static:none"', '"nope"'), "policy 'nope': no shipped policy has this name"),
        (SWEEP.replace('"static:none"', '"./nope.py"'), "nope.py"),
        ("x = [", "sweep.toml: is not TOML"),
        (SWEEP.replace('path = "conv.csv"', 'path = "conv.csv"\nlimit = 0'), "sweep.toml: traces[0].limit"),
        (SWEEP.replace('path = "conv.csv"', 'path = "conv.csv"\nslice_s = [9, 3]'), "slice_s runs from 9 to 3"),
    ],
)
def test_a_sweep_file_that_is_wrong_is_one_line(run: Run, tmp_path: Path, sweep: str, words: str) -> None:
    code, out, err = run(sweep=sweep)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "sweep", "words"),
    [
        ((), None, "--config: is missing"),
        (("--report",), None, "holds no sweep"),
        (("--report",), SWEEP, "--report: runs nothing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    run: Run, options: tuple[str, ...], sweep: str | None, words: str
) -> None:
    code, out, err = run(*options, sweep=sweep)
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err


def test_a_line_that_is_no_cell_is_named(run: Run, tmp_path: Path) -> None:
    document(run)
    path = tmp_path / "out" / "cells.jsonl"
    path.write_text('{"cell": 1}\n' + path.read_text())
    code, _, err = run("--report", sweep=None)
    assert code == 2 and "cells.jsonl:1: is not the record of a cell" in err
