"""Who can serve a request at all."""

from __future__ import annotations

import pytest

from selector.core.eligibility import able, can_ever_serve, eligible, within_context
from selector.core.types import Capability
from tests.fleets import backend_spec, fleet_view, policy_context, request_view, specs_of, without


@pytest.mark.parametrize(
    ("prompt_tokens", "max_output_tokens", "fits"),
    [
        (1_000, 24, True),
        (1_000, 25, False),
        (1_023, None, True),  # without a bound, one token of answer must fit
        (1_024, None, False),
        (8_000, 1, False),
    ],
)
def test_prompt_and_answer_must_fit_the_context(prompt_tokens: int, max_output_tokens: int | None, fits: bool) -> None:
    request = request_view(prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens)
    assert within_context(request, 1_024) is fits
    assert can_ever_serve(request, backend_spec("b", "none", max_context_tokens=1_024)) is fits


@pytest.mark.parametrize(
    ("prompt_tokens", "max_output_tokens", "fits"), [(999, None, True), (1_000, None, False), (500, 5_000, True)]
)
def test_the_kv_cache_must_hold_the_prompt_and_a_token(
    prompt_tokens: int, max_output_tokens: int | None, fits: bool
) -> None:
    """What an answer has beyond it the server cuts, as it does with a client that sets no bound."""
    request = request_view(prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens)
    small = backend_spec("small", "none", max_kv_tokens=1_000)
    assert can_ever_serve(request, small) is fits
    specs = [small, backend_spec("large", "none")]
    able = [spec.name for _, spec in eligible(request, fleet_view(specs), policy_context(specs))]
    assert able == (["small", "large"] if fits else ["large"])


def test_each_need_must_be_met() -> None:
    spec = backend_spec("b", "dflash-16", cannot_serve=[Capability.HIDDEN_STATES, Capability.PENALTIES])
    assert can_ever_serve(request_view(), spec)
    assert can_ever_serve(request_view(needs=[Capability.TOOLS, Capability.LOGPROBS]), spec)
    assert not can_ever_serve(request_view(needs=[Capability.TOOLS, Capability.PENALTIES]), spec)


def test_eligible_backends_are_available_able_and_in_the_fleet_s_order() -> None:
    specs = [
        *specs_of("none", "dspark-8"),
        backend_spec("limited", "dflash-16", cannot_serve=[Capability.TOOLS]),
        backend_spec("last", "none"),
    ]
    context = policy_context(specs)
    fleet = fleet_view(specs)

    def names(*down: str, tools: bool = False) -> list[str]:
        request = request_view(needs=[Capability.TOOLS] if tools else [])
        pairs = eligible(request, without(fleet, *down), context)
        assert all(view.name == spec.name for view, spec in pairs)
        return [spec.name for _, spec in pairs]

    assert names() == ["b0", "b1", "limited", "last"]
    assert names(tools=True) == ["b0", "b1", "last"]
    assert names("b0", "last") == ["b1", "limited"]
    assert names("b0", "b1", "limited", "last") == []


def test_a_view_of_another_fleet_is_refused() -> None:
    context = policy_context(specs_of("none", "none"))
    with pytest.raises(ValueError, match="longer"):
        eligible(request_view(), fleet_view(context.backends[:1]), context)


@pytest.mark.parametrize("prompt_tokens", [100, 998, 999, 1_000, 1_999, 2_000])
@pytest.mark.parametrize("max_output_tokens", [None, 1, 2, 4_000])
@pytest.mark.parametrize("needs", [[], [Capability.TOOLS]])
def test_what_is_said_of_all_backends_at_once_is_what_each_says(
    prompt_tokens: int, max_output_tokens: int | None, needs: list[Capability]
) -> None:
    specs = [
        backend_spec("wide", "none", max_context_tokens=8_000, max_kv_tokens=8_000),
        backend_spec("short", "none", max_context_tokens=2_000, max_kv_tokens=8_000, cannot_serve=[Capability.TOOLS]),
        backend_spec("small", "none", max_context_tokens=8_000, max_kv_tokens=1_000),
        backend_spec("wide too", "none", max_context_tokens=8_000, max_kv_tokens=8_000),
    ]
    request = request_view(prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens, needs=needs)
    assert list(able(request, policy_context(specs))) == [can_ever_serve(request, spec) for spec in specs]
