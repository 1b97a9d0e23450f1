"""`export`: files that SGLang and the plugin read, from the shipped profile's measured costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from selector.core.prefillshare import HALF_LIFE_MS
from selector.files.adaptiveconfig import parse_adaptive_config
from selector.files.depthfile import load_depth_file, parse_depth_file
from selector.files.profile import LonePass, PrefillPass, load_profile, write_profile
from tests.profiles import PROFILE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `drafter-selector export KIND …`; returns exit code, standard output and standard error."""
    monkeypatch.setattr(cli, "_COMMANDS", ("export",))
    monkeypatch.setenv("COLUMNS", "200")

    def ran(kind: str, *args: object, profile: str = PROFILE) -> tuple[int, str, str]:
        code = cli.main(["export", kind, "--profile", profile, *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def adaptive(run: Run, *args: object) -> dict[str, Any]:
    code, out, _ = run("sglang-adaptive", *args)
    assert code == 0
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def test_the_schedule_is_one_that_the_engine_takes(run: Run) -> None:
    document = adaptive(run, "--tbt-target-ms", 10, "--text-type", "conversation")
    for key, tier in document.items():
        # As SGLang reads it: whole numbers are tiers, of which each has steps; the rest are defaults or nothing.
        if key.isdigit():
            assert tier["candidate_steps"]
            assert all(isinstance(step, int) and step >= 0 for step in tier["candidate_steps"])
        else:
            assert key == "drafter_selector"
    assert "1" in document


def test_the_file_says_what_it_expects_and_why(run: Run) -> None:
    said = adaptive(run, "--tbt-target-ms", 10, "--text-type", "code", "--load", "closed")["drafter_selector"]
    assert said["depths_from"] == {"0": "none", "1": "eagle3-k1", "3": "eagle3-k3"}
    assert said["load"].startswith("closed: ")
    assert "derived" in said["accept_length"]
    at_64 = next(each for each in said["expected"]["batches"] if each["batch"] == 64)
    # Measured: 9.22 J a step at depth 3 against 5.26 J without drafting, at accept length 2.95.
    assert at_64["best_fixed_depth"] == 3
    assert at_64["j_per_accepted_token"] < 0.6 * at_64["sglang_default_j_per_accepted_token"]
    assert any("not measured" in note for note in said["notes"])
    assert said["start_with"] == "--speculative-num-steps 3"


def test_expected_energies_are_those_of_the_profile(run: Run) -> None:
    given = ("--tbt-target-ms", 50, "--accept-length", 3.9, "--accept-band", 0, "--context-tokens", 1_500)
    said = adaptive(run, *given, "--load", "closed")["drafter_selector"]
    cost = load_profile(PROFILE).cost("eagle3-k3").step
    for each in said["expected"]["batches"]:
        assert each["candidates"] == [3]
        assert each["j_per_accepted_token"] == pytest.approx(
            cost.step(each["batch"], 1_500)[1] / (3.9 * each["batch"]), rel=1e-3
        )


def test_the_schedule_is_for_requests_that_come_by_themselves_unless_it_says_otherwise(run: Run) -> None:
    words = ("--tbt-target-ms", 10, "--text-type", "conversation", "--accept-band", 0)
    unsaid, opened, closed = (adaptive(run, *words, *load) for load in ((), ("--load", "open"), ("--load", "closed")))
    assert unsaid == opened
    candidates = [
        {key: tier["candidate_steps"] for key, tier in document.items() if key.isdigit()}
        for document in (opened, closed)
    ]
    # With the same batch depth 3 is cheapest below 48; at the same pace too few requests are left to share its steps.
    assert candidates[0] == {"1": [3], "2": [0], "48": [1]}
    assert candidates[1] == {"1": [3], "48": [1]}
    said = opened["drafter_selector"]
    profile = load_profile(PROFILE)
    assert said["load"].startswith("open: ") and f"{profile.idle.served_w:.4g} W" in said["load"]
    cost = profile.cost("eagle3-k1").step
    row = next(each for each in said["expected"]["batches"] if each["candidates"] == [1] and each["batch"] < 58)
    ms, j = cost.step(row["batch"], 1_024)
    length = 1.0 + sum(survivals_of_conversation(run)[:1])
    assert row["j_per_accepted_token"] == pytest.approx(
        (j - profile.idle.served_w * ms / 1e3) / (row["batch"] * length), rel=1e-3
    )


def survivals_of_conversation(run: Run) -> tuple[float, ...]:
    """Survivals of conversation by draft position."""
    code, out, _ = run("depths", "--text-type", "conversation")
    assert code == 0
    return parse_depth_file(out, "out").survivals


@pytest.mark.parametrize(("load", "title"), [("open", "at the same tokens a second"), ("closed", "at the same batch")])
def test_the_table_says_what_is_compared(run: Run, load: str, title: str) -> None:
    _, _, told = run("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "math", "--load", load)
    assert title in told
    assert ("above idle" in told) == (load == "open")


@pytest.mark.parametrize("kind", ["sglang-adaptive", "depths"])
def test_a_load_that_is_neither_is_refused(run: Run, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(kind, "--tbt-target-ms", 10, "--text-type", "code", "--load", "half")
    assert "--load" in capsys.readouterr().err


def test_a_server_is_to_start_at_the_deepest_candidate(run: Run) -> None:
    document = adaptive(run, "--tbt-target-ms", 10, "--accept-length", 1.7, "--accept-band", 0.4)
    deepest = max(max(tier["candidate_steps"]) for key, tier in document.items() if key.isdigit())
    assert document["drafter_selector"]["start_with"] == f"--speculative-num-steps {deepest}"
    assert document["drafter_selector"]["expected"]["batches"][0]["best_fixed_depth"] < deepest


def test_depths_between_the_measured_ones_only_when_asked_for(run: Run) -> None:
    said = adaptive(run, "--tbt-target-ms", 10, "--text-type", "code", "--interpolate")["drafter_selector"]
    assert said["depths_from"] == {"0": "none", "1": "eagle3-k1", "2": "interpolated", "3": "eagle3-k3"}
    assert any("depth 2 was not measured" in note for note in said["notes"])


def test_an_accept_length_may_be_that_of_another_depth(run: Run) -> None:
    said = adaptive(run, "--tbt-target-ms", 10, "--accept-length", 1.5, "--accept-depth", 1)["drafter_selector"]
    assert said["accept_length"].startswith("1.875 at depth 3")  # 1 + 0.5 + 0.25 + 0.125


def test_out_is_written_and_the_table_goes_to_standard_error(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "adaptive.json"
    code, printed, told = run("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "math", "--out", out)
    assert (code, printed) == (0, "")
    assert "per accepted token" in told
    assert parse_adaptive_config(out.read_text(), "out")


def test_a_target_that_is_missed_is_said_to_be(run: Run) -> None:
    code, _, told = run("sglang-adaptive", "--tbt-target-ms", 0.5, "--text-type", "math")
    assert code == 0
    assert "misses" in told


def test_the_plugins_file_holds_costs_survivals_and_target(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "depths.json"
    code, _, _ = run("depths", "--text-type", "code", "--tbt-target-ms", 12, "--headroom", 0.1, "--out", out)
    assert code == 0
    file = load_depth_file(out)
    assert [each.depth for each in file.depths] == [0, 1, 3]
    assert file.tbt_target_ms == 12
    assert file.options.headroom_frac == 0.1
    assert 1.0 + sum(file.survivals) == pytest.approx(2.9492, abs=1e-3)
    profile = load_profile(PROFILE)
    deepest = profile.arms["eagle3-k3"].acceptance
    assert {text: 1.0 + sum(curve) for text, curve in file.survivals_of.items()} == pytest.approx(
        {text: known.mean for text, known in deepest.items()}, abs=1e-3
    )
    share = file.prefill_share()
    share.prefilled(512)
    share.stepped(1.0)
    stall_ms = profile.prefill_cost("eagle3-k3").stall_ms(512)
    assert share.frac == pytest.approx(stall_ms / (stall_ms + HALF_LIFE_MS), rel=0.02)
    cost = profile.cost("eagle3-k1").step
    for batch in (1, 20, 64, 100):
        assert file.table().step(1, batch, 1_200.0) == pytest.approx(cost.step(batch, 1_200.0), rel=1e-4)


def test_the_plugins_file_has_what_passes_are_padded_to_and_take_beside_their_work(tmp_path: Path) -> None:
    profile = load_profile(PROFILE)
    arm = profile.arms["eagle3-k3"]
    least = PrefillPass(
        prompt_tokens=128, ms=9.0, j=5.0, provenance="gpu", longer=(LonePass(prompt_tokens=1_000, ms=60.0, j=20.0),)
    )
    changed = profile.model_copy(
        update={
            "common_flags": ("--cuda-graph-bs-prefill", "256", "1024"),
            "arms": {**profile.arms, "eagle3-k3": arm.model_copy(update={"prefill_pass": least})},
        }
    )
    write_profile(changed, tmp_path / "p.json")
    out = tmp_path / "depths.json"
    words = ["export", "depths", "--profile", str(tmp_path / "p.json"), "--text-type", "code", "--out", str(out)]
    assert cli.main(words) == 0
    share, cost = load_depth_file(out).prefill_share(), changed.prefill_cost("eagle3-k3")
    share.prefilled(700)
    share.stepped(1.0)
    stall_ms = cost.stall_ms(700)
    assert stall_ms == pytest.approx(cost.work(700)[0] + 324 * cost.token_ms + cost.beside_ms)
    assert cost.beside_ms > 10.0
    assert share.frac == pytest.approx(stall_ms / (stall_ms + HALF_LIFE_MS), rel=0.02)


@pytest.mark.parametrize(("words", "open_load"), [((), True), (("--load", "closed"), False)])
def test_the_plugins_file_says_whether_clients_wait(run: Run, words: tuple[str, ...], open_load: bool) -> None:
    code, out, _ = run("depths", "--text-type", "code", *words)
    assert code == 0
    options = parse_depth_file(out, "out").options
    profile = load_profile(PROFILE)
    assert (options.open_load, options.idle_w) == (open_load, profile.gpu.count * profile.idle.served_w)


def test_graphs_of_the_server_pad_what_is_exported(run: Run) -> None:
    flags = "--cuda-graph-bs-decode 8 16 --cuda-graph-bs-prefill 256"
    code, out, _ = run("depths", "--text-type", "code", "--launch-flags", flags)
    assert code == 0
    file, cost = parse_depth_file(out, "out"), load_profile(PROFILE).cost("eagle3-k1").step
    assert file.prefill is not None and file.prefill.graphs == (256,)
    assert file.table().step(1, 9, 0.0)[0] > cost.step(9, 0.0)[0] * 1.01
    assert file.table().step(1, 16, 1_200.0) == pytest.approx(cost.step(16, 1_200.0), rel=1e-4)


def test_the_plugins_file_is_plain_json_on_standard_output(run: Run) -> None:
    code, out, _ = run("depths", "--text-type", "code")
    assert code == 0
    assert parse_depth_file(out, "out").tbt_target_ms is None


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "poetry"), "poetry"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--accept-length", 9), "--accept-length"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "code", "--batches", "1,x"), "--batches"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "code", "--accept-band", 1.5), "--accept-band"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "code", "--quantile", 1), "--quantile"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "code", "--context-tokens", -1), "--context"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "code", "--accept-depth", 1), "--accept-depth"),
        (("sglang-adaptive", "--tbt-target-ms", 10, "--text-type", "code", "--algorithm", "DSPARK"), "DSPARK"),
        (("depths", "--text-type", "code", "--headroom", 1), "--headroom"),
        (("depths", "--text-type", "code", "--quantile", 0), "--quantile"),
        (("depths", "--text-type", "code", "--out", "/nowhere/at/all.json"), "/nowhere"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(run: Run, args: tuple[object, ...], named: str) -> None:
    code, out, told = run(*args)
    assert (code, out) == (2, "")
    assert named in told.splitlines()[-1]
