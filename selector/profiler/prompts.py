"""Real prompts by text type for a measurement of acceptance, drawn so that no two repeats share one.

A drafter that looks tokens up (NGRAM) remembers what its server answered: a prompt sent twice is answered from memory
the second time, and its accept length says nothing any more. The repeats of a type therefore draw disjoint prompts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from selector import data
from selector.core.types import TEXT_TYPES
from selector.errors import InputError
from selector.files.validation import read_text

_FIELDS = ("tools", "response_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A chat request without model and sampling fields."""

    id: str
    fields: Mapping[str, Any]


def load_prompts(path: Path | None) -> dict[str, list[Prompt]]:
    """Prompts by text type: of a JSONL file, of every `*.jsonl` of a folder, or the shipped ones for `None`.

    A line holds `text_type`, `prompt` (a string) or `messages` (of a chat), and optionally `id`, `tools` and
    `response_format`. Raises `InputError`.
    """
    if path is None:
        return _parsed(data.read_text(data.PROMPTS), "shipped prompts")
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise InputError(str(path), "holds no *.jsonl", "name a folder or file of prompts")
    by_type: dict[str, list[Prompt]] = {}
    for file in files:
        for text_type, prompts in _parsed(read_text(file, "prompt file", InputError), str(file)).items():
            by_type.setdefault(text_type, []).extend(prompts)
    return by_type


def drawn(prompts: Sequence[Prompt], *, count: int, repeats: int, seed: int) -> list[list[Prompt]]:
    """`repeats` disjoint draws of `count` prompts each, of fewer where there are not enough; empty ones if there are
    fewer prompts than repeats."""
    order = random.Random(f"acceptance:{seed}").sample(range(len(prompts)), len(prompts))
    each = min(count, len(prompts) // repeats)
    return [[prompts[index] for index in order[n * each : (n + 1) * each]] for n in range(repeats)]


def _parsed(text: str, where: str) -> dict[str, list[Prompt]]:
    by_type: dict[str, list[Prompt]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            text_type, prompt = _prompt(line, number, where)
            by_type.setdefault(text_type, []).append(prompt)
    return by_type


def _prompt(line: str, number: int, where: str) -> tuple[str, Prompt]:
    place = f"{where}: line {number}"
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as bad:
        raise InputError(place, f"is not JSON ({bad})", "correct or remove that line") from None
    if not isinstance(record, dict) or record.get("text_type") not in TEXT_TYPES:
        raise InputError(place, "has no known text_type", f"use one of {', '.join(TEXT_TYPES)}")
    messages = record.get("messages")
    if not messages and isinstance(record.get("prompt"), str):
        messages = [{"role": "user", "content": record["prompt"]}]
    if not isinstance(messages, list) or not messages:
        raise InputError(place, "has neither a prompt nor messages", "correct or remove that line")
    fields = {"messages": messages, **{name: record[name] for name in _FIELDS if record.get(name)}}
    return record["text_type"], Prompt(id=str(record.get("id", number)), fields=fields)
