"""What decisions of `min_energy` wait for: where requests end often, neither a look at the load nor a plan."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from selector.core.demandestimate import DemandEstimate
from selector.core.plan import Plan
from selector.core.planner import Planner
from selector.core.poolload import Demand
from selector.files.policy import load_policy_file
from tests.fleets import ARMS, ENDED, fleet_view, policy_context, request_view, specs_of

pytestmark = pytest.mark.interpreted


class Watched:
    """A policy, and what it did in each decision and at each end: "look" at the load, "begin" and "step" of a plan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **params: float) -> None:
        self.done: list[str] = []
        done = self.done

        class Estimate(DemandEstimate):
            def demands(self, *args: Any, **options: Any) -> list[Demand]:
                done.append("look")
                return super().demands(*args, **options)

        class Steps(Planner):
            def solving(self, demands: Sequence[Demand], **options: Any) -> Generator[None, None, Plan]:
                done.append("begin")
                return self._watched(super().solving(demands, **options))

            @staticmethod
            def _watched(steps: Generator[None, None, Plan]) -> Generator[None, None, Plan]:
                while True:
                    done.append("step")
                    try:
                        next(steps)
                    except StopIteration as end:
                        plan: Plan = end.value
                        return plan
                    yield

        module = sys.modules[load_policy_file("min_energy").factory.__module__]
        monkeypatch.setattr(module, "DemandEstimate", Estimate)
        monkeypatch.setattr(module, "Planner", Steps)
        self._specs = specs_of(*ARMS)
        self.policy = load_policy_file("min_energy").make(params, policy_context(self._specs))
        self._sent = 0

    def decide(self, now_s: float) -> list[str]:
        self.done.clear()
        self._sent += 1
        self.policy.decide(request_view(f"r{self._sent}", arrival_s=now_s), fleet_view(self._specs, now_s=now_s))
        return list(self.done)

    def end(self, now_s: float) -> list[str]:
        self.done.clear()
        self.policy.observe(replace(ENDED, dispatched_s=now_s - 1.0, finished_s=now_s))
        return list(self.done)


def test_while_requests_end_often_no_decision_looks_at_the_load_or_makes_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, replan_s=1.0, renew_s=2.0)
    assert {"look", "begin", "step"} <= set(watched.decide(0.0)), "the first one has no plan to follow"
    in_decisions, at_ends, now_s = [], [], 0.0
    while now_s < 30.0:
        at_ends += watched.end(now_s)
        now_s += 0.02
        in_decisions += watched.decide(now_s)
    assert in_decisions == []
    assert {"look", "begin", "step"} <= set(at_ends)


def test_an_end_looks_at_the_load_once_it_is_due_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, replan_s=1.0, renew_s=1e6, shift_frac=1e6)
    watched.decide(0.0)
    watched.decide(0.9)
    assert watched.end(5.0) == [], "when it ended says nothing of the load"
    watched.decide(1.0)
    assert watched.end(1.0) == ["look"]
    assert watched.end(1.0) == [], "once is enough"


def test_no_end_before_the_first_decision_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch).end(100.0) == []


def test_where_nothing_ends_decisions_look_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, replan_s=1.0, renew_s=1.0)
    watched.decide(0.0)
    assert watched.decide(1.04) == [], "something may end yet"
    assert watched.decide(1.06) == ["look", "begin"]
    assert watched.decide(1.2) == []
    assert 1 < watched.decide(1.3).count("step") <= 5


def test_with_few_requests_decisions_look_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that comes later would miss the start of a peak."""
    watched = Watched(monkeypatch, replan_s=1.0, renew_s=1e6, shift_frac=1e6)
    watched.decide(0.0)
    for number in range(1, 10):
        assert watched.decide(2.0 * number) == ["look"]
        assert watched.end(2.0 * number + 1.0) == []
