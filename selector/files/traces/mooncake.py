"""Mooncake: JSONL with timestamp (ms), input_length, output_length and hash_ids.

Source: https://github.com/kvcache-ai/Mooncake, FAST25-release. `hash_ids` are ids of the prompt's blocks of 512 tokens:
requests with equal leading ids share that much of a prompt. Arrivals of the conversation trace come in steps of about
3,000 ms; they are kept as published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain

import orjson

from selector.files.traces.request import BadRow
from selector.files.traces.rows import MAX_TOKENS, Format, Item, Line, Row

BLOCK_TOKENS = 512

_FIELDS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def _recognises(first_line: bytes) -> bool:
    try:
        record = orjson.loads(first_line)
    except orjson.JSONDecodeError:
        return False
    # Exactly these fields: other traces of this family have more of them, and blocks of another size.
    return isinstance(record, dict) and record.keys() == _FIELDS


def _read(first: Line, lines: Iterable[Line]) -> Iterator[Item]:
    # Prompts share blocks: one int object per id, however many prompts have it.
    one_per_id: dict[int, int] = {}
    for number, line in chain([first], lines):
        try:
            yield _row(number, line, one_per_id)
        except ValueError as problem:
            yield BadRow(line=number, problem=str(problem))


def _row(number: int, line: bytes, one_per_id: dict[int, int]) -> Row:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as bad:
        raise ValueError(f"is not JSON ({bad})") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    missing = sorted(_FIELDS - record.keys())
    if missing:
        raise ValueError(f"has no {', '.join(missing)}")
    arrival_ms = record["timestamp"]
    if type(arrival_ms) not in (int, float) or not (math.isfinite(arrival_ms) and arrival_ms >= 0):
        raise ValueError(f"timestamp is {arrival_ms!r:.40}, not a number of ms, 0 or more")
    prompt_tokens, output_tokens = _tokens(record, "input_length"), _tokens(record, "output_length")
    ids = record["hash_ids"]
    if not isinstance(ids, list) or any(type(one) is not int for one in ids):
        raise ValueError(f"hash_ids is {ids!r:.40}, not a list of whole numbers")
    if len(ids) != -(-prompt_tokens // BLOCK_TOKENS):
        raise ValueError(f"hash_ids has {len(ids)} blocks of {BLOCK_TOKENS} for {prompt_tokens} tokens")
    return Row(
        number,
        arrival_ms / 1e3,
        prompt_tokens,
        output_tokens,
        prefix_hashes=tuple(map(one_per_id.setdefault, ids, ids)),
        prefix_block_tokens=BLOCK_TOKENS,
    )


def _tokens(record: dict[str, object], field: str) -> int:
    value = record[field]
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{field} is {value!r:.40}, not a whole number between 1 and {MAX_TOKENS}")
    return value


FORMAT = Format(
    name="mooncake",
    looks_like="a JSON object of timestamp, input_length, output_length and hash_ids (Mooncake)",
    recognises=_recognises,
    read=_read,
)
