"""What one decision of each shipped policy costs, on a small and on a large fleet; prints JSON.

The fleet cycles through every arm of a shipped profile. Each backend starts with a dozen requests of several text types
and two TBT classes; then a request is decided and the oldest one ends, over and over, so that views and acceptance
estimates change between decisions as they do in a router. Only `decide` is timed, each call by itself, in CPU time of
the thread: what other processes do to the clock is not the policy's. What they do to caches and cores still counts, so
each figure is the least of several runs of the very same sequence. `explained_` is a decision with its candidates
worked out for the decision log, which simulations without one leave out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from random import Random

from _timing import cpu_model, make_fleet

from selector import __version__
from selector.core.controller import Controller
from selector.core.policy import Policy
from selector.core.types import TEXT_TYPES, Decision, Finish, FleetView, Outcome, RequestView
from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.files.shipped import policy_names

ARGUMENTS = {"pack": "pack:none"}
"""Policies that a fleet of several arms cannot use by their bare name."""

TEXT_MIX = ("code", "math", "conversation", "multilingual")
TBT_TARGETS_MS = (None, 40.0)
REQUESTS_PER_BACKEND = 12
DECISIONS_PER_S = 50.0


@dataclass(slots=True)
class Timed:
    """A policy that notes how long each decision took."""

    policy: Policy
    taken_ns: list[int] = field(default_factory=list)
    explained_ns: list[int] = field(default_factory=list)
    """The same with the candidates worked out, as a decision log needs them."""

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The policy's decision."""
        start_ns = time.thread_time_ns()
        decision = self.policy.decide(request, fleet)
        self.taken_ns.append(time.thread_time_ns() - start_ns)
        decision = decision.explained()
        self.explained_ns.append(time.thread_time_ns() - start_ns)
        return decision

    def observe(self, outcome: Outcome) -> None:
        """Passes it on."""
        self.policy.observe(outcome)


def make_request(number: int, draw: Random, now_s: float) -> RequestView:
    """A request as the router builds it: with the probabilities that a classifier gives."""
    text_type = draw.choice(TEXT_MIX)
    sure = draw.uniform(0.6, 0.95)
    rest = (1.0 - sure) / (len(TEXT_TYPES) - 1)
    return RequestView(
        request_id=str(number),
        arrival_s=now_s,
        prompt_tokens=draw.randint(50, 1_500),
        expected_output_tokens=draw.uniform(100.0, 400.0),
        text_type=text_type,
        text_probabilities=tuple(sure if name == text_type else rest for name in TEXT_TYPES),
        tbt_target_ms=draw.choice(TBT_TARGETS_MS),
    )


def outcome_of(request: RequestView, backend: str, arm: str, draw: Random, now_s: float) -> Outcome:
    """A plain end of a request after 100 verify passes, within its target if it had one."""
    return Outcome(
        request_id=request.request_id,
        backend=backend,
        arm=arm,
        text_type=request.text_type,
        finish=Finish.DONE,
        prompt_tokens=request.prompt_tokens,
        accepted_tokens=200,
        dispatched_s=request.arrival_s,
        finished_s=now_s,
        verify_passes=100,
        accepted_drafts=draw.randint(0, 100),
        tbt_ms=10.0,
        tbt_target_ms=request.tbt_target_ms,
    )


def measure(policy: str, fleet: LoadedFleet, decisions: int, repeats: int = 1) -> dict[str, object]:
    """Percentiles of `decisions` decisions after a tenth as many to warm up, each the least of `repeats` runs."""
    runs = [run(policy, fleet, decisions) for _ in range(repeats)]
    context = fleet.policy_context()
    return {
        "policy": policy,
        "backends": len(context.backends),
        "arms": len(context.by_arm()),
        "decisions": decisions,
        "repeats": repeats,
        **{name: min(each[name] for each in runs) for name in runs[0]},
    }


def run(policy: str, fleet: LoadedFleet, decisions: int) -> dict[str, float]:
    """Percentiles of one run."""
    context = fleet.policy_context()
    timed = Timed(load_policy_file(ARGUMENTS.get(policy, policy)).make({}, context))
    controller = Controller(context, timed)
    draw, number, now_s = Random(0), 0, 0.0
    running: deque[tuple[RequestView, str]] = deque()
    for spec in context.backends:
        for _ in range(REQUESTS_PER_BACKEND):
            request = make_request(number, draw, now_s)
            controller.tracker.dispatched(request, spec.name, now_s)
            running.append((request, spec.name))
            number += 1
    warm_up = decisions // 10
    for _ in range(warm_up + decisions):
        now_s += 1.0 / DECISIONS_PER_S
        request = make_request(number, draw, now_s)
        number += 1
        decision = controller.decide(request, now_s)
        if decision.backend is not None:
            running.append((request, decision.backend))
        ended, backend = running.popleft()
        controller.end(outcome_of(ended, backend, context.spec(backend).arm, draw, now_s), now_s)
    return {
        **percentiles("", timed.taken_ns[warm_up:]),
        **percentiles("explained_", timed.explained_ns[warm_up:]),
    }


def percentiles(prefix: str, taken_ns: Sequence[int]) -> dict[str, float]:
    """p50 and p99 in µs."""
    taken_us = sorted(ns / 1e3 for ns in taken_ns)
    return {
        f"{prefix}p50_us": round(taken_us[len(taken_us) // 2], 1),
        f"{prefix}p99_us": round(taken_us[int(0.99 * len(taken_us))], 1),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", default="h200__qwen3-8b")
    parser.add_argument("--backends", type=int, nargs="+", default=[8, 512])
    parser.add_argument("--policies", nargs="+", default=list(policy_names()))
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = [
        measure(policy, make_fleet(options.profile, backends), options.decisions, options.repeats)
        for backends in options.backends
        for policy in options.policies
    ]
    report = {
        "benchmark": "decision_cost",
        "profile": options.profile,
        "host": {"cpu": cpu_model(), "cpus": os.cpu_count(), "load_1m": os.getloadavg()[0]},
        "versions": {
            "drafter-selector": __version__,
            "python": platform.python_version(),
            "numpy": version("numpy"),
            "system": platform.platform(),
        },
        "rows": rows,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
