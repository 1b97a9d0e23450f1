"""An arm whose engine chooses its depth: what a profile says of it, and how its launch says that it chooses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector.cli import main as drafter_selector
from selector.core.depthbatch import DepthBatch
from selector.core.depthengines import PluginDepths, ScheduledDepths
from selector.core.policy import BackendSpec
from selector.errors import FleetError, InputError, ProfileError
from selector.files.acceptancepriors import acceptance_model
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.owndepth import own_depth, with_own_depth
from selector.files.profile import Profile, parse_profile
from tests.profiles import PROFILE, sparse_document

DEPTHS = ["none", "eagle3-k1", "eagle3-k3"]
ARM = {"algorithm": "EAGLE3", "verify_tokens": 4, "topk": 1, "depths": DEPTHS}


def profile_with(**changes: Any) -> Profile:
    """The profile with an arm `own`; changes are to the arm."""
    document = sparse_document()
    document["arms"]["own"] = {**ARM, **changes}
    return parse_profile(json.dumps(document), "made-up profile")


def launched(*flags: str, **env: str) -> dict[str, Any]:
    return {"flags": ["--speculative-num-steps", "3", "--speculative-adaptive", *flags], "env": env}


def fleet_of(profile: Profile) -> LoadedFleet:
    backend = Backend(name="b", arm="own", gpus=("g",), profile="made-up")
    return LoadedFleet(Fleet(version=1, target=profile.target.name, backends=(backend,)), "fleet", {"made-up": profile})


def exported(kind: str, out: Path, *options: str) -> Path:
    of_code = ["--profile", PROFILE, "--text-type", "code"]
    assert drafter_selector(["export", kind, *of_code, *options, "--out", str(out)]) == 0
    return out


def test_what_it_leaves_out_is_that_of_its_deepest() -> None:
    profile = profile_with()
    own, deepest = profile.arm("own"), profile.arm("eagle3-k3")
    assert (own.cells, own.acceptance, own.prefill_pass) == (deepest.cells, deepest.acceptance, deepest.prefill_pass)
    assert own.launch != deepest.launch
    again = parse_profile(profile.model_dump_json(exclude_none=True), "again")
    assert again == profile


def test_what_it_says_itself_stands() -> None:
    mean = {"code": {"mean": 2.0, "provenance": next(iter(sparse_document()["provenance"]))}}
    assert profile_with(acceptance=mean).arm("own").acceptance["code"].mean == 2.0


def test_profiles_without_such_an_arm_stay_as_they_were() -> None:
    shipped = parse_profile(json.dumps(sparse_document()), "shipped")
    assert "depths" not in shipped.model_dump_json(exclude_none=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depths": ["none", "eagle3-k9"]}, "'eagle3-k9', which is no arm of a fixed depth"),
        ({"depths": ["eagle3-k9", "eagle3-k3"]}, "'eagle3-k9', which is no arm of a fixed depth"),
        ({"depths": ["none", "own"]}, "'own', which is no arm of a fixed depth"),
        ({"depths": ["eagle3-k1", "none", "eagle3-k3"]}, "must be two at least, rise"),
        ({"depths": ["eagle3-k3"]}, "must be two at least, rise"),
        ({"verify_tokens": 5}, "end with the arm's own 5"),
        ({"depths": ["none", "eagle3-k1", "dspark-8"], "verify_tokens": 8}, "another algorithm than EAGLE3"),
        ({"depths": "none"}, "depths"),
        ({"depths": [["none"]]}, "depths"),
    ],
)
def test_depths_that_cannot_be_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        profile_with(**change)


def test_a_backend_has_its_depths_with_the_costs_and_names_of_their_arms() -> None:
    profile = profile_with(max_context_tokens=2_048)
    [spec] = fleet_of(profile).specs
    assert [(at.arm, at.cost.verify_tokens) for at in spec.depths] == [("none", 1), ("eagle3-k1", 2), ("eagle3-k3", 4)]
    none, k1 = (profile.cost(arm).step.step(1, 1_024.0) for arm in ("none", "eagle3-k1"))
    draft_pass = [more - less for more, less in zip(k1, none, strict=True)]
    assert min(draft_pass) > 0.0
    for at in spec.depths:
        alone = profile.cost(at.arm).step.step(8, 700.0)
        read_along = draft_pass if at.arm == "none" else (0.0, 0.0)
        assert at.cost.step.step(8, 700.0) == pytest.approx([sum(pair) for pair in zip(alone, read_along, strict=True)])
        assert (at.name, at.max_context_tokens, at.depths, at.own_depth) == ("b", 2_048, (), None)
    model = fleet_of(profile).policy_context().acceptance
    alone = acceptance_model([(name, profile) for name in ("own", *DEPTHS)])
    assert model.snapshot() == alone.snapshot()
    assert model.accept_length("own", "code") == model.accept_length("eagle3-k3", "code")


@pytest.mark.parametrize(("value", "rests"), [("1", True), ("True", True), ("0", False), ("", False)])
def test_a_draft_that_rests_at_depth_0_costs_nothing_there(value: str, rests: bool) -> None:
    launch = launched(SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=value)
    profile = profile_with(launch=launch)
    [spec] = fleet_of(profile).specs
    assert (spec.depths[0].cost.step.step(8, 700.0) == profile.cost("none").step.step(8, 700.0)) is rests


def test_without_a_file_sglangs_default_schedule_chooses() -> None:
    own = own_depth(profile_with(launch=launched()), "own", 64)
    assert isinstance(own.start(), ScheduledDepths)
    # Depths 5 and 7 of the default have no cost; without graphs no batch is padded.
    assert own.tiers == ((1, (1, 3)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,)))
    assert not own.takes_tbt_target
    assert own.start() is not own.start()


def test_a_config_file_is_its_schedule_and_the_arms_own_graphs_count(tmp_path: Path) -> None:
    file = tmp_path / "adaptive.json"
    file.write_text(json.dumps({"1": {"candidate_steps": [3]}, "16": {"candidate_steps": [0, 1]}}))
    flags = ("--speculative-adaptive-config", str(file), "--cuda-graph-bs-decode", "4", "16", "64")
    common = ("--cuda-graph-bs-decode", "1", "64")
    profile = profile_with(launch=launched(*flags)).model_copy(update={"common_flags": common})
    own = own_depth(profile, "own", 64)
    assert own.tiers == ((1, (3,)), (5, (0, 1)))
    assert own_depth(profile, "own", 64, ("--cuda-graph-bs-decode", "8", "64")).tiers == ((1, (3,)), (9, (0, 1)))
    assert own.start().choose(DepthBatch.alike(4), 500.0).depth == 3


def test_its_servers_graphs_pad_the_steps_of_every_depth() -> None:
    profile = profile_with(launch=launched("--cuda-graph-bs-decode", "16", "32"))
    own = BackendSpec(
        name="b",
        arm="own",
        gpus=("g",),
        cost=profile.cost("own"),
        max_running_requests=64,
        max_kv_tokens=100_000,
        max_context_tokens=8_192,
    )
    for served_with, graph in (((), 32), (("--cuda-graph-bs-decode", "24", "32"), 24)):
        for each in with_own_depth(own, profile, served_with).depths[1:]:
            plain = profile.cost(each.arm).step
            assert each.cost.step.step(17, 960.0) == pytest.approx(plain.step(graph, 960.0 * 17 / graph), rel=0.01)


def test_a_depth_file_is_the_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = exported("depths", tmp_path / "depths.json", "--tbt-target-ms", "25")
    own = own_depth(profile_with(launch=launched(DRAFTER_SELECTOR_DEPTHS=str(file)), takes_tbt_target=True), "own", 64)
    engine = own.start()
    assert isinstance(engine, PluginDepths)
    assert engine.choice.depth == 3
    assert (own.takes_tbt_target, own.default_target_ms, own.tiers) == (True, 25.0, ((1, (0, 1, 3)),))


def test_a_file_that_is_on_the_engines_machine_alone_does_for_predictions(tmp_path: Path) -> None:
    launch = launched(DRAFTER_SELECTOR_DEPTHS=str(tmp_path / "elsewhere.json"))
    [spec] = fleet_of(profile_with(launch=launch)).specs
    assert spec.own_depth is not None
    assert len(spec.depths_at(8)) == 3
    with pytest.raises(ProfileError, match=r"elsewhere\.json, which is not here"):
        spec.own_depth.start()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.write_text("{"), "is not JSON"),
        (lambda file: file.write_text(file.read_text().replace('"depth":', '"deep":')), r"depths\[0\]\.depth"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_backend(
    spoil: Callable[[Path], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported("depths", tmp_path / "depths.json")
    spoil(file)
    with pytest.raises(FleetError, match=words) as refused:
        fleet_of(profile_with(launch=launched(DRAFTER_SELECTOR_DEPTHS=str(file))))
    assert "backends[0].arm" in str(refused.value)


def test_a_schedule_of_depths_that_the_arm_does_not_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "adaptive.json"
    file.write_text(json.dumps({"1": {"candidate_steps": [5]}}))
    with pytest.raises(InputError, match="tier 1 has the depths"):
        own_depth(profile_with(launch=launched("--speculative-adaptive-config", str(file))), "own", 64)
