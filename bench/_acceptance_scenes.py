"""Simulated fleets, traffic and truths of `acceptance_learning`: what is compared is what a policy knows of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from selector.core.acceptance import AcceptanceModel, AcceptancePrior, accept_length_of
from selector.core.types import TEXT_TYPES
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.policy import load_policy_file
from selector.files.profile import load_profile
from selector.files.trace import TraceRequest
from selector.simulator.engine import SimulatedRequest, Simulation
from selector.simulator.truth import Truth

PROFILE = "h200__qwen3-8b"
ARMS = ("none", "eagle3-k1", "dspark-8", "dflash-16")
MIX = {"code": 0.6, "conversation": 0.2, "romansh": 0.2}
REQUESTS = 10_000
TARGET_MS = 25.0
SPREAD = 0.15
FALLS, FALLEN_RATE = "dspark-8", 0.05

Table = Mapping[tuple[str, str], AcceptancePrior]
"""Acceptance by arm and text type."""


class KnowingModel(AcceptanceModel):
    """Is told the truth and does not learn."""

    def __init__(self, truth: Table, widths: Mapping[str, int]) -> None:
        super().__init__(_by_arm(truth), widths)
        self._widths = widths

    def tell(self, truth: Table) -> None:
        """The truth is another one from now on."""
        self.__init__(truth, self._widths)  # type: ignore[misc] # begins anew, as the same object

    def _learn(self, *args: Any, **kwargs: Any) -> bool:
        """Nothing to learn."""
        return False


def _by_arm(table: Table) -> dict[str, dict[str, AcceptancePrior]]:
    by_arm: dict[str, dict[str, AcceptancePrior]] = {}
    for (arm, text_type), prior in table.items():
        by_arm.setdefault(arm, {})[text_type] = prior
    return by_arm


def fleet_of(arms: Sequence[str]) -> LoadedFleet:
    """Backends of those arms, each with a GPU of its own."""
    backends = tuple(
        Backend(name=f"b{index}", arm=arm, gpus=(f"gpu{index}",), profile=PROFILE) for index, arm in enumerate(arms)
    )
    return LoadedFleet(Fleet(version=1, target=load_profile(PROFILE).target.name, backends=backends), "bench")


def widths_of(fleet: LoadedFleet) -> dict[str, int]:
    """Verify width by arm."""
    return {spec.arm: spec.cost.verify_tokens for spec in fleet.specs}


def profile_table(arms: Sequence[str] = ARMS) -> dict[tuple[str, str], AcceptancePrior]:
    """The profile's acceptance."""
    profile = load_profile(PROFILE)
    return {
        (arm, text_type): AcceptancePrior(mean=known.mean, request_spread=SPREAD)
        for arm in arms
        for text_type, known in profile.arm(arm).acceptance.items()
    }


def changed(
    table: Table, widths: Mapping[str, int], ratio: Callable[[], float]
) -> dict[tuple[str, str], AcceptancePrior]:
    """The table with every mean times a ratio, within what can be."""
    return {
        key: replace(prior, mean=min(max(prior.mean * ratio(), 1.0), float(widths[key[0]])))
        for key, prior in table.items()
    }


def traffic(
    seed: int, rate_per_s: float, mislabelled: float = 0.0, *, probabilities: bool = False
) -> list[SimulatedRequest]:
    """Poisson arrivals of `MIX`; a share of them seen as another type of it."""
    random = Random(seed)
    types, at_s, requests = list(MIX), 0.0, []
    for number in range(REQUESTS):
        at_s += random.expovariate(rate_per_s)
        text_type = random.choices(types, list(MIX.values()))[0]
        wrong = random.random() < mislabelled
        seen = random.choice([name for name in types if name != text_type]) if wrong else text_type
        others = mislabelled / (len(types) - 1)
        weights = {name: others if name != seen else 1.0 - mislabelled for name in types}
        requests.append(
            SimulatedRequest(
                trace=TraceRequest(
                    request_id=f"r{number}",
                    arrival_s=at_s,
                    prompt_tokens=int(min(4_000.0, max(20.0, random.lognormvariate(math.log(700.0), 0.8)))),
                    output_tokens=int(min(1_500.0, max(8.0, random.lognormvariate(math.log(230.0), 0.7)))),
                ),
                text_type=text_type,
                slo_class="default",
                tbt_target_ms=TARGET_MS,
                seen_text_type=seen,
                seen_text_probabilities=tuple(weights.get(name, 0.0) for name in TEXT_TYPES) if probabilities else None,
            )
        )
    return requests


def run(
    fleet: LoadedFleet,
    policy: str,
    requests: Sequence[SimulatedRequest],
    truth: Truth,
    *,
    seed: int,
    model: AcceptanceModel | None = None,
    params: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """One simulation in figures."""
    context = fleet.policy_context(seed)
    if model is not None:
        context = replace(context, acceptance=model)
    result = Simulation(context, load_policy_file(policy).make(params or {}, context), truth, seed=seed).run(requests)
    energy_j = result.decode_j + result.prefill_j + result.idle_j
    tbt = [record.outcome.tbt_ms for record in result.records if record.outcome and record.outcome.tbt_ms is not None]
    acceptance = context.acceptance
    return {
        "j_per_accepted_token": energy_j / result.accepted_tokens,
        "decode_j_per_accepted_token": result.decode_j / result.accepted_tokens,
        "tbt_attainment": sum(value <= TARGET_MS for value in tbt) / len(tbt),
        "last_arrival_s": requests[-1].trace.arrival_s,
        "decisions_by_arm": result.decisions_by_arm,
        "drift_alarms": [
            {"arm": alarm.arm, "text_types": len(alarm.text_types), "direction": alarm.direction, "at_s": alarm.at_s}
            for alarm in acceptance.drift_alarms
        ],
    }


def constant(fleet: LoadedFleet, table: Table) -> Truth:
    """The truth that does not change."""
    arm_of = {spec.name: spec.arm for spec in fleet.specs}
    return lambda backend, request, now_s: table.get((arm_of[backend], request.text_type))


class Falling:
    """The truth of an arm that falls, and comes back at `back_s`; told to a model that is to know it."""

    def __init__(self, fleet: LoadedFleet, profile: Table, falls_s: float, back_s: float) -> None:
        self._arm_of = {spec.name: spec.arm for spec in fleet.specs}
        widths = widths_of(fleet)
        self._tables = (
            profile,
            {
                key: replace(prior, mean=accept_length_of(FALLEN_RATE, widths[key[0]])) if key[0] == FALLS else prior
                for key, prior in profile.items()
            },
        )
        self._falls_s, self._back_s = falls_s, back_s
        self.told: KnowingModel | None = None
        self._was_fallen = False

    def __call__(self, backend: str, request: SimulatedRequest, now_s: float) -> AcceptancePrior | None:
        """A `Truth`."""
        fallen = self._falls_s <= now_s < self._back_s
        if fallen != self._was_fallen and self.told is not None:
            self.told.tell(self._tables[fallen])
        self._was_fallen = fallen
        return self._tables[fallen].get((self._arm_of[backend], request.text_type))
