"""Real prompts for a trace of token counts: a body of the request's text type, as long as the trace says."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from selector import data
from selector.core.prompttokens import estimate_prompt_tokens
from selector.core.requesttext import extract
from selector.errors import TraceError

_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    """A chat request without model and sampling fields, and its length as routers and emulators estimate it."""

    fields: Mapping[str, Any]
    prompt_tokens: int


class PromptSource:
    """Shipped prompts by text type. The choice for a request depends on the seed and its number alone."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._by_type: dict[str, list[dict[str, Any]]] = {}
        for line in data.read_text(data.PROMPTS).splitlines():
            record = orjson.loads(line)
            self._by_type.setdefault(record["text_type"], []).append(record)

    def body(self, text_type: str, prompt_tokens: int, number: int) -> ChatBody:
        """A body of the type, cut or continued with further prompts of its type to about `prompt_tokens`.

        The last user message is fitted, at 4 UTF-8 bytes a token; what stands around it (other messages, tools) stays
        as it is and may be longer by itself. The estimate that is returned with the body says what came out; for a
        long text of mixed scripts it differs from the bytes. Raises `TraceError` for a type without prompts.
        """
        if text_type not in self._by_type:
            raise TraceError("prompts", f"there is no shipped prompt of type {text_type!r}", "choose another text mix")
        records = self._by_type[text_type]
        order = random.Random(f"prompt:{self._seed}:{number}").sample(range(len(records)), len(records))
        chosen = records[order[0]]
        messages: list[dict[str, Any]] = chosen.get("messages") or [{"role": "user", "content": chosen["prompt"]}]
        fields: dict[str, Any] = {key: chosen[key] for key in ("tools", "response_format") if key in chosen}
        more = [_text_of(records[index]) for index in order[1:]]
        fitted = _fitted({**fields, "messages": messages}, more, prompt_tokens)
        return ChatBody(fields=fitted, prompt_tokens=_length(fitted))


def _length(fields: Mapping[str, Any]) -> int:
    return estimate_prompt_tokens(extract(fields))


def _text_of(record: Mapping[str, Any]) -> str:
    if "prompt" in record:
        return str(record["prompt"])
    return _SEPARATOR.join(str(message.get("content") or "") for message in record["messages"])


def _fitted(fields: dict[str, Any], more: Sequence[str], prompt_tokens: int) -> dict[str, Any]:
    """The body with its last user message cut or continued so that the whole has `prompt_tokens`."""
    messages = list(fields["messages"])
    last = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=len(messages) - 1)
    content = str(messages[last].get("content") or "")
    without = _length(
        {**fields, "messages": [*messages[:last], {**messages[last], "content": ""}, *messages[last + 1 :]]}
    )
    room_bytes = max(4, 4 * (prompt_tokens - without))
    rounds = 0
    while len(content.encode()) < room_bytes:
        content += _SEPARATOR + more[rounds % len(more)]
        rounds += 1
    messages[last] = {**messages[last], "content": content.encode()[:room_bytes].decode("utf-8", "ignore")}
    return {**fields, "messages": messages}
