"""`drafter-selector profile`: measures the arms of a sweep file on this machine's GPU, or assembles a profile of it."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from selector.cli.arguments import figure
from selector.errors import InputError, MeterError, UsageError
from selector.files.profile import load_profile, write_profile
from selector.profiler.assemble import assemble
from selector.profiler.cells import AcceptanceCell, Cell, DecodeCell, FailedStep, IdleCell, PrefillCell, read_cells
from selector.profiler.clock import MonotonicClock
from selector.profiler.config import SweepConfig, load_config
from selector.profiler.joinacceptance import acceptance_rows, with_measured_acceptance, with_published_acceptance
from selector.profiler.measure import Bench, vocabulary
from selector.profiler.meter import EnergyMeter
from selector.profiler.modelsize import model_size
from selector.profiler.nvml import GpuFacts, open_gpus
from selector.profiler.plan import Pace, left_to_do, plan
from selector.profiler.prompts import Prompt, load_prompts
from selector.profiler.rapl import open_host_energy
from selector.profiler.server import Launcher, ProcessLauncher, RunningLauncher, command_line
from selector.profiler.settingacceptance import with_setting_acceptance
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
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the sweep (TOML)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where cells.jsonl and traces go")
    parser.add_argument("--models", type=Path, default=Path(), metavar="DIR", help="folder of target and draft models")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="folder of server logs (default: OUT/logs)")
    parser.add_argument(
        "--gpus", type=_gpu_indices, metavar="I[,I]", help="measure these GPUs (NVML indices) instead of gpu.indices"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port of the servers instead of server.port")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", help="end before a step that would not fit")
    parser.add_argument("--plan", action="store_true", help="only say what is left to measure, and how long it takes")
    parser.add_argument("--assemble", action="store_true", help="only make a profile of the cells that are there")
    parser.add_argument("--accepted", action="store_true", help="only show the accept lengths measured so far")
    parser.add_argument("--base", metavar="PROFILE", help="with --assemble: older profile for what was not measured")
    parser.add_argument(
        "--join",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="with --assemble: OUT of another sweep whose accept lengths count too; may be repeated",
    )
    parser.add_argument(
        "--published", type=Path, metavar="CSV", help="with --assemble: published accept lengths where none is measured"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --assemble: where the profile goes")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: all is measured, or the deadline came first; 1: something failed and is left to measure."""
    config = _placed(load_config(args.config), args)
    if args.assemble:
        return _assemble(args, config)
    if args.base or args.write or args.join or args.published:
        raise UsageError("profile", "--base, --join, --published and --write came without --assemble", "add --assemble")
    if args.accepted:
        return _accepted(args, config)
    return _plan(args, config) if args.plan else _measure(args, config)


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
    left = left_to_do(plan(config, metered=bool(config.gpu.indices)), cells)
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
        launcher: Launcher
        if config.server.url is not None:
            launcher, vocab_size = RunningLauncher(config.server.url, clock), _VOCAB_OF_A_RUNNING_SERVER
        else:
            launcher = ProcessLauncher(config, args.models, args.logs or args.out / "logs", clock)
            vocab_size = vocabulary(args.models / config.target.model)
        bench = Bench(
            clock=clock,
            launcher=launcher,
            meter=meter,
            facts=facts,
            host=open_host_energy(),
            vocab_size=vocab_size,
            prompts=_prompts(args.config, config),
        )
        watcher = stack.enter_context(_Watcher(console))
        result = run_sweep(Sweep(config, args.out, bench, watcher, stop_after_s=args.stop_after))
    if args.json:
        print(json.dumps({**asdict(result), "cells": str(args.out / "cells.jsonl")}))
    else:
        print(
            f"measured {result.measured}, failed {result.failed}, left {result.left} (about {result.left_s:.0f} s): "
            f"{args.out / 'cells.jsonl'}"
        )
    return 1 if result.failed else 0


def _prompts(sweep_file: Path, config: SweepConfig) -> dict[str, list[Prompt]]:
    """The prompts that accept lengths are measured with; raises `InputError` for a text type with too few."""
    settings = config.acceptance
    if settings is None:
        return {}
    path = None if settings.prompts is None else sweep_file.parent / settings.prompts
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


def _assemble(args: argparse.Namespace, config: SweepConfig) -> int:
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
    if args.json:
        print(json.dumps(report))
        return 0
    print(f"{args.write}: {len(profile.arms)} arms, {sum(len(arm.cells) for arm in profile.arms.values())} cells")
    print(json.dumps(report, indent=1))
    return 0


class _Watcher:
    """Shows a sweep's progress on standard error: a bar on a terminal, lines otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="?")

    def __enter__(self) -> _Watcher:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def planned(self, steps: int, done: int, left_s: float) -> None:
        self._progress.update(self._task, total=steps, completed=done, left=_minutes(left_s))
        self._say(f"{steps} steps, {done} done before, about {_minutes(left_s)} left")

    def launching(self, arm: str, left_s: float) -> None:
        self._progress.update(self._task, description=f"{arm}: starting the server", left=_minutes(left_s))
        self._say(f"{arm}: starting the server")

    def measured(self, cell: Cell, left_s: float) -> None:
        text = _described(cell)
        self._progress.update(self._task, advance=1, description=text, left=_minutes(left_s))
        self._say(f"{text}  [{_minutes(left_s)} left]")

    def failed(self, step: str, reason: str, left_s: float) -> None:
        self._progress.update(self._task, left=_minutes(left_s))
        self._say(f"FAILED {step}: {reason}")

    def stopped(self, left_s: float) -> None:
        self._say(f"stopping in time; about {_minutes(left_s)} are left for the next run")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()


def _described(cell: Cell) -> str:
    if isinstance(cell, DecodeCell):
        ms = ", ".join(f"{repeat.step_ms:.3f}" for repeat in cell.repeats)
        j = ", ".join("-" if repeat.step_j is None else f"{repeat.step_j:.3f}" for repeat in cell.repeats)
        accepted = cell.repeats[0].accept_length
        context = cell.repeats[0].context_tokens
        return (
            f"{cell.arm} b={cell.batch} prompt={cell.prompt_tokens} context={context:.0f}: step {ms} ms, {j} J, "
            f"a={accepted:.3f}{' (drift)' if cell.sweep_pass == 'drift' else ''}"
        )
    if isinstance(cell, PrefillCell):
        j = "-" if cell.j is None else f"{cell.j:.3f}"
        alone = " alone" if cell.alone else ""
        return f"{cell.arm} prefill {cell.prompt_tokens}{alone}: {cell.ms:.2f} ms, {j} J a prompt"
    if isinstance(cell, IdleCell):
        return f"idle {'bare' if cell.arm is None else f'with {cell.arm} up'}: {cell.energy.watts_mean:.1f} W"
    if isinstance(cell, AcceptanceCell):
        passes = sum(answer.verify_passes for answer in cell.answers)
        accepted = sum(answer.accepted_drafts for answer in cell.answers)
        length = f"{1 + accepted / passes:.3f}" if passes else "-"
        return f"{cell.arm} on {cell.text_type}: accept length {length} over {len(cell.answers)} answers"
    return f"{cell.step}: {cell.reason}" if isinstance(cell, FailedStep) else ""


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
