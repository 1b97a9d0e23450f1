"""Arbitrary fleets, requests and outcomes for the contract tests: hypothesis strategies over the made-up arms."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from selector.core.policy import BackendSpec
from selector.core.types import (
    TEXT_TYPES,
    UNKNOWN_TEXT_TYPE,
    BackendView,
    Capability,
    Finish,
    FleetView,
    LoadGroup,
    Outcome,
    RequestView,
)
from tests.fleets import ARMS, backend_spec, backend_view, request_view
from tests.owndepths import choosing, own_depth

DRAFTING_ARMS = tuple(arm for arm in ARMS if arm != "none")

text_types = st.sampled_from((*TEXT_TYPES, UNKNOWN_TEXT_TYPE))
tbt_targets_ms = st.none() | st.floats(2.0, 80.0)
needs = st.just(frozenset[Capability]()) | st.frozensets(st.sampled_from(Capability), max_size=2)
certainties = st.none() | st.tuples(st.sampled_from(TEXT_TYPES), st.floats(0.1, 1.0))


@st.composite
def specs(draw: st.DrawFn) -> tuple[BackendSpec, ...]:
    """Two to seven backends in any order, at least one plain and one drafting, some of them limited.

    In some fleets the engines of `dspark-8` choose their depth.
    """
    arms = ["none", draw(st.sampled_from(DRAFTING_ARMS)), *draw(st.lists(st.sampled_from(ARMS), max_size=5))]
    own = draw(st.sampled_from((None, "plugin", "schedule")))
    fixed = [
        backend_spec(
            f"b{index}",
            arm,
            max_running_requests=draw(st.sampled_from((1, 8, 64))),
            max_kv_tokens=draw(st.sampled_from((3_000, 400_000))),
            max_context_tokens=draw(st.sampled_from((1_024, 8_192))),
            cannot_serve=draw(needs),
        )
        for index, arm in enumerate(draw(st.permutations(arms)))
    ]
    return tuple(choosing(spec, own_depth(own)) if own and spec.arm == "dspark-8" else spec for spec in fixed)


@st.composite
def requests(draw: st.DrawFn) -> RequestView:
    """Any request; its id is made unique by the test."""
    text_type, probabilities = draw(text_types), None
    if certainty := draw(certainties):
        text_type, sure = certainty
        rest = (1.0 - sure) / (len(TEXT_TYPES) - 1)
        probabilities = tuple(sure if name == text_type else rest for name in TEXT_TYPES)
    return request_view(
        prompt_tokens=draw(st.integers(1, 800) | st.integers(1, 9_000)),
        expected_output_tokens=draw(st.floats(1.0, 2_000.0)),
        max_output_tokens=draw(st.none() | st.integers(1, 4_000)),
        text_type=text_type,
        text_probabilities=probabilities,
        tbt_target_ms=draw(tbt_targets_ms),
        needs=draw(needs),
    )


@st.composite
def backend_views(draw: st.DrawFn, spec: BackendSpec) -> BackendView:
    """The backend at any load, some of it foreign, up or down."""
    groups = draw(
        st.lists(
            st.builds(LoadGroup, text_type=text_types, tbt_target_ms=tbt_targets_ms, requests=st.integers(1, 12)),
            max_size=4,
            unique_by=lambda group: (group.text_type, group.tbt_target_ms),
        )
    )
    return backend_view(
        spec,
        batch=sum(group.requests for group in groups) + draw(st.just(0) | st.integers(0, 10)),
        groups=groups,
        available=draw(st.just(True) | st.booleans()),
        context_tokens=draw(st.just(600.0) | st.floats(1.0, 8_000.0)),
    )


@st.composite
def fleet_views(draw: st.DrawFn, of: Sequence[BackendSpec], *, now_s: float = 0.0) -> FleetView:
    """The fleet in any state."""
    return FleetView(now_s=now_s, backends=tuple(draw(backend_views(spec)) for spec in of))


@st.composite
def situations(draw: st.DrawFn) -> tuple[tuple[BackendSpec, ...], FleetView, RequestView]:
    """A fleet, its state and a request."""
    fleet = draw(specs())
    return fleet, draw(fleet_views(fleet)), draw(requests())


outcomes = st.builds(
    Outcome,
    request_id=st.text(max_size=5),
    backend=st.sampled_from(("b0", "b1", "not in the fleet")),
    arm=st.sampled_from((*ARMS, "not in the fleet")),
    text_type=text_types,
    finish=st.sampled_from(Finish),
    prompt_tokens=st.integers(0, 10_000),
    accepted_tokens=st.integers(0, 10_000),
    dispatched_s=st.floats(0.0, 1e6),
    finished_s=st.floats(0.0, 1e6),
    ttft_ms=st.none() | st.floats(0.0, 1e6),
    tbt_ms=st.none() | st.floats(0.0, 1e6),
    verify_passes=st.none() | st.integers(-1, 10_000),
    accepted_drafts=st.none() | st.integers(-1, 100_000),
)
