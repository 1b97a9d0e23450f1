"""Fleet files: what is refused and in which words, and what a loaded fleet tells a policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector.core.types import Capability
from selector.errors import FleetError
from selector.files.fleet import LoadedFleet, load_fleet, load_fleet_with_profiles, parse_fleet
from tests.profiles import PROFILE, sparse_document

FLEET = f"""\
version = 1
target = "Qwen3-8B"

[[backends]]
name = "b0"
url = "http://127.0.0.1:30000/"
arm = "none"
gpus = ["host0:0"]
profile = "{PROFILE}"

[[backends]]
name = "b1"
arm = "dspark-8"
gpus = ["host0:1"]
profile = "{PROFILE}"
max_running_requests = 16
max_kv_tokens = 100000
max_context_tokens = 4096

[slo]
default_class = "chat"
[slo.classes.chat]
tbt_target_ms = 25
[slo.classes.batch]

[policy]
name = "static:none"
"""


def refused(text: str) -> str:
    with pytest.raises(FleetError) as caught:
        parse_fleet(text, "f.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_fleet_file_says_what_it_says() -> None:
    fleet = parse_fleet(FLEET, "f.toml")
    assert [backend.name for backend in fleet.backends] == ["b0", "b1"]
    assert fleet.backends[0].url == "http://127.0.0.1:30000"
    assert fleet.slo.tbt_target_ms("chat") == 25
    assert fleet.slo.tbt_target_ms("batch") is None
    assert (fleet.policy.name, fleet.policy.fallback) == ("static:none", "least_loaded")


def test_without_classes_the_default_class_has_no_target() -> None:
    bare = FLEET[: FLEET.index("[slo]")]
    assert parse_fleet(bare, "f.toml").slo.tbt_target_ms("default") is None
    with pytest.raises(KeyError):
        parse_fleet(FLEET, "f.toml").slo.tbt_target_ms("vip")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_kv_tokens", "max_kv_toks", "backends[1].max_kv_toks: is not a known field; did you mean 'max_kv_t"),
        ("version = 1", "version = 2", "f.toml: version is 2; this release reads version 1; correct the value"),
        ("version = 1", "", "f.toml: version: is missing; add it"),
        ('"b1"', '"b0"', "f.toml: two backends are named 'b0'; correct the value"),
        ('"b1"', '"b 1"', "f.toml: backends[1].name: is 'b 1': string should match pattern"),
        ('["host0:1"]', "[]", "f.toml: backends[1].gpus: is []"),
        ('["host0:1"]', '["x", "x"]', "f.toml: backend 'b1' lists a GPU twice; correct the value"),
        ("= 16\n", "= 0\n", "f.toml: backends[1].max_running_requests: is 0: should be greater than 0; correct"),
        ("= 16\n", '= "lots"\n', "f.toml: backends[1].max_running_requests: is 'lots': should be a valid integer"),
        ('= "chat"', '= "talk"', "f.toml: slo: default_class 'talk' is not one of batch, chat; correct the value"),
        ("= 25", "= -3", "f.toml: slo.classes.chat.tbt_target_ms: is -3: should be greater than 0; correct the value"),
        ("= 25", "= nan", "f.toml: slo.classes.chat.tbt_target_ms: is nan: should be"),
        ("http://127.0.0.1:30000/", "127.0.0.1:30000", "backends[0].url: is '127.0.0.1:30000': must start with http://"),
        ("http://127.0.0.1:30000/", "http://h:99999", "is 'http://h:99999': must be http://HOST:PORT"),
        ("http://127.0.0.1:30000/", "http://:1", "is 'http://:1': must be http://HOST:PORT"),
        ("http://127.0.0.1:30000/", "http://me:pass@h:1", "is 'http://…@h:1': must hold no user name or password"),
        ("http://127.0.0.1:30000/", "http://h/?x=1", "must be http://HOST:PORT"),
        ("[slo]", "[slo]\ndefault_class = 3", "f.toml: is not TOML (Cannot overwrite a value"),
        ("http://127.0.0.1:30000/", "http://a..b:30000", "backends[0].url: is 'http://a..b:30000': must be http://HOST"),
        ("[policy]", "[faults]\nretry = 1\n[policy]", "faults.retry: is not a known field; did you mean 'retries'?"),
        ("[policy]", "[faults]\noutlier_slowness = 1\n[policy]", "faults.outlier_slowness: is 1: should be greater"),
        (
            "[policy]",
            "[faults]\nbreaker_open_s = 90\n[policy]",
            "faults: breaker_open_max_s is 60, below breaker_open_s 90; correct the value",
        ),
        ("[policy]", "[energy]\npoll_interval = 1\n[policy]", "energy.poll_interval: is not a known field"),
        ("[policy]", "[energy]\nurls = ['h:1']\n[policy]", "energy.urls[0]: is 'h:1': must start with http://"),
        ("[policy]", "[energy]\npoll_interval_s = 0\n[policy]", "energy.poll_interval_s: is 0: should be greater"),
        ("[policy]", "[router]\nport = 70000\n[policy]", "f.toml: router.port: is 70000: should be less than or equal"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(old: str, new: str, expected: str) -> None:
    assert expected in refused(FLEET.replace(old, new, 1))


def test_several_findings_are_counted() -> None:
    assert refused(FLEET.replace("= 16", "= 0").replace("= 100000", "= 0")).endswith("(1 more after it)")


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="there is no such fleet file; check the path"):
        load_fleet(tmp_path / "absent.toml")
    with pytest.raises(FleetError, match="is a folder, not a fleet file"):
        load_fleet(tmp_path)


def loaded(text: str) -> LoadedFleet:
    return LoadedFleet(parse_fleet(text, "f.toml"), "f.toml")


def test_specs_follow_the_file_and_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(FLEET)
    specs = load_fleet_with_profiles(path).specs
    assert [(spec.name, spec.arm, spec.gpus) for spec in specs] == [
        ("b0", "none", ("host0:0",)),
        ("b1", "dspark-8", ("host0:1",)),
    ]
    assert (specs[1].max_running_requests, specs[1].max_kv_tokens, specs[1].max_context_tokens) == (16, 100_000, 4096)
    assert specs[1].cost.verify_tokens == 8
    assert specs[0].cannot_serve == frozenset()
    assert Capability.PENALTIES in specs[1].cannot_serve


def test_graphs_that_a_backend_is_launched_with_pad_its_costs_alone() -> None:
    text = FLEET.replace(
        'arm = "dspark-8"', 'arm = "dspark-8"\nlaunch_flags = ["--cuda-graph-bs-prefill", "256", "512"]'
    )
    plain, padded = loaded(text).specs
    assert (plain.cost.prefill.graphs, padded.cost.prefill.graphs) == ((), (256, 512))


def test_a_backend_plans_ahead_unless_its_flags_say_otherwise(tmp_path: Path) -> None:
    text = FLEET.replace('arm = "dspark-8"', 'arm = "dspark-8"\nlaunch_flags = ["--disable-overlap-schedule"]')
    assert [spec.overlaps for spec in loaded(text).specs] == [True, False]
    path = profile_with(tmp_path, lambda d: d.update(common_flags=["--disable-overlap-schedule"]))
    assert [spec.overlaps for spec in loaded(FLEET.replace(PROFILE, path)).specs] == [False, False]


def profile_with(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Path of a copy of the shipped profile with a change."""
    document = sparse_document()
    change(document)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_draft_that_reads_less_limits_the_context_of_its_backend(tmp_path: Path) -> None:
    path = profile_with(tmp_path, lambda d: d["arms"]["dspark-8"].update(max_context_tokens=2048))
    specs = loaded(FLEET.replace(PROFILE, path)).specs
    assert [spec.max_context_tokens for spec in specs] == [8192, 2048]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('arm = "dspark-8"', 'arm = "dspark"', f"backends[1].arm: 'dspark' is not in profile '{PROFILE}'"),
        ('"Qwen3-8B"', '"Llama"', f"backends[0].profile: '{PROFILE}' profiles 'Qwen3-8B', the fleet serves"),
        ('["host0:1"]', '["a:0", "a:1"]', f"backends[1].gpus: has 2 GPU(s), profile '{PROFILE}' was taken with 1"),
        (PROFILE, "h200__qwen3", "backends[0].profile: profile 'h200__qwen3': no shipped profile has this"),
        (PROFILE, "./gone.json", "backends[0].profile: profile './gone.json': there is no such file"),
    ],
)  # fmt: skip
def test_a_backend_that_does_not_fit_its_profile_is_refused(old: str, new: str, expected: str) -> None:
    with pytest.raises(FleetError) as caught:
        loaded(FLEET.replace(old, new, 1))
    assert str(caught.value).startswith(f"f.toml: {expected}")
    assert "\n" not in str(caught.value)


def test_a_policy_context_is_fresh_each_time() -> None:
    fleet = loaded(FLEET)
    one, other = fleet.policy_context(seed=3), fleet.policy_context()
    assert (one.target, one.seed) == ("Qwen3-8B", 3)
    assert [(spec.name, spec.gpus) for spec in one.backends] == [(spec.name, spec.gpus) for spec in fleet.specs]
    for spec, again, profiled in zip(one.backends, other.backends, fleet.specs, strict=True):
        assert spec.cost.step.step(4, 900) == again.cost.step.step(4, 900) == profiled.cost.step.step(4, 900)
        assert len({id(each.cost.step) for each in (spec, again, profiled)}) == 3  # correctable apart
    one.acceptance.observe("dspark-8", "code", 1_000_000, 0)
    assert one.acceptance.accept_length("dspark-8", "code") < 1.1
    assert other.acceptance.accept_length("dspark-8", "code") > 5


def test_one_arm_everywhere_keeps_the_gpus_and_limits() -> None:
    fleet = loaded(FLEET).with_arm_everywhere("eagle3-k3")
    assert [spec.arm for spec in fleet.specs] == ["eagle3-k3", "eagle3-k3"]
    assert [spec.gpus for spec in fleet.specs] == [("host0:0",), ("host0:1",)]
    assert fleet.specs[1].max_running_requests == 16
    with pytest.raises(FleetError, match="'mtp-k1' is not in profile"):
        loaded(FLEET).with_arm_everywhere("mtp-k1")


def test_every_arm_of_a_profile_is_told_once_whatever_runs_it(tmp_path: Path) -> None:
    other = profile_with(tmp_path, lambda document: None)
    fleet = loaded(FLEET).fleet
    more = [backend.model_copy(update={"name": f"{backend.name}-again"}) for backend in fleet.backends]
    more += [backend.model_copy(update={"name": f"{backend.name}-other", "profile": other}) for backend in more]
    arms = list(LoadedFleet(fleet.model_copy(update={"backends": (*fleet.backends, *more)}), "f.toml").arms())
    assert [where for where, _, _ in arms] == [
        f"profile {name!r}: arms.{arm}" for name in (PROFILE, other) for arm in ("none", "dspark-8")
    ]
    assert all(arm is profile.arms[where.rpartition(".")[2]] for where, profile, arm in arms)
