"""`drafter-selector profile`: measures the arms of a sweep file on this machine's GPU, or assembles a profile of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.cli.arguments import figure, positive
from selector.cli.profileprogress import Watcher
from selector.cli.profileresults import assembled, reported
from selector.errors import InputError, MeterError, UsageError
from selector.profiler.cells import read_cells
from selector.profiler.clock import MonotonicClock
from selector.profiler.config import SweepConfig, load_config
from selector.profiler.joinacceptance import acceptance_rows
from selector.profiler.measure import Bench, vocabulary
from selector.profiler.meter import EnergyMeter
from selector.profiler.nvml import GpuFacts, open_gpus
from selector.profiler.plan import Pace, left_to_do, plan
from selector.profiler.prompts import Prompt, load_prompts
from selector.profiler.rapl import open_host_energy
from selector.profiler.server import ProcessLauncher, command_line
from selector.profiler.sweep import Sweep, run_sweep

NAME = "profile"

_DESCRIPTION = """\
Measures what every arm of a sweep file costs on this machine: milliseconds and joules of a decode step over batch and
context, of a prefill, and of an idle board. Each finished cell is on disk at once; run it again to go on.

  drafter-selector profile --config sweep.toml --out runs/a --models models --plan
  drafter-selector profile --config sweep.toml --out runs/a --models models --stop-after 540
  drafter-selector profile --config sweep.toml --out runs/a --assemble --base h200__qwen3-8b --write new.json

Accept lengths are measured with real weights and prompts ([acceptance] in the sweep file), on any machine that runs the
engine, and joined to the step costs of another sweep; those that nobody measured come from a table of published ones:

  drafter-selector profile --config real.toml --out runs/real --models models
  drafter-selector profile --config real.toml --out runs/real --accepted
  drafter-selector profile --config sweep.toml --out runs/a --assemble --join runs/real --write new.json \\
      --published acceptance.csv

A page of a profile shows what every arm costs, where it saves, and how far the numbers can be trusted:

  drafter-selector profile --report h200__qwen3-8b --html report.html --png pictures
"""

_VOCAB_OF_A_RUNNING_SERVER = 32_000


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="measure the arms of a target on this machine's GPU",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="the sweep (TOML); needed unless --report")
    add("--out", type=Path, metavar="DIR", help="where cells.jsonl and traces go; needed unless --report")
    add("--models", type=Path, default=Path(), metavar="DIR", help="folder of target and draft models")
    add(
        "--prompts", type=Path, metavar="PATH", help="prompts in place of the sweep's, a JSONL file or a folder of them"
    )
    add("--logs", type=Path, metavar="DIR", help="folder of server logs (default: OUT/logs)")
    add("--gpus", type=_gpu_indices, metavar="I[,I]", help="measure these GPUs (NVML indices), not gpu.indices")
    add("--port", type=int, metavar="N", help="port of the servers instead of server.port")
    add("--arms", type=_names, metavar="ARM[,ARM]", help="start the servers of these arms of the sweep alone")
    add("--stop-after", type=float, metavar="SECONDS", help="end before a step that would not fit")
    add("--plan", action="store_true", help="only say what is left to measure, and how long it takes")
    add("--accepted", action="store_true", help="only show the accept lengths measured so far")
    add("--json", action="store_true", help="one JSON document on standard output")

    making = parser.add_argument_group("a profile of the cells that are there")
    add = making.add_argument
    add("--assemble", action="store_true", help="make it, measure nothing")
    add("--base", metavar="PROFILE", help="older profile for what was not measured")
    add(
        "--join",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="OUT of another sweep, for its accept lengths; may be repeated",
    )
    add("--published", type=Path, metavar="CSV", help="published accept lengths where none is measured")
    add("--write", type=Path, metavar="FILE", help="where the profile goes")

    showing = parser.add_argument_group("pages, with --assemble or of a profile that is there")
    add = showing.add_argument
    add("--report", metavar="PROFILE", help="a shipped profile by name, or any by path; raw/ beside it is used too")
    add("--html", type=Path, metavar="FILE", help="write a self-contained page with charts and checks there")
    add("--png", type=Path, metavar="DIR", help="write the charts as PNG there (needs drafter-selector[png])")
    add("--cells", type=Path, metavar="FILE", help="raw cells, in place of raw/PROFILE.cells.jsonl")
    add(
        "--trace",
        type=Path,
        action="append",
        metavar="FILE",
        help="what the meter recorded, in place of what lies there; may be repeated",
    )
    add(
        "--context-tokens",
        type=positive,
        metavar="C",
        help="context per request at which arms are compared (default: where most was measured)",
    )
    add(
        "--tbt-target-ms",
        type=positive,
        action="append",
        metavar="MS",
        help="targets in the charts (default: 25, 10, 5)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: all is measured, or the deadline came first; 1: something failed and is left to measure."""
    if args.report:
        return reported(args)
    if args.config is None or args.out is None:
        raise UsageError("profile", "has no --config or no --out", "give both, or --report with a profile")
    if args.html or args.png:
        _need_assemble(args, "--html and --png")
    config = _placed(load_config(args.config), args)
    if args.arms and (args.assemble or args.accepted):
        raise UsageError("profile", "--arms came with --assemble or --accepted", "leave it out; all arms are shown")
    if args.assemble:
        return assembled(args, config)
    if args.base or args.write or args.join or args.published:
        _need_assemble(args, "--base, --join, --published and --write")
    if args.accepted:
        return _accepted(args, config)
    _need_known(args.arms, config)
    return _plan(args, config) if args.plan else _measure(args, config)


def _need_assemble(args: argparse.Namespace, options: str) -> None:
    if not args.assemble:
        raise UsageError("profile", f"{options} came without --assemble", "add --assemble")


def _need_known(arms: Collection[str] | None, config: SweepConfig) -> None:
    there = [arm.name for arm in config.arms]
    for name in arms or ():
        if name not in there:
            raise UsageError("--arms", f"names {name!r}, which the sweep lacks", f"choose from {', '.join(there)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _gpu_indices(text: str) -> tuple[int, ...]:
    indices = tuple(int(word) for word in text.split(","))
    if min(indices) < 0 or len(set(indices)) < len(indices):
        raise ValueError(text)
    return indices


def _placed(config: SweepConfig, args: argparse.Namespace) -> SweepConfig:
    """The sweep on the GPUs and the port that the command line names: two can run on one host so."""
    if args.gpus:
        config = config.model_copy(update={"gpu": config.gpu.model_copy(update={"indices": args.gpus})})
    if args.port is not None:
        config = config.model_copy(update={"server": config.server.model_copy(update={"port": args.port})})
    return config


def _plan(args: argparse.Namespace, config: SweepConfig) -> int:
    cells = read_cells(args.out / "cells.jsonl")
    pace = Pace(config, cells)
    left = left_to_do(plan(config, metered=bool(config.gpu.indices), only=args.arms), cells)
    launches = [
        {
            "arm": launch.arm.name if launch.arm else None,
            "steps": len(launch.steps),
            "seconds": round(pace.left_s([launch])),
            "command": " ".join(command_line(config, launch.arm, args.models)[0]) if launch.arm else None,
        }
        for launch in left
    ]
    total_s = round(pace.left_s(left))
    if args.json:
        print(json.dumps({"launches": launches, "seconds": total_s}))
        return 0
    for launch in launches:
        print(f"{launch['arm'] or '(no server)':16} {launch['steps']:3} steps  {launch['seconds']:5} s")
        if launch["command"]:
            print(f"    {launch['command']}")
    print(f"{'in all':16} {sum(int(str(launch['steps'])) for launch in launches):3} steps  {total_s:5} s")
    return 0


def _measure(args: argparse.Namespace, config: SweepConfig) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    clock = MonotonicClock()
    console = Console(stderr=True)
    with ExitStack() as stack:
        meter, facts = _meter(args.out, config, clock, stack)
        if config.server.url is not None:
            vocab_size = _VOCAB_OF_A_RUNNING_SERVER
        else:
            vocab_size = vocabulary(args.models / config.target.model)
        bench = Bench(
            clock=clock,
            launcher=ProcessLauncher(config, args.models, args.logs or args.out / "logs", clock),
            meter=meter,
            facts=facts,
            host=open_host_energy(),
            vocab_size=vocab_size,
            prompts=_prompts(args, config),
        )
        watcher = stack.enter_context(Watcher(console))
        result = run_sweep(Sweep(config, args.out, bench, watcher, stop_after_s=args.stop_after, only=args.arms))
    if args.json:
        print(json.dumps({**asdict(result), "cells": str(args.out / "cells.jsonl")}))
    else:
        print(
            f"measured {result.measured}, failed {result.failed}, left {result.left} (about {result.left_s:.0f} s): "
            f"{args.out / 'cells.jsonl'}"
        )
    return 1 if result.failed else 0


def _prompts(args: argparse.Namespace, config: SweepConfig) -> dict[str, list[Prompt]]:
    """The prompts that accept lengths are measured with; raises `InputError` for a text type with too few."""
    settings = config.acceptance
    if settings is None:
        return {}
    path = args.prompts or (None if settings.prompts is None else args.config.parent / settings.prompts)
    by_type = load_prompts(path)
    for text_type in settings.text_types:
        there = len(by_type.get(text_type, ()))
        if there < settings.repeats:
            raise InputError(
                str(path or "shipped prompts"),
                f"has {there} prompts of {text_type}, fewer than acceptance.repeats {settings.repeats}",
                "add prompts, or leave the type out of acceptance.text_types",
            )
    return by_type


def _meter(
    out: Path, config: SweepConfig, clock: MonotonicClock, stack: ExitStack
) -> tuple[EnergyMeter | None, GpuFacts | None]:
    if not config.gpu.indices:
        return None, None
    try:
        gpus, facts = open_gpus(config.gpu.indices)
    except MeterError as failed:
        raise InputError("gpu.indices", str(failed), "correct it, or leave indices out to measure time alone") from None
    name = f"trace-{datetime.now(UTC):%Y%m%dT%H%M%S}.jsonl"
    record = stack.enter_context((out / name).open("w", encoding="utf-8"))
    return stack.enter_context(EnergyMeter(gpus, clock=clock, record=record)), facts


def _accepted(args: argparse.Namespace, config: SweepConfig) -> int:
    rows = acceptance_rows(config, read_cells(args.out / "cells.jsonl"))
    if args.json:
        print(json.dumps(rows))
        return 0
    table = Table(title="tokens per verify pass, the bonus token included", box=SIMPLE_HEAD, show_edge=False)
    for column in ("arm", "text type"):
        table.add_column(column, no_wrap=True)
    for column in ("accept\nlength", "±\nrepeats", "request\nspread", "answers", "passes", "refused"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["arm"],
            row["text_type"],
            figure(row["accept_length"], 3),
            figure(row["repeats_sd"], 3),
            figure(row["request_spread"], 3),
            str(row["answers"]),
            str(row["verify_passes"]),
            str(row["refused"]),
        )
    Console(markup=False, emoji=False).print(table if rows else "no accept length is measured yet")
    return 0
