"""What a request body asks of the backend: tools, an output format, and the capabilities that not every arm has.

Options stand in the body itself (OpenAI routes, and SGLang's additions to them) or in `sampling_params` (`/generate`),
which is a list when the body is a batch. Values of the wrong type ask for nothing: the server will refuse them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from selector.core.types import Capability

_GRAMMAR_FIELDS = ("json_schema", "regex", "ebnf", "structural_tag")
_RESPONSE_FORMATS = frozenset({"json_schema", "json_object", "structural_tag"})
_NEUTRAL_PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_TOOL_FIELDS = ("tools", "functions")
_LOGPROB_FIELDS = ("top_logprobs", "return_logprob", "token_ids_logprob")
_NESTED = "sampling_params"
_FORMAT_FIELDS = frozenset({"response_format", _NESTED, *_GRAMMAR_FIELDS})
_ASKING_FIELDS = _FORMAT_FIELDS.union(
    _TOOL_FIELDS, _NEUTRAL_PENALTIES, _LOGPROB_FIELDS, ("logprobs", "return_hidden_states")
)
"""A body without any of these asks for nothing: most are, and that is seen at once."""
_NOTHING: frozenset[Capability] = frozenset()


def needs(body: Mapping[str, object]) -> frozenset[Capability]:
    """What the backend must be able to do for this body. `JSON_SCHEMA` stands for any grammar that binds the answer."""
    if _ASKING_FIELDS.isdisjoint(body):
        return _NOTHING
    found: set[Capability] = set()
    if output_format(body) is not None:
        found.add(Capability.JSON_SCHEMA)
    if offered_tools(body):
        found.add(Capability.TOOLS)
    for options in _options(body):
        if _wants_logprobs(options):
            found.add(Capability.LOGPROBS)
        if _asks(options.get("return_hidden_states")):
            found.add(Capability.HIDDEN_STATES)
        if any(_differs(options.get(name), neutral) for name, neutral in _NEUTRAL_PENALTIES.items()):
            found.add(Capability.PENALTIES)
    return frozenset(found)


def offered_tools(body: Mapping[str, object]) -> list[object]:
    """The tools (or `functions`, as the older API called them) that the model sees; none under `tool_choice: none`."""
    for field in _TOOL_FIELDS:
        offered = body.get(field)
        if isinstance(offered, list) and offered:
            return [] if body.get("tool_choice") == "none" else offered
    return []


def output_format(body: Mapping[str, object]) -> str | None:
    """What constrains the answer: `json_schema`, `json_object`, `regex`, `ebnf`, `structural_tag`, or `None`."""
    if _FORMAT_FIELDS.isdisjoint(body):
        return None
    response_format = body.get("response_format")
    if isinstance(response_format, Mapping):
        kind = response_format.get("type")
        if isinstance(kind, str) and kind in _RESPONSE_FORMATS:
            return kind
    for options in _options(body):
        for field in _GRAMMAR_FIELDS:
            value = options.get(field)
            if value and _asks(value):
                return field
    return None


def _options(body: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield body
    nested = body.get(_NESTED)
    if nested is None:
        return
    for options in nested if isinstance(nested, list) else [nested]:
        if isinstance(options, Mapping):
            yield options


def _wants_logprobs(options: Mapping[str, object]) -> bool:
    """`logprobs` is a flag in chats and a count in completions, where 0 still asks for the chosen token's."""
    logprobs = options.get("logprobs")
    if isinstance(logprobs, int) and logprobs is not False:
        return True
    return any(_asks(options.get(name)) for name in _LOGPROB_FIELDS)


def _asks(value: object) -> bool:
    """Whether an option is set; in a batch it may be a list, one value a prompt."""
    return any(map(bool, value)) if isinstance(value, list) else bool(value)


def _differs(value: object, neutral: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value != neutral
