"""`predict`: time and energy per token of one arm at a batch and context, from a profile. Decode only."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from selector.core.types import TEXT_TYPES
from selector.errors import ProfileError, UsageError
from selector.files.profile import NO_DRAFTER, Profile, load_profile

NAME = "predict"

_EPILOG = """\
examples:
  drafter-selector predict --profile h200__qwen3-8b --arm dspark-8 --batch 8 --context-tokens 1024 --text-type code
  drafter-selector predict --profile h200__qwen3-8b --arm eagle3-k3 --batch 32 --context-tokens 2000 --accept-length 2.4
  drafter-selector predict --profile h200__qwen3-8b --arm none --batch 64 --context-tokens 800 --tbt-target-ms 10
  drafter-selector predict --profile h200__qwen3-8b --table --context-tokens 1024 --text-type romansh

The accept length counts the bonus token: it is 1 without a drafter and at most the arm's verify width. An arm saves
energy against none where its accept length is above the break-even accept length.
"""

TABLE_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One arm at one point; the field names are those of `--json`."""

    arm: str
    batch: int
    context_tokens: int
    accept_length: float
    step_ms: float
    step_j: float
    tbt_ms: float
    j_per_accepted_token: float
    break_even_accept_length: float
    extrapolated: bool
    """The point lies outside the measured cells of the arm, or of `none`, which break-even is relative to."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="time and energy per token of an arm at a batch and context",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", required=True, metavar="P", help="name of a shipped profile, or path")
    parser.add_argument("--arm", metavar="A", help="arm of the profile")
    parser.add_argument("--batch", type=int, metavar="B", help="requests in the batch, from 1")
    parser.add_argument("--context-tokens", type=int, required=True, metavar="C", help="tokens of context per request")
    parser.add_argument("--accept-length", type=float, metavar="X", help="tokens per request and step")
    parser.add_argument("--text-type", metavar="X", help=f"take it from the profile: {', '.join(TEXT_TYPES)}")
    parser.add_argument("--tbt-target-ms", type=float, metavar="X", help="say whether this target is met")
    parser.add_argument("--table", action="store_true", help="all arms and batches side by side")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Raises `InputError`."""
    if args.context_tokens < 0:
        raise UsageError("--context-tokens", f"is {args.context_tokens}", "give 0 or more")
    if args.tbt_target_ms is not None and not args.tbt_target_ms > 0:
        raise UsageError("--tbt-target-ms", f"is {args.tbt_target_ms:g}", "give a number above 0")
    profile = load_profile(args.profile)
    if args.table:
        _run_table(profile, args)
    else:
        _run_single(profile, args)
    return 0


def predicted(profile: Profile, arm_name: str, batch: int, context_tokens: int, accept_length: float) -> Prediction:
    """The prediction. Raises `ProfileError` for an unknown arm and `UsageError` for an impossible point."""
    arm = profile.arm(arm_name)
    if batch < 1:
        raise UsageError("--batch", f"is {batch}", "give 1 or more")
    if not 1.0 <= accept_length <= arm.verify_tokens:
        raise UsageError(
            "--accept-length",
            f"is {accept_length:g}, and {arm_name} verifies {arm.verify_tokens} token(s) per step",
            f"give 1 to {arm.verify_tokens}" if arm.verify_tokens > 1 else "give 1, or leave it out",
        )
    if arm.max_context_tokens is not None and context_tokens > arm.max_context_tokens:
        raise UsageError(
            "--context-tokens",
            f"is {context_tokens}, and the draft model of {arm_name} reads at most {arm.max_context_tokens}",
            "give less",
        )
    own = profile.cost(arm_name).step.estimate(batch, context_tokens)
    plain = profile.cost(NO_DRAFTER).step.estimate(batch, context_tokens)
    return Prediction(
        arm=arm_name,
        batch=batch,
        context_tokens=context_tokens,
        accept_length=accept_length,
        step_ms=own.step_ms,
        step_j=own.step_j,
        tbt_ms=own.step_ms / accept_length,
        j_per_accepted_token=own.step_j / (batch * accept_length),
        break_even_accept_length=own.step_j / plain.step_j,
        extrapolated=own.extrapolated or plain.extrapolated,
    )


def accept_length_of_arm(
    profile: Profile, arm_name: str, accept_length: float | None, text_type: str | None
) -> tuple[float, str]:
    """The accept length to use, and where it came from in words. Raises `UsageError` or `ProfileError`."""
    arm = profile.arm(arm_name)
    if accept_length is not None and text_type is not None:
        raise UsageError("--accept-length and --text-type", "are both given", "give one of them")
    if text_type is not None and text_type not in TEXT_TYPES:
        raise UsageError("--text-type", f"is {text_type!r}", f"give one of {', '.join(TEXT_TYPES)}")
    if accept_length is not None:
        return accept_length, "given"
    if arm.verify_tokens == 1:
        return 1.0, "no drafter"
    if text_type is None:
        raise UsageError(
            "--accept-length and --text-type", f"are both missing, and {arm_name} drafts", "give one of them"
        )
    if text_type not in arm.acceptance:
        raise ProfileError(
            f"profile {profile.gpu.name} {profile.target.name}: arms.{arm_name}.acceptance",
            f"has no {text_type}",
            "give --accept-length instead",
        )
    entry = arm.acceptance[text_type]
    source = profile.provenance[entry.provenance]
    return entry.mean, f"{source.kind}: {source.source}"


def _run_single(profile: Profile, args: argparse.Namespace) -> None:
    if args.arm is None or args.batch is None:
        raise UsageError("--arm and --batch", "are needed for one prediction", "give both, or --table for all")
    accept_length, origin = accept_length_of_arm(profile, args.arm, args.accept_length, args.text_type)
    prediction = predicted(profile, args.arm, args.batch, args.context_tokens, accept_length)
    if args.json:
        print(json.dumps(_document(prediction, args.tbt_target_ms)))
        return
    arm = profile.arm(args.arm)
    table = Table(title=f"{profile.target.name} on {profile.gpu.name}, {args.arm}", title_justify="left")
    table.add_column("decode only")
    table.add_column("value", justify="right")
    table.add_column("where from", overflow="fold")
    cell = profile.provenance[arm.cells[0].provenance]
    engine = f"{cell.kind} on {cell.engine or 'an unnamed engine'}, {cell.weights or 'unnamed'} weights"
    step = f"extrapolated from cells {engine}" if prediction.extrapolated else f"from cells {engine}"
    table.add_row("batch", str(prediction.batch), "requests")
    table.add_row("context", str(prediction.context_tokens), "tokens per request")
    table.add_row("accept length", f"{accept_length:.3f}", origin)
    table.add_row("step time", f"{prediction.step_ms:.3f} ms", step)
    table.add_row("step energy", f"{prediction.step_j:.3f} J", step)
    table.add_row("TBT", f"{prediction.tbt_ms:.3f} ms", _verdict(prediction.tbt_ms, args.tbt_target_ms))
    table.add_row("energy per accepted token", f"{prediction.j_per_accepted_token:.4f} J", "")
    saves = "saves" if accept_length > prediction.break_even_accept_length else "costs"
    compared = "" if arm.verify_tokens == 1 else f"at {accept_length:.2f} it {saves} energy against {NO_DRAFTER}"
    table.add_row("break-even accept length", f"{prediction.break_even_accept_length:.3f}", compared)
    Console().print(table)


def _run_table(profile: Profile, args: argparse.Namespace) -> None:
    for option, value in (("--arm", args.arm), ("--batch", args.batch), ("--accept-length", args.accept_length)):
        if value is not None:
            raise UsageError(option, "does not go with --table", "leave it out; --table shows every arm and batch")
    if args.text_type is None:
        raise UsageError("--text-type", "is missing", "--table needs it, for the accept length of every arm")
    accept = {name: accept_length_of_arm(profile, name, None, args.text_type)[0] for name in profile.arms}
    rows = [
        [predicted(profile, name, batch, args.context_tokens, accept[name]) for name in profile.arms]
        for batch in TABLE_BATCHES
    ]
    if args.json:
        print(json.dumps({"predictions": [_document(cell, args.tbt_target_ms) for row in rows for cell in row]}))
        return
    table = Table(
        title=f"{profile.target.name} on {profile.gpu.name}, {args.text_type}, {args.context_tokens} context tokens: "
        "TBT in ms and J per accepted token, decode only",
        title_justify="left",
        caption="bold: least energy of a batch; ~: extrapolated"
        + (f"; red: misses {args.tbt_target_ms:g} ms" if args.tbt_target_ms else ""),
        caption_justify="left",
    )
    table.add_column("batch", justify="right")
    for name in profile.arms:
        table.add_column(f"{name}\na = {accept[name]:.2f}", justify="right")
    for batch, row in zip(TABLE_BATCHES, rows, strict=True):
        table.add_row(str(batch), *_table_cells(row, args.tbt_target_ms))
    Console().print(table)


def _table_cells(row: list[Prediction], target_ms: float | None) -> list[str]:
    least = min(cell.j_per_accepted_token for cell in row)
    cells = []
    for cell in row:
        text = f"{'~' if cell.extrapolated else ''}{cell.tbt_ms:.2f}  {cell.j_per_accepted_token:.4f}"
        if target_ms is not None and cell.tbt_ms > target_ms:
            text = f"[red]{text}[/red]"
        cells.append(f"[bold]{text}[/bold]" if cell.j_per_accepted_token == least else text)
    return cells


def _document(prediction: Prediction, target_ms: float | None) -> dict[str, object]:
    """The prediction as JSON; with a target, whether it is met."""
    document: dict[str, object] = asdict(prediction)
    if target_ms is not None:
        document |= {"tbt_target_ms": target_ms, "meets_tbt_target": prediction.tbt_ms <= target_ms}
    return document


def _verdict(tbt_ms: float, target_ms: float | None) -> str:
    if target_ms is None:
        return "step time / accept length"
    return f"{'meets' if tbt_ms <= target_ms else 'misses'} the target of {target_ms:g} ms, at the mean accept length"
