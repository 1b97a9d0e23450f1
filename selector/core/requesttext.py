"""The text and the structure of a request body, as far as they tell what kind of text the answer will be.

Reads the bodies of `/v1/chat/completions` (`messages`), `/v1/completions` (`prompt`) and SGLang's `/generate` (`text`
or `input_ids`). A body may be malformed: what has the wrong type is passed over, never raised on, because the server
that gets the body is the one to refuse it.

Work is bounded: of a long text only the start and the end are copied, of a long list only some items are visited
(`selector.core.textsample`), and lengths are scaled up from those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from selector.core.quickinit import quick_init, quick_maker
from selector.core.requestneeds import offered_tools, output_format
from selector.core.textsample import content_texts, ends, sample, utf8_bytes

TEXT_HEAD_CHARS = 512
TEXT_TAIL_CHARS = 256
TEXT_SAMPLE_CHARS = TEXT_HEAD_CHARS + TEXT_TAIL_CHARS
"""Most characters of `RequestText.text`. The start holds the instruction or the first turn, the end the last turn."""
SYSTEM_HEAD_CHARS = 1_024
SYSTEM_TAIL_CHARS = 512
SYSTEM_SAMPLE_CHARS = SYSTEM_HEAD_CHARS + SYSTEM_TAIL_CHARS
"""Most characters of `RequestText.system`."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestText:
    """A request as the text classifier sees it: bounded text and the facts of its structure."""

    text: str = ""
    """Start and end of everything that is not a system prompt: the turns in order, or the prompt."""
    system: str = ""
    """Start and end of the system (or developer) messages."""
    total_chars: int = 0
    """Characters of all text, system prompts included; tools are not."""
    total_bytes: int = 0
    """UTF-8 bytes of the same; measured on pieces where a long text is not ASCII."""
    longest_chars: int = 0
    """Characters of the longest message or prompt that is not a system message."""
    code_fence_frac: float = 0.0
    """Share of `text` between code fences, 0 to 1."""
    roles: tuple[str, ...] = ()
    """The role of each chat message visited, in order; what is not a known role is `other`."""
    messages: int = 0
    """Chat messages; 0 when the body is not a chat."""
    tool_calls: int = 0
    """Tool calls in the assistant's earlier turns."""
    tools: int = 0
    """Tools that the request offers."""
    tools_bytes: int = 0
    """Their size as compact JSON, which is about what a chat template renders."""
    output_format: str | None = None
    """What constrains the answer (see `requestneeds.output_format`), or `None`."""
    token_ids: int | None = None
    """Exact prompt length, when the prompt came as token ids."""

    @property
    def has_tools(self) -> bool:
        """Whether the request offers tools."""
        return self.tools > 0

    @property
    def wants_json(self) -> bool:
        """Whether the request's fields (not its words) ask for JSON."""
        return self.output_format in ("json_schema", "json_object")

    @property
    def tool_messages(self) -> int:
        """Messages that carry the result of a tool."""
        return self.roles.count("tool")

    @property
    def is_dialogue(self) -> bool:
        """Whether the model has answered before in this chat."""
        return "assistant" in self.roles

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to judge: no readable text, no tools, no output format."""
        return not (self.tools or self.output_format or self.text.strip() or self.system.strip())


_make_text = quick_maker(RequestText)
_ROLES = {"developer": "system", "function": "tool"} | {role: role for role in ("system", "user", "assistant", "tool")}


class _Tally:
    """Adds up texts: keeps them for sampling, counts characters and bytes."""

    __slots__ = ("byte_count", "chars", "longest_chars", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.chars = self.byte_count = self.longest_chars = 0.0

    def add(self, texts: Sequence[str], scale: float) -> None:
        """Adds the texts of one message; `scale` is how many texts stand behind each one given."""
        chars = scale * sum(map(len, texts))
        self.texts.extend(texts)
        self.chars += chars
        self.byte_count += scale * sum(map(utf8_bytes, texts))
        if chars > self.longest_chars:
            self.longest_chars = chars


def extract(body: Mapping[str, object]) -> RequestText:
    """The text and structure of a request body. Never raises on what the body holds."""
    messages = body.get("messages")
    if isinstance(messages, list):
        return _extract_chat(body, messages)
    prompts = (body.get(name) for name in ("prompt", "text", "input_ids"))
    return _extract_prompt(body, next((prompt for prompt in prompts if prompt is not None), ""))


def _extract_chat(body: Mapping[str, object], messages: list[object]) -> RequestText:
    visited, scale = ends(messages)
    system, dialogue = _Tally(), _Tally()
    roles: list[str] = []
    tool_calls = 0
    for message in visited:
        if not isinstance(message, dict):
            continue
        named = message.get("role")
        role = _ROLES.get(named, "other") if isinstance(named, str) else "other"
        roles.append(role)
        texts, parts_scale = content_texts(message.get("content"))
        if "tool_calls" in message or "function_call" in message:
            arguments = _call_arguments(message)
            tool_calls += len(arguments)
            texts = [*texts, *arguments]
        (system if role == "system" else dialogue).add(texts, parts_scale)
    tools = offered_tools(body)
    text = sample(dialogue.texts, TEXT_HEAD_CHARS, TEXT_TAIL_CHARS)
    return _make_text(
        text=text,
        system=sample(system.texts, SYSTEM_HEAD_CHARS, SYSTEM_TAIL_CHARS),
        total_chars=round(scale * (system.chars + dialogue.chars)),
        total_bytes=round(scale * (system.byte_count + dialogue.byte_count)),
        longest_chars=round(dialogue.longest_chars),
        code_fence_frac=_code_fence_frac(text),
        roles=tuple(roles),
        messages=len(messages),
        tool_calls=tool_calls,
        tools=len(tools),
        tools_bytes=_json_bytes(tools),
        output_format=output_format(body),
    )


def _extract_prompt(body: Mapping[str, object], prompt: object) -> RequestText:
    """`prompt` is a text or token ids, or a list of either (a batch)."""
    prompts: list[object] = prompt if isinstance(prompt, list) else [prompt]
    token_ids: int | None = None
    tally = _Tally()
    if prompts and isinstance(prompts[0], int):
        token_ids = len(prompts)
    else:
        visited, scale = ends(prompts)
        texts = [item for item in visited if isinstance(item, str)]
        id_lists = [item for item in visited if isinstance(item, list)]
        tally.add(texts, scale)
        if id_lists:
            token_ids = round(scale * sum(map(len, id_lists)))
    tools = offered_tools(body)
    text = sample(tally.texts, TEXT_HEAD_CHARS, TEXT_TAIL_CHARS)
    return _make_text(
        text=text,
        total_chars=round(tally.chars),
        total_bytes=round(tally.byte_count),
        longest_chars=max(map(len, tally.texts), default=0),
        code_fence_frac=_code_fence_frac(text),
        tools=len(tools),
        tools_bytes=_json_bytes(tools),
        output_format=output_format(body),
        token_ids=token_ids,
    )


def _call_arguments(message: Mapping[str, object]) -> list[str]:
    """The arguments of a message's tool calls, one string a call (empty where they are not a string)."""
    calls, older_call = message.get("tool_calls"), message.get("function_call")
    listed: list[object] = ends(calls)[0] if isinstance(calls, list) else []
    functions = [call.get("function") for call in listed if isinstance(call, Mapping)]
    functions.append(older_call)
    arguments = [function.get("arguments") for function in functions if isinstance(function, Mapping)]
    return [argument if isinstance(argument, str) else "" for argument in arguments]


def _code_fence_frac(text: str) -> float:
    if "```" not in text:
        return 0.0
    return sum(map(len, text.split("```")[1::2])) / len(text)


def _json_bytes(value: list[object]) -> int:
    """Size as compact JSON; 0 for an empty list, and for what JSON cannot hold."""
    if not value:
        return 0
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return 0
