"""What is said to a request that no backend takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from selector.core.eligibility import can_ever_serve, within_context
from selector.core.policy import BackendSpec
from selector.core.types import BackendView, RequestView
from selector.router.answers import RETRY_SOON, RefusedRequest


def never_served(view: RequestView, backends: Sequence[BackendSpec]) -> RefusedRequest | None:
    """The refusal of a request that none of `backends` could serve if it were idle, in SGLang's words.

    `None` where one could.
    """
    largest = max(spec.max_context_tokens for spec in backends)
    if not within_context(view, largest):
        if view.prompt_tokens >= largest:
            message = (
                f"The input ({view.prompt_tokens} tokens) is longer than the model's context length ({largest} tokens)."
            )
        else:
            message = (
                f"max_completion_tokens is too large: {view.max_output_tokens}. With an input of"
                f" {view.prompt_tokens} tokens it exceeds the model's context length ({largest} tokens)."
            )
        return RefusedRequest(400, message, nested=True)
    if not any(can_ever_serve(view, spec) for spec in backends):
        wanted = f" that needs {', '.join(sorted(view.needs))}" if view.needs else ""
        return RefusedRequest(400, f"no backend can serve a request of this length{wanted}")
    return None


def none_available(backends: Iterable[BackendView], tried: Collection[str]) -> RefusedRequest:
    """The refusal for now, and what is wrong with each backend; `tried` ones failed this request."""
    states = [
        f"{view.name}: {'failed this request' if view.name in tried else view.unavailable_reason}"
        for view in backends
        if view.name in tried or not view.available
    ]
    return RefusedRequest(503, f"no backend is available ({'; '.join(states)})", headers=[RETRY_SOON])
