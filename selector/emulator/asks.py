"""Request bodies, read as SGLang reads them and refused as it refuses them.

    /v1/chat/completions   messages   max_completion_tokens or max_tokens, else as long as the context allows
    /v1/completions        prompt     max_tokens, likewise
    /generate              text or input_ids, and sampling_params with max_new_tokens, else 128

How long an answer is: as long as the limit when `ignore_eos` is set. Otherwise a length is drawn around a mean; a drawn
length within the limit ends with an end token (finish reason `stop`), a longer one is cut at the limit (`length`).

Two request headers give an experiment the ground truth that a router in front must not read:
    x-emulated-text-type   the text type whose accept length the request gets, instead of the classifier's
    x-emulated-draw-key    an integer: requests with equal keys draw the same lengths, and the same luck with their
                           drafts step by step, on every server of the same seed; without it, a hash of the prompt
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from statistics import NormalDist

import orjson

from selector.core.enginefields import target_in, text_type_in
from selector.core.prompttokens import estimate_prompt_tokens
from selector.core.requesttext import extract
from selector.core.texttype import classify
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE
from selector.emulator.generation import Order
from selector.emulator.refusals import Refusal
from selector.files.textmodel import shipped_text_model

TEXT_TYPE_HEADER = "x-emulated-text-type"
DRAW_KEY_HEADER = "x-emulated-draw-key"

DEFAULT_MEAN_OUTPUT_TOKENS = 250.0
DEFAULT_MODEL = "default"
"""The model name that SGLang repeats when a request names none."""

_NATIVE_MAX_NEW_TOKENS = 128
_LENGTH_SIGMA = 0.6
"""Standard deviation of the logarithm of a drawn answer length."""
_RESERVED_TOKENS = 5
"""What SGLang keeps free of a request's longest possible input."""
_INTEGER = re.compile(r"[+-]?\d{1,19}")
_STANDARD_NORMAL = NormalDist()


class Api(StrEnum):
    """The three ways to ask for an answer."""

    CHAT = "chat"
    COMPLETION = "completion"
    NATIVE = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server allows one request."""

    context_tokens: int
    kv_tokens: int
    mean_output_tokens: float = DEFAULT_MEAN_OUTPUT_TOKENS

    @property
    def request_tokens(self) -> int:
        """Prompt and answer together."""
        return min(self.context_tokens, self.kv_tokens) - 1

    @property
    def input_tokens(self) -> int:
        """Prompts must be shorter than this."""
        return self.request_tokens - _RESERVED_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Order):
    """What a request asks for: an order for the engine, and how the answer is to be written."""

    model: str
    ends_itself: bool
    """Whether the last token is an end token (finish reason `stop`) or the answer is cut there (`length`)."""
    include_usage: bool
    continuous_usage: bool
    spec_details: bool
    meta_info: bool


def parse_body(data: bytes) -> dict[str, object]:
    """The JSON object of a request. Raises `Refusal`."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as bad:
        raise Refusal.of_schema("json_invalid", ("body", bad.pos), "JSON decode error", {}) from None
    if not isinstance(body, dict):
        raise Refusal.of_schema("model_attributes_type", ("body",), "Input should be a valid dictionary", body)
    return body


def read_ask(
    api: Api, body: Mapping[str, object], header: Callable[[str], str | None], limits: Limits, *, drafts: bool
) -> Ask:
    """What `body` asks for; `header` looks a request header up. Raises `Refusal`.

    The text type is only worked out where it matters, on a server that drafts.
    """
    options = body
    prompt = _prompt(api, body)
    if api is Api.NATIVE:
        options = _mapping(body, "sampling_params")
    limit = _limit(api, options, limits)
    _check_sampling(api, options)
    text = extract(body)
    prompt_tokens = estimate_prompt_tokens(text)
    if prompt_tokens >= limits.context_tokens:
        raise Refusal.of_value(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length "
            f"({limits.context_tokens} tokens)."
        )
    if limit is not None and limit + prompt_tokens > limits.context_tokens:
        raise Refusal.of_value(
            f"Requested token count exceeds the model's maximum context length of {limits.context_tokens} tokens. You "
            f"requested a total of {limit + prompt_tokens} tokens: {prompt_tokens} tokens from the input messages and "
            f"{limit} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit."
        )
    if prompt_tokens >= limits.input_tokens:
        raise Refusal.of_value(
            f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length ({limits.input_tokens} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )
    room = limits.request_tokens - prompt_tokens - 1
    cut = room if limit is None else min(limit, room)
    draw_key = _draw_key(header(DRAW_KEY_HEADER), prompt)
    drawn = drawn_answer_tokens(draw_key, limits.mean_output_tokens)
    ends_itself = drawn <= cut and options.get("ignore_eos") is not True
    text_type = UNKNOWN_TEXT_TYPE
    if drafts:
        given = header(TEXT_TYPE_HEADER)
        text_type = given if given in TEXT_TYPES else classify(text, shipped_text_model()).text_type
    stream_options = _mapping(body, "stream_options")
    rid, model = body.get("rid"), body.get("model")
    return Ask(
        rid=rid if isinstance(rid, str) and rid else uuid.uuid4().hex,
        model=model if isinstance(model, str) else DEFAULT_MODEL,
        prompt_tokens=prompt_tokens,
        answer_tokens=drawn if ends_itself else cut,
        ends_itself=ends_itself,
        text_type=text_type,
        draw_key=draw_key,
        tbt_target_ms=target_in(options.get("custom_params")),
        told_text_type=text_type_in(options.get("custom_params")),
        stream=body.get("stream") is True,
        include_usage=stream_options.get("include_usage") is True,
        continuous_usage=stream_options.get("continuous_usage_stats") is True,
        spec_details=body.get("return_spec_tokens_details") is True,
        meta_info=api is Api.CHAT and body.get("return_meta_info") is True,
    )


def drawn_answer_tokens(draw_key: int, mean_tokens: float) -> int:
    """A length for an answer that ends by itself, at least 2 (a word and the end token): log-normal around the mean."""
    digest = blake2b(draw_key.to_bytes(16, "little", signed=True), digest_size=8, person=b"length").digest()
    uniform = (int.from_bytes(digest, "little") + 0.5) / 2**64
    deviation = _STANDARD_NORMAL.inv_cdf(uniform)
    return max(2, round(mean_tokens * math.exp(_LENGTH_SIGMA * deviation - _LENGTH_SIGMA**2 / 2)))


def _prompt(api: Api, body: Mapping[str, object]) -> object:
    """The part of the body that is the prompt."""
    if api is Api.CHAT:
        messages = body.get("messages")
        if messages is None:
            raise Refusal.of_schema("missing", ("body", "messages"), "Field required", body)
        if not isinstance(messages, list):
            raise Refusal.of_schema("list_type", ("body", "messages"), "Input should be a valid list", messages)
        if not messages:
            raise Refusal.of_value("Messages cannot be empty.")
        if body.get("return_meta_info") is True and body.get("stream") is True:
            raise Refusal.of_value(
                "return_meta_info is not supported with streaming. Please set stream=false when using "
                "return_meta_info=true.",
                error_type="BadRequest",
            )
        return messages
    if api is Api.COMPLETION:
        if "prompt" not in body:
            raise Refusal.of_schema("missing", ("body", "prompt"), "Field required", body)
        prompt = body["prompt"]
        if not prompt:
            raise Refusal.of_value("Prompt cannot be empty")
    else:
        prompt = body.get("text") if body.get("text") is not None else body.get("input_ids")
        if prompt is None:
            raise Refusal.of_value("Either text, input_ids or input_embeds should be provided.")
    if isinstance(prompt, list) and len(prompt) != 1 and not all(isinstance(token, int) for token in prompt):
        raise Refusal.of_value(f"The emulator answers one prompt per request, got {len(prompt)}.")
    return prompt


def _limit(api: Api, options: Mapping[str, object], limits: Limits) -> int | None:
    """The bound on the answer that the request sets."""
    if api is Api.NATIVE:
        given = options.get("max_new_tokens", _NATIVE_MAX_NEW_TOKENS)
        if given is None:
            return None
        if not isinstance(given, int):
            raise Refusal.of_value(f"max_new_tokens must be an integer, got {given!r}.")
        limit = given
    else:
        names = ("max_completion_tokens", "max_tokens") if api is Api.CHAT else ("max_tokens",)
        found = [number for number in (_integer(options, name) for name in names) if number is not None]
        if not found:
            return None
        limit = found[0]
        if api is Api.COMPLETION and limit <= 0:
            raise Refusal.of_schema(
                "value_error", ("body", "max_tokens"), "Value error, max_tokens must be positive", limit
            )
        if api is Api.CHAT and limit > limits.context_tokens:
            raise Refusal.of_value(
                f"max_completion_tokens is too large: {limit}."
                f"This model supports at most {limits.context_tokens} completion tokens."
            )
    if limit < 0:
        raise Refusal.of_value(f"max_new_tokens must be at least 0, got {limit}.")
    return limit


def _check_sampling(api: Api, options: Mapping[str, object]) -> None:
    temperature = _number(api, options, "temperature")
    if temperature is not None and not 0.0 <= temperature < math.inf:
        raise Refusal.of_value(f"temperature must be a non-negative finite number, got {temperature}.")
    top_p = _number(api, options, "top_p")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise Refusal.of_value(f"top_p must be in (0, 1], got {top_p}.")
    choices = options.get("n")
    if choices not in (None, 1):
        raise Refusal.of_value(f"The emulator generates one choice per request, got n = {choices!r}.")


def _mapping(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal.of_schema("dict_type", ("body", name), "Input should be a valid dictionary", value)
    return value


def _integer(options: Mapping[str, object], name: str) -> int | None:
    value = options.get(name)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise Refusal.of_schema("int_parsing", ("body", name), "Input should be a valid integer", value)


def _number(api: Api, options: Mapping[str, object], name: str) -> float | None:
    """A number; the OpenAI routes make a float of it (and say so in messages), `/generate` takes it as it is."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, int | float):
        return value if api is Api.NATIVE else float(value)
    raise Refusal.of_schema("float_parsing", ("body", name), "Input should be a valid number", value)


def _draw_key(given: str | None, prompt: object) -> int:
    if given is not None and _INTEGER.fullmatch(given):
        return int(given)
    return int.from_bytes(blake2b(orjson.dumps(prompt), digest_size=8).digest(), "little")
