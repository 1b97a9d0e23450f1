"""`predict`: the contract of its JSON, its agreement with what was measured, and its answers to bad questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from selector import cli
from selector.files.shipped import profile_names
from tests.profiles import PROFILE, sparse_document

KEYS = [
    "arm",
    "batch",
    "context_tokens",
    "accept_length",
    "step_ms",
    "step_j",
    "tbt_ms",
    "j_per_accepted_token",
    "break_even_accept_length",
    "extrapolated",
]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `drafter-selector predict`; returns exit code, standard output and standard error."""
    monkeypatch.setattr(cli, "_COMMANDS", ("predict",))
    monkeypatch.setenv("COLUMNS", "200")

    def ran(*args: object, profile: str = PROFILE) -> tuple[int, str, str]:
        code = cli.main(["predict", "--profile", profile, *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def point(arm: str, batch: object, context: object) -> list[object]:
    return ["--arm", arm, "--batch", batch, "--context-tokens", context]


def predicted(run: Run, *args: object, profile: str = PROFILE) -> dict[str, Any]:
    code, out, err = run(*args, "--json", profile=profile)
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_the_json_has_the_agreed_keys_and_the_formulas_hold(run: Run) -> None:
    answer = predicted(run, *point("dspark-8", 8, 1200), "--accept-length", 3.5)
    assert list(answer) == KEYS
    assert (answer["arm"], answer["batch"], answer["context_tokens"]) == ("dspark-8", 8, 1200)
    assert answer["accept_length"] == 3.5
    assert answer["tbt_ms"] == pytest.approx(answer["step_ms"] / 3.5)
    assert answer["j_per_accepted_token"] == pytest.approx(answer["step_j"] / (8 * 3.5))
    plain = predicted(run, *point("none", 8, 1200))
    assert answer["break_even_accept_length"] == pytest.approx(answer["step_j"] / plain["step_j"])
    assert (plain["accept_length"], plain["break_even_accept_length"]) == (1.0, 1.0)
    assert plain["tbt_ms"] == plain["step_ms"]


def test_measured_cells_are_predicted_as_they_were_measured(run: Run) -> None:
    for arm, content in sparse_document()["arms"].items():
        for cell in content["cells"]:
            accept = cell["imposed_accept_length"]
            where = point(arm, cell["batch"], int(cell["context_tokens"]))
            answer = predicted(run, *where, "--accept-length", accept)
            expected = {
                "step_ms": cell["step_ms"],
                "step_j": cell["step_j"],
                "tbt_ms": cell["step_ms"] / accept,
                "j_per_accepted_token": cell["step_j"] / (cell["batch"] * accept),
            }
            for key, value in expected.items():
                assert answer[key] == pytest.approx(value, rel=0.03), (arm, cell["batch"], key)


def test_left_out_cells_inside_their_arm_s_batches_are_predicted(run: Run, tmp_path: Path) -> None:
    document = sparse_document()
    errors: dict[str, list[float]] = {"step_ms": [], "step_j": []}
    for arm, content in document["arms"].items():
        cells = content["cells"]
        batches = [cell["batch"] for cell in cells]
        for cell in cells:
            if not min(batches) < cell["batch"] < max(batches):
                continue
            others = [other for other in cells if other is not cell]
            path = tmp_path / "without.json"
            path.write_text(json.dumps(document | {"arms": document["arms"] | {arm: content | {"cells": others}}}))
            answer = predicted(
                run, *point(arm, cell["batch"], int(cell["context_tokens"])), "--accept-length", 1, profile=str(path)
            )
            for key, found in errors.items():
                found.append(abs(answer[key] / cell[key] - 1))
    for found in errors.values():
        assert len(found) == 12
        assert max(found) <= 0.15
        assert median(found) <= 0.05


def test_a_point_is_flagged_when_either_arm_was_not_measured_there(run: Run) -> None:
    assert not predicted(run, *point("none", 8, 704))["extrapolated"]
    assert predicted(run, *point("none", 8, 5000))["extrapolated"]
    assert predicted(run, *point("none", 65, 704))["extrapolated"]
    # dflash-16 has a cell at batch 32 and 1036 tokens, none has not.
    assert predicted(run, *point("dflash-16", 32, 1036), "--accept-length", 2)["extrapolated"]
    assert not predicted(run, *point("dflash-16", 32, 704), "--accept-length", 2)["extrapolated"]


def test_the_accept_length_of_a_text_type_is_the_profile_s(run: Run) -> None:
    acceptance = sparse_document()["arms"]["dspark-8"]["acceptance"]
    for text_type in ("code", "romansh"):
        answer = predicted(run, *point("dspark-8", 8, 1024), "--text-type", text_type)
        assert answer["accept_length"] == acceptance[text_type]["mean"]
    assert predicted(run, *point("none", 8, 1024), "--text-type", "code")["accept_length"] == 1.0


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (point("dspark-9", 8, 100), "has no arm 'dspark-9'; choose one of dflash-16, dspark-8"),
        (point("dspark-8", 8, 100), "--accept-length and --text-type: are both missing, and dspark-8 drafts"),
        ([*point("none", 8, 100), "--accept-length", 1, "--text-type", "code"], "are both given; give one of them"),
        ([*point("dspark-8", 8, 100), "--accept-length", 8.01], "is 8.01, and dspark-8 verifies 8 token(s)"),
        ([*point("dspark-8", 8, 100), "--accept-length", 0.99], "is 0.99, and dspark-8 verifies 8"),
        ([*point("dspark-8", 8, 100), "--accept-length", "nan"], "is nan, and dspark-8 verifies 8"),
        ([*point("none", 8, 100), "--accept-length", 2], "is 2, and none verifies 1 token(s) per step; give 1, or"),
        ([*point("dspark-8", 8, 100), "--text-type", "cod"], "--text-type: is 'cod'; give one of code, math"),
        (point("none", 0, 100), "--batch: is 0; give 1 or more"),
        (point("none", 1, -1), "--context-tokens: is -1; give 0 or more"),
        ([*point("none", 1, 100), "--tbt-target-ms", 0], "--tbt-target-ms: is 0; give a number above 0"),
        (["--context-tokens", 100, "--arm", "none"], "--arm and --batch: are needed for one prediction"),
        (["--context-tokens", 100, "--table"], "--text-type: is missing"),
        (["--context-tokens", 100, "--table", "--batch", 3], "--batch: does not go with --table"),
    ],
)
@pytest.mark.parametrize("json_flag", [(), ("--json",)], ids=["text", "json"])
def test_a_bad_question_is_answered_in_one_line(
    run: Run, args: list[object], expected: str, json_flag: tuple[str, ...]
) -> None:
    code, out, err = run(*args, *json_flag)
    assert (code, out) == (2, "")
    assert err.startswith("drafter-selector predict: ")
    assert expected in err
    assert err.count("\n") == 1


def test_an_unknown_profile_is_answered_with_the_names_there_are(run: Run) -> None:
    code, _, err = run(*point("none", 1, 100), profile="h200__qwen")
    assert code == 2
    assert all(name in err for name in profile_names())
    assert err.count("\n") == 1


def test_a_context_above_the_draft_s_own_limit_is_refused(run: Run, tmp_path: Path) -> None:
    document = sparse_document()
    document["arms"]["eagle3-k3"]["max_context_tokens"] = 2048
    path = tmp_path / "short.json"
    path.write_text(json.dumps(document))
    args = ["--accept-length", 2]
    assert predicted(run, *point("eagle3-k3", 1, 2048), *args, profile=str(path))["context_tokens"] == 2048
    code, _, err = run(*point("eagle3-k3", 1, 2049), *args, profile=str(path))
    assert code == 2
    assert "is 2049, and the draft model of eagle3-k3 reads at most 2048" in err


def test_the_table_for_readers_says_where_numbers_come_from(run: Run) -> None:
    code, out, _ = run(*point("dspark-8", 8, 1754), "--text-type", "romansh", "--tbt-target-ms", 5)
    assert code == 0
    assert "assumed: romansh: survival rate 0.5" in out
    assert "sglang 0.5.17" in out and "dummy weights" in out
    assert "meets the target of 5 ms" in out
    assert "it costs energy against none" in out
    assert "misses the target of 1 ms" in run(*point("none", 8, 704), "--tbt-target-ms", 1)[1]
    assert "published: https://" in run(*point("dspark-8", 8, 1754), "--text-type", "code")[1]
    assert "│ given" in run(*point("dspark-8", 8, 1754), "--accept-length", 5)[1]


def test_a_target_adds_a_verdict_to_the_json(run: Run) -> None:
    answer = predicted(run, *point("none", 8, 704), "--tbt-target-ms", 5.7)
    assert list(answer) == [*KEYS, "tbt_target_ms", "meets_tbt_target"]
    assert answer["meets_tbt_target"] is True
    assert predicted(run, *point("none", 8, 704), "--tbt-target-ms", 5.5)["meets_tbt_target"] is False


def test_the_table_of_all_arms(run: Run) -> None:
    args = ["--table", "--context-tokens", 1024, "--text-type", "code"]
    cells = predicted(run, *args)["predictions"]
    assert {cell["arm"] for cell in cells} == set(sparse_document()["arms"])
    assert sorted({cell["batch"] for cell in cells}) == [1, 2, 4, 8, 16, 32, 64]
    one = next(cell for cell in cells if (cell["arm"], cell["batch"]) == ("dspark-8", 16))
    assert one == predicted(run, *point("dspark-8", 16, 1024), "--text-type", "code")
    _, out, _ = run(*args, "--tbt-target-ms", 5)
    assert f"{one['tbt_ms']:.2f}  {one['j_per_accepted_token']:.4f}" in out
    assert "red: misses 5 ms" in out
