"""What is said to a request that no backend takes, and to which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.core.types import Capability
from selector.router.refusals import never_served, none_available
from tests.fleets import backend_view, request_view, specs_of

SMALL, LARGE = (
    replace(spec, max_context_tokens=context, max_kv_tokens=context)
    for spec, context in zip(specs_of("none", "dspark-8"), (1_000, 2_000), strict=True)
)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_output_tokens", "message"),
    [
        (2_000, None, "The input (2000 tokens) is longer than the model's context length (2000 tokens)."),
        (
            1_500,
            501,
            "max_completion_tokens is too large: 501. With an input of 1500 tokens it exceeds the model's context"
            " length (2000 tokens).",
        ),
    ],
)
def test_what_is_too_long_for_every_context_is_told_the_largest(
    prompt_tokens: int, max_output_tokens: int | None, message: str
) -> None:
    view = request_view(prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens)
    refused = never_served(view, (SMALL, LARGE))
    assert refused is not None
    assert (refused.status, refused.message, refused.nested) == (400, message, True)


def test_what_one_backend_could_serve_is_not_refused_for_good() -> None:
    assert never_served(request_view(prompt_tokens=1_500, max_output_tokens=500), (SMALL, LARGE)) is None


def test_a_need_that_no_backend_meets_is_named() -> None:
    view = request_view(needs=[Capability.TOOLS, Capability.JSON_SCHEMA])
    cannot = [replace(spec, cannot_serve=frozenset({Capability.JSON_SCHEMA})) for spec in (SMALL, LARGE)]
    refused = never_served(view, cannot)
    assert refused is not None
    assert refused.message == "no backend can serve a request of this length that needs json_schema, tools"
    assert never_served(view, (*cannot, LARGE)) is None


def test_a_prompt_that_leaves_no_cache_for_an_answer_is_refused() -> None:
    full = replace(LARGE, max_kv_tokens=1_500)
    refused = never_served(request_view(prompt_tokens=1_500), (full,))
    assert refused is not None and refused.message == "no backend can serve a request of this length"


def test_what_is_wrong_with_each_backend_is_told() -> None:
    there, away = (backend_view(spec) for spec in (SMALL, LARGE))
    away = replace(away, available=False, unavailable_reason="it does not answer")
    refused = none_available((there, away), {there.name})
    assert refused.status == 503 and refused.headers == ((b"retry-after", b"1"),)
    states = f"{there.name}: failed this request; {away.name}: it does not answer"
    assert refused.message == f"no backend is available ({states})"
    assert there.name not in none_available((there, away), ()).message
