"""Keys that are equal for a shared prompt prefix, in every process."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.sessionkey import session_key


def chat(*turns: str, system: str | None = "Be brief.") -> dict[str, Any]:
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return {"messages": [{"role": "system", "content": system}, *messages] if system else messages}


def test_a_key_is_the_same_in_every_process() -> None:
    assert session_key(chat("Hello")) == "70cb25091348fec3"
    assert session_key({"prompt": "Hello"}) == "42300a5cb10ebacf"
    assert session_key({"prompt": "\ud800"}) == "86079cbfd8a067ee"


def test_a_chat_keeps_its_key_while_it_grows() -> None:
    assert session_key(chat("Hello", "Hi!", "What now?")) == session_key(chat("Hello"))


@pytest.mark.parametrize(
    "other",
    [
        chat("Good bye"),
        chat("Hello", system="Be verbose."),
        chat("Hello", system=None),
        {"prompt": "Be brief.\x1fHello"},
        {**chat("Hello"), "prompt_cache_key": "mine"},
    ],
)
def test_another_opening_is_another_key(other: dict[str, Any]) -> None:
    assert session_key(other) not in (None, session_key(chat("Hello")))


def test_content_parts_and_who_asks_make_no_difference() -> None:
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], "user": "anna"}
    assert session_key(parts) == session_key(chat("Hello", system=None))


def test_the_client_may_name_the_prefix() -> None:
    first = {**chat("Hello"), "prompt_cache_key": "tenant-7"}
    second = {**chat("Good bye"), "prompt_cache_key": "tenant-7"}
    assert session_key(first) == session_key(second)


def test_prompts_that_start_alike_share_a_key() -> None:
    start = "You are a translator. " * 20
    assert session_key({"prompt": start + "one"}) == session_key({"text": [start + "two"]})
    assert session_key({"prompt": "one"}) != session_key({"prompt": "two"})


def test_token_ids_that_start_alike_share_a_key() -> None:
    assert session_key({"input_ids": [*range(64), 1]}) == session_key({"input_ids": [[*range(64), 2]]})
    assert session_key({"input_ids": [1, 2]}) != session_key({"input_ids": [12]})


@pytest.mark.parametrize(
    "body", [{}, {"messages": []}, {"messages": [None, {"role": 3}]}, {"prompt": ""}, {"prompt": 7}, {"input_ids": []}]
)
def test_nothing_to_tell_by(body: dict[str, Any]) -> None:
    assert session_key(body) is None
