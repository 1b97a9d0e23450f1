"""`check`: what is wrong with a fleet file, before traffic tells; and how to start its servers."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from selector.errors import UsageError
from selector.files.fleet import LoadedFleet
from selector.files.fleetcheck import Examination, Finding, examine
from selector.files.launch import LaunchCommand, launch_commands
from selector.router.probe import Probe, probe_fleet

NAME = "check"

_EPILOG = """\
examples:
  drafter-selector check --config fleet.toml
  drafter-selector check --config fleet.toml --launch-commands --model-path /models/Qwen3-8B > start.sh
  drafter-selector check --config fleet.toml --launch-commands --draft-path eagle3-k3=/models/my-eagle3
  drafter-selector check --config fleet.toml --live

Exit code 0: no errors, perhaps warnings. 2: errors. With --launch-commands, standard output holds the commands alone.
"""

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="find what is wrong with a configuration; print launch commands",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="F", help="fleet file (TOML)")
    parser.add_argument("--live", action="store_true", help="also ask every backend whether it runs its arm")
    parser.add_argument("--launch-commands", action="store_true", help="print how to start every backend")
    parser.add_argument("--model-path", metavar="PATH", help="target model in launch commands")
    parser.add_argument(
        "--draft-path", action="append", default=[], metavar="ARM=PATH", help="draft model of an arm in launch commands"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; 0 without errors, 2 with. Raises `UsageError` for options that do not go together."""
    draft_paths = _draft_paths(args.draft_path)
    if (args.model_path or draft_paths) and not args.launch_commands:
        raise UsageError("--model-path and --draft-path", "fill in launch commands", "add --launch-commands")
    examination = examine(args.config)
    loaded = examination.loaded
    commands: tuple[LaunchCommand, ...] = ()
    if args.launch_commands and loaded is not None:
        _refuse_unknown_arms(draft_paths, loaded)
        commands = launch_commands(loaded, model_path=args.model_path, draft_paths=draft_paths)
    probes = asyncio.run(probe_fleet(loaded)) if args.live and loaded is not None else ()
    findings = [*examination.findings, *(finding for probe in probes for finding in probe.findings)]
    failed = any(finding.level == "error" for finding in findings)
    if args.json:
        print(json.dumps(_document(args, examination, findings, commands, probes)))
    else:
        _print_findings(Console(stderr=args.launch_commands, soft_wrap=True), examination, findings, probes)
        _print_commands(commands)
    return 2 if failed else 0


def _draft_paths(given: Sequence[str]) -> dict[str, str]:
    paths = {}
    for text in given:
        arm, separator, path = text.partition("=")
        if not separator or not arm or not path:
            raise UsageError("--draft-path", f"is {text!r}", "give ARM=PATH")
        paths[arm] = path
    return paths


def _refuse_unknown_arms(draft_paths: Mapping[str, str], loaded: LoadedFleet) -> None:
    arms = {backend.arm for backend in loaded.fleet.backends}
    for arm in draft_paths:
        if arm not in arms:
            raise UsageError("--draft-path", f"names {arm!r}, an arm of no backend", f"use {', '.join(sorted(arms))}")


def _print_findings(
    console: Console, examination: Examination, findings: Sequence[Finding], probes: Sequence[Probe]
) -> None:
    def line(level: str, text: str) -> None:
        console.print(Text(f"{level:<8}", style=_COLOURS[level]), Text(text), sep="")

    loaded = examination.loaded
    if loaded is not None:
        arms = dict.fromkeys(backend.arm for backend in loaded.fleet.backends)
        line("ok", f"{loaded.where}: {len(loaded.specs)} backend(s) of {loaded.fleet.target}: {', '.join(arms)}")
        line("ok", f"faults: {loaded.fleet.faults.summary}")
    for role, policy in (("policy", examination.policy), ("fallback", examination.fallback)):
        if policy is not None:
            line("ok", f"{role} {policy.label}: {policy.path} sha256 {policy.sha256[:12]}")
    for probe in probes:
        if probe.summary is not None:
            line("ok", f"{probe.backend}: {probe.summary}")
    for level in ("warning", "error"):
        for finding in findings:
            if finding.level == level:
                line(level, str(finding))


def _print_commands(commands: Sequence[LaunchCommand]) -> None:
    for command in commands:
        where = f" on {command.machine}" if command.machine else ""
        print(f"# {command.backend}: {command.arm}{where}")
        for note in command.notes:
            print(f"#   {note}")
        print(command.shell, flush=True)
        print()


def _document(
    args: argparse.Namespace,
    examination: Examination,
    findings: Sequence[Finding],
    commands: Sequence[LaunchCommand],
    probes: Sequence[Probe],
) -> dict[str, object]:
    def listed(level: str) -> list[dict[str, str]]:
        return [
            {"where": finding.where, "problem": finding.problem, "remedy": finding.remedy}
            for finding in findings
            if finding.level == level
        ]

    document: dict[str, object] = {
        "config": str(args.config),
        "ok": not listed("error"),
        "errors": listed("error"),
        "warnings": listed("warning"),
    }
    for role, policy in (("policy", examination.policy), ("fallback", examination.fallback)):
        document[role] = policy and {"name": policy.label, "path": str(policy.path), "sha256": policy.sha256}
    document["faults"] = examination.loaded and examination.loaded.fleet.faults.model_dump()
    if args.launch_commands:
        document["launch_commands"] = [
            {
                "backend": command.backend,
                "arm": command.arm,
                "machine": command.machine,
                "env": dict(command.env),
                "argv": list(command.words),
                "shell": command.shell,
                "notes": list(command.notes),
            }
            for command in commands
        ]
    if args.live:
        document["live"] = [{"backend": probe.backend, "summary": probe.summary} for probe in probes]
    return document
