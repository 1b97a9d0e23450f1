"""What the router adds to a request in order to learn from the answer, and takes out of the answer again.

    request    rid                          so that it can be aborted by name
               stream_options.include_usage      token counts of a stream
               return_spec_tokens_details   accepted drafts (SGLang ≥ 0.5.23)
               custom_params                TBT target and text type, for an engine that chooses its draft depth by them
    answer     the usage chunk and the extension chunk that came of it

A client that asked for these itself gets them, and the usage that it asked for also says what became of the drafts (see
`usagedetails`). Nothing else is ever touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from selector.core.quickinit import quick_init, quick_maker
from selector.core.speccounts import SpecCounts
from selector.router.enginefields import engine_fields, fields_with
from selector.router.request import ClientRequest
from selector.router.usagedetails import with_drafts

_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')
_SPEC_DETAILS = "spec_tokens_details"


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What was added to one request, and what its answer gets in return."""

    rid: bool = False
    usage: bool = False
    spec_details: bool = False
    drafts_in_usage: bool = False
    """The client asked for the usage of an OpenAI answer."""
    told: Mapping[str, object] = field(default_factory=dict)
    """What the engine is told of the request, by key of `custom_params`."""

    def is_withheld(self, event: bytes) -> bool:
        """Whether a streamed event is there only because of what was added."""
        if not (self.usage or self.spec_details) or _NO_CHOICES.search(event) is None:
            return False
        chunk = _chunk(event)
        if chunk is None or chunk.get("choices") != []:
            return False
        if chunk.get("usage") is not None:
            return self.usage
        return self.spec_details and _only_spec_details(chunk.get("sglext"))

    def completed(self, event: bytes, spec: SpecCounts | None) -> bytes:
        """A streamed event to pass on, with what is known of the drafts if it is the usage that was asked for."""
        if spec is None or not self.drafts_in_usage or _NO_CHOICES.search(event) is None:
            return event
        chunk = _chunk(event)
        return event if chunk is None or chunk.get("choices") != [] else with_drafts(event, spec)


_make_additions = quick_maker(Additions)


def additions_for(
    request: ClientRequest, *, spec_details: bool, usage_by_default: bool, takes_tbt_target: bool = False
) -> Additions:
    """What to add for a backend that knows `spec_details`, counts every stream of its own accord, or takes targets."""
    counts = request.route.counts_on_request
    # Options of a wrong type are for the server to refuse.
    can_ask = request.fields.get("stream_options") is None or isinstance(request.fields["stream_options"], dict)
    return _make_additions(
        rid=request.needs_rid,
        usage=counts and request.streams and can_ask and not request.wants_usage and not usage_by_default,
        spec_details=counts and spec_details and not request.wants_sglext,
        # An answer that is not streamed has its usage whether or not it was asked for.
        drafts_in_usage=counts and (request.wants_usage or not request.streams),
        told=engine_fields(request.view) if takes_tbt_target and request.view is not None else {},
    )


def body_with(request: ClientRequest, additions: Additions) -> bytes:
    """The body to send: the client's own bytes, with the additions in front where no field had to change."""
    fields: dict[str, Any] = {}
    if additions.rid:
        fields["rid"] = request.id
    if additions.usage:
        fields["stream_options"] = {**(request.fields.get("stream_options") or {}), "include_usage": True}
    if additions.spec_details:
        fields["return_spec_tokens_details"] = True
    if additions.told:
        fields |= fields_with(request.route, request.fields, additions.told)
    if not fields:
        return request.body
    if not fields.keys().isdisjoint(request.fields):
        return orjson.dumps({**request.fields, **fields})
    start = request.body.index(b"{") + 1
    separator = b"," if request.fields else b""
    return request.body[:start] + orjson.dumps(fields)[1:-1] + separator + request.body[start:]


def answer_for(body: bytes, additions: Additions, spec: SpecCounts | None) -> bytes:
    """A whole answer as the client gets it."""
    body = answer_without(body, additions)
    return with_drafts(body, spec) if additions.drafts_in_usage else body


def answer_without(body: bytes, additions: Additions) -> bytes:
    """A whole answer without the extension that was not asked for; every other byte as it came."""
    if not additions.spec_details or b'"sglext"' not in body:
        return body
    answer = _json_object(body)
    if answer is None or not _only_spec_details(answer.get("sglext")):
        return body
    field = b',"sglext":' + orjson.dumps(answer.pop("sglext"))
    start = body.rfind(field)
    if start >= 0:
        cut = body[:start] + body[start + len(field) :]
        if _json_object(cut) == answer:
            return cut
    return orjson.dumps(answer)


def _only_spec_details(sglext: object) -> bool:
    return isinstance(sglext, Mapping) and list(sglext) == [_SPEC_DETAILS]


def _chunk(event: bytes) -> dict[str, Any] | None:
    return _json_object(event[6:]) if event.startswith(b"data: ") else None


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
