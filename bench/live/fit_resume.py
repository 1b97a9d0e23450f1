"""How long requests that decode wait after a prefill pass, so that the simulation meets what was measured live.

    python bench/live/fit_resume.py --plan bench/live/one-server.toml --out runs/live --load "16 running" --write FILE

For every arm with a `static:` cell of that load: the `resume_ms` (see `core.prefillcost`) at which the simulated
median TBT is the live one, between 0 and 40 ms. `--write` puts them into a profile's file, as derived from those cells:
an error of the simulation on the same cells then says nothing, one on other cells does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from imposing import with_imposed
from plan import LiveCell, LivePlan, cells, load_plan
from run import done
from workload import simulated_result, trace_of, workload

from selector.errors import SelectorError
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.profile import Profile, Provenance, load_profile, write_profile
from selector.files.trace import Trace

_MOST_MS = 40.0
_STEPS = 10


def main() -> int:
    """0, or 2 for an input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True, help="the live plan (TOML)")
    parser.add_argument("--out", type=Path, required=True, help="folder with its results.jsonl")
    parser.add_argument("--load", required=True, help="name of the load whose cells are fitted")
    parser.add_argument("--write", type=Path, metavar="PROFILE", help="profile file that gets the values")
    args = parser.parse_args()
    try:
        plan = load_plan(args.plan)
        found = fitted(plan, args.plan.parent, args.out, args.load)
        for arm, resume_ms in found.items():
            print(f"{arm:12} {resume_ms:5.1f} ms")
        if args.write:
            profile = load_profile(str(args.write))
            source = f"bench/live/fit_resume.py on the live cells {args.load!r} of {args.plan.name}"
            write_profile(with_resume(profile, found, "live-resume", source), args.write)
    except SelectorError as failed:
        print(f"fit_resume.py: {failed}", file=sys.stderr)
        return 2
    return 0


def fitted(plan: LivePlan, folder: Path, out: Path, load: str) -> dict[str, float]:
    """By arm, from every finished cell of one static arm under that load."""
    trace, finished, found = trace_of(plan, folder), done(out), {}
    for cell in cells(plan):
        name, _, arm = cell.policy.partition(":")
        row = finished.get(cell.key)
        if cell.load.name == load and name == "static" and row is not None:
            file, _ = with_imposed(folder / cell.fleet, plan, out / Path(cell.fleet).stem, folder)
            low, high = 0.0, _MOST_MS
            for _ in range(_STEPS):
                middle = 0.5 * (low + high)
                slower = _tbt_ms(plan, cell, trace, _at(file, arm, middle), row["rate"])
                low, high = (middle, high) if slower < row["live"]["tbt_p50_ms"] else (low, middle)
            found[arm] = round(0.5 * (low + high), 1)
    return found


def with_resume(profile: Profile, found: dict[str, float], key: str, source: str) -> Profile:
    """The profile with those pauses, for the arms whose least pass it has."""
    arms = dict(profile.arms)
    for name, resume_ms in found.items():
        least = arms[name].prefill_pass
        if least is not None:
            changed = least.model_copy(update={"resume_ms": resume_ms, "resume_provenance": key})
            arms[name] = arms[name].model_copy(update={"prefill_pass": changed})
    provenance = {**profile.provenance, key: Provenance(kind="derived", source=source)}
    return profile.model_copy(update={"arms": arms, "provenance": provenance})


def _at(fleet_file: Path, arm: str, resume_ms: float) -> LoadedFleet:
    """The fleet with another pause of one arm; its profile file is written anew."""
    for name in {backend.profile for backend in load_fleet_with_profiles(fleet_file).fleet.backends}:
        profile = load_profile(name)
        write_profile(with_resume(profile, {arm: resume_ms}, "tried", "tried"), Path(name))
    return load_fleet_with_profiles(fleet_file)


def _tbt_ms(plan: LivePlan, cell: LiveCell, trace: Trace, loaded: LoadedFleet, rate: float) -> float:
    result = simulated_result(loaded, workload(plan, cell, trace, loaded, rate=rate), plan, cell)
    return float(str(result["tbt_p50_ms"]))


if __name__ == "__main__":
    raise SystemExit(main())
