"""`classify`: the text type of requests read from standard input, one JSON body a line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from selector.cli.classifyacceptance import as_fields, as_words, expected, learnt_acceptance
from selector.core.acceptance import Estimate
from selector.core.texttype import Explanation, RequestText, TextEstimate, TextModel, classify, explain, extract
from selector.core.types import TEXT_TYPES
from selector.errors import InputError
from selector.files.textmodel import shipped_text_model

NAME = "classify"

_EPILOG = """\
examples:
  one request, with what spoke for the answer:
    echo '{"messages": [{"role": "user", "content": "Write a function that sorts a list"}]}' \\
        | drafter-selector classify

  a file of requests, one JSON line out for each line in:
    drafter-selector classify --json < requests.jsonl
    {"id":"a1","text_type":"code","probabilities":{"code":0.86,"math":0.02,...}}

  with the tokens per step that the arms of a fleet are expected to get for it, and how many requests that rests on:
    drafter-selector classify --config fleet.toml < requests.jsonl

A request is the body of /v1/chat/completions, /v1/completions or /generate; an `id` beside its fields is kept. Tools,
a response format and earlier tool results decide before words do. Answers come as lines are read, so a pipe can stay
open. A line that is no request is named on standard error and passed over; the exit code is then 2.
"""

_SHOWN = 3
"""Most types whose probability the readable form shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request and what it is taken to be."""

    id: object
    """`None` if the request has none."""
    text: RequestText
    estimate: TextEstimate


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
    parser.add_argument("--explain", action="store_true", help="with --json: add what spoke for the type")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="fleet file: add the accept length expected on each arm, by profile and acceptance snapshot",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answers line by line; 2 if any line was no request. Raises `InputError` for other files."""
    if sys.stdin.isatty():
        print("reading requests from the terminal, one JSON body a line; Ctrl-D ends", file=sys.stderr)
    model = shipped_text_model()
    acceptance = None if args.config is None else learnt_acceptance(args.config)
    code = 0
    for answer in answers(sys.stdin.buffer, model):
        if isinstance(answer, InputError):
            print(f"drafter-selector {NAME}: {answer}", file=sys.stderr, flush=True)
            code = 2
            continue
        explanation = None
        if args.explain or not args.json:
            explanation = explain(answer.text, model, answer.estimate.text_type)
        lengths = None if acceptance is None else expected(acceptance, answer.estimate)
        shown = _as_json if args.json else _as_text
        print(shown(answer, explanation, lengths), flush=True)
    return code


def answers(lines: Iterable[bytes], model: TextModel) -> Iterator[Answer | InputError]:
    """An answer a request, or what is wrong with its line; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"standard input, line {number}"
        try:
            body = _parsed(line)
        except ValueError as error:
            yield InputError(where, f"not JSON ({error})", "give one JSON object a line")
            continue
        if not isinstance(body, dict):
            yield InputError(where, f"a JSON {_JSON_NAMES[type(body)]}", "give a request body, a JSON object")
            continue
        if isinstance(body.get("id"), float):  # orjson reads integers of more than 64 bits as one
            body["id"] = json.loads(line)["id"]
        text = extract(body)
        yield Answer(id=body.get("id"), text=text, estimate=classify(text, model))


_JSON_NAMES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _parsed(line: bytes) -> object:
    """Raises `ValueError`. What only Python's own reader takes (lone surrogates, long integers) is read by that."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        problem = f"{error.msg}, column {error.colno}"
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(problem) from None


def _as_json(answer: Answer, explanation: Explanation | None, lengths: Mapping[str, Estimate] | None) -> str:
    found: dict[str, object] = {
        "id": answer.id,
        "text_type": answer.estimate.text_type,
        "probabilities": dict(zip(TEXT_TYPES, answer.estimate.probabilities, strict=True)),
    }
    if explanation is not None:
        found["reasons"] = explanation.reasons
        found["signs"] = dict(explanation.signs)
        found["grams"] = dict(explanation.grams)
    if lengths is not None:
        found["acceptance"] = as_fields(lengths)
    try:
        return orjson.dumps(found).decode()
    except orjson.JSONEncodeError:  # an id that only Python's own writer takes
        return json.dumps(found)


def _as_text(answer: Answer, explanation: Explanation | None, lengths: Mapping[str, Estimate] | None) -> str:
    estimate = answer.estimate
    ranked = sorted(zip(estimate.probabilities, TEXT_TYPES, strict=True), reverse=True)
    shown = ", ".join(f"{text_type} {probability:.2f}" for probability, text_type in ranked[:_SHOWN])
    shown_id = "-" if answer.id is None else json.dumps(answer.id) if not isinstance(answer.id, str) else answer.id
    rows: dict[str, str] = {"probabilities": shown, "structure": _structure(answer.text)}
    if explanation is not None:
        rows["reasons"] = "; ".join(explanation.reasons)
        rows["learned signs"] = _weighted(dict(explanation.signs))
        rows["learned n-grams"] = _weighted({json.dumps(gram): nats for gram, nats in explanation.grams})
    if lengths is not None:
        rows["accept lengths"] = as_words(lengths)
    lines = [f"{shown_id}: {estimate.text_type}", *(f"  {name:<16} {row}" for name, row in rows.items() if row)]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()


def _structure(text: RequestText) -> str:
    """The facts of a request's form that are not as usual."""
    facts = [f"{text.total_chars:,} characters"]
    if text.messages:
        facts.append(f"{text.messages} messages ({', '.join(dict.fromkeys(text.roles))})")
    if text.has_tools:
        facts.append(f"{text.tools} tools")
    if text.tool_calls or text.tool_messages:
        facts.append(f"{text.tool_calls} tool calls, {text.tool_messages} results")
    if text.output_format:
        facts.append(f"answer bound to {text.output_format}")
    if text.code_fence_frac:
        facts.append(f"{text.code_fence_frac:.0%} between code fences")
    if text.token_ids is not None:
        facts.append(f"{text.token_ids} token ids")
    return ", ".join(facts)


def _weighted(nats: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:+.2f}" for name, weight in nats.items())
