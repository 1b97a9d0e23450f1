"""Bounded reading of what may be long: a few items of a list, the ends of a text, the size of a text.

Every function here takes time that does not grow with the length of what it reads, beyond slicing what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

EXAMINED_ITEMS = 256
"""Most messages, parts or prompts of one list that are visited: the first quarter, and the rest from the end."""

_EXACT_BYTES_CHARS = 4_096
_PIECE_CHARS = 512

_Item = TypeVar("_Item")


def ends(items: list[_Item]) -> tuple[list[_Item], float]:
    """The items to visit, and how many items stand behind each one visited (1 unless the list is long)."""
    if len(items) <= EXAMINED_ITEMS:
        return items, 1.0
    first = EXAMINED_ITEMS // 4
    return items[:first] + items[first - EXAMINED_ITEMS :], len(items) / EXAMINED_ITEMS


def content_texts(content: object) -> tuple[list[str], float]:
    """The texts of a message's content (a string, or a list of parts), and how many stand behind each.

    Parts that are not text, such as pictures, are passed over; so is content of the wrong type.
    """
    if isinstance(content, str):
        return [content], 1.0
    if not isinstance(content, list):
        return [], 1.0
    parts, scale = ends(content)
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return [text for text in texts if isinstance(text, str)], scale


def sample(texts: Sequence[str], head_chars: int, tail_chars: int) -> str:
    """The texts one to a line, if they fit in both budgets together; otherwise their start and their end.

    Never longer than `head_chars + tail_chars`.
    """
    if not texts:
        return ""
    if sum(map(len, texts)) + len(texts) <= head_chars + tail_chars:
        return "\n".join(texts)
    head, tail = _start(texts, head_chars - 1), _end(texts, tail_chars)
    return f"{head}\n{tail}"


def _start(texts: Sequence[str], budget_chars: int) -> str:
    """The first `budget_chars` characters of the texts, one to a line."""
    taken: list[str] = []
    for text in texts:
        if budget_chars <= 0:
            break
        taken.append(text[:budget_chars])
        budget_chars -= len(taken[-1]) + 1
    return "\n".join(taken)


def _end(texts: Sequence[str], budget_chars: int) -> str:
    """The last `budget_chars` characters of the texts, one to a line."""
    taken: list[str] = []
    for text in reversed(texts):
        if budget_chars <= 0:
            break
        taken.append(text[-budget_chars:])
        budget_chars -= len(taken[-1]) + 1
    return "\n".join(reversed(taken))


def utf8_bytes(text: str) -> int:
    """UTF-8 length; of a long text that is not ASCII, from the bytes per character of its start, middle and end."""
    if text.isascii():
        return len(text)
    if len(text) <= _EXACT_BYTES_CHARS:
        return len(text.encode("utf-8", "surrogatepass"))
    middle = len(text) // 2
    pieces = text[:_PIECE_CHARS] + text[middle : middle + _PIECE_CHARS] + text[-_PIECE_CHARS:]
    return round(len(text) * len(pieces.encode("utf-8", "surrogatepass")) / len(pieces))
