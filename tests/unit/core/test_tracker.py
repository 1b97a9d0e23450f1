"""The tracker folds dispatches, ends, polls and health into views."""

from __future__ import annotations

import pytest

from selector.core.tracker import FleetTracker, LoadSignal, OutputLengthModel
from selector.core.types import TEXT_TYPES, BackendView, LoadGroup
from tests.fleets import backend_spec, request_view, specs_of


@pytest.fixture
def tracker() -> FleetTracker:
    return FleetTracker(specs_of("none", "dspark-8"))


def view_of(tracker: FleetTracker, name: str = "b0", now_s: float = 0.0) -> BackendView:
    return next(view for view in tracker.view(now_s).backends if view.name == name)


def poll(
    tracker: FleetTracker, running: int, waiting: int = 0, *, kv_tokens: float | None = None, now_s: float = 0.0
) -> int:
    """Polls b0; its batch after that."""
    tracker.polled("b0", LoadSignal(running=running, waiting=waiting, kv_tokens=kv_tokens), now_s)
    return view_of(tracker).batch


def test_a_fresh_fleet_is_idle_available_and_as_specified() -> None:
    spec = backend_spec("b0", "dspark-8", max_running_requests=7, max_kv_tokens=9_000, max_context_tokens=2_048)
    fleet = FleetTracker([spec]).view(3.5)
    assert fleet.now_s == 3.5
    (view,) = fleet.backends
    assert (view.name, view.arm, view.gpus) == ("b0", "dspark-8", spec.gpus)
    assert (view.available, view.unavailable_reason) == (True, None)
    assert (view.batch, view.waiting, view.kv_tokens, view.mean_context_tokens, view.groups) == (0, 0, 0.0, 0.0, ())
    assert (view.max_running_requests, view.max_kv_tokens, view.max_context_tokens) == (7, 9_000, 2_048)


def test_a_dispatched_request_counts_at_once_and_until_it_ends(tracker: FleetTracker) -> None:
    tracker.dispatched(request_view("r1", prompt_tokens=500, expected_output_tokens=100.0), "b0", 0.0)
    view = view_of(tracker)
    assert (view.batch, view.kv_tokens, view.mean_context_tokens) == (1, 550.0, 550.0)
    assert (tracker.in_flight(), tracker.in_flight("b0"), tracker.in_flight("b1")) == (1, 1, 0)
    assert tracker.finished("r1", 1.0)
    assert (view_of(tracker).batch, view_of(tracker).kv_tokens, view_of(tracker).groups) == (0, 0.0, ())
    assert tracker.in_flight() == 0


def test_requests_are_grouped_by_text_type_and_target(tracker: FleetTracker) -> None:
    for number, (text_type, target) in enumerate([("code", 20.0), ("math", None), ("code", 20.0), ("code", None)]):
        tracker.dispatched(request_view(f"r{number}", text_type=text_type, tbt_target_ms=target), "b0", 0.0)

    def group(text_type: str, target: float | None, count: int) -> LoadGroup:
        return LoadGroup(text_type=text_type, tbt_target_ms=target, requests=count)

    assert set(view_of(tracker).groups) == {group("code", 20.0, 2), group("math", None, 1), group("code", None, 1)}
    tracker.finished("r0", 1.0)
    tracker.finished("r1", 1.0)
    assert set(view_of(tracker).groups) == {group("code", 20.0, 1), group("code", None, 1)}


def test_an_end_counts_once(tracker: FleetTracker) -> None:
    tracker.dispatched(request_view("r1"), "b0", 0.0)
    tracker.dispatched(request_view("r2"), "b0", 0.0)
    assert tracker.finished("r1", 1.0)
    assert not tracker.finished("r1", 1.0)
    assert not tracker.finished("never seen", 1.0)
    assert view_of(tracker).batch == 1


def test_a_request_in_flight_cannot_be_dispatched_again_but_one_that_ended_can(tracker: FleetTracker) -> None:
    tracker.dispatched(request_view("r1"), "b0", 0.0)
    with pytest.raises(ValueError, match="request r1 was dispatched twice"):
        tracker.dispatched(request_view("r1"), "b1", 0.0)
    assert (tracker.in_flight("b0"), tracker.in_flight("b1")) == (1, 0)
    tracker.finished("r1", 1.0)
    tracker.dispatched(request_view("r1"), "b1", 1.0)
    assert (tracker.in_flight("b0"), tracker.in_flight("b1")) == (0, 1)


def test_an_unknown_backend_is_refused_and_nothing_is_in_flight(tracker: FleetTracker) -> None:
    with pytest.raises(KeyError):
        tracker.dispatched(request_view("r1"), "b9", 0.0)
    assert tracker.in_flight() == 0
    tracker.dispatched(request_view("r1"), "b0", 0.0)


def test_foreign_requests_count_when_two_polls_in_a_row_show_them(tracker: FleetTracker) -> None:
    assert poll(tracker, 4) == 0
    assert poll(tracker, 3, 2) == 4
    assert poll(tracker, 5) == 5
    assert poll(tracker, 1) == 1
    assert poll(tracker, 5) == 1
    assert poll(tracker, 0) == 0


def test_own_requests_are_not_foreign(tracker: FleetTracker) -> None:
    tracker.dispatched(request_view("r1"), "b0", 0.0)
    tracker.dispatched(request_view("r2"), "b0", 0.0)
    assert [poll(tracker, 2), poll(tracker, 2)] == [2, 2]
    assert [poll(tracker, 3, 1), poll(tracker, 3, 1)] == [2, 4]
    # One on its way in, that the backend does not have yet, must not hide a foreign one for good.
    tracker.dispatched(request_view("r3"), "b0", 0.0)
    assert [poll(tracker, 4), poll(tracker, 5), poll(tracker, 5)] == [4, 4, 5]


def test_foreign_requests_take_the_context_of_ours_or_else_the_polled_one(tracker: FleetTracker) -> None:
    poll(tracker, 4, kv_tokens=6_000.0)
    poll(tracker, 4, kv_tokens=6_000.0)
    assert view_of(tracker).kv_tokens == 6_000.0
    tracker.dispatched(request_view("r1", prompt_tokens=400, expected_output_tokens=200.0), "b0", 0.0)
    assert view_of(tracker).kv_tokens == 5 * 500.0


def test_a_poll_brings_waiting_requests_limits_and_its_time(tracker: FleetTracker) -> None:
    tracker.polled("b0", LoadSignal(running=2, waiting=3, max_running_requests=48, max_kv_tokens=120_000), now_s=7.25)
    view = view_of(tracker, now_s=8.0)
    assert (view.waiting, tracker.polled_s("b0")) == (3, 7.25)
    assert (view.max_running_requests, view.max_kv_tokens) == (48, 120_000)
    poll(tracker, 0, now_s=9.0)
    view = view_of(tracker)
    assert (view.waiting, tracker.polled_s("b0")) == (0, 9.0)
    assert (view.max_running_requests, view.max_kv_tokens) == (64, 400_000), "without the poll's, the file's"


def test_health_and_settings_are_shown(tracker: FleetTracker) -> None:
    tracker.health_changed("b0", False, "draining", 1.0)
    assert (view_of(tracker).available, view_of(tracker).unavailable_reason) == (False, "draining")
    assert view_of(tracker, "b1").available
    tracker.health_changed("b0", True, "draining", 2.0)
    assert (view_of(tracker).available, view_of(tracker).unavailable_reason) == (True, None)
    settings = {"dspark_force_budget_frac": 0.5}
    tracker.settings_changed("b1", settings, 3.0)
    settings["dspark_force_budget_frac"] = 1.0
    assert view_of(tracker, "b1").settings == {"dspark_force_budget_frac": 0.5}
    assert view_of(tracker, "b0").settings == {}


def test_an_end_tells_the_request_and_the_settings_it_ran_under_unless_they_changed_meanwhile(
    tracker: FleetTracker,
) -> None:
    before, after = request_view("r1"), request_view("r2")
    tracker.dispatched(before, "b0", 0.0)
    tracker.settings_changed("b0", {"dspark_force_budget_frac": 0.5}, 1.0)
    tracker.dispatched(after, "b0", 2.0)
    assert tracker.finished("r1", 3.0) == (before, None)
    assert tracker.finished("r2", 3.0) == (after, {"dspark_force_budget_frac": 0.5})
    assert tracker.finished("r2", 4.0) is None


def test_requests_outlive_a_failure_of_their_backend(tracker: FleetTracker) -> None:
    tracker.dispatched(request_view("r1"), "b0", 0.0)
    tracker.health_changed("b0", False, "connection refused", 1.0)
    assert view_of(tracker).batch == 1
    assert tracker.finished("r1", 2.0)
    assert view_of(tracker).batch == 0


def test_only_what_changed_is_built_anew_and_old_views_stay_as_they_were(tracker: FleetTracker) -> None:
    before = tracker.view(0.0)
    tracker.dispatched(request_view("r1"), "b0", 0.0)
    after = tracker.view(0.0)
    assert before.backends[0].batch == 0
    assert after.backends[0].batch == 1
    assert after.backends[1] is before.backends[1]
    assert tracker.view(1.0).backends[0] is after.backends[0]
    poll(tracker, 1, now_s=2.0)
    polled = tracker.view(2.0).backends[0]
    poll(tracker, 1, now_s=3.0)
    assert tracker.view(3.0).backends[0] is polled, "a poll that says the same changes nothing"
    assert tracker.polled_s("b0") == 3.0
    assert tracker.polled_s("b1") is None


def test_the_expected_length_starts_at_the_prior_and_follows_what_was_seen() -> None:
    lengths = OutputLengthModel(prior_tokens=100.0, prior_requests=10.0)
    assert lengths.expected("code", None) == 100.0
    for _ in range(10):
        lengths.observe("code", 300)
    assert lengths.expected("code", None) == 200.0
    assert lengths.expected("math", None) == 100.0
    assert lengths.expected("code", 50) == 50.0
    assert lengths.expected("code", 500) == 200.0


def test_an_uncertain_type_has_the_expected_length_of_the_mixture() -> None:
    lengths = OutputLengthModel(prior_tokens=100.0, prior_requests=10.0)
    for _ in range(10):
        lengths.observe("code", 300)
    shares = [0.0] * len(TEXT_TYPES)
    shares[TEXT_TYPES.index("code")], shares[TEXT_TYPES.index("math")] = 0.75, 0.25
    assert lengths.expected("code", None, shares) == pytest.approx(0.75 * 200.0 + 0.25 * 100.0)
    assert lengths.expected("code", 120, shares) == pytest.approx(0.75 * 120.0 + 0.25 * 100.0)
    with pytest.raises(ValueError, match="10 text types"):
        lengths.expected("code", None, [1.0])


def test_the_expected_length_is_at_least_one_token_and_forgets_slowly() -> None:
    lengths = OutputLengthModel(prior_tokens=0.0)
    assert lengths.expected("code", None) == 1.0
    for _ in range(5_000):
        lengths.observe("code", 1_000)
    assert lengths.expected("code", None) > 990.0
    for _ in range(5_000):
        lengths.observe("code", 10)
    assert lengths.expected("code", None) == pytest.approx(10.0, abs=10.0)
