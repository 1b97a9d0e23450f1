"""The routes that are passed on to a backend, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Dialect(Enum):
    """Whose conventions a route follows for identifiers, options and errors."""

    OPENAI = auto()
    GENERATE = auto()
    """SGLang's native route."""
    RESPONSES = auto()
    MESSAGES = auto()
    """Anthropic's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path, always POST."""

    path: str
    dialect: Dialect = Dialect.OPENAI
    generates: bool = True
    """It generates tokens, so a policy decides; otherwise the least loaded backend answers."""
    takes_rid: bool = False
    """The body may name the request (`rid`)."""
    counts_on_request: bool = False
    """A stream counts tokens only if the body asks for it (`stream_options`), and reports on speculation likewise."""
    max_tokens_fields: tuple[str, ...] = ()
    """Where the body bounds the answer, most specific first."""


_GENERATING = (
    Route(
        path="/v1/chat/completions",
        takes_rid=True,
        counts_on_request=True,
        max_tokens_fields=("max_completion_tokens", "max_tokens"),
    ),
    Route(path="/v1/completions", takes_rid=True, counts_on_request=True, max_tokens_fields=("max_tokens",)),
    Route(path="/generate", dialect=Dialect.GENERATE, takes_rid=True, max_tokens_fields=("max_new_tokens",)),
    Route(path="/v1/responses", dialect=Dialect.RESPONSES, max_tokens_fields=("max_output_tokens",)),
    Route(path="/v1/messages", dialect=Dialect.MESSAGES, max_tokens_fields=("max_tokens",)),
)
_OTHERS = tuple(Route(path=path, generates=False) for path in ("/v1/embeddings", "/v1/score", "/v1/rerank"))

ROUTES: Mapping[str, Route] = {route.path: route for route in (*_GENERATING, *_OTHERS)}
"""By path."""
