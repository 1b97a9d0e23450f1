"""What `profile` makes of cells that are there: a profile, and pages and pictures of one."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from selector.cli.outputs import write_output
from selector.errors import UsageError
from selector.files.profile import Profile, load_profile, write_profile
from selector.files.shipped import profile_path
from selector.page.facts import profile_facts, program_facts
from selector.profiler.assemble import assemble
from selector.profiler.cells import Cell, DecodeCell, read_cells
from selector.profiler.config import SweepConfig
from selector.profiler.joinacceptance import with_measured_acceptance, with_published_acceptance
from selector.profiler.modelsize import model_size
from selector.profiler.page.document import page, pictures
from selector.profiler.page.subject import Subject
from selector.profiler.page.trace import read_trace
from selector.profiler.settingacceptance import with_setting_acceptance


def assembled(args: argparse.Namespace, config: SweepConfig) -> int:
    """Makes a profile of the cells of OUT, writes it and says how far it can be trusted."""
    if not args.write:
        raise UsageError("profile --assemble", "needs --write", "name the file to write")
    cells = read_cells(args.out / "cells.jsonl")
    base = load_profile(args.base) if args.base else None
    model = args.models / config.target.model / "config.json"
    size = model_size(model) if model.is_file() else None
    if any(isinstance(cell, DecodeCell) for cell in cells) or base is None:
        profile, report = assemble(config, cells, base, size)
    else:
        profile, report = base, {}
    if args.published:
        with args.published.open(newline="", encoding="utf-8") as table:
            profile = with_published_acceptance(profile, list(csv.DictReader(table)), str(args.published))
    widths = {arm.name: arm.verify_tokens for arm in config.arms}
    for folder in [args.out, *args.join]:
        profile = with_measured_acceptance(profile, read_cells(folder / "cells.jsonl"), widths)
    profile = with_setting_acceptance(profile)
    write_profile(profile, args.write)
    _show(args, args.write.resolve(), profile, cells, args.trace or sorted(args.out.glob("trace-*.jsonl")))
    if args.json:
        print(json.dumps(report))
        return 0
    print(f"{args.write}: {len(profile.arms)} arms, {sum(len(arm.cells) for arm in profile.arms.values())} cells")
    print(json.dumps(report, indent=1))
    return 0


def reported(args: argparse.Namespace) -> int:
    """Writes page and pictures of a profile, with the raw cells and the trace that lie in `raw/` beside it."""
    if args.html is None and args.png is None:
        raise UsageError("profile --report", "has nothing to write", "name --html FILE, --png DIR, or both")
    path = profile_path(args.report)
    raw = path.parent / "raw"
    cells = read_cells(args.cells or raw / f"{path.stem}.cells.jsonl")
    _show(args, path, load_profile(args.report), cells, args.trace or sorted(raw.glob(f"{path.stem}.trace*.jsonl")))
    return 0


def _show(
    args: argparse.Namespace, path: Path, profile: Profile, cells: Sequence[Cell], traces: Sequence[Path]
) -> None:
    if args.html is None and args.png is None:
        return
    subject = Subject(
        name=path.stem,
        profile=profile,
        cells=cells,
        samples=read_trace(traces),
        stated_context_tokens=args.context_tokens,
        tbt_targets_ms=tuple(args.tbt_target_ms or (25.0, 10.0, 5.0)),
    )
    if args.html is not None:
        facts = program_facts(shlex.join(["drafter-selector", *sys.argv[1:]]))
        write_output(args.html, page(subject, facts + profile_facts(str(path), profile, profile.arms)))
    if args.png is not None:
        images = {f"{picture.name}.png": picture.png() for picture in pictures(subject)}
        args.png.mkdir(parents=True, exist_ok=True)
        for name, image in images.items():
            write_output(args.png / name, image)
