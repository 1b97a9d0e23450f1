"""`classify`: the text type of requests read from standard input, one JSON body a line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator

import orjson

from selector.core.texttype import TextEstimate, classify, extract
from selector.core.types import TEXT_TYPES
from selector.errors import InputError

NAME = "classify"

_EPILOG = """\
examples:
  one request, readable:
    echo '{"messages": [{"role": "user", "content": "Write a function that sorts a list"}]}' \\
        | drafter-selector classify

  a file of requests, one JSON line out for each line in:
    drafter-selector classify --json < requests.jsonl
    {"id":"a1","text_type":"code","probabilities":{"code":0.86,"math":0.02,...}}

A request is the body of /v1/chat/completions, /v1/completions or /generate; an `id` beside its fields is kept. Tools,
a response format and earlier tool results decide before words do. Answers come as lines are read, so a pipe can stay
open.
"""

_ROW = "{:<24} {:<18} {:>5}  {:<24}  {}"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="the text type of requests on standard input",
        description="Says what type of text each request on standard input asks for, how sure that is, and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line a request: id, text_type, probabilities"
    )
    parser.add_argument("--explain", action="store_true", help="with --json: add the reasons, strongest first")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answers line by line. Raises `InputError` at the first line that is no request; those before are answered."""
    if sys.stdin.isatty():
        print("reading requests from the terminal, one JSON body a line; Ctrl-D ends", file=sys.stderr)
    if not args.json:
        print(_ROW.format("id", "text type", "p", "next", "because"), flush=True)
    for request_id, estimate in classified(sys.stdin.buffer):
        answer = _as_json(request_id, estimate, explain=args.explain) if args.json else _as_row(request_id, estimate)
        print(answer, flush=True)
    return 0


def classified(lines: Iterable[bytes]) -> Iterator[tuple[object, TextEstimate]]:
    """The `id` (`None` if it has none) and the estimate of each request; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"standard input, line {number}"
        try:
            body = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problem = f"not JSON ({error.msg}, column {error.colno})"
            raise InputError(where, problem, "give one JSON object a line") from None
        if not isinstance(body, dict):
            raise InputError(where, f"a JSON {_JSON_NAMES[type(body)]}", "give a request body, a JSON object")
        yield body.get("id"), classify(extract(body))


_JSON_NAMES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _as_json(request_id: object, estimate: TextEstimate, *, explain: bool) -> str:
    answer: dict[str, object] = {
        "id": request_id,
        "text_type": estimate.text_type,
        "probabilities": dict(zip(TEXT_TYPES, estimate.probabilities, strict=True)),
    }
    if explain:
        answer["reasons"] = estimate.reasons
    return orjson.dumps(answer).decode()


def _as_row(request_id: object, estimate: TextEstimate) -> str:
    (first, _), (second, second_type) = sorted(zip(estimate.probabilities, TEXT_TYPES, strict=True), reverse=True)[:2]
    shown_id = "-" if request_id is None else str(request_id)
    return _ROW.format(
        shown_id, estimate.text_type, f"{first:.2f}", f"{second_type} {second:.2f}", "; ".join(estimate.reasons)
    )
