"""Everything that is made of raw cells, made again: profiles, their checks, pictures, the table and the claims.

    python bench/build_profiles.py [NAME ...] [--models DIR] [--pictures NAME]

For every `profiles/raw/NAME.cells.jsonl` (or those named) whose sweep file is `profiles/raw/NAME.toml`, or one in
bench/h200/ or bench/cpu/ with that output_name: `profiles/NAME.json`, built on the one that is there, and
`bench/results/NAME_checks.json`; of a sweep of accept lengths alone `bench/results/NAME_accepted.json`. Published
accept lengths are taken in where the sweep has an arm that the profile lacks and the table of them has the target. Arms
of a sweep with launch flags of its own join the target's profile (see _joined_arms.py). Then
`profiles/README.md` (see profiles_table.py) and `bench/results/paper_claims.json`. `--models` holds the targets'
config.json, which a first profile of a target needs. Pictures of `--pictures` (may be repeated) go to docs/img/NAME/.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _joined_arms import JOINS, with_joined_arms, with_kv_slope

from selector.files.profile import load_profile, write_profile
from selector.profiler.config import SweepConfig, load_config

ROOT = Path(__file__).resolve().parents[1]
PROFILES, RAW, RESULTS = ROOT / "profiles", ROOT / "profiles" / "raw", ROOT / "bench" / "results"
PUBLISHED = RAW / "acceptance_published.csv"
SWEEPS = (ROOT / "bench" / "h200", ROOT / "bench" / "cpu")
SUFFIX = ".cells.jsonl"
SLOPE_FROM = "h200__qwen3-8b"
"""The profile whose cost of a longer context other targets' is derived from."""


def sweep_file(name: str) -> Path | None:
    """The sweep file that the raw cells of that name were measured with."""
    beside = RAW / f"{name}.toml"
    if beside.is_file():
        return beside
    files = [file for folder in SWEEPS for file in sorted(folder.glob("*.toml"))]
    return next((file for file in files if load_config(file).output_name == name), None)


def build(
    name: str, config_file: Path, models: Path | None, profiles: Path = PROFILES, results: Path = RESULTS
) -> None:
    """One profile in `profiles`, or arms of one, with what joins it; and the checks in `results`."""
    config = load_config(config_file)
    join = JOINS.get(name)
    target = profiles / f"{join.profile if join else name}.json"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        shutil.copyfile(RAW / f"{name}{SUFFIX}", out / "cells.jsonl")
        made = out / target.name
        words = ["--config", config_file, "--out", out, "--assemble", "--write", made, "--json"]
        words += ["--base", target] if target.exists() else []
        words += ["--models", models] if models else []
        words += ["--published", PUBLISHED] if _has_new_arms(config, target) and _is_published(config) else []
        checks = profile_command(*words)
        profile = load_profile(str(made))
    if join:
        profile = with_joined_arms(load_profile(str(target)), profile, join.modes)
    else:
        profile = with_kv_slope(profile, load_profile(str(PROFILES / f"{SLOPE_FROM}.json")))
    write_profile(profile, target)
    (results / f"{name}_checks.json").write_text(checks, encoding="utf-8")
    for other, its in JOINS.items():
        if its.profile == name and (file := sweep_file(other)) is not None:
            build(other, file, models, profiles, results)


def show_accepted(name: str, config_file: Path) -> None:
    """Accept lengths of a sweep that measures no step costs, as a table: there is no profile without step costs."""
    with tempfile.TemporaryDirectory() as out:
        shutil.copyfile(RAW / f"{name}{SUFFIX}", Path(out) / "cells.jsonl")
        rows = json.loads(profile_command("--config", config_file, "--out", out, "--accepted", "--json"))
    (RESULTS / f"{name}_accepted.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _has_new_arms(config: SweepConfig, existing: Path) -> bool:
    """Whether some arm of the sweep is not in the profile yet; those that are keep the accept lengths they have."""
    known = load_profile(str(existing)).arms if existing.exists() else {}
    return any(arm.name not in known for arm in config.profiled_arms)


def _is_published(config: SweepConfig) -> bool:
    with PUBLISHED.open(newline="", encoding="utf-8") as table:
        return any(row["model"] == config.target.name for row in csv.DictReader(table))


def profile_command(*words: object) -> str:
    """Standard output of `drafter-selector profile`."""
    command = [sys.executable, "-m", "selector", "profile", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Builds what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="raw cells to build from; default: all with a sweep file"
    )
    parser.add_argument("--models", type=Path, help="folder of the targets' folders")
    parser.add_argument("--pictures", action="append", default=[], metavar="NAME", help="draw these profiles")
    args = parser.parse_args()
    names = args.names or sorted(path.name.removesuffix(SUFFIX) for path in RAW.glob(f"*{SUFFIX}"))
    for name in names:
        if name in JOINS and JOINS[name].profile in names:
            continue
        config_file = sweep_file(name)
        if config_file is None:
            print(f"{name}: no sweep file profiles/raw/{name}.toml; left as it is", file=sys.stderr)
            continue
        if not load_config(config_file).grid:
            show_accepted(name, config_file)
            continue
        build(name, config_file, args.models)
        print(f"{name}: built with {config_file.relative_to(ROOT)}")
    for name in args.pictures:
        profile_command("--report", name, "--png", ROOT / "docs" / "img" / name)
        print(f"{name}: pictures in docs/img/{name}")
    for script in ("profiles_table.py", "paper_claims.py"):
        subprocess.run([sys.executable, ROOT / "bench" / script], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        print(f"bench/{script}: done")


if __name__ == "__main__":
    main()
