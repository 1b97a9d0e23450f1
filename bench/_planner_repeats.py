"""Several runs of one policy with draws of their own, judged as if they were one.

A single run of a steady cell has a few hundred requests of a text type: its attainment moves by several points, its
TTFT p99 by a tenth and, where plans are near each other, its energy by some per cent with nothing but the draws. A rule
that asks for one point has to look at more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.simulator.arrivals import Load
from selector.simulator.report import PolicyResult, summarise
from selector.simulator.run import Run, Window
from selector.simulator.trial import run_trial


def repeated(
    fleet: LoadedFleet, loads: Sequence[Load], policy: str, *, first_seed: int, window: Window, until_s: float
) -> PolicyResult:
    """One policy on each of the loads, at seeds from `first_seed` on: energy, tokens and requests of all together."""
    policy_file = load_policy_file(policy)
    runs, wall_s = [], 0.0
    for seed, load in enumerate(loads, start=first_seed):
        trial = run_trial(fleet, load, policy_file, seed=seed, window=window, until_s=until_s)
        runs.append(trial.run)
        wall_s += trial.result.wall_s
    return summarise(pooled(runs), policy=policy_file.label, policy_sha256=policy_file.sha256, wall_s=wall_s)


def pooled(runs: Sequence[Run]) -> Run:
    """The runs one after the other, as one."""
    decisions: Counter[str] = Counter()
    for run in runs:
        decisions.update(run.decisions_by_arm)
    return Run(
        records=[record for run in runs for record in run.records],
        rejected=sum(run.rejected for run in runs),
        unfinished=sum(run.unfinished for run in runs),
        dropped=sum(run.dropped for run in runs),
        outside=sum(run.outside for run in runs),
        decisions_by_arm=dict(decisions),
        decode_j=sum(run.decode_j for run in runs),
        prefill_j=sum(run.prefill_j for run in runs),
        idle_j=sum(run.idle_j for run in runs),
        extrapolated_j=sum(run.extrapolated_j for run in runs),
        accepted_tokens=sum(run.accepted_tokens for run in runs),
        duration_s=sum(run.duration_s for run in runs),
        retractions=sum(run.retractions for run in runs),
    )
