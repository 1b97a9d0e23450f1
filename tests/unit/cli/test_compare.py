"""`compare`: its document, what it prints, two fleets, saved documents, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from tests.fleets import FLEET_FILE

TRACE = "\n".join(
    ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    + [f"2023-11-16 18:15:{10 + 0.5 * n:09.6f},{200 + 10 * n},{20 + n}" for n in range(40)]
)

PAIR = ("--policy", "static:none", "--policy", "static:dspark-8")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(cli, "_COMMANDS", ("simulate", "compare"))
    (tmp_path / "conv.csv").write_text(TRACE)
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)

    def ran(*options: object, command: str = "compare", inputs: bool = True) -> tuple[int, str, str]:
        given = ["--trace", str(tmp_path / "conv.csv"), "--fleet", str(tmp_path / "fleet.toml")] if inputs else []
        code = cli.main([command, *given, *map(str, options)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def document(run: Run, *options: object, **given: Any) -> dict[str, Any]:
    code, out, err = run(*options, "--json", **given)
    assert (code, err, out.count("\n")) == (0, "", 1)
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def metric(comparison: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in comparison["differences"] if each["metric"] == name)
    return dict(found)


def test_each_seed_is_what_simulate_says_for_that_seed(run: Run) -> None:
    mix = ("--text-mix", "code=1,romansh=1")
    answer = document(run, *PAIR, *mix, "--seeds", 3)
    (comparison,) = answer["comparisons"]
    singles = [
        [document(run, "--policy", policy, *mix, "--seed", seed, command="simulate")["results"][0] for seed in range(3)]
        for policy in ("static:none", "static:dspark-8")
    ]
    energy = metric(comparison, "decode_j_per_accepted_token")
    steps = [b["decode_j_per_accepted_token"] - a["decode_j_per_accepted_token"] for a, b in zip(*singles, strict=True)]
    assert energy["difference"] == pytest.approx(sum(steps) / 3)
    assert energy["interval"]["low"] < energy["difference"] < energy["interval"]["high"]
    assert (energy["b_better"], comparison["seeds"]) == (3, 3)
    assert comparison["no_worse"] is True
    assert [len(runs) for runs in answer["results"]] == [3, 3]
    assert answer["trace"]["text_mix"] == {"code": 0.5, "romansh": 0.5}
    assert {"attainment_by_text_type.code", "attainment_by_text_type.romansh", "attainment_by_class.chat"} <= {
        each["metric"] for each in comparison["differences"]
    }


def test_a_policy_compared_with_itself_differs_in_nothing(run: Run) -> None:
    (same,) = document(run, "--policy", "min_energy", "--policy", "min_energy", "--seeds", 2)["comparisons"]
    assert all(each["difference"] == 0.0 and each["equal"] == each["seeds"] for each in same["differences"])
    assert same["verdict"].endswith("both use the same energy per accepted token.")


def test_the_table_ends_with_the_verdict(run: Run) -> None:
    code, out, err = run(*PAIR, "--seeds", 2, "--tbt-target-ms", 3)
    assert (code, err) == (0, "")
    assert "j_per_accepted_token" in out and "…" in out
    assert "paired t and bootstrap over 2 seeds" in out
    assert "static:dspark-8 is no worse than static:none; it uses" in out
    assert out.splitlines()[-1] == "seeds that are no worse on their own: 2 of 2"


def test_the_other_way_round_it_is_worse(run: Run) -> None:
    (worse,) = document(
        run, "--policy", "static:dspark-8", "--policy", "static:none", "--tbt-target-ms", 3, "--seeds", 2
    )["comparisons"]
    assert worse["no_worse"] is False
    assert "attainment of text type conversation" in worse["verdict"]


def test_each_policy_may_have_its_own_fleet(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(FLEET_FILE.replace('arm = "none"', 'arm = "eagle3-k3"'))
    answer = document(run, "--fleet", other, "--policy", "static:none", "--policy", "static:eagle3-k3", "--seeds", 1)
    (comparison,) = answer["comparisons"]
    assert comparison["b"] == f"static:eagle3-k3 on {other}"
    assert answer["results"][1][0]["decisions_by_arm"]["eagle3-k3"] == 40


def test_saved_documents_are_compared(run: Run, tmp_path: Path) -> None:
    for name, policies in (("one", ("static:none",)), ("two", ("static:dspark-8",)), ("both", PAIR[1::2])):
        given = [word for policy in policies for word in ("--policy", policy)]
        (tmp_path / name).write_text(run(*given, "--json", command="simulate")[1])
    paths = {name: tmp_path / name for name in ("one", "two", "both")}
    (comparison,) = document(run, "--results", paths["one"], "--results", paths["two"], inputs=False)["comparisons"]
    assert comparison["seeds"] == 1 and metric(comparison, "decode_j_per_accepted_token")["interval"] is None
    assert metric(comparison, "decode_j_per_accepted_token")["difference"] < 0
    (matched,) = document(run, "--results", paths["both"], "--results", paths["two"], inputs=False)["comparisons"]
    assert metric(matched, "energy_j")["difference"] == 0.0

    (tmp_path / "seed").write_text(run("--policy", "static:none", "--seed", 1, "--json", command="simulate")[1])
    (tmp_path / "not").write_text("[]")
    (tmp_path / "cut").write_text('{"results"')
    for other, words in (
        ("seed", "has seed 1"),
        ("not", "is no document"),
        ("cut", "is not JSON"),
        ("gone", "no such"),
    ):
        code, out, err = run("--results", paths["one"], "--results", tmp_path / other, inputs=False)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


@pytest.mark.parametrize(
    ("options", "inputs", "words"),
    [
        ((), True, "--policy: is missing"),
        (("--policy", "static:none"), True, "--policy: is given 1 times"),
        (PAIR, False, "--trace: is missing"),
        ((*PAIR, "--results", "x"), True, "--results: stands for two saved documents"),
        (("--policy", "static:none", "--policy", "nope"), True, "no shipped policy has this name"),
        ((*PAIR, "--text-mix", "cod=1"), True, "--text-mix"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, options: tuple[str, ...], inputs: bool, words: str) -> None:
    code, out, err = run(*options, inputs=inputs)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
