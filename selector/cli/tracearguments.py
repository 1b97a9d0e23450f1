"""The options that name traces and say what to do with them, for every command that runs on traces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from selector.cli.arguments import count, positive
from selector.errors import UsageError
from selector.files.trace import (
    Trace,
    default_text_mix,
    load_trace,
    merged,
    parse_text_mix,
    spread,
    with_text_types,
)

OWN_MIX = "own"
"""The value of --text-mix for the trace's own kind."""

_BAD_ROWS_SHOWN = 5

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """One `--trace`, as it was read."""

    path: Path
    trace: Trace
    """Before text types were given."""
    slice_s: tuple[float, float | None]
    text_mix: dict[str, float] | None
    """What the text types of requests whose trace does not say were drawn from; `None` if it says all of them."""
    text_mix_given: bool

    def document(self) -> dict[str, Any]:
        """What was read and what was assumed, for the JSON result."""
        assumed = sum(request.text_type is None for request in self.trace.requests)
        return {
            "path": str(self.path),
            "name": self.trace.name,
            "kind": self.trace.kind,
            "requests": len(self.trace.requests),
            "bad_rows": self.trace.bad_row_count,
            "skipped": dict(self.trace.skipped),
            "rows_out_of_order": self.trace.rows_out_of_order,
            "slice_s": list(self.slice_s),
            "text_mix": self.text_mix,
            "text_mix_from": "trace" if self.text_mix is None else "option" if self.text_mix_given else "kind",
            "text_types_assumed": assumed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTraces:
    """All traces of a command as one, every request with a text type, and where they came from."""

    trace: Trace
    sources: tuple[TraceSource, ...]

    def document(self) -> dict[str, Any]:
        """The `trace` object of a JSON result; `text_mix` is `None` where traces have different ones."""
        mixes = [source.text_mix for source in self.sources]
        return {
            "name": self.trace.name,
            "kind": self.trace.kind,
            "requests": len(self.trace.requests),
            "bad_rows": self.trace.bad_row_count,
            "skipped": dict(self.trace.skipped),
            "text_mix": mixes[0] if all(mix == mixes[0] for mix in mixes) else None,
            "sources": [source.document() for source in self.sources],
        }

    def notes(self) -> Iterator[str]:
        """What was left out of the traces, a line each, for the error output."""
        for source in self.sources:
            shown = source.trace.bad_rows[:_BAD_ROWS_SHOWN]
            for row in shown:
                yield f"skipped {source.path}: line {row.line}: {row.problem}"
            if source.trace.bad_row_count > len(shown):
                yield f"skipped {source.trace.bad_row_count - len(shown)} more bad rows of {source.path}"
            for reason, rows in source.trace.skipped.items():
                yield f"left out {rows} rows of {source.path}: {reason}"

    def summary(self) -> Iterator[str]:
        """What each trace is and what text its requests were given, a line each."""
        for source in self.sources:
            said = "its own text types"
            if source.text_mix is not None:
                shares = ", ".join(f"{name} {share:.0%}" for name, share in source.text_mix.items())
                said = f"text {shares} (assumed)"
            yield f"trace {source.trace.name}: {said}"


def add_trace_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Adds the options that `load_traces` reads, and `--rate-scale`; `required` is about `--trace`."""
    parser.add_argument(
        "--trace",
        required=required,
        action="append",
        type=Path,
        metavar="T",
        help="Azure, BurstGPT or ServeGen CSV, Mooncake JSONL, a decision log, a folder of ServeGen clients; repeat to "
        "merge traces by arrival",
    )
    parser.add_argument(
        "--slice",
        action="append",
        type=seconds_from_to,
        metavar="A:B",
        help="only what arrives from A to before B seconds after the trace's first request; once, or once per --trace",
    )
    parser.add_argument(
        "--text-mix",
        action="append",
        metavar="MIX",
        help="code=0.5,romansh=0.5 for requests whose trace does not say; once, or once per --trace; default: "
        f"'{OWN_MIX}', the trace's own kind",
    )
    parser.add_argument(
        "--spread-arrivals",
        type=positive,
        metavar="S",
        help="spread requests that share an arrival over the S seconds after it (Mooncake: 3)",
    )
    parser.add_argument("--rate-scale", type=positive, default=1.0, metavar="R", help="arrivals R times as fast")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    parser.add_argument("--strict", action="store_true", help="refuse a trace with bad rows instead of skipping them")


def load_traces(args: argparse.Namespace) -> LoadedTraces:
    """Reads, slices, spreads and merges the traces of the options, and gives every request a text type.

    Text types are drawn per trace from `args.seed`. Raises `TraceError`, and `UsageError` for options that do not fit.
    """
    paths: list[Path] = args.trace
    slices = _one_each(args.slice or [(0.0, None)], paths, "--slice")
    mixes = _one_each(args.text_mix or [OWN_MIX], paths, "--text-mix")
    sources = []
    typed = []
    for number, (path, slice_s, given) in enumerate(zip(paths, slices, mixes, strict=True)):
        mix = None if given == OWN_MIX else parse_text_mix(given)
        # A limit would cut a group of shared arrivals, and what is left of it would be spread otherwise.
        limit = args.limit if args.spread_arrivals is None else None
        trace = load_trace(path, strict=args.strict, from_s=slice_s[0], to_s=slice_s[1], limit=limit, seed=args.seed)
        if args.spread_arrivals is not None:
            trace = spread(trace, args.spread_arrivals)
        used = mix or default_text_mix(trace)
        says_all = all(request.text_type is not None for request in trace.requests)
        sources.append(
            TraceSource(
                path=path,
                trace=trace,
                slice_s=slice_s,
                text_mix=None if says_all else used,
                text_mix_given=mix is not None,
            )
        )
        typed.append(with_text_types(trace, used, args.seed, stream=number))
    return LoadedTraces(trace=merged(typed, limit=args.limit), sources=tuple(sources))


def seconds_from_to(text: str) -> tuple[float, float | None]:
    """`A:B` in seconds; either may be left out, `A:` is open at the end."""
    start, colon, end = text.partition(":")
    try:
        from_s, to_s = float(start or 0.0), float(end) if end else None
    except ValueError:
        colon = ""
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B in seconds")
    if not (0 <= from_s < float("inf") and (to_s is None or from_s < to_s < float("inf"))):
        raise argparse.ArgumentTypeError(f"{text!r} does not run from 0 s or later to a later time")
    return from_s, to_s


def _one_each(values: Sequence[Value], paths: Sequence[Path], option: str) -> list[Value]:
    if len(values) == 1:
        return [values[0]] * len(paths)
    if len(values) != len(paths):
        problem = f"is given {len(values)} times for {len(paths)} traces"
        raise UsageError(option, problem, "give it once, or once per --trace in the same order")
    return list(values)
