"""A server is taken for an arm only when what it reports is that arm."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.policy import BackendSpec
from selector.files.fleet import LoadedFleet, parse_fleet
from selector.files.profile import Arm, Profile
from selector.router.identity import (
    Mismatch,
    arm_mismatches,
    deployment_mismatches,
    model_change,
    profiled_release,
)
from selector.router.loads import ServerFacts
from tests import livearms
from tests.profiles import PROFILE as FILE
from tests.profiles import sparse_profile

PROFILE = sparse_profile()


def server_info(arm: Arm, **changed: Any) -> dict[str, Any]:
    """What SGLang 0.5.17 reports for an arm, of what is compared and some of what is not."""
    drafts = arm.algorithm != "none"
    steps = {"EAGLE3": arm.draft_steps, "NGRAM": 0}.get(arm.algorithm, 1)
    return {
        "model_path": "/models/Qwen3-8B",
        "served_model_name": "Qwen3-8B",
        "context_length": 8192,
        "max_running_requests": 64,
        "max_total_num_tokens": 400_000,
        "tp_size": 1,
        "speculative_algorithm": arm.algorithm if drafts else None,
        "speculative_num_steps": steps if drafts else None,
        "speculative_eagle_topk": 1 if drafts else None,
        "speculative_num_draft_tokens": arm.verify_tokens if drafts else None,
        "speculative_adaptive": False,
        "version": "0.5.17",
        "internal_states": [{}],
    } | changed


@pytest.mark.parametrize("served", PROFILE.arms)
@pytest.mark.parametrize("expected", PROFILE.arms)
def test_each_arm_is_told_from_every_other(served: str, expected: str) -> None:
    found = arm_mismatches(server_info(PROFILE.arms[served]), PROFILE.arms[expected])
    assert bool(found) == (served != expected)


def test_a_mismatch_reads_as_a_sentence() -> None:
    (algorithm,) = arm_mismatches(server_info(PROFILE.arms["none"]), PROFILE.arms["dspark-8"])
    assert str(algorithm) == "speculative_algorithm is None, expected 'DSPARK'"
    steps, tokens = arm_mismatches(server_info(PROFILE.arms["eagle3-k1"]), PROFILE.arms["eagle3-k3"])
    assert steps == Mismatch(field="speculative_num_steps", expected=3, found=1)
    assert tokens == Mismatch(field="speculative_num_draft_tokens", expected=4, found=2)


def test_a_recorded_ngram_server_with_a_tree_is_not_the_chain_that_was_measured() -> None:
    recorded = server_info(PROFILE.arms["ngram-8"], speculative_eagle_topk=10, speculative_num_draft_tokens=6)
    assert {m.field for m in arm_mismatches(recorded, PROFILE.arms["ngram-8"])} == {
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    }


def test_a_field_that_is_left_out_is_not_compared_but_the_algorithm_is() -> None:
    arm = PROFILE.arms["eagle3-k3"]
    assert arm_mismatches({"speculative_algorithm": "EAGLE3"}, arm) == ()
    assert [m.field for m in arm_mismatches({}, arm)] == ["speculative_algorithm"]
    assert arm_mismatches({}, PROFILE.arms["none"]) == ()


def test_names_that_sglang_replaces_are_the_same_algorithm() -> None:
    mtp = PROFILE.arms["eagle3-k1"].model_copy(update={"algorithm": "NEXTN"})
    assert arm_mismatches(server_info(mtp, speculative_algorithm="EAGLE"), mtp) == ()
    assert arm_mismatches(server_info(mtp, speculative_algorithm="EAGLE3"), mtp)


def test_an_adaptive_arm_may_be_at_any_depth_but_must_be_adaptive() -> None:
    plain = PROFILE.arms["eagle3-k3"]
    flags = (*plain.launch.flags, "--speculative-adaptive")
    adaptive = plain.model_copy(update={"launch": plain.launch.model_copy(update={"flags": flags})})
    info = server_info(plain, speculative_num_steps=1, speculative_num_draft_tokens=2)
    assert [m.field for m in arm_mismatches(info, adaptive)] == ["speculative_adaptive"]
    assert arm_mismatches(info | {"speculative_adaptive": True}, adaptive) == ()
    assert "speculative_adaptive" in {m.field for m in arm_mismatches(info | {"speculative_adaptive": True}, plain)}


@pytest.fixture
def spec() -> BackendSpec:
    return spec_with()


def spec_with(launch_flags: str = "[]") -> BackendSpec:
    text = (
        f'version = 1\ntarget = "Qwen3-8B"\n[[backends]]\nname = "b"\narm = "none"\ngpus = ["g"]\nprofile = "{FILE}"\n'
        f"launch_flags = {launch_flags}\n"
    )
    return LoadedFleet(parse_fleet(text, "f.toml"), "f.toml").specs[0]


def test_a_server_as_the_fleet_file_says_has_no_differences(spec: BackendSpec) -> None:
    assert deployment_mismatches(server_info(PROFILE.arms["none"]), spec, PROFILE) == ()
    assert deployment_mismatches({}, spec, PROFILE) == ()
    larger = server_info(PROFILE.arms["none"], max_total_num_tokens=500_000, context_length=40_960)
    assert deployment_mismatches(larger, spec, PROFILE) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_running_requests", 48),
        ("max_total_num_tokens", 399_999),
        ("context_length", 4096),
        ("tp_size", 2),
        ("version", "0.5.23"),
    ],
)
def test_each_difference_of_the_deployment_is_seen(spec: BackendSpec, field: str, value: object) -> None:
    found = deployment_mismatches(server_info(PROFILE.arms["none"], **{field: value}), spec, PROFILE)
    assert [(m.field, m.found) for m in found] == [(field, value)]


@pytest.mark.parametrize("field", ["cuda_graph_bs_prefill", "cuda_graph_bs_decode"])
def test_graphs_that_the_server_was_given_and_nobody_reckons_with_are_seen(field: str) -> None:
    plain, told = spec_with(), spec_with(f'["--{field.replace("_", "-")}", "64", "256"]')

    def found(spec: BackendSpec, **info: object) -> list[object]:
        return [m.found for m in deployment_mismatches(server_info(PROFILE.arms["none"], **info), spec, PROFILE)]

    assert found(plain, **{field: None}) == [], "SGLang's own list"
    assert found(plain, **{field: [256, 64]}) == [[256, 64]]
    assert found(told, **{field: [256, 64]}) == []
    assert found(told, **{field: [64]}) == [[64]]


def test_another_model_is_seen_and_another_path_is_not(spec: BackendSpec) -> None:
    def served(**names: str) -> int:
        return len(deployment_mismatches(server_info(PROFILE.arms["none"], **names), spec, PROFILE))

    assert served(served_model_name="chat", model_path="/weights/qwen3-8b/") == 0
    assert served(served_model_name="Qwen3-8B", model_path="/model") == 0
    assert served(served_model_name="Llama", model_path="meta/Llama") == 1


def test_a_model_that_changed_is_told_from_one_that_only_moved() -> None:
    def change(before: tuple[str | None, str | None] | None, now: tuple[str | None, str | None]) -> str | None:
        facts = [
            None if names is None else ServerFacts(served_model_name=names[0], model_path=names[1])
            for names in (before, now)
        ]
        assert facts[1] is not None
        return model_change(facts[0], facts[1], "Qwen3-8B")

    assert change(("chat", "/a/llama"), ("chat", "/a/mistral")) == (
        "another model: model_path is '/a/mistral', expected '/a/llama'"
    )
    assert change(("chat", "/a/llama"), ("chat", "/a/llama")) is None
    assert change(("chat", "/a/llama"), (None, None)) is None  # an older release says less
    assert change(("chat", "/a/x"), ("chat", "/b/qwen3-8b/")) is None  # the target, wherever it lies
    assert change(None, ("chat", "/a/llama")) is None  # the first look: a difference that `check` tells of


def test_the_profiled_release_needs_one_engine() -> None:
    assert profiled_release(PROFILE) == "0.5.17"
    provenance = dict(PROFILE.provenance)
    provenance["step-none"] = provenance["step-none"].model_copy(update={"engine": "sglang 0.5.23"})
    mixed: Profile = PROFILE.model_copy(update={"provenance": provenance})
    assert profiled_release(mixed) is None


@pytest.mark.parametrize(("table", "differences"), [(None, 1), ("table.json", 0)])
def test_a_server_that_would_ignore_verify_budgets_is_seen(table: str | None, differences: int) -> None:
    info = {"speculative_algorithm": "DSPARK", "speculative_dspark_sps_table_path": table}
    found = deployment_mismatches(info, livearms.fleet().specs[0], livearms.profile())
    assert [mismatch.field for mismatch in found] == ["speculative_dspark_sps_table_path"] * differences
    assert deployment_mismatches(info, livearms.fleet("none").specs[0], livearms.profile()) == ()
