"""A lower bound on the energy of a steady closed loop, for any policy that keeps N requests in the system.

Over a long time t the fleet's idle power P takes P t, and the requests spend N t in the system together. So idle power
is P / N for each second that a request is in the system, and

    energy = Σ requests [ its share of active step energy and of prefill + (P / N) · (its prefill and decode time) ]

which for a request of o tokens with accept length a, in steps of batch b on some arm, is at least

    min over arms and b ≤ N of   o / a · [ A(b) / b + (P / N) · T(b) ]   +   prefill: active energy + (P / N) · time

Waiting, pauses for prefill, targets and the number of backends are left out, each of which can only cost more. Steps
are taken at the mean context and mean accept length (cost is nearly linear in the first, and steps are tokens over the
second).
"""

from __future__ import annotations

from collections.abc import Mapping

from _planner_cells import FLEETS, MIXES, OUTPUT_TOKENS, PROMPT_TOKENS, fleet_of


def steady_bound(row: Mapping[str, object]) -> float:
    """Joules per accepted token at least, in a steady cell."""
    clients, gpus = int(str(row["load"])), int(str(row["gpus"]))
    fleet = fleet_of(FLEETS[gpus])
    acceptance = fleet.policy_context().acceptance
    prompt, output = sum(PROMPT_TOKENS) / 2, sum(OUTPUT_TOKENS) / 2
    idle_w = fleet.specs[0].cost.idle.watts(1)
    holding_w = gpus * idle_w / clients
    total = 0.0
    for text_type, share in MIXES[str(row["mix"])].items():
        per_request = []
        for spec in {spec.arm: spec for spec in fleet.specs}.values():
            accept = acceptance.accept_length(spec.arm, text_type)
            for batch in range(1, min(clients, spec.max_running_requests) + 1):
                step_ms, step_j = spec.cost.step.step(batch, prompt + output / 2)
                active_j = (step_j - idle_w * step_ms / 1e3) / batch
                per_request.append((output - 1) / accept * (active_j + holding_w * step_ms / 1e3))
        prefill_ms, prefill_j = fleet.specs[0].cost.prefill.cost(prompt)
        prefill = prefill_j - idle_w * prefill_ms / 1e3 + holding_w * prefill_ms / 1e3
        total += share * (min(per_request) + prefill) / output
    return total
