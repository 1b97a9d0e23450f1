"""What an answer that came, or broke off, makes of a request's outcome."""

from __future__ import annotations

from selector.core.speccounts import SpecCounts
from selector.core.types import Finish
from selector.router.flight import Flight
from selector.router.request import ClientRequest
from selector.router.routes import Route
from tests.fleets import request_view

VIEW = request_view("a", prompt_tokens=500, tbt_target_ms=12.5, arrival_s=1.0)


def flight(*, samples: int = 1) -> Flight:
    request = ClientRequest(
        id="a", route=Route(path="/generate"), body=b"{}", arrival_s=1.0, fields={}, view=VIEW, samples=samples
    )
    made = Flight(request=request, backend="b0", arm="dspark-8", reason="cheapest", dispatched_s=1.5)
    seen = made.observer
    seen.content(2.0)
    seen.content(3.0)
    seen.completion_tokens, seen.prompt_tokens = 5, 512
    return made


def test_an_answer_that_came_whole_is_told_by_its_own_counts() -> None:
    spec = SpecCounts(verify_passes=2, accepted_drafts=3)
    outcome = flight().outcome(VIEW, Finish.DONE, 3.5, spec)
    assert (outcome.backend, outcome.arm, outcome.text_type) == ("b0", "dspark-8", VIEW.text_type)
    assert (outcome.prompt_tokens, outcome.accepted_tokens) == (512, 5)
    assert (outcome.dispatched_s, outcome.finished_s) == (1.5, 3.5)
    assert (outcome.ttft_ms, outcome.tbt_ms, outcome.tbt_target_ms) == (1_000.0, 250.0, 12.5)
    assert (outcome.verify_passes, outcome.accepted_drafts) == (2, 3)


def test_an_answer_that_broke_off_has_a_token_a_chunk_and_the_prompt_as_it_was_judged() -> None:
    broken = flight()
    broken.observer.completion_tokens = broken.observer.prompt_tokens = None
    outcome = broken.outcome(VIEW, Finish.FAILED, 3.5, None)
    assert (outcome.prompt_tokens, outcome.accepted_tokens, outcome.tbt_ms) == (500, 2, None)
    assert (outcome.verify_passes, outcome.accepted_drafts) == (None, None)


def test_several_answers_in_one_stream_have_no_time_between_tokens() -> None:
    outcome = flight(samples=2).outcome(VIEW, Finish.DONE, 3.5, None)
    assert (outcome.ttft_ms, outcome.tbt_ms) == (1_000.0, None)
