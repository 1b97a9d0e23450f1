"""Every shipped policy keeps the contract of `selector.core.policy`, whatever the fleet looks like.

Where the fleet is arbitrary, one test runs all policies on it: making it up takes longer than ten decisions.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import math
import os
import random
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.controller import Controller
from selector.core.eligibility import eligible
from selector.core.policy import BackendSpec, Policy, PolicyContext, ShowsState
from selector.core.prediction import predict
from selector.core.tracker import LoadSignal
from selector.core.types import UNKNOWN_TEXT_TYPE, Capability, Decision, Finish, FleetView, Outcome, RequestView
from selector.errors import PolicyError
from selector.files.policy import load_policy_file
from selector.files.shipped import policy_names, policy_path
from tests.contract import arbitrary
from tests.fleets import ARMS, backend_spec, fleet_view, policy_context, request_view, specs_of, without

POLICIES = policy_names()
PREDICTING = tuple(name for name in POLICIES if name in {"goodput", "greedy_energy", "min_energy", "pack"})
LABELS = {"pack": "pack:none"}
"""Policies that cannot serve a fleet of several arms by their bare name."""
NEED_TWO_ARMS = {"batch_threshold"}
PURE_IMPORTS = {"__future__", "bisect", "collections", "dataclasses", "functools", "itertools", "math", "typing"}

every_policy = pytest.mark.parametrize("name", POLICIES)
every_predicting_policy = pytest.mark.parametrize("name", PREDICTING)


LOADED = {name: load_policy_file(LABELS.get(name, name)) for name in POLICIES}


def make(name: str, context: PolicyContext) -> Policy:
    """The policy with its default parameters."""
    return LOADED[name].make({}, context)


def scope(name: str, context: PolicyContext) -> set[str]:
    """The backends that a policy chooses from while they can serve: those of its arm for a policy that has one."""
    return {spec.name for spec in context.backends if name != "pack" or spec.arm == "none"}


def check_decision(
    name: str, decision: Decision, request: RequestView, fleet: FleetView, context: PolicyContext
) -> None:
    """What must hold of every decision."""
    able = {view.name for view, _ in eligible(request, fleet, context)}
    assert (decision.backend is None) == (not able), name
    assert decision.backend is None or decision.backend in able, name
    assert decision.reason.strip() and decision.reason.isprintable(), name
    told = [candidate.backend for candidate in decision.candidates]
    assert len(set(told)) == len(told), name
    assert set(told) <= able, name
    for candidate in decision.candidates:
        for number in (candidate.tbt_ms, candidate.marginal_j_per_accepted_token):
            assert number is None or math.isfinite(number), name
    feasible = {candidate.backend for candidate in decision.candidates if candidate.feasible}
    assert not feasible or decision.backend in feasible, name


def test_there_are_policies() -> None:
    assert {"static", "pack", "least_loaded", "round_robin", "affinity", "batch_threshold", "goodput"} <= set(POLICIES)
    assert {"goodput", "greedy_energy", "pack"} <= set(PREDICTING)


@given(situation=arbitrary.situations())
@settings(max_examples=60)
def test_only_backends_that_can_serve_are_chosen(
    situation: tuple[tuple[BackendSpec, ...], FleetView, RequestView],
) -> None:
    specs, fleet, request = situation
    for name in POLICIES:
        context = policy_context(specs)
        check_decision(name, make(name, context).decide(request, fleet), request, fleet, context)


@given(situation=arbitrary.situations())
@settings(max_examples=100)
def test_no_infeasible_backend_is_chosen_while_a_feasible_one_exists(
    situation: tuple[tuple[BackendSpec, ...], FleetView, RequestView],
) -> None:
    specs, fleet, request = situation
    context = policy_context(specs)
    feasible = {
        view.name
        for view, spec in eligible(request, fleet, context)
        if predict(request, view, spec, context.acceptance, quantile=context.tbt_quantile).feasible
    }
    for name in PREDICTING:
        chosen = make(name, context).decide(request, fleet).backend
        assert chosen in feasible or not feasible & scope(name, context), name


@every_predicting_policy
def test_a_predicting_policy_tells_its_candidates(name: str) -> None:
    context = policy_context(specs_of(*ARMS))
    decision = make(name, context).decide(request_view(), fleet_view(context.backends))
    assert {candidate.backend for candidate in decision.candidates} == scope(name, context)
    assert all(candidate.tbt_ms and candidate.marginal_j_per_accepted_token for candidate in decision.candidates)


Event = tuple[str, int, RequestView]
events = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "arrive", "arrive", "end", "poll", "down", "up")),
        st.integers(0, 10),
        arbitrary.requests(),
    ),
    min_size=1,
    max_size=15,
)


def replay(name: str, specs: Sequence[BackendSpec], history: Sequence[Event], seed: int) -> list[Decision]:
    """The decisions of a fresh policy over a history of events, each decision checked."""
    context = policy_context(specs, seed=seed)
    controller = Controller(context, make(name, context))
    running: dict[str, str] = {}
    decisions = []
    for number, (event, choice, request) in enumerate(history):
        now_s = 0.1 * number
        spec = specs[choice % len(specs)]
        if event == "arrive":
            arrived = replace(request, request_id=str(number), arrival_s=now_s)
            fleet = controller.tracker.view(now_s)
            decisions.append(controller.decide(arrived, now_s))
            check_decision(name, decisions[-1], arrived, fleet, context)
            if decisions[-1].backend is not None:
                running[arrived.request_id] = decisions[-1].backend
        elif event == "end" and running:
            request_id = list(running)[choice % len(running)]
            backend = running.pop(request_id)
            assert controller.end(ended(request_id, context.spec(backend), request, choice, now_s), now_s)
        elif event == "poll":
            signal = LoadSignal(running=choice, waiting=choice // 2, kv_tokens=500.0 * choice)
            controller.tracker.polled(spec.name, signal, now_s)
        elif event in ("up", "down"):
            controller.tracker.health_changed(spec.name, event == "up", "test", now_s)
    return decisions


def ended(request_id: str, spec: BackendSpec, like: RequestView, passes: int, now_s: float) -> Outcome:
    """A request that ended after some verify passes, each of which accepted one draft if the arm has any."""
    drafts = passes if spec.cost.verify_tokens > 1 else 0
    return Outcome(
        request_id=request_id,
        backend=spec.name,
        arm=spec.arm,
        text_type=like.text_type,
        finish=Finish.DONE,
        prompt_tokens=like.prompt_tokens,
        accepted_tokens=passes + drafts,
        dispatched_s=0.0,
        finished_s=now_s,
        verify_passes=passes,
        accepted_drafts=drafts,
    )


@given(specs=arbitrary.specs(), history=events, seed=st.integers(0, 3))
@settings(max_examples=40)
def test_the_same_history_gives_the_same_decisions(
    specs: tuple[BackendSpec, ...], history: list[Event], seed: int
) -> None:
    for name in POLICIES:
        assert replay(name, specs, history, seed) == replay(name, specs, history, seed), name


@every_policy
def test_capabilities_are_respected(name: str) -> None:
    limited = [
        backend_spec(f"limited-{index}", arm, cannot_serve=[Capability.JSON_SCHEMA]) for index, arm in enumerate(ARMS)
    ]
    context = policy_context([*limited, backend_spec("able", "eagle3-k1")])
    policy = make(name, context)
    fleet = fleet_view(context.backends, [0, 0, 0, 0, 30])
    needing = request_view(needs=[Capability.JSON_SCHEMA])
    assert [policy.decide(needing, fleet).backend for _ in range(3)] == ["able"] * 3
    assert policy.decide(needing, without(fleet, "able")).backend is None
    assert policy.decide(request_view(needs=[Capability.TOOLS]), without(fleet, "able")).backend is not None


@every_policy
def test_a_context_too_short_is_never_chosen(name: str) -> None:
    short = [backend_spec(f"short-{index}", arm, max_context_tokens=2_048) for index, arm in enumerate(ARMS)]
    context = policy_context([*short, backend_spec("long", "dspark-8", max_context_tokens=16_384)])
    policy = make(name, context)
    fleet = fleet_view(context.backends, [0, 0, 0, 0, 30])
    fits = request_view(prompt_tokens=2_000, max_output_tokens=48)
    too_long = request_view(prompt_tokens=2_000, max_output_tokens=49)
    assert policy.decide(request_view(prompt_tokens=8_000), fleet).backend == "long"
    assert policy.decide(too_long, fleet).backend == "long"
    assert policy.decide(too_long, without(fleet, "long")).backend is None
    assert policy.decide(fits, without(fleet, "long")).backend is not None


@every_policy
def test_a_fleet_that_is_down_refuses_and_serves_again_when_it_is_up(name: str) -> None:
    context = policy_context(specs_of(*ARMS))
    policy = make(name, context)
    up = fleet_view(context.backends)
    refusal = policy.decide(request_view(), without(up, "b0", "b1", "b2", "b3"))
    assert refusal.backend is None
    assert refusal.reason
    assert policy.decide(request_view(), up).backend is not None


@every_policy
@pytest.mark.parametrize("arm", ["none", "dspark-8"])
def test_a_fleet_of_one_backend(name: str, arm: str) -> None:
    context = policy_context(specs_of(arm))
    if name in NEED_TWO_ARMS:
        with pytest.raises(PolicyError, match=f"policy {name}: "):
            make(name, context)
        return
    label = {"static": f"static:{arm}"}.get(name, name)
    policy = load_policy_file(label).make({}, context)
    for batch in (0, 5, 64, 100):
        assert policy.decide(request_view(tbt_target_ms=8.0), fleet_view(context.backends, [batch])).backend == "b0"


@every_policy
@pytest.mark.parametrize("batches", [(0, 0, 0, 0), (3, 20, 40, 64), (80, 70, 70, 80)])
def test_an_unknown_text_type_is_served(name: str, batches: tuple[int, ...]) -> None:
    context = policy_context(specs_of(*ARMS))
    policy = make(name, context)
    for target_ms in (None, 8.0, 1.0):
        request = request_view(text_type=UNKNOWN_TEXT_TYPE, tbt_target_ms=target_ms)
        assert policy.decide(request, fleet_view(context.backends, batches)).backend is not None


@given(outcomes=st.lists(arbitrary.outcomes, max_size=5))
@settings(max_examples=50)
def test_any_outcome_can_be_observed(outcomes: list[Outcome]) -> None:
    for name in POLICIES:
        context = policy_context(specs_of(*ARMS))
        policy = make(name, context)
        for outcome in outcomes:
            policy.observe(outcome)
        assert policy.decide(request_view(), fleet_view(context.backends)).backend is not None, name


@every_policy
def test_decisions_use_no_input_output_no_clock_and_no_global_randomness(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = policy_context(specs_of(*ARMS))
    policy = make(name, context)

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a policy left the views")

    with monkeypatch.context() as patched:
        for module, attribute in (
            (builtins, "open"), (io, "open"), (os, "open"), (socket, "socket"), (subprocess, "Popen"),
            (time, "time"), (time, "monotonic"), (time, "perf_counter"), (random, "random"), (random, "choice"),
        ):  # fmt: skip
            patched.setattr(module, attribute, forbidden)
        chosen = [
            policy.decide(request_view(str(number), tbt_target_ms=20.0), fleet_view(context.backends, [8 * number] * 4))
            for number in range(10)
        ]
        policy.observe(ended("0", context.backends[0], request_view(), 10, 1.0))
    assert all(decision.backend for decision in chosen)


def foreign_imports(source: str) -> list[str]:
    """What a policy's text imports beyond the core, the errors and pure parts of the standard library."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue
        found += [
            module
            for module in modules
            if module not in {"selector.core", "selector.errors"}
            and not module.startswith("selector.core.")
            and module.split(".")[0] not in PURE_IMPORTS
        ]
    return found


@every_policy
def test_policies_import_only_the_core(name: str) -> None:
    assert foreign_imports(Path(policy_path(name)).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import time",
        "from random import Random",
        "from selector.files.profile import load_profile",
        "from . import static",
        "import static",
        "def f():\n    import socket",
        "from selector.core_of_another import x",
    ],
)
def test_a_foreign_import_is_seen(source: str) -> None:
    assert len(foreign_imports(source)) == 1


@every_policy
def test_what_it_says_of_itself_is_plain_bounded_and_changes_nothing(name: str) -> None:
    context = policy_context(specs_of("none", "dspark-8", "none"))
    asked, left = make(name, context), make(name, context)
    views = [fleet_view(context.backends, now_s=float(i)) for i in range(40)]
    for i, view in enumerate(views):
        request = request_view(f"r{i}", arrival_s=float(i), tbt_target_ms=5.0 + i)
        if isinstance(asked, ShowsState):
            json.dumps(asked.state(), allow_nan=False)
        assert asked.decide(request, view) == left.decide(request, view)
    if isinstance(asked, ShowsState):
        assert len(json.dumps(asked.state())) < 64 * 1024
