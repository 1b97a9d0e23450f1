"""Live settings: when a change may be asked for, what it does to predictions and learning, what a plan makes of it."""

from __future__ import annotations

import pytest

from selector.core.controller import Controller
from selector.core.livesettings import LiveSettings
from selector.core.planner import Planner
from selector.core.poolload import Demand
from selector.core.types import Correction, Decision, Finish, FleetView, LazyCandidates, Outcome, RequestView
from selector.errors import DomainError
from selector.files.policy import load_policy_file
from tests.fleets import request_view
from tests.livearms import ARM, ARM_AT_QUARTER, QUARTER, WHOLE, fleet


def knobs(every_s: float = 10.0) -> LiveSettings:
    return LiveSettings({"b0": fleet().specs[0].settings, "plain": ()}, every_s=every_s)


def test_a_change_is_due_once_and_again_only_after_a_while() -> None:
    live = knobs()
    assert live.due("b0", QUARTER, 0.0)
    assert not live.due("b0", QUARTER, 0.1)  # asked for, not answered
    live.came_into_force("b0", QUARTER)
    assert not live.due("b0", QUARTER, 20.0)  # in force
    assert not live.due("b0", WHOLE, 9.9)  # too soon
    assert live.due("b0", WHOLE, 10.0)


def test_what_was_not_profiled_or_has_no_settings_is_never_due() -> None:
    live = knobs()
    assert not live.due("b0", {"dspark_force_budget_frac": 0.3}, 0.0)
    assert not live.due("plain", QUARTER, 0.0)
    assert not live.due("b0", {}, 0.0)


def test_what_a_server_was_launched_with_is_asked_for_too_until_it_said_so() -> None:
    live = knobs()
    assert live.due("b0", WHOLE, 0.0)
    live.came_into_force("b0", WHOLE)
    assert not live.due("b0", WHOLE, 100.0)
    assert live.to_restore() == {}


def test_a_refusal_is_final_and_a_failure_is_not() -> None:
    live = knobs()
    live.due("b0", QUARTER, 0.0)
    live.failed("b0")
    assert live.to_restore() == {"b0": WHOLE}  # it may have been done all the same
    assert live.due("b0", QUARTER, 10.0)
    live.were_refused("b0")
    assert not live.due("b0", QUARTER, 100.0)
    assert live.to_restore() == {}


def test_a_server_that_started_again_has_what_it_is_launched_with() -> None:
    live = knobs()
    assert live.started_again("b0") is None  # it was never asked for anything
    live.due("b0", QUARTER, 0.0)
    live.came_into_force("b0", QUARTER)
    assert live.to_restore() == {"b0": WHOLE}
    assert live.started_again("b0") == WHOLE
    assert live.due("b0", QUARTER, 10.0)
    live.were_refused("b0")
    assert live.started_again("b0") == WHOLE  # another server, another answer
    assert live.due("b0", QUARTER, 20.0)
    assert live.started_again("plain") is None


class Asking:
    """Sends everything to b0 and wants one setting there."""

    def __init__(self, wanted: dict[str, float]) -> None:
        self.wanted = wanted

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        return Decision(backend="b0", reason="test", settings=self.wanted)

    def observe(self, outcome: Outcome) -> None:
        pass


def controller() -> Controller:
    context = fleet().policy_context()
    return Controller(context, Asking(dict(QUARTER)))


def ended(made: Controller, request_id: str, now_s: float) -> None:
    outcome = Outcome(
        request_id=request_id,
        backend="b0",
        arm=ARM,
        text_type="code",
        finish=Finish.DONE,
        prompt_tokens=10,
        accepted_tokens=300,
        dispatched_s=0.0,
        finished_s=now_s,
        verify_passes=200,
        accepted_drafts=100,
    )
    assert made.end(outcome, now_s)


def test_costs_in_force_are_those_of_the_setting_and_stay_corrected() -> None:
    made = controller()
    step = made.context.backends[0].cost.step
    whole = step.step(8, 700.0)
    made.corrected("b0", Correction(step_time_frac=1.5, step_energy_frac=1.0))
    made.settings_changed("b0", QUARTER, 1.0)
    quarter = fleet().specs[0].settings[1].step.step(8, 700.0)
    assert step.step(8, 700.0) == pytest.approx((1.5 * quarter[0], quarter[1]))
    made.settings_changed("b0", WHOLE, 2.0)
    assert step.step(8, 700.0) == pytest.approx((1.5 * whole[0], whole[1]))
    made.corrected("b0", Correction())
    assert step.step(8, 700.0) == whole


def test_views_tell_what_is_in_force_and_whether_it_is_fixed() -> None:
    made = controller()
    assert made.tracker.view(0.0).backends[0].settings == WHOLE
    made.settings_changed("b0", QUARTER, 1.0)
    view = made.tracker.view(1.0).backends[0]
    assert (view.settings, view.settings_fixed) == (QUARTER, False)
    made.settings_refused("b0", 2.0)
    view = made.tracker.view(2.0).backends[0]
    assert (view.settings, view.settings_fixed) == (QUARTER, True)
    made.settings.due("b0", QUARTER, 3.0)
    assert made.started_again("b0", 3.0) is None  # refused without being asked
    with pytest.raises(DomainError, match="were not profiled"):
        made.settings_changed("b0", {"dspark_force_budget_frac": 0.3}, 4.0)


def test_a_request_teaches_the_setting_that_it_ran_under_and_none_if_it_saw_two() -> None:
    made = controller()
    acceptance = made.context.acceptance

    def samples() -> tuple[float, float]:
        return acceptance.estimate(ARM, "code").samples, acceptance.estimate(ARM_AT_QUARTER, "code").samples

    made.decide(request_view("launched"), 0.0)
    ended(made, "launched", 1.0)
    assert samples() == (1.0, 0.0)
    made.decide(request_view("both"), 1.0)
    made.settings_changed("b0", QUARTER, 2.0)
    made.decide(request_view("quarter"), 2.0)
    ended(made, "both", 3.0)
    assert samples() == (1.0, 0.0)
    ended(made, "quarter", 3.0)
    assert samples() == (1.0, 1.0)


def demand(requests_per_s: float, target_ms: float | None = None) -> Demand:
    return Demand(
        text_type="code",
        tbt_target_ms=target_ms,
        requests_per_s=requests_per_s,
        prompt_tokens=500.0,
        output_tokens=300.0,
    )


def planned(requests_per_s: float, *, in_force: int = 0, keep: float = 0.0, fixed: bool = False) -> float:
    context = fleet().policy_context()
    spec = context.backends[0]
    choices = [spec.settings[in_force], *(each for each in spec.settings if each is not spec.settings[in_force])]
    settings = {ARM: choices[:1] if fixed else choices}
    plan = Planner(context.backends, context.acceptance, 0.9).solve(
        [demand(requests_per_s)], settings=settings, keep_within_frac=keep
    )
    return plan.settings_of[ARM]["dspark_force_budget_frac"]


def test_a_plan_takes_the_whole_budget_at_low_load_and_less_at_high_load() -> None:
    assert planned(0.2) == 1.0
    assert planned(6.0) == 0.25
    assert planned(6.0, fixed=True) == 1.0


def test_a_plan_keeps_the_setting_in_force_unless_another_saves_enough() -> None:
    """Somewhere between the loads above the two cost alike: there the one in force stays, whichever it is."""
    rates = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert (1.0, 0.25) in [(planned(rate, keep=0.1), planned(rate, keep=0.1, in_force=1)) for rate in rates]
    assert planned(6.0, keep=0.9) == 1.0


def test_an_extended_plan_still_wants_what_it_wanted() -> None:
    context = fleet().policy_context()
    whole, quarter = context.backends[0].settings
    solver = Planner(context.backends, context.acceptance, 0.9)
    running, new = demand(6.0), demand(0.1, 30.0)
    plan = solver.solve([running], settings={ARM: [whole, quarter]})
    assert plan.settings_of == {ARM: QUARTER}
    extended = solver.extended(plan, [running, new], new.key, settings={ARM: [whole, quarter]})
    assert new.key in extended.arms_of
    assert extended.settings_of == {ARM: QUARTER}
    assert solver.extended(plan, [running, new], new.key).settings_of == {ARM: QUARTER}


def test_an_extended_plan_takes_those_in_force_where_it_wants_none_or_a_server_refuses() -> None:
    context = fleet().policy_context()
    whole, quarter = context.backends[0].settings
    solver = Planner(context.backends, context.acceptance, 0.9)
    running, new = demand(6.0), demand(0.1, 30.0)
    nothing = solver.solve([], settings={ARM: [quarter, whole]})
    first = solver.extended(nothing, [running], running.key, settings={ARM: [quarter, whole]})
    assert first.settings_of == {ARM: QUARTER}
    plan = solver.solve([running], settings={ARM: [whole, quarter]})
    assert plan.settings_of == {ARM: QUARTER}
    assert solver.extended(plan, [running, new], new.key, settings={ARM: [whole]}).settings_of == {ARM: WHOLE}


def test_min_energy_asks_for_settings_without_working_out_its_candidates() -> None:
    context = fleet().policy_context()
    made = Controller(context, load_policy_file("min_energy").make({}, context), explains=False)
    decision = made.decide(request_view(), 0.0)
    assert decision.settings == QUARTER and "the plan wants" in decision.reason
    assert isinstance(decision.candidates, LazyCandidates) and decision.candidates._made is None
    assert [candidate.backend for candidate in decision.explained().candidates] == ["b0"]


def test_min_energy_asks_for_what_its_plan_wants_and_says_so() -> None:
    context = fleet().policy_context()
    made = Controller(context, load_policy_file("min_energy").make({}, context))
    wanted = None
    for number in range(400):
        now_s = number / 6.0
        decision = made.decide(request_view(f"r{number}", expected_output_tokens=300.0), now_s)
        if decision.settings == QUARTER:
            wanted = decision
            break
    assert wanted is not None and wanted.reason.endswith("; the plan wants dspark_force_budget_frac 0.25")
    made.settings_changed("b0", QUARTER, now_s)
    after = made.decide(request_view("after"), now_s)
    assert after.settings == QUARTER and "wants" not in after.reason


def test_a_refusing_backend_is_planned_as_it_is() -> None:
    context = fleet().policy_context()
    made = Controller(context, load_policy_file("min_energy").make({}, context))
    made.settings_refused("b0", 0.0)
    wanted = {
        tuple(made.decide(request_view(f"r{n}", expected_output_tokens=300.0), n / 6.0).settings.values())
        for n in range(400)
    }
    assert wanted == {(1.0,)}


@pytest.mark.parametrize("policy", [f"static:{ARM}", f"pack:{ARM}", "least_loaded", "goodput"])
def test_other_policies_leave_settings_alone(policy: str) -> None:
    context = fleet().policy_context()
    made = Controller(context, load_policy_file(policy).make({}, context))
    assert all(made.decide(request_view(f"r{n}"), n / 100).settings == {} for n in range(50))
