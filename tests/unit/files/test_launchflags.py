"""What launch flags say of CUDA graphs and scheduling, and that costs follow it."""

from __future__ import annotations

import pytest

from selector.core.prefillcost import PrefillCost
from selector.files.launchflags import flag_value, graph_batches, overlaps, prefill_graphs
from selector.files.profile import Profile, load_profile
from selector.files.shipped import profile_names
from tests.profiles import sparse_profile

SPARSE = sparse_profile()
PREFILL = ("--cuda-graph-bs-prefill", "512", "256")
DECODE = ("--cuda-graph-bs-decode", "8", "16", "32")


def test_batches_of_graphs_are_read_from_launch_flags() -> None:
    assert graph_batches(("--x", "--cuda-graph-bs-decode", "8", "1", "64", "--y", "3")) == (1, 8, 64)
    assert graph_batches(("--cuda-graph-bs", "2", "4")) == (2, 4)
    assert graph_batches(("--x", "1")) == ()


def test_tokens_of_prefill_graphs_are_read_under_both_names() -> None:
    assert prefill_graphs(("--x", *PREFILL, "--y")) == (256, 512)
    assert prefill_graphs(("--piecewise-cuda-graph-tokens", "64")) == (64,)
    assert prefill_graphs(DECODE) == ()


@pytest.mark.parametrize(
    ("flag", "decode", "prefill"),
    [
        ("--disable-cuda-graph", (), ()),
        ("--disable-decode-cuda-graph", (), (256, 512)),
        ("--disable-prefill-cuda-graph", (8, 16, 32), ()),
        ("--disable-cuda-graph-padding", (), (256, 512)),
    ],
)
def test_graphs_that_are_switched_off_pad_nothing(flag: str, decode: tuple[int, ...], prefill: tuple[int, ...]) -> None:
    assert (graph_batches((*DECODE, *PREFILL, flag)), prefill_graphs((*DECODE, *PREFILL, flag))) == (decode, prefill)


def test_a_batch_is_planned_ahead_unless_flags_say_otherwise() -> None:
    assert overlaps(("--speculative-algorithm", "NGRAM"))
    assert overlaps(("--pp-size", "1"))
    assert not overlaps(("--x", "--disable-overlap-schedule"))
    assert not overlaps(("--pipeline-parallel-size", "2"))


def test_the_value_of_a_flag() -> None:
    assert flag_value(("--a", "1", "--b"), "--a") == "1"
    assert flag_value(("--a", "1", "--b"), "--b") is None
    assert flag_value((), "--a") is None


def with_common(flags: tuple[str, ...]) -> Profile:
    return SPARSE.model_copy(update={"common_flags": (*SPARSE.common_flags, *flags)})


def test_what_a_profile_is_launched_with_pads() -> None:
    plain, padded = SPARSE.cost("dspark-8"), with_common((*PREFILL, *DECODE)).cost("dspark-8")
    assert (padded.prefill.graphs, padded.graphs) == ((256, 512), (8, 16, 32))
    assert padded.prefill.cost(300)[0] == pytest.approx(plain.prefill.work(300)[0] + 212 * plain.prefill.token_ms)
    assert padded.step.step(17, 1_000.0) == pytest.approx(plain.step.step(32, 1_000.0 * 17 / 32))
    assert padded.step.step(17, 1_000.0)[0] > 1.1 * plain.step.step(17, 1_000.0)[0]


def test_flags_of_one_server_come_before_those_of_the_profile() -> None:
    cost = with_common((*PREFILL, *DECODE)).cost("none", ("--cuda-graph-bs-prefill", "128"))
    assert (cost.prefill.graphs, cost.graphs) == ((128,), (8, 16, 32))


def test_flags_of_all_servers_come_before_those_of_the_profile() -> None:
    profile = with_common((*PREFILL, *DECODE)).with_flags(("--cuda-graph-bs-prefill", "128"))
    assert profile.common_flags == ("--cuda-graph-bs-prefill", "128", *SPARSE.common_flags, *PREFILL, *DECODE)
    assert (profile.cost("none").prefill.graphs, profile.cost("none").graphs) == ((128,), (8, 16, 32))
    assert profile.arms == SPARSE.arms


def test_graphs_of_tokens_are_not_taken_for_graphs_of_requests() -> None:
    arm = SPARSE.arm("dspark-8")
    launch = arm.launch.model_copy(update={"flags": DECODE, "env": {"SGLANG_RAGGED_VERIFY_MODE": "compact"}})
    compact = SPARSE.model_copy(update={"arms": {**SPARSE.arms, "dspark-8": arm.model_copy(update={"launch": launch})}})
    assert compact.cost("dspark-8").graphs == ()
    assert compact.cost("dspark-8").step.step(17, 1_000.0) == SPARSE.cost("dspark-8").step.step(17, 1_000.0)


@pytest.mark.parametrize("name", profile_names())
def test_no_arm_that_is_shipped_pads_to_what_it_was_measured_with(name: str) -> None:
    """Who launches it leaves SGLang its own list, which is dense."""
    profile = load_profile(name)
    costs = [profile.cost(arm) for arm in profile.arms]
    assert all(isinstance(cost.prefill, PrefillCost) and not cost.prefill.graphs and not cost.graphs for cost in costs)
