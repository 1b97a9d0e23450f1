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
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from _acceptance_estimates import alarms, learning
from _acceptance_scenes import (
    ARMS,
    PROFILE,
    Falling,
    KnowingModel,
    changed,
    constant,
    fleet_of,
    profile_table,
    run,
    traffic,
    widths_of,
)

from selector import __version__

MIXED_FLEET = ("dspark-8", "dspark-8", "eagle3-k1", "eagle3-k1")
"""Of the part `mislabelled`: the best arms for code and for the rest of the mix."""
RATES_PER_S = (30.0, 45.0, 60.0)
"""The work of two backends, of most of the fleet, and about all that it can serve within the target."""
DRIFT_RATE_PER_S = 45.0
FALLS_AT, RETURNS_AT = 3_000, 6_500


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
            rows.append({"rate_per_s": rate_per_s, "seed": seed, **_compared(learnt, told, unlearnt)})
    by_rate = {str(rate): _summary([row for row in rows if row["rate_per_s"] == rate]) for rate in RATES_PER_S}
    return {**_summary(rows), "by_rate": by_rate, "rows": rows}


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
                **_compared(
                    run(fleet, "min_energy", requests, Falling(fleet, profile, falls_s, back_s), seed=seed),
                    run(
                        fleet, "min_energy", requests, telling, seed=seed, model=told_model, params={"probe_frac": 0.0}
                    ),
                    run(
                        fleet, "min_energy", requests, Falling(fleet, profile, falls_s, back_s), seed=seed, model=untold
                    ),
                ),
            }
        )
    return {**_summary(rows), "rows": rows}


def _compared(learnt: dict[str, Any], told: dict[str, Any], unlearnt: dict[str, Any]) -> dict[str, Any]:
    """The three runs of a row, and by how much more energy a token took where the policy was not told."""
    told_j = told["j_per_accepted_token"]
    return {
        "learning": learnt,
        "told": told,
        "profile_only": unlearnt,
        "regret": learnt["j_per_accepted_token"] / told_j - 1.0,
        "regret_without_learning": unlearnt["j_per_accepted_token"] / told_j - 1.0,
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
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
