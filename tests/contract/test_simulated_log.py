"""The decision log of a simulated run reads as a router's, replays with the same decisions, and is a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector import cli
from selector.core.controller import Controller
from selector.core.types import Finish
from selector.files.decision_log import DecisionEvent, EndEvent, PollEvent, StartEvent, read_decision_log, runs
from selector.files.fleet import load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.files.trace import load_trace
from selector.simulator.replay import replay
from tests.profiles import PROFILE

POLICIES = ("least_loaded", "round_robin", "affinity", "goodput", "greedy_energy", "min_energy")

BACKEND = """
[[backends]]
name = "{name}"
arm = "{arm}"
gpus = ["{name}"]
profile = "{profile}"
max_context_tokens = 4096
"""

FLEET = (
    'version = 1\ntarget = "Qwen3-8B"\n'
    + "".join(BACKEND.format(name=arm, arm=arm, profile=PROFILE) for arm in ("none", "eagle3-k3", "dspark-8"))
    + "\n[slo]\ndefault_class = 'chat'\n[slo.classes.chat]\ntbt_target_ms = 8\n"
)


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    rows = [f"2023-11-16 18:15:{5 + 0.07 * n:09.6f},{150 + 37 * n % 5_000},{5 + 11 * n % 90}" for n in range(250)]
    (tmp_path / "conv.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    (tmp_path / "fleet.toml").write_text(FLEET)
    return ["simulate", "--trace", str(tmp_path / "conv.csv"), "--fleet", str(tmp_path / "fleet.toml"), "--seed", "3",
            "--text-mix", "code=1,romansh=1", "--json"]  # fmt: skip


def test_a_simulated_log_makes_the_same_decisions_again(given: list[str], tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    named = [word for policy in POLICIES for word in ("--policy", policy)]
    assert cli.main([*given, *named, "--decisions", str(log)]) == 0
    fleet = load_fleet_with_profiles(tmp_path / "fleet.toml")
    logged = list(runs(read_decision_log(log)))
    assert len(logged) == len(POLICIES)
    for policy, events in zip(POLICIES, logged, strict=True):
        start = events[0]
        assert isinstance(start, StartEvent) and (start.policy.label, start.seed) == (policy, 3)
        kinds = [type(event) for event in events]
        assert kinds.count(EndEvent) > 200 and kinds.count(PollEvent) > 30
        context = fleet.policy_context(start.seed)
        pairs = list(replay(events, Controller(context, load_policy_file(policy).make({}, context))))
        assert len(pairs) == kinds.count(DecisionEvent)
        assert all(before == after for before, after in pairs)
        assert len({before.backend for before, _ in pairs}) > 1, "a log in which nothing was decided proves nothing"


def test_another_policy_decides_otherwise_on_the_same_log(given: list[str], tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    assert cli.main([*given, "--policy", "least_loaded", "--decisions", str(log)]) == 0
    context = load_fleet_with_profiles(tmp_path / "fleet.toml").policy_context(3)
    controller = Controller(context, load_policy_file("static:none").make({}, context))
    pairs = list(replay(read_decision_log(log), controller))
    assert any(before.backend != after.backend for before, after in pairs)


def test_a_simulated_log_is_a_trace_of_what_was_served(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "decisions.jsonl"
    assert cli.main([*given, "--policy", "least_loaded", "--decisions", str(log)]) == 0
    trace, source = load_trace(log), load_trace(tmp_path / "conv.csv")
    served = [event.outcome for event in read_decision_log(log) if isinstance(event, EndEvent)]
    assert {outcome.finish for outcome in served} == {Finish.DONE}
    fits = [one for one in source.requests if one.prompt_tokens + one.output_tokens <= 4096]
    assert [(one.prompt_tokens, one.output_tokens) for one in trace.requests] == [
        (one.prompt_tokens, one.output_tokens) for one in fits
    ]
    assert {one.text_type for one in trace.requests} == {"code", "romansh"}

    capsys.readouterr()
    assert cli.main([*given, "--policy", "least_loaded", "--decisions", str(log)]) == 2
    assert "decisions.jsonl: exists" in capsys.readouterr().err
    assert load_trace(log) == trace, "a log is never overwritten"


def test_a_run_that_fails_leaves_no_log(given: list[str], tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Params: pass\n"
        "def make_policy(params, context): return object()\n"
    )
    with pytest.raises(AttributeError):
        cli.main([*given, "--policy", str(own), "--decisions", str(tmp_path / "decisions.jsonl")])
    assert not (tmp_path / "decisions.jsonl").exists()
