"""Where the prompt prefix of a session lies in a cache, and what it saves to go back there.

A backend that served the last turn of a session holds its prompt and answer as a prefix until other prompts push them
out. Going back saves the prefill of that prefix; what it costs is how much more the request needs there than where the
plan would send it. Caches forget: a session counts as cached for `kept_s` after its last request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from selector.core.types import RequestView

_MOST_SESSIONS = 20_000


@dataclass(frozen=True, slots=True)
class Prefix:
    """The last turn of a session."""

    backend: str
    tokens: float
    """Prompt and expected answer."""
    sent_s: float


class Sessions:
    """The last turns of the sessions seen lately; the longest unseen are forgotten first."""

    def __init__(self, *, kept_s: float) -> None:
        self._kept_s = kept_s
        self._prefixes: OrderedDict[str, Prefix] = OrderedDict()

    def prefix(self, request: RequestView, now_s: float) -> Prefix | None:
        """The prefix that the request may find in a cache."""
        if request.session_key is None:
            return None
        found = self._prefixes.get(request.session_key)
        return found if found is not None and now_s - found.sent_s <= self._kept_s else None

    def sent(self, request: RequestView, backend: str, now_s: float) -> None:
        """A request of a session went to `backend`."""
        if request.session_key is None:
            return
        tokens = request.prompt_tokens + request.expected_output_tokens
        self._prefixes[request.session_key] = Prefix(backend, tokens, now_s)
        self._prefixes.move_to_end(request.session_key)
        if len(self._prefixes) > _MOST_SESSIONS:
            self._prefixes.popitem(last=False)
