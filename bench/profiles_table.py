"""Which drafters of which targets were measured on which GPU: the table in profiles/README.md, from the profiles.

    python bench/profiles_table.py [--check]

Rewrites the part of profiles/README.md between its two marks; `--check` only says whether that part is up to date
(exit 1 if not). What is not measured says why.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selector.files.profile import NO_DRAFTER, Arm, Profile, Provenance, load_profile
from selector.files.shipped import profile_names
from selector.profiler.cells import DecodeCell, FailedStep, read_cells

README = Path(__file__).resolve().parents[1] / "profiles" / "README.md"
RAW = README.parent / "raw"
BEGIN, END = "<!-- bench/profiles_table.py: begin -->", "<!-- bench/profiles_table.py: end -->"

NOT_YET = "not yet"
NONE = "–"
NO_HEADS, NO_SMALL, NO_HOOK = "no heads", "no small model", "no hook"
LEGEND = """\
`no heads`: the target has no multi-token-prediction heads. `no small model`: no smaller model has its vocabulary.
`no hook`: its class in SGLang 0.5.17 cannot hand hidden states to an EAGLE3 draft. `failed`: the server did not come
up; the raw cells have the end of its log. `raw cells`: measured, but no part of the profile; its sweep file says why.\
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A target of the published study that the profiles are compared with."""

    target: str
    kind: str
    impossible: dict[str, str]
    """Drafters that cannot be measured, and why in a few words."""


def _wanted(target: str, kind: str, *, mtp: bool = False, small: bool = False, eagle3: bool = True) -> Wanted:
    impossible = {} if mtp else {"MTP": NO_HEADS}
    if not small:
        impossible["STANDALONE"] = NO_SMALL
    if not eagle3:
        impossible |= {"EAGLE3": NO_HOOK, "adaptive": NO_HOOK}
    return Wanted(target=target, kind=kind, impossible=impossible)


WANTED = (
    _wanted("Qwen3-8B", "dense", small=True),
    _wanted("Qwen3-14B", "dense", small=True),
    _wanted("Qwen3-Coder-30B-A3B", "MoE", small=True),
    _wanted("Qwen3.6-27B", "dense, GDN hybrid", mtp=True, eagle3=False),
    _wanted("gemma-4-31B-it", "dense, sliding window", small=True),
    _wanted("GLM-4.7-Flash", "MoE, MLA", mtp=True),
    _wanted("Qwen3.6-35B-A3B", "MoE, GDN hybrid", mtp=True, eagle3=False),
    _wanted("gemma-4-26B-A4B", "MoE, sliding window"),
    _wanted("JoyAI-LLM-Flash", "MoE, MLA", mtp=True),
    _wanted("Qwen3-4B", "dense"),
    _wanted("gemma-4-12B", "dense, sliding window"),
)
COLUMNS = ("none", "EAGLE3", "DSPARK", "DFLASH", "NGRAM", "MTP", "STANDALONE", "adaptive")
GPU = "H200"
WITHOUT_MACHINE = "H100"


def column_of(arm: str, algorithm: str) -> str:
    """The column that an arm belongs to."""
    if arm == NO_DRAFTER:
        return "none"
    if arm.endswith("-adaptive"):
        return "adaptive"
    return "MTP" if algorithm in ("NEXTN", "EAGLE") else algorithm


def best_profiles(names: Iterable[str]) -> dict[tuple[str, str], tuple[str, Profile]]:
    """Of each (GPU, target) the usual profile with most measured cells; special launches (`-no-graphs`) are others."""
    best: dict[tuple[str, str], tuple[str, Profile]] = {}
    for name in names:
        if name.endswith("-no-graphs"):
            continue
        profile = load_profile(name)
        key = (profile.gpu.name, profile.target.name)
        if key not in best or _measured_cells(profile) > _measured_cells(best[key][1]):
            best[key] = (name, profile)
    return best


def _measured_cells(profile: Profile) -> int:
    return sum(
        profile.provenance[cell.provenance].kind == "measured" for arm in profile.arms.values() for cell in arm.cells
    )


def table(best: dict[tuple[str, str], tuple[str, Profile]], names: Sequence[str]) -> str:
    """The table in Markdown: a row for every wanted target, for what else is shipped, and for the GPU nobody has."""
    lines = [
        f"| target | kind | GPU | profile | cells an arm | batch | context | {' | '.join(COLUMNS)} |",
        f"|{'---|' * (7 + len(COLUMNS))}",
    ]
    left = dict(best)
    for wanted in WANTED:
        found = [key for key in left if key[0] == GPU and key[1] in (wanted.target, f"{wanted.target}-it")]
        if found:
            name, profile = left.pop(found[0])
            lines.append(_measured_row(wanted, GPU, name, profile, names))
        else:
            raw = [RAW / f"{GPU}__{target}.cells.jsonl".lower() for target in (wanted.target, f"{wanted.target}-it")]
            others = {arm: how for cells in raw if cells.exists() for arm, how in other_arms(cells).items()}
            arms = _arms({}, {}, others, wanted.impossible)
            lines.append(_row(wanted.target, wanted.kind, GPU, NONE, NONE, NONE, NONE, *arms))
    for (gpu, target), (name, profile) in left.items():
        other = Wanted(target=target, kind="not of the study", impossible={})
        lines.append(_measured_row(other, gpu, name, profile, names))
    nothing = ["no machine"] * len(COLUMNS)
    lines.append(_row(f"all {len(WANTED)}", "", WITHOUT_MACHINE, NONE, NONE, NONE, NONE, *nothing))
    return "\n".join(lines) + f"\n\n{LEGEND}"


def _measured_row(wanted: Wanted, gpu: str, name: str, profile: Profile, names: Sequence[str]) -> str:
    cells = [cell for arm in profile.arms.values() for cell in arm.cells]
    graphs_off = f"{name.removesuffix('-sweep')}-no-graphs"
    files = ", ".join(f"`{each}`" for each in (name, graphs_off) if each in names)
    return _row(
        wanted.target,
        wanted.kind,
        gpu,
        files,
        _range([len(arm.cells) for arm in profile.arms.values()]),
        _range([cell.batch for cell in cells]),
        _range([round(cell.context_tokens) for cell in cells]),
        *_arms(profile.arms, profile.provenance, other_arms(RAW / f"{name}.cells.jsonl"), wanted.impossible),
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _arms(
    arms: Mapping[str, Arm], provenance: Mapping[str, Provenance], others: Mapping[str, str], impossible: dict[str, str]
) -> list[str]:
    found: dict[str, list[str]] = {column: [] for column in COLUMNS}
    for name, arm in arms.items():
        kinds = {provenance[cell.provenance].kind for cell in arm.cells}
        label = "/".join(sorted(kinds)) if name == NO_DRAFTER else name
        found.setdefault(column_of(name, arm.algorithm), []).append(
            label if name == NO_DRAFTER or kinds == {"measured"} else f"{label} ({'/'.join(sorted(kinds))})"
        )
    for name, how in others.items():
        column = column_of(name, name.split("-")[0].upper())
        if name not in arms and column in found:
            found[column].append(how if name == NO_DRAFTER else f"{name} {how}")
    return ["; ".join(found[column]) or impossible.get(column, NOT_YET) for column in COLUMNS]


def other_arms(cells: Path) -> dict[str, str]:
    """Arms that raw cells tell of, in case the profile does not: how each was measured, or that its server failed."""
    prefix = "server of "
    found = read_cells(cells)
    failed = (cell.step for cell in found if isinstance(cell, FailedStep))
    arms = {step.removeprefix(prefix): "failed" for step in failed if step.startswith(prefix)}
    return dict(sorted((arms | {cell.arm: "(raw cells)" for cell in found if isinstance(cell, DecodeCell)}).items()))


def main() -> None:
    """Rewrites or checks the README."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the table is out of date")
    args = parser.parse_args()
    names = profile_names()
    made = f"{BEGIN}\n{table(best_profiles(names), names)}\n{END}"
    old = README.read_text(encoding="utf-8")
    new, replaced = re.subn(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: made, old, flags=re.DOTALL)
    if replaced != 1:
        raise SystemExit(f"profiles_table.py: {README} has {replaced} places between {BEGIN} and {END}; it needs one")
    if args.check:
        if new != old:
            raise SystemExit(
                f"profiles_table.py: the table in {README} is out of date; run scripts/bench profiles_table"
            )
        return
    README.write_text(new, encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
