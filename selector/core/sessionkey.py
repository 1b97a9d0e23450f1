"""Which requests share a prompt prefix, told from their bodies alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from selector.core.textsample import EXAMINED_ITEMS, content_texts, sample

_END_CHARS = 1_024
_PROMPT_CHARS = 256
_TOKEN_IDS = 64
_SYSTEM_ROLES = frozenset({"system", "developer"})


def session_key(body: Mapping[str, object]) -> str | None:
    """A key that is equal for requests which share a prompt prefix, and stays the same over the turns of a chat.

    The client's own `prompt_cache_key` decides, if it sends one. Otherwise what does not change while a chat grows:
    the system prompt and the first user message (the first and last 1,024 characters of each); of a plain prompt the
    first 256 characters, of token ids the first 64. The `user` field is not used: it tells who asks, not how the prompt
    starts. 16 hexadecimal digits, the same in every process; `None` when there is nothing to tell by.
    """
    cache_key = body.get("prompt_cache_key")
    if isinstance(cache_key, str) and cache_key:
        return _digest("cache_key", cache_key)
    messages = body.get("messages")
    if isinstance(messages, list):
        opening = _opening(messages)
        return _digest("chat", *opening) if any(opening) else None
    for field in ("prompt", "text", "input_ids"):
        prompt = _first_prompt(body.get(field))
        if isinstance(prompt, str) and prompt:
            return _digest("prompt", prompt[:_PROMPT_CHARS])
        if isinstance(prompt, list) and prompt:
            return _digest("ids", *(str(token) for token in prompt[:_TOKEN_IDS] if isinstance(token, int)))
    return None


def system_prompt_key(body: Mapping[str, object]) -> str | None:
    """A key that is equal for requests of one system prompt, whatever is asked; `None` without one."""
    messages = body.get("messages")
    system = _opening(messages)[0] if isinstance(messages, list) else ""
    return _digest("system", system) if system else None


def refine_key(body: Mapping[str, object], headers: Mapping[str, str], refine: str | None) -> str | None:
    """The key by which the fleet file's `acceptance.refine` tells requests apart; `None` where it does not.

    The value of a header is digested: keys are kept and shown, and a header may hold what should not be.
    """
    if refine is None:
        return None
    if refine == "session":
        return session_key(body)
    if refine == "system_prompt":
        return system_prompt_key(body)
    value = headers.get(refine.removeprefix("header:"))
    return _digest("header", value) if value else None


def _opening(messages: list[object]) -> tuple[str, str]:
    """Bounded text of the system messages before the first user message, and of that message."""
    system: list[str] = []
    for message in messages[:EXAMINED_ITEMS]:
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        texts, _ = content_texts(message.get("content"))
        if role == "user":
            return _bounded(system), _bounded(texts)
        if isinstance(role, str) and role in _SYSTEM_ROLES:
            system.extend(texts)
    return _bounded(system), ""


def _bounded(texts: Sequence[str]) -> str:
    return sample(texts, _END_CHARS, _END_CHARS)


def _first_prompt(prompt: object) -> object:
    """The first prompt of a batch, or the prompt itself."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return prompt[0]
    return prompt


def _digest(*parts: str) -> str:
    joined = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return blake2b(joined, digest_size=8).hexdigest()
