"""`plan`: its JSON, the fleet file it writes, and what it says where no fleet will do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selector import cli
from selector.files.fleet import load_fleet_with_profiles
from tests import livearms
from tests.profiles import PROFILE

ROW = "2023-11-16 18:17:{seconds:07.4f}000,600,120\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "conv.csv"
    rows = "".join(ROW.format(seconds=0.4 * number) for number in range(100))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, encoding="utf-8")
    return path


def planned(trace: Path, *options: str) -> list[str]:
    return ["plan", "--profile", PROFILE, "--trace", str(trace), "--gpus", "1", "--tried", "2", *options]


def test_the_document_names_the_best_fleet_and_why(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(planned(trace, "--tbt-target-ms", "25", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["feasible"] is True
    assert document["requests"] == 100
    assert document["best"] == document["options"][0]
    assert document["runner_up"] == document["options"][1]
    assert sum(document["best"]["fleet"].values()) == document["best"]["gpus"] == 1
    joules = [option["simulated"]["j_per_accepted_token"] for option in document["options"]]
    assert joules == sorted(joules)
    assert document["why"][0].startswith("best: 1 × ")
    assert document["why"][1].startswith("runner-up: 1 × ")


def test_an_arm_with_a_live_setting_is_planned_with_only_where_it_is_named(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "live.json"
    profile.write_text(json.dumps(livearms.document()), "utf-8")
    command = ["plan", "--profile", str(profile), "--trace", str(trace), "--gpus", "1", "--tried", "2", "--json"]
    for options, arms in (([], {"none"}), (["--arms", f"none,{livearms.ARM}"], {"none", livearms.ARM})):
        cli.main([*command, *options])
        found = json.loads(capsys.readouterr().out)["options"]
        assert {arm for option in found for arm in option["fleet"]} == arms


def test_the_fleet_file_can_be_simulated(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "fleet.toml"
    options = ("--tbt-target-ms", "25", "--write", str(written), "--max-running-requests", "32")
    assert cli.main(planned(trace, *options)) == 0
    fleet = load_fleet_with_profiles(written).fleet
    assert [backend.max_running_requests for backend in fleet.backends] == [32]
    assert fleet.slo.classes["default"].tbt_target_ms == 25.0
    assert fleet.policy.name == "min_energy"
    capsys.readouterr()
    assert cli.main(["simulate", "--trace", str(trace), "--fleet", str(written), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["requests"] == 100
    assert cli.main(planned(trace, *options)) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_infeasible_target_is_said_with_the_reason(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(planned(trace, "--tbt-target-ms", "0.5")) == 1
    out = capsys.readouterr().out
    words = (
        "infeasible: conversation 0% within 0.5 ms, and 90% was asked for; no arm is within the target even at batch 1"
    )
    assert words in " ".join(out.split())


def test_a_fleet_that_lets_requests_queue_is_infeasible(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(planned(trace, "--rate-scale", "100", "--ttft-p99-ms", "200")) == 1
    assert "infeasible: requests queue: TTFT p99 is " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--arms", "none,nothing"), "--arms: 'nothing' is not in the profile"),
        (("--attainment", "1.5"), "--attainment: is 1.5"),
        (("--max-context-tokens", "100"), "has no request within 100 tokens of context"),
        (("--text-mix", "prose=1"), "'prose' is no text type"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    trace: Path, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(planned(trace, *options)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
