"""Drafts in the usage that a client asked for: OpenAI's names for what speculation did to its request.

    usage.completion_tokens_details.accepted_prediction_tokens    drafts that became part of the answer
    usage.completion_tokens_details.rejected_prediction_tokens    drafts that the target turned down

OpenAI counts the tokens of a client's predicted output under these names. Here the drafter predicts, and rejected
drafts are never part of `completion_tokens`. SGLang leaves both out. A count that the backend did not report stays
absent, and whatever an answer already says of either is left as it is. Only the usage object is written anew.

SGLang counts every draft that the target agreed with, also those of the last pass that a limit or a stop string cut off
the answer. An answer that was not cut has a first token from prefill, one of its own from each pass, and the accepted
drafts; in one that was cut, all that the last pass left is drafts. So the drafts in it are

    min(accepted drafts, completion tokens - verify passes)

and those that were cut off were neither turned down nor delivered: they are in no count.
"""

from __future__ import annotations

import re
from json import JSONDecoder

import orjson

from selector.core.speccounts import SpecCounts

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_DETAILS = "completion_tokens_details"
_NAMES = _ACCEPTED, _REJECTED = "accepted_prediction_tokens", "rejected_prediction_tokens"
_DATA = b"data: "
_DECODER = JSONDecoder()


def with_drafts(document: bytes, spec: SpecCounts | None) -> bytes:
    """A JSON object, or an event with one `data:` line that holds it, with the drafts in its usage.

    The same object when there is nothing to add.
    """
    if spec is None or b'"usage"' not in document:
        return document
    start = len(_DATA) if document.startswith(_DATA) else 0
    try:
        answer = orjson.loads(document[start:])
        usage = answer["usage"]
        details = usage.get(_DETAILS) or {}
        drafts = _drafts(spec, usage["completion_tokens"])
        if not drafts or any(details.get(name) is not None for name in _NAMES):
            return document
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return document  # no usage, or none that could be added to
    answer["usage"] = {**usage, _DETAILS: {**details, **drafts}}
    written = orjson.dumps(answer["usage"])
    # Other objects may have a usage of their own: the right place is the one that gives the right document.
    for match in reversed(list(_USAGE.finditer(document, start))):
        try:
            rest = document[match.end() :].decode()
            _, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            continue
        filled = document[: match.end()] + written + rest[end:].encode()
        if _holds(filled[start:], answer):
            return filled
    return document


def _holds(document: bytes, expected: object) -> bool:
    try:
        return bool(orjson.loads(document) == expected)
    except orjson.JSONDecodeError:
        return False


def _drafts(spec: SpecCounts, completion_tokens: int) -> dict[str, int]:
    """What is known, by OpenAI's names; nothing of counts that cannot be."""
    if spec.accepted_drafts < 0 or not 0 <= spec.verify_passes <= completion_tokens:
        return {}
    drafts = {_ACCEPTED: min(spec.accepted_drafts, completion_tokens - spec.verify_passes)}
    proposed = spec.proposed_drafts
    # SGLang writes 0 for a number of proposals that it does not know.
    if proposed is None or (proposed == 0 and spec.verify_passes > 0):
        return drafts
    return {**drafts, _REJECTED: proposed - spec.accepted_drafts} if proposed >= spec.accepted_drafts else {}
