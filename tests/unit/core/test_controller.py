"""The controller decides, counts, learns, and survives a policy that fails."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from selector.core.controller import Controller
from selector.core.policy import PolicyContext
from selector.core.types import Candidate, Decision, Finish, FleetView, LazyCandidates, Outcome, RequestView
from selector.errors import PolicyError
from tests.fleets import policy_context, request_view, specs_of


@dataclass(slots=True)
class Scripted:
    """A policy that decides what it is told and remembers what it saw."""

    backend: str | None = "b0"
    failure: Exception | None = None
    seen: list[FleetView] = field(default_factory=list)
    observed: list[Outcome] = field(default_factory=list)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        self.seen.append(fleet)
        if self.failure:
            raise self.failure
        return Decision(backend=self.backend, reason="told to")

    def observe(self, outcome: Outcome) -> None:
        self.observed.append(outcome)
        if self.failure:
            raise self.failure


@pytest.fixture
def context() -> PolicyContext:
    return policy_context(specs_of("dspark-8", "none"))


def outcome(
    request_id: str = "r",
    *,
    finish: Finish = Finish.DONE,
    accepted_tokens: int = 100,
    verify_passes: int | None = None,
    accepted_drafts: int | None = None,
) -> Outcome:
    return Outcome(
        request_id=request_id,
        backend="b0",
        arm="dspark-8",
        text_type="code",
        finish=finish,
        prompt_tokens=500,
        accepted_tokens=accepted_tokens,
        dispatched_s=0.0,
        finished_s=1.0,
        verify_passes=verify_passes,
        accepted_drafts=accepted_drafts,
    )


def test_a_decided_request_is_in_flight_and_seen_by_the_next_decision(context: PolicyContext) -> None:
    policy = Scripted()
    controller = Controller(context, policy)
    assert controller.decide(request_view("r1"), 1.5) == Decision(backend="b0", reason="told to")
    controller.decide(request_view("r2"), 1.5)
    assert [fleet.now_s for fleet in policy.seen] == [1.5, 1.5]
    assert [fleet.backends[0].batch for fleet in policy.seen] == [0, 1]
    assert controller.tracker.in_flight("b0") == 2


def test_a_refused_request_is_not_in_flight(context: PolicyContext) -> None:
    controller = Controller(context, Scripted(backend=None))
    assert controller.decide(request_view(), 0.0).backend is None
    assert controller.tracker.in_flight() == 0


def test_a_retracted_request_can_be_decided_again(context: PolicyContext) -> None:
    controller = Controller(context, Scripted())
    controller.decide(request_view("r"), 0.0)
    assert controller.retract("r", 0.1)
    assert not controller.retract("r", 0.1)
    assert controller.tracker.in_flight() == 0
    controller.decide(request_view("r"), 0.2)
    assert controller.tracker.in_flight() == 1


def test_an_end_teaches_acceptance_output_length_and_policy_once(context: PolicyContext) -> None:
    policy = Scripted()
    controller = Controller(context, policy)
    controller.decide(request_view("r"), 0.0)
    expected = controller.expected_output_tokens("code", None)
    ended = outcome("r", accepted_tokens=4_000, verify_passes=2_000, accepted_drafts=2_000)
    assert controller.end(ended, 1.0)
    learnt = (context.acceptance.accept_length("dspark-8", "code"), controller.expected_output_tokens("code", None))
    assert 2.0 < learnt[0] < 4.5
    assert learnt[1] > expected
    assert not controller.end(ended, 2.0)
    assert learnt == (
        context.acceptance.accept_length("dspark-8", "code"),
        controller.expected_output_tokens("code", None),
    )
    assert policy.observed == [ended]
    assert context.acceptance.samples == 1


def test_the_acceptance_model_learns_before_the_policy_observes(context: PolicyContext) -> None:
    samples = []

    class Watching(Scripted):
        def observe(self, outcome: Outcome) -> None:
            samples.append(context.acceptance.samples)

    controller = Controller(context, Watching())
    controller.decide(request_view("r"), 0.0)
    controller.end(outcome("r", verify_passes=10, accepted_drafts=10), 1.0)
    assert samples == [1]


@pytest.mark.parametrize("finish", [Finish.FAILED, Finish.CANCELLED])
def test_an_answer_cut_short_says_nothing_about_output_length(finish: Finish, context: PolicyContext) -> None:
    controller = Controller(context, Scripted())
    controller.decide(request_view("r"), 0.0)
    expected = controller.expected_output_tokens("code", None)
    assert controller.end(outcome("r", finish=finish, accepted_tokens=1, verify_passes=10, accepted_drafts=10), 1.0)
    assert controller.expected_output_tokens("code", None) == expected
    assert context.acceptance.samples == 1, "its verify passes do count"


def test_counts_that_were_not_reported_teach_no_acceptance(context: PolicyContext) -> None:
    controller = Controller(context, Scripted())
    controller.decide(request_view("r"), 0.0)
    controller.end(outcome("r"), 1.0)
    assert (context.acceptance.samples, context.acceptance.refused_samples) == (0, 0)


def test_without_a_fallback_errors_are_raised(context: PolicyContext) -> None:
    controller = Controller(context, Scripted(failure=ZeroDivisionError("division by zero")))
    with pytest.raises(ZeroDivisionError):
        controller.decide(request_view(), 0.0)
    assert controller.tracker.in_flight() == 0
    with pytest.raises(PolicyError, match="decided on backend 'b9', which is not in the fleet"):
        Controller(context, Scripted(backend="b9")).decide(request_view(), 0.0)


def test_with_a_fallback_a_policy_that_raises_is_counted_and_the_fallback_decides(context: PolicyContext) -> None:
    policy, fallback = Scripted(failure=ZeroDivisionError("division by zero")), Scripted(backend="b1")
    controller = Controller(context, policy, fallback=fallback)
    assert controller.decide(request_view("r"), 0.0).backend == "b1"
    assert controller.tracker.in_flight("b1") == 1
    assert controller.policy_failures == 1
    assert controller.last_policy_failure == "ZeroDivisionError: division by zero"
    assert fallback.seen == policy.seen
    assert controller.end(outcome("r"), 1.0), "a policy that raises while it observes fails no request"
    assert controller.policy_failures == 2


def test_with_a_fallback_a_backend_that_is_not_in_the_fleet_is_counted_too(context: PolicyContext) -> None:
    controller = Controller(context, Scripted(backend="b9"), fallback=Scripted(backend="b1"))
    assert controller.decide(request_view(), 0.0).backend == "b1"
    assert controller.policy_failures == 1
    assert "b9" in str(controller.last_policy_failure)


def test_a_policy_s_failure_to_observe_is_raised_without_a_fallback(context: PolicyContext) -> None:
    policy = Scripted()
    controller = Controller(context, policy)
    controller.decide(request_view("r"), 0.0)
    policy.failure = RuntimeError("no")
    with pytest.raises(RuntimeError):
        controller.end(outcome("r"), 1.0)


def test_whether_a_request_can_be_served_now(context: PolicyContext) -> None:
    controller = Controller(context, Scripted())
    assert controller.can_serve_now(request_view(), 0.0)
    assert not controller.can_serve_now(request_view(prompt_tokens=10_000), 0.0)
    for spec in context.backends:
        controller.tracker.health_changed(spec.name, False, "down", 0.0)
    assert not controller.can_serve_now(request_view(), 0.0)


def test_what_a_policy_says_of_itself_never_fails_anybody(context: PolicyContext) -> None:
    class Speaking(Scripted):
        def state(self) -> dict[str, object]:
            if self.failure:
                raise self.failure
            return {"plan": "none"}

    assert Controller(context, Scripted()).policy_state() is None
    assert Controller(context, Speaking()).policy_state() == {"plan": "none"}
    assert Controller(context, Speaking(failure=RuntimeError("no"))).policy_state() == {"error": "RuntimeError: no"}


@pytest.mark.parametrize("explains", [True, False])
def test_candidates_are_worked_out_for_who_reads_them_and_a_failure_to_is_the_policy_s(
    explains: bool, context: PolicyContext
) -> None:
    def fails() -> tuple[Candidate, ...]:
        raise ZeroDivisionError

    class Lazy(Scripted):
        def decide(self, request: RequestView, fleet: FleetView) -> Decision:
            return Decision(backend="b0", reason="told to", candidates=LazyCandidates(fails))

    controller = Controller(context, Lazy(), fallback=Scripted("b1"), explains=explains)
    assert controller.decide(request_view(), 0.0).backend == ("b1" if explains else "b0")
    assert controller.policy_failures == explains
    if not explains:
        decision = controller.decide(request_view("r2"), 0.0)
        assert tuple(controller.explained(decision).candidates) == ()
        assert (controller.policy_failures, controller.last_policy_failure) == (1, "ZeroDivisionError: ")
        with pytest.raises(ZeroDivisionError):
            Controller(context, Lazy(), explains=False).explained(decision)
