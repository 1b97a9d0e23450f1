"""From a client's headers and body to what a policy may know of the request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from selector.core.prompttokens import estimate_prompt_tokens
from selector.core.requestneeds import needs
from selector.core.requesttext import extract
from selector.core.sessionkey import refine_key, session_key
from selector.core.texttype import classify
from selector.core.types import TEXT_TYPES, RequestView, make_request_view
from selector.files.fleet import Fleet
from selector.files.textmodel import shipped_text_model
from selector.router.answers import RefusedRequest
from selector.router.routes import Dialect, Route

TARGET_HEADERS = ("x-tbt-target-ms", "x-slo-tpot-ms")
"""Milliseconds per token that the client asks for; the first one given counts."""
CLASS_HEADER = "x-slo-class"
TEXT_TYPE_HEADER = "x-text-type"
_OWN_HEADERS = frozenset({*TARGET_HEADERS, CLASS_HEADER, TEXT_TYPE_HEADER})

_SGLEXT_FIELDS = frozenset(
    {
        "return_spec_tokens_details",
        "return_cached_tokens_details",
        "return_routed_experts",
        "return_input_ids_in_sglext",
        "return_output_ids_in_sglext",
    }
)

_SGLEXT_HEADER_PREFIX = "x-sglext-"
_PROMPT_FIELDS = ("prompt", "text", "input_ids")
_MOST_TEMPERATURE = 100.0

ExpectedOutput = Callable[[str, int | None, Sequence[float] | None], float]


@dataclass(slots=True, kw_only=True)
class ClientRequest:
    """One request to pass on."""

    id: str
    """The router's own name for it, unique and of fixed length."""
    route: Route
    body: bytes
    """As it came; nothing once it is released."""
    arrival_s: float
    fields: Mapping[str, Any]
    """The body, parsed; empty where no policy decides, and once it is released."""
    view: RequestView | None
    """What the policy sees; `None` where none decides."""
    streams: bool = False
    samples: int = 1
    """Answers asked for: prompts × choices."""
    wants_usage: bool = False
    wants_sglext: bool = False
    """Whether the client asked for anything in SGLang's extension chunk."""
    given_rids: tuple[str, ...] = ()
    """What the client named it."""
    repeatable: bool = True
    """Doing it twice is the same as once: nothing of it outlasts its answer."""
    sent: int = 0
    """To how many backends so far."""

    @property
    def rids(self) -> tuple[str, ...]:
        """By which the client, or the backend, knows the request."""
        return self.given_rids or (self.id,)

    def release(self) -> None:
        """The request will not be sent again: lets go of its body."""
        self.body = b""
        self.fields = {}

    @property
    def needs_rid(self) -> bool:
        """Whether the router has to name it: batches are named by the server, one name a prompt."""
        return self.route.takes_rid and self.samples == 1 and self.fields.get("rid") is None


class RequestReader:
    """Reads requests by the rules of one fleet file."""

    def __init__(self, fleet: Fleet, expected_output_tokens: ExpectedOutput) -> None:
        self._slo = fleet.slo
        self._target_ms_of = {
            name: fleet.slo.tbt_target_ms(name) for name in fleet.slo.classes or [fleet.slo.default_class]
        }
        self._trusts_text_type = fleet.router.trust_text_type_header
        self._refine = fleet.acceptance.refine
        self._expected_output_tokens = expected_output_tokens
        self._text_model = shipped_text_model()

    def read(
        self,
        route: Route,
        headers: Mapping[str, str],
        body: bytes,
        default_class: str | None = None,
        *,
        request_id: str,
        arrival_s: float,
    ) -> ClientRequest:
        """The request; without a class of its own it is of `default_class`, or else of the fleet's.

        Raises `RefusedRequest` (400) for a header or body that cannot be used.
        """
        if not route.generates:
            return ClientRequest(id=request_id, route=route, body=body, arrival_s=arrival_s, fields={}, view=None)
        if _OWN_HEADERS.isdisjoint(headers):
            slo_class, target_ms, trusted_type = default_class or self._slo.default_class, None, None
        else:
            slo_class = self._slo_class(headers, default_class)
            target_ms = _target_ms(headers)
            trusted_type = self._text_type(headers)
        fields = _parsed(body)
        readable = _readable(route, fields)
        text = extract(readable)
        text_type, probabilities = trusted_type, None
        reasons: tuple[str, ...] = ("told by the client",)
        if text_type is None:
            estimate = classify(text, self._text_model)
            text_type, probabilities, reasons = estimate.text_type, estimate.probabilities, estimate.reasons
        max_output_tokens = _max_output_tokens(route, fields)
        view = make_request_view(
            request_id=request_id,
            arrival_s=arrival_s,
            prompt_tokens=estimate_prompt_tokens(text),
            expected_output_tokens=self._expected_output_tokens(text_type, max_output_tokens, probabilities),
            max_output_tokens=max_output_tokens,
            text_type=text_type,
            text_probabilities=probabilities,
            text_reasons=reasons,
            slo_class=slo_class,
            tbt_target_ms=target_ms if target_ms is not None else self._target_ms_of[slo_class],
            needs=needs(readable),
            session_key=session_key(readable),
            temperature=_temperature(route, fields),
            refine_key=refine_key(readable, headers, self._refine),
        )
        options = fields.get("stream_options")
        return ClientRequest(
            id=request_id,
            route=route,
            body=body,
            arrival_s=arrival_s,
            fields=fields,
            view=view,
            streams=fields.get("stream") in (True, "true"),
            samples=_samples(route, fields),
            wants_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            wants_sglext=_wants_sglext(fields, headers),
            given_rids=_given_rids(fields),
            # Work in the background goes on after its answer, and nobody would know of the first one.
            repeatable=not (route.dialect is Dialect.RESPONSES and fields.get("background")),
        )

    def _slo_class(self, headers: Mapping[str, str], default_class: str | None) -> str:
        slo_class = headers.get(CLASS_HEADER)
        if slo_class is None:
            return default_class or self._slo.default_class
        known = sorted(self._slo.classes) or [self._slo.default_class]
        if slo_class not in known:
            raise _bad_header(CLASS_HEADER, slo_class, f"one of {', '.join(known)}")
        return slo_class

    def _text_type(self, headers: Mapping[str, str]) -> str | None:
        text_type = headers.get(TEXT_TYPE_HEADER)
        if text_type is None or not self._trusts_text_type:
            return None
        if text_type not in TEXT_TYPES:
            raise _bad_header(TEXT_TYPE_HEADER, text_type, f"one of {', '.join(TEXT_TYPES)}")
        return text_type


def _target_ms(headers: Mapping[str, str]) -> float | None:
    for name in TARGET_HEADERS:
        text = headers.get(name)
        if text is None:
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value > 0 and math.isfinite(value)):
            raise _bad_header(name, text, "a number of milliseconds above 0")
        return value
    return None


def _bad_header(name: str, value: str, wanted: str) -> RefusedRequest:
    return RefusedRequest(400, f"header {name} is {value[:64]!r}; it must be {wanted}", param=name)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as bad:
        raise RefusedRequest(
            400,
            "1 validation error:\n  "
            f"{{'type': 'json_invalid', 'loc': ('body', {bad.pos}), 'msg': 'JSON decode error', "
            f"'input': {{}}, 'ctx': {{'error': {bad.msg!r}}}}}",
        ) from None
    if not isinstance(fields, dict):
        raise RefusedRequest(
            400, "1 validation error:\n  {'type': 'dict_type', 'loc': ('body',), 'msg': 'Input should be an object'}"
        )
    return fields


def _readable(route: Route, fields: dict[str, Any]) -> Mapping[str, object]:
    """The body as the text reader knows bodies: the newer routes keep their text elsewhere."""
    match route.dialect:
        case Dialect.RESPONSES:
            prompt = fields.get("input")
            moved = {"messages": prompt} if isinstance(prompt, list) else {"prompt": prompt}
            return {**fields, **moved}
        case Dialect.MESSAGES if isinstance(fields.get("messages"), list) and fields.get("system"):
            return {**fields, "messages": [{"role": "system", "content": fields["system"]}, *fields["messages"]]}
        case _:
            return fields


def _max_output_tokens(route: Route, fields: Mapping[str, Any]) -> int | None:
    options = fields.get("sampling_params") if route.dialect is Dialect.GENERATE else fields
    if isinstance(options, dict):
        for name in route.max_tokens_fields:
            value = options.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _wants_sglext(fields: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    if not _SGLEXT_FIELDS.isdisjoint(fields) and any(fields.get(name) for name in _SGLEXT_FIELDS):
        return True
    # One search over all names, since hardly any request has such a header.
    return _SGLEXT_HEADER_PREFIX in "\n".join(headers) and any(
        name.startswith(_SGLEXT_HEADER_PREFIX) for name in headers
    )


def _given_rids(fields: Mapping[str, Any]) -> tuple[str, ...]:
    given = fields.get("rid")
    if given is None:
        return ()
    names = given if isinstance(given, list) else [given]
    return tuple(rid for rid in names if isinstance(rid, str) and rid)


def _temperature(route: Route, fields: Mapping[str, Any]) -> float | None:
    """The sampling temperature; `None` for one that the server has to refuse."""
    options = fields.get("sampling_params") if route.dialect is Dialect.GENERATE else fields
    value = options.get("temperature") if isinstance(options, dict) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.0 <= value <= _MOST_TEMPERATURE:
        return None
    return float(value)


def _samples(route: Route, fields: Mapping[str, Any]) -> int:
    """Prompts × choices, at least 1."""
    options = fields.get("sampling_params") if route.dialect is Dialect.GENERATE else fields
    choices = options.get("n") if isinstance(options, dict) else None
    prompts = 1
    for name in _PROMPT_FIELDS:
        value = fields.get(name)
        if isinstance(value, list) and value and not isinstance(value[0], int):
            prompts = len(value)
    return prompts * (choices if isinstance(choices, int) and choices > 1 else 1)
