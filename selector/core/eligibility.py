"""Which backends can serve a request at all, whatever it costs."""

from __future__ import annotations

from collections.abc import Sequence

from selector.core.policy import BackendSpec, PolicyContext
from selector.core.types import BackendView, FleetView, RequestView


def can_ever_serve(request: RequestView, spec: BackendSpec) -> bool:
    """The backend's arm has what the request needs, its context holds prompt and answer, its KV cache the prompt.

    A server refuses a prompt that leaves its KV cache no token of answer; an answer that outgrows the cache it cuts.
    """
    return (
        within_context(request, spec.max_context_tokens)
        and request.prompt_tokens < spec.max_kv_tokens
        and not (request.needs & spec.cannot_serve)
    )


def within_context(request: RequestView, max_context_tokens: int) -> bool:
    """Prompt and the answer the client may ask for (1 token if it set no bound) fit the context."""
    return request.prompt_tokens + (request.max_output_tokens or 1) <= max_context_tokens


def able(request: RequestView, context: PolicyContext) -> Sequence[bool]:
    """`can_ever_serve` of every backend, in the fleet's order; asked once of backends that are alike.

    Most requests need nothing special and fit the tightest backend: nothing else is asked of them.
    """
    if (
        not request.needs
        and request.prompt_tokens < context.least_kv_tokens
        and within_context(request, context.least_context_tokens)
    ):
        return context.all_serve
    backends = context.backends
    serves = {place: can_ever_serve(request, backends[place]) for place in context.kinds}
    return [serves[place] for place in context.alike]


def eligible(request: RequestView, fleet: FleetView, context: PolicyContext) -> list[tuple[BackendView, BackendSpec]]:
    """Available backends that can serve `request`, in the fleet's order.

    The fleet view has its backends in the order of `context.backends`: both come from the same fleet file.
    """
    return [
        (view, spec)
        for view, spec, serves in zip(fleet.backends, context.backends, able(request, context), strict=True)
        if serves and view.available
    ]
