"""The live benchmark against emulated servers: every cell once, resumed, with the simulation beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from selector.loadgen.live import free_ports
from tests.profiles import PROFILE

LIVE = Path(__file__).parents[3] / "bench" / "live"

FLEET = """\
version = 1
target = "Qwen3-8B"

[[backends]]
name = "dspark"
url = "http://127.0.0.1:{port}"
arm = "dspark-8"
gpus = ["host0:0"]
profile = "{profile}"
max_running_requests = 64
max_kv_tokens = 400000
max_context_tokens = 8192

[slo]
default_class = "live"

[slo.classes.live]

[router]
trust_text_type_header = true
"""

PLAN = """\
version = 1
fleets = ["fleet.toml"]
trace = "azure_2023_conv"
seconds = 3
max_output_tokens = 60
max_prompt_tokens = 600
targets_ms = [10]
policies = {policies}

[[loads]]
name = "few"
running = 2

[[texts]]
name = "mixed"
mix = {{ code = 0.5, romansh = 0.5 }}

[accept.dspark-8]
code = 6.0
romansh = 1.5

[servers]
model = "Qwen3-8B"
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LIVE / "run.py", "--plan", tmp_path / "plan.toml", "--out", tmp_path / "out", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]


def generated(plan: Path) -> int:
    """Tokens that the server of the fleet has made so far."""
    url = tomllib.loads((plan / "fleet.toml").read_text())["backends"][0]["url"]
    with urlopen(f"{url}/metrics") as answer:
        told = re.search(r"^sglang:generation_tokens_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert told is not None
    return int(float(told[1]))


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET.format(port=free_ports(1)[0], profile=PROFILE))
    (tmp_path / "plan.toml").write_text(PLAN.format(policies='["direct", "min_energy"]'))
    return tmp_path


def test_every_cell_is_measured_once_and_compared(plan: Path) -> None:
    listed = run(plan, "--list")
    assert listed.stdout.count("left  ") == 2, listed.stderr
    assert run(plan, "--emulate", "--stop-after", "1").returncode == 0
    assert not (plan / "out" / "results.jsonl").exists()
    ran = run(plan, "--emulate")
    assert ran.returncode == 0, ran.stderr
    first = rows(plan)
    assert [row["policy"] for row in first] == ["direct", "min_energy"]
    for row in first:
        live, simulated, error = row["live"], row["simulated"], row["error"]
        assert isinstance(live, dict) and isinstance(simulated, dict) and isinstance(error, dict)
        assert live["failed"] == 0
        assert live["requests"] == row["requests_sent"] == simulated["requests"]
        assert live["accepted_tokens"] == simulated["accepted_tokens"]
        timeline = row["timeline"]
        assert timeline[0]["energy_j"] == 0.0 and len(timeline) > 1
        assert [at["energy_j"] for at in timeline] == sorted(at["energy_j"] for at in timeline)
        # The router's start comes on top, for as long as it takes, with the boards idle.
        assert 0.0 < timeline[-1]["energy_j"] / timeline[-1]["at_s"] <= 1.05 * live["energy_j"] / live["duration_s"]
        # Two clocks and a busy machine: near, not equal.
        assert abs(error["j_per_accepted_token"]) < 0.25
    assert "TBT p50" in ran.stdout and "median error" in ran.stdout
    assert run(plan, "--emulate").returncode == 0
    assert rows(plan) == first
    (plan / "plan.toml").write_text(PLAN.format(policies='["direct", "min_energy", "static:dspark-8"]'))
    assert "done" in run(plan, "--list").stdout
    assert "static:dspark-8" not in run(plan, "--report").stdout


def test_a_load_may_have_policies_of_its_own(plan: Path) -> None:
    file = plan / "plan.toml"
    file.write_text(file.read_text().replace("running = 2", 'running = 2\npolicies = ["static:dspark-8"]'))
    [line] = run(plan, "--list").stdout.splitlines()
    assert line.startswith("left") and line.endswith("static:dspark-8")


def test_clients_that_wait_for_their_answers(plan: Path) -> None:
    file = plan / "plan.toml"
    steps = "clients = [[0, 1], [1.5, 1], [1.5, 4], [3, 4], [3, 0]]"
    file.write_text(file.read_text().replace("running = 2", steps))
    ran = run(plan, "--emulate")
    assert ran.returncode == 0, ran.stderr
    for row in rows(plan):
        live, simulated = row["live"], row["simulated"]
        assert live["failed"] == 0 and row["rate"] is None
        # As many as are answered in the time, and no more than the plan's.
        assert 8 < live["requests"] == row["requests_sent"] < 2_000
        assert abs(live["requests"] / simulated["requests"] - 1) < 0.4
        assert live["duration_s"] < 6.0
    assert run(plan, "--resimulate").returncode == 0


@pytest.mark.parametrize(
    ("clients", "problem"),
    [
        ("clients = [[0, 1]]", "must be 0"),
        ('clients = [[0, 1], [3, 0]]\n[[texts]]\nname = "t"\nmix = {code = 1}\nthen = {math = 1}', "texts that change"),
        ("clients = [[0, 1], [3, 0]]\nrate = [[0, 1]]", "give one of running, rate and clients"),
    ],
)
def test_clients_that_do_not_end_or_come_with_a_rate_are_refused(plan: Path, clients: str, problem: str) -> None:
    file = plan / "plan.toml"
    file.write_text(file.read_text().replace("running = 2", clients))
    ran = run(plan, "--list")
    assert ran.returncode == 2 and problem in ran.stderr


def test_text_may_change_in_the_middle_of_the_time(plan: Path) -> None:
    file = plan / "plan.toml"
    mixed = "mix = { code = 0.5, romansh = 0.5 }"
    file.write_text(file.read_text().replace(mixed, "mix = { code = 1.0 }\nthen = { romansh = 1.0 }"))
    assert run(plan, "--emulate").returncode == 0
    decided = [
        json.loads(line)
        for log in (plan / "out" / "fleet").glob("decisions-*min-energy.jsonl")
        for line in log.read_text().splitlines()
        if '"event":"decision"' in line
    ]
    texts = [line["request"]["text_type"] for line in decided]
    assert set(texts) == {"code", "romansh"}
    assert texts == sorted(texts)


def test_accept_lengths_of_the_plan_reach_router_servers_and_simulator(plan: Path) -> None:
    assert run(plan, "--list").returncode == 0
    profile = json.loads((plan / "out" / "fleet" / "profile-0.json").read_text())
    acceptance = profile["arms"]["dspark-8"]["acceptance"]
    assert (acceptance["code"]["mean"], acceptance["romansh"]["mean"], acceptance["code"]["request_spread"]) == (
        6,
        1.5,
        0,
    )
    assert profile["provenance"][acceptance["code"]["provenance"]]["kind"] == "assumed"


def test_servers_that_are_held_up_serve_several_runs(plan: Path) -> None:
    """A stand-in for the engine's interpreter starts an emulated server with the engine's command line."""
    python = plan / "python"
    python.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --port ]; do shift; done\n'
        f'exec "{sys.executable}" -m selector emulate --profile {PROFILE} --arm none --port "$2"\n'
    )
    python.chmod(0o755)
    (plan / "fleet.toml").write_text((plan / "fleet.toml").read_text().replace('"dspark-8"', '"none"'))
    text = PLAN.format(policies='["direct", "static:none"]').replace("[accept.dspark-8]\ncode = 6.0\nromansh = 1.5", "")
    (plan / "plan.toml").write_text(text + f'python = "{python}"\nat_once = true\nstartup_timeout_s = 60\n')
    arguments = ["--plan", plan / "plan.toml", "--out", plan / "out", "--models", plan, "--hold", "fleet.toml"]
    with subprocess.Popen(
        [sys.executable, LIVE / "run.py", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as held:
        try:
            assert held.stdout is not None
            printed = [held.stdout.readline(), held.stdout.readline()]
            assert printed[0].startswith("dspark (none) is up after "), printed
            assert printed[1] == "ready fleet.toml\n"
            assert generated(plan) == 17 * 64, "one prompt alone and 16 at once, to warm up with"
            assert run(plan, "--emulate", "--running").returncode == 0
            assert [row["policy"] for row in rows(plan)] == ["direct", "static:none"]
        finally:
            held.terminate()
        assert held.wait(30) == 0
    gone = run(plan, "--emulate", "--running")
    assert gone.returncode == 0, "everything is measured"
    (plan / "out" / "results.jsonl").unlink()
    assert run(plan, "--emulate", "--running").returncode == 1, "and no server is left"


def test_a_fleet_may_have_policies_of_its_own(plan: Path) -> None:
    text = (plan / "plan.toml").read_text()
    (plan / "plan.toml").write_text('policies_of = { fleet = ["pack:dspark-8"] }\n' + text)
    assert "| pack:dspark-8" in run(plan, "--list").stdout
    (plan / "plan.toml").write_text('policies_of = { feet = ["pack:dspark-8"] }\n' + text)
    assert "policies_of names 'feet'; fleets has fleet" in run(plan, "--list").stderr


def test_what_was_measured_is_simulated_anew_with_another_profile(plan: Path) -> None:
    (plan / "plan.toml").write_text(PLAN.format(policies='["static:dspark-8"]'))
    assert run(plan, "--emulate").returncode == 0
    [before] = rows(plan)
    (plan / "plan.toml").write_text((plan / "plan.toml").read_text().replace("romansh = 1.5", "romansh = 1.0"))
    again = run(plan, "--resimulate")
    assert again.returncode == 0, again.stderr
    [after] = rows(plan)
    assert after["live"] == before["live"]
    assert after["rate"] == before["rate"]
    assert after["simulated"]["requests"] == before["simulated"]["requests"]
    assert after["simulated"]["tbt_p99_ms"] > 1.2 * before["simulated"]["tbt_p99_ms"]


def test_what_the_plans_servers_pad_to_is_simulated_so(plan: Path) -> None:
    (plan / "plan.toml").write_text(PLAN.format(policies='["static:dspark-8"]'))
    assert run(plan, "--emulate").returncode == 0
    [before] = rows(plan)
    text = (plan / "plan.toml").read_text()
    graphs = '"--cuda-graph-bs-decode", "32", "--cuda-graph-bs-prefill", "600"'
    (plan / "plan.toml").write_text(text.replace("[servers]", f"[servers]\nflags = [{graphs}]"))
    again = run(plan, "--resimulate")
    assert again.returncode == 0, again.stderr
    [after] = rows(plan)
    assert after["live"] == before["live"]
    assert after["simulated"]["tbt_p50_ms"] > 1.2 * before["simulated"]["tbt_p50_ms"]
    assert after["simulated"]["prefill_j"] > 1.05 * before["simulated"]["prefill_j"]
    written = json.loads((plan / "out" / "fleet" / "profile-0.json").read_text())
    assert "--cuda-graph-bs-prefill" in written["common_flags"]


def test_a_load_can_have_targets_and_policies_of_its_own(plan: Path) -> None:
    file = plan / "plan.toml"
    other = '[[loads]]\nname = "again"\nrunning = 2\ntargets_ms = [25, 6]\npolicies = ["static:dspark-8"]\n\n'
    file.write_text(file.read_text().replace("[[texts]]", other + "[[texts]]"))
    listed = [line.split(" | ") for line in run(plan, "--list").stdout.splitlines()]
    assert [cell[1:] for cell in listed if cell[1] == "again"] == [
        ["again", "mixed", target, "static:dspark-8"] for target in ("25 ms", "6 ms")
    ]
    assert {cell[3] for cell in listed if cell[1] == "few"} == {"10 ms"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("running = 2", "", "give one of running, rate and clients"),
        ("running = 2", "rate = [[3, 1.0], [1, 2.0]]", "the times of rate must increase"),
        ("romansh = 0.5 ", "verse = 0.5 ", "'verse', which is no text type"),
        ('"azure_2023_conv"', '"nowhere.csv"', "nowhere.csv"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(plan: Path, old: str, new: str, message: str) -> None:
    file = plan / "plan.toml"
    file.write_text(file.read_text().replace(old, new))
    refused = run(plan, "--list")
    assert refused.returncode == 2
    assert message in refused.stderr


STAND_IN = """
[survival]
code = 0.8
romansh = 0.3

[arms.eagle3-plugin]
like = "eagle3-k3"
depths = ["none", "eagle3-k1", "eagle3-k3"]
takes_tbt_target = true
env = { DEPTHS = "{here}/depths.json" }
flags = ["--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "1", "--speculative-adaptive"]

[arms.eagle3-k5]
like = "eagle3-k3"
draft_steps = 5
flags = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "5"]
"""


def test_one_run_of_a_fixed_arm_stands_for_every_target_and_each_seed_draws_anew(plan: Path) -> None:
    text = PLAN.format(policies='["min_energy", "static:dspark-8"]').replace("[10]", "[1000, 0.001, 10]")
    (plan / "plan.toml").write_text(text.replace("\n[[loads]]", "seeds_of = { fleet = [1, 5] }\n\n[[loads]]"))
    ran = run(plan, "--emulate")
    assert ran.returncode == 0, ran.stderr
    found = {(row["policy"], row["key"].rpartition("| ")[2], row["target_ms"]): row for row in rows(plan)}
    assert len(found) == 12
    for seed in ("seed 1", "seed 5"):
        loose, tight, _ = (found["static:dspark-8", seed, target] for target in (1000, 0.001, 10))
        assert (loose["live"]["tbt_attainment"], loose["simulated"]["tbt_attainment"]) == (1.0, 1.0)
        assert (tight["live"]["tbt_attainment"], tight["simulated"]["tbt_attainment"]) == (0.0, 0.0)
        assert tight["run_of"] == loose["key"] and tight["live"]["energy_j"] == loose["live"]["energy_j"]
        assert not any("run_of" in found["min_energy", seed, target] for target in (1000, 0.001, 10))
    one, other = (found["static:dspark-8", seed, 10]["simulated"] for seed in ("seed 1", "seed 5"))
    assert one["tbt_p50_ms"] != other["tbt_p50_ms"]


def test_an_engine_that_goes_by_the_target_is_run_at_each(plan: Path) -> None:
    fleet, file = plan / "fleet.toml", plan / "plan.toml"
    fleet.write_text(fleet.read_text().replace('"dspark-8"', '"eagle3-plugin"'))
    text = PLAN.format(policies='["static:eagle3-plugin"]').replace("[10]", "[10, 25]")
    file.write_text(text.replace("\n[servers]", STAND_IN + "\n[servers]"))
    assert run(plan, "--emulate").returncode == 0
    assert [("run_of" in row, row["target_ms"]) for row in rows(plan)] == [(False, 10.0), (False, 25.0)]


def test_seeds_of_a_fleet_that_is_not_there_are_refused(plan: Path) -> None:
    for seeds, wrong in (("{ flet = [1] }", "seeds_of names 'flet'"), ("{ fleet = [] }", "seeds_of")):
        text = PLAN.format(policies='["min_energy"]').replace("\n[[loads]]", f"seeds_of = {seeds}\n\n[[loads]]", 1)
        (plan / "plan.toml").write_text(text)
        refused = run(plan, "--list")
        assert refused.returncode == 2 and wrong in refused.stderr


def test_an_arm_that_no_profile_has_is_served_with_the_costs_of_another(plan: Path) -> None:
    fleet, file = plan / "fleet.toml", plan / "plan.toml"
    fleet.write_text(fleet.read_text().replace('"dspark-8"', '"eagle3-plugin"'))
    file.write_text(PLAN.format(policies='["static:eagle3-plugin"]').replace("\n[servers]", STAND_IN + "\n[servers]"))
    ran = run(plan, "--emulate")
    assert ran.returncode == 0, ran.stderr
    [row] = rows(plan)
    assert row["live"]["failed"] == 0 and row["live"]["requests"] == row["requests_sent"] > 0
    profile = json.loads((plan / "out" / "fleet" / "profile-0.json").read_text())
    arms = profile["arms"]
    assert arms["eagle3-plugin"]["takes_tbt_target"] is True
    assert arms["eagle3-plugin"]["launch"]["env"] == {"DEPTHS": f"{plan.resolve()}/depths.json"}
    assert "draft_steps" not in arms["eagle3-plugin"]
    assert arms["eagle3-plugin"]["depths"] == ["none", "eagle3-k1", "eagle3-k3"]
    assert (arms["eagle3-k5"]["draft_steps"], arms["eagle3-k5"]["verify_tokens"]) == (5, 6)
    kinds = {profile["provenance"][cell["provenance"]]["kind"] for cell in arms["eagle3-plugin"]["cells"]}
    assert kinds == {"assumed"}
    # One chance per draft gives every arm the length of its depth.
    lengths = [arms[arm]["acceptance"]["code"]["mean"] for arm in ("eagle3-k1", "eagle3-k3", "eagle3-k5")]
    assert lengths == pytest.approx([1.8, 2.952, 3.68928])


def test_the_ramp_of_depths_names_servers_that_can_be_started(tmp_path: Path) -> None:
    command = [sys.executable, LIVE / "run.py", "--plan", LIVE / "ramp.toml", "--out", tmp_path, "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert listed.returncode == 0, listed.stderr
    ramp = [line for line in listed.stdout.splitlines() if "| code, then romansh |" in line]
    arms = [
        line.rpartition("static:")[2].removesuffix(" | seed 1") for line in ramp if not re.search("seed [2-9]", line)
    ]
    assert arms == [
        *("none", "eagle3-k1", "eagle3-k3"),
        *("eagle3-plugin", "eagle3-exported"),
        "eagle3-adaptive",
        "eagle3-k1",
        *("eagle3-k1", "eagle3-plugin", "eagle3-exported-open"),
    ]
    for fleet in ("depth-fixed", "depth-adaptive", "depth-default", "depth-open"):
        profile = json.loads((tmp_path / fleet / "profile-0.json").read_text())
        words = [
            word
            for arm in profile["arms"].values()
            for word in (*arm["launch"]["flags"], *arm["launch"]["env"].values())
            if word.startswith("/")
        ]
        assert words and all(Path(word).is_file() for word in words)
