"""What learning the acceptance is worth, on simulated servers; prints JSON.

    python bench/acceptance_learning.py [--out FILE] [--seeds 3] [--part regret ...]

Parts
    learning      the truth is half or one and a half times the profile, within 1 and the verify width, per arm and text
                  type; the error of each estimate after 200 requests of the type on the arm, beside how far those 200
                  requests themselves happen to be from the truth (no estimate that trusts them can be nearer) and
                  the standard error of that (selector/core/acceptancesums.py); and drift alarms, which would be false
    regret        the same, at random for each arm and type: `min_energy` learning it, against `min_energy` told it, at
                  every rate of `RATES_PER_S`
    drift         one arm falls to a survival rate of 0.05 after 3,000 requests and comes back after 6,500; against
                  `min_energy` told so at once. `drift_stays`: it does not come back
    mislabelled   a fifth of the requests come with the label of another type: `min_energy` on a mixed fleet, told the
                  labels only or probabilities too, against every fixed arm on as many GPUs, spread and packed, at
                  every rate
    alarms        drift alarms in 10,000 stationary requests, some of arms that accept long answers better or worse; and
                  requests until a fall from 0.6 to 0.05 is seen

Energy is all board energy, idle included, per accepted token. Costs are the shipped profile's; arrivals are Poisson and
lengths log-normal, which is an assumption. A request's draws are the same for every policy of a comparison.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

from selector import __version__
from selector.core.acceptance import AcceptanceModel, AcceptancePrior, accept_length_of, step_variance
from selector.core.acceptancesums import Sums
from selector.core.types import TEXT_TYPES
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.policy import load_policy_file
from selector.files.profile import load_profile
from selector.files.trace import TraceRequest
from selector.simulator.draws import AcceptDraws
from selector.simulator.engine import SimulatedRequest, Simulation, Truth

PROFILE = "h200__qwen3-8b"
ARMS = ("none", "eagle3-k1", "dspark-8", "dflash-16")
MIXED_FLEET = ("dspark-8", "dspark-8", "eagle3-k1", "eagle3-k1")
"""Of the part `mislabelled`: the best arms for code and for the rest of the mix."""
MIX = {"code": 0.6, "conversation": 0.2, "romansh": 0.2}
REQUESTS = 10_000
RATES_PER_S = (30.0, 45.0, 60.0)
"""The work of two backends, of most of the fleet, and about all that it can serve within the target."""
DRIFT_RATE_PER_S = 45.0
TARGET_MS = 25.0
SPREAD = 0.15
LEARNT_WITHIN, LEARNT_REQUESTS = 0.05, 200
"""The error that is allowed, after so many requests of a type on an arm."""
FALLS_AT, RETURNS_AT = 3_000, 6_500
FALLS, FALLEN_RATE = "dspark-8", 0.05
STATIONARY = (
    (2, 1.7, 1.0, 0.0),
    (8, 3.5, 1.5, 0.0),
    (16, 5.4, 0.6, 0.0),
    (8, 1.02, 1.0, 0.0),
    (8, 3.5, 1.0, 0.1),
    (8, 3.5, 1.0, -0.1),
)
"""Verify width, accept length, that over the profile's, and the power of an answer's length that it goes with."""

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


def delivered_mean(mean: float, width: int) -> float:
    """What the draws deliver around a mean near 1 or the verify width, where requests cannot differ to both sides."""
    if mean <= 1.0:
        return 1.0
    deviates = [min(max(NormalDist().inv_cdf((point + 0.5) / 1_000), -2.5), 2.5) for point in range(1_000)]
    own = (min(max(mean / (1.0 + SPREAD * z), 1.0), float(width)) for z in deviates)
    return len(deviates) / math.fsum(1.0 / each for each in own)


def constant(fleet: LoadedFleet, table: Table) -> Truth:
    """The truth that does not change."""
    arm_of = {spec.name: spec.arm for spec in fleet.specs}
    return lambda backend, request, now_s: table.get((arm_of[backend], request.text_type))


def learning(seeds: int) -> dict[str, Any]:
    """Errors of estimates after 200 requests of each type on each arm."""
    arms = tuple(arm for arm in load_profile(PROFILE).arms if arm != "none")
    fleet = fleet_of(arms)
    widths, profile = widths_of(fleet), profile_table(arms)
    rows = []
    for ratio in (0.5, 1.5):
        table = changed(profile, widths, lambda ratio=ratio: ratio)  # type: ignore[misc] # the ratio of this round
        errors: list[tuple[float, float, float, float, str]] = []
        false_alarms = 0
        for seed in range(seeds):
            model, draws, random = fleet.policy_context().acceptance, AcceptDraws(seed), Random(seed)
            for arm in arms:
                seen = {name: Sums() for name in TEXT_TYPES}
                for number in range(LEARNT_REQUESTS * len(TEXT_TYPES)):
                    text_type = TEXT_TYPES[number % len(TEXT_TYPES)]
                    tokens = int(min(1_500.0, max(8.0, random.lognormvariate(math.log(230.0), 0.7)))) - 1
                    drawn = draws.passes(
                        number,
                        tokens=tokens,
                        accept_length=table[arm, text_type].mean,
                        spread=SPREAD,
                        verify_tokens=widths[arm],
                    )
                    passes, surplus = (tokens, 0) if drawn is None else (drawn.count, drawn.surplus)
                    model.observe(arm, text_type, passes, tokens + surplus - passes)
                    seen[text_type].add(passes, tokens + surplus)
                for text_type, sums in seen.items():
                    truth = delivered_mean(table[arm, text_type].mean, widths[arm])
                    drawn_ratio, found = sums.tokens / sums.passes, model.accept_length(arm, text_type)
                    variance = sums.ratio_variance(step_variance(truth, widths[arm]), SPREAD)
                    errors.append(
                        (
                            abs(found / truth - 1.0),
                            drawn_ratio / truth - 1.0,
                            found / drawn_ratio - 1.0,
                            math.sqrt(variance) / truth,
                            f"{arm} on {text_type}",
                        )
                    )
            false_alarms += model.drift_alarm_count
        errors.sort()
        error, drawn_error, beyond, standard_error, where = errors[-1]
        rows.append(
            {
                "truth_over_profile": ratio,
                "estimates": len(errors),
                "median_error": errors[len(errors) // 2][0],
                "p95_error": errors[int(0.95 * len(errors))][0],
                "worst_error": error,
                "worst": where,
                "worst_error_of_the_requests_drawn": drawn_error,
                "worst_error_beyond_them": beyond,
                "standard_error_of_the_worst": standard_error,
                "most_error_beyond_the_requests_drawn": max(abs(each[2]) for each in errors),
                "median_standard_error": sorted(each[3] for each in errors)[len(errors) // 2],
                "allowed_error": LEARNT_WITHIN,
                "estimates_over_it": sum(each[0] > LEARNT_WITHIN for each in errors),
                "drift_alarms": false_alarms,
            }
        )
    return {"rows": rows, "worst_error": max(row["worst_error"] for row in rows)}


def regret(seeds: int) -> dict[str, Any]:
    """`min_energy` with a wrong profile against one that is told the truth."""
    fleet = fleet_of(ARMS)
    widths, profile = widths_of(fleet), profile_table()
    rows = []
    for rate_per_s in RATES_PER_S:
        for seed in range(seeds):
            random = Random(100 + seed)
            table = changed(profile, widths, lambda random=random: random.choice((0.5, 1.0, 1.5)))  # type: ignore[misc]
            requests, truth = traffic(seed, rate_per_s), constant(fleet, table)
            learnt = run(fleet, "min_energy", requests, truth, seed=seed)
            unlearnt = run(fleet, "min_energy", requests, truth, seed=seed, model=KnowingModel(profile, widths))
            told = run(
                fleet,
                "min_energy",
                requests,
                truth,
                seed=seed,
                model=KnowingModel(table, widths),
                params={"probe_frac": 0.0},
            )
            rows.append(
                {"rate_per_s": rate_per_s, "seed": seed, "learning": learnt, "told": told, "profile_only": unlearnt}
            )
    by_rate = {str(rate): _summary([row for row in rows if row["rate_per_s"] == rate]) for rate in RATES_PER_S}
    return {**_summary(rows), "by_rate": by_rate, "rows": rows}


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


def drift(seeds: int, *, returns: bool) -> dict[str, Any]:
    """An arm that falls, and comes back if it `returns`."""
    fleet = fleet_of(ARMS)
    widths, profile = widths_of(fleet), profile_table()
    rows = []
    for seed in range(seeds):
        requests = traffic(seed, DRIFT_RATE_PER_S)
        falls_s = requests[FALLS_AT].trace.arrival_s
        back_s = requests[RETURNS_AT].trace.arrival_s if returns else math.inf
        told_model = KnowingModel(profile, widths)
        telling = Falling(fleet, profile, falls_s, back_s)
        telling.told = told_model
        untold = KnowingModel(profile, widths)
        rows.append(
            {
                "seed": seed,
                "falls_s": falls_s,
                "back_s": back_s if returns else None,
                "learning": run(fleet, "min_energy", requests, Falling(fleet, profile, falls_s, back_s), seed=seed),
                "told": run(
                    fleet, "min_energy", requests, telling, seed=seed, model=told_model, params={"probe_frac": 0.0}
                ),
                "profile_only": run(
                    fleet, "min_energy", requests, Falling(fleet, profile, falls_s, back_s), seed=seed, model=untold
                ),
            }
        )
    return {**_summary(rows), "rows": rows}


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Adds to each row its regret, and says what they come to."""
    for row in rows:
        told = row["told"]["j_per_accepted_token"]
        row["regret"] = row["learning"]["j_per_accepted_token"] / told - 1.0
        row["regret_without_learning"] = row["profile_only"]["j_per_accepted_token"] / told - 1.0
    return {
        "mean_regret": sum(row["regret"] for row in rows) / len(rows),
        "worst_regret": max(row["regret"] for row in rows),
        "mean_regret_without_learning": sum(row["regret_without_learning"] for row in rows) / len(rows),
    }


def mislabelled(seeds: int) -> dict[str, Any]:
    """A fifth of the labels wrong: against fixed arms, which need no label."""
    mixed, profile = fleet_of(MIXED_FLEET), profile_table()
    rows = []
    for rate_per_s in RATES_PER_S:
        for seed in range(seeds):
            results: dict[str, dict[str, Any]] = {}
            for name, share, probabilities in (
                ("min_energy, true labels", 0.0, False),
                ("min_energy, labels", 0.2, False),
                ("min_energy, probabilities", 0.2, True),
            ):
                requests = traffic(seed, rate_per_s, share, probabilities=probabilities)
                results[name] = run(mixed, "min_energy", requests, constant(mixed, profile), seed=seed)
            requests = traffic(seed, rate_per_s, 0.2)
            for arm in ARMS:
                fleet = fleet_of([arm] * len(ARMS))
                for policy in (f"static:{arm}", f"pack:{arm}"):
                    results[f"{policy} on {len(ARMS)} of it"] = run(
                        fleet, policy, requests, constant(fleet, profile), seed=seed
                    )
            rows.append({"rate_per_s": rate_per_s, "seed": seed, **_against_fixed(results), "results": results})
    return {"rows": rows}


def _against_fixed(results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The best arm spread and the best arm packed, and what `min_energy` saved against each."""
    found: dict[str, Any] = {}
    for kind in ("static", "pack"):
        best = min(
            (name for name in results if name.startswith(kind)), key=lambda name: results[name]["j_per_accepted_token"]
        )
        found[f"best_{kind}"] = best
        for name in ("min_energy, labels", "min_energy, probabilities"):
            saved = 1.0 - results[name]["j_per_accepted_token"] / results[best]["j_per_accepted_token"]
            found[f"{name}: saved against the best {kind}"] = saved
    return found


def alarms(seeds: int) -> dict[str, Any]:
    """False alarms of stationary arms, and the delay until a fall is seen."""
    false_alarms = runs = 0
    delays: list[int] = []
    types = TEXT_TYPES[:4]
    for seed in range(seeds):
        for width, truth, ratio, rise in STATIONARY:
            for spread in (0.0, 0.15, 0.4):
                for median_tokens in (12.0, 250.0):
                    feed = _Feed(width, truth / ratio, spread, median_tokens, seed, rise)
                    for _ in range(REQUESTS):
                        feed.send(types, truth)
                    false_alarms += feed.model.drift_alarm_count
                    runs += 1
        for width in (2, 4, 8, 16):
            for names in (TEXT_TYPES[:1], types, TEXT_TYPES):
                feed = _Feed(width, accept_length_of(0.6, width), SPREAD, 250.0, seed)
                for _ in range(2_000):
                    feed.send(names, accept_length_of(0.6, width))
                delay = 0
                while feed.model.drift_alarm_count == 0 and delay < 1_000:
                    feed.send(names, accept_length_of(0.05, width))
                    delay += 1
                delays.append(delay)
    return {
        "stationary_runs": runs,
        "requests_each": REQUESTS,
        "false_alarms": false_alarms,
        "falls": len(delays),
        "requests_until_seen_median": sorted(delays)[len(delays) // 2],
        "requests_until_seen_most": max(delays),
    }


class _Feed:
    """Requests of one arm, straight into a model."""

    def __init__(
        self, width: int, prior: float, spread: float, median_tokens: float, seed: int, rise: float = 0.0
    ) -> None:
        """Accept lengths go with (tokens / `median_tokens`) to the power of `rise`."""
        mean = min(max(prior, 1.0), float(width))
        priors = {name: AcceptancePrior(mean=mean, request_spread=SPREAD) for name in TEXT_TYPES}
        self.model = AcceptanceModel({"arm": priors}, {"arm": width})
        self._width, self._spread, self._median_tokens, self._rise = width, spread, median_tokens, rise
        self._draws, self._random, self._sent = AcceptDraws(seed), Random(seed), 0

    def send(self, types: Sequence[str], truth: float) -> None:
        """One request; each type a little below the one before."""
        place = self._sent % len(types)
        tokens = int(min(3_000.0, max(2.0, self._random.lognormvariate(math.log(self._median_tokens), 1.0))))
        drawn = self._draws.passes(
            self._sent,
            tokens=tokens,
            accept_length=(1.0 + (truth - 1.0) * (1.0 - 0.1 * place)) * (tokens / self._median_tokens) ** self._rise,
            spread=self._spread,
            verify_tokens=self._width,
        )
        passes, surplus = (tokens, 0) if drawn is None else (drawn.count, drawn.surplus)
        self._sent += 1
        self.model.observe("arm", types[place], passes, tokens + surplus - passes)


PARTS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "learning": learning,
    "regret": regret,
    "drift": lambda seeds: drift(seeds, returns=True),
    "drift_stays": lambda seeds: drift(seeds, returns=False),
    "mislabelled": mislabelled,
    "alarms": alarms,
}


def main() -> None:
    """Runs the parts asked for and prints them; parts that the file has already are kept unless asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="repetitions with other traffic")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="repeat for several; default: all")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the JSON there too")
    args = parser.parse_args()
    parts: dict[str, Any] = {}
    if args.out is not None and args.out.exists():
        parts = json.loads(args.out.read_text(encoding="utf-8"))["parts"]
    document: dict[str, Any] = {
        "command": "python bench/acceptance_learning.py",
        "host": {"machine": platform.machine(), "python": platform.python_version(), "numpy": version("numpy")},
        "version": __version__,
        "profile": PROFILE,
        "assumed": "Poisson arrivals, log-normal lengths, spread between requests 0.15 relative",
        "parts": parts,
    }
    for name in args.part or PARTS:
        parts[name] = {"seeds": args.seeds, **PARTS[name](args.seeds)}
        if args.out is not None:  # part by part: they take minutes
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
