"""Which backends can serve a request at all, whatever it costs."""

from __future__ import annotations

from selector.core.policy import BackendSpec, PolicyContext
from selector.core.types import BackendView, FleetView, RequestView


def can_ever_serve(request: RequestView, spec: BackendSpec) -> bool:
    """The backend's arm has what the request needs, and its context holds prompt and answer."""
    return within_context(request, spec.max_context_tokens) and not (request.needs & spec.cannot_serve)


def within_context(request: RequestView, max_context_tokens: int) -> bool:
    """Prompt and the answer the client may ask for (1 token if it set no bound) fit the context."""
    return context_tokens(request) <= max_context_tokens


def context_tokens(request: RequestView) -> int:
    """Context that a backend must have for the request: prompt, and the answer it may ask for or 1 token."""
    return request.prompt_tokens + (request.max_output_tokens or 1)


def eligible(request: RequestView, fleet: FleetView, context: PolicyContext) -> list[tuple[BackendView, BackendSpec]]:
    """Available backends that can serve `request`, in the fleet's order.

    The fleet view has its backends in the order of `context.backends`: both come from the same fleet file.
    """
    # Asked for every backend at every decision: `can_ever_serve`, in place.
    tokens, needs = context_tokens(request), request.needs
    return [
        pair
        for pair in zip(fleet.backends, context.backends, strict=True)
        if pair[0].available and tokens <= pair[1].max_context_tokens and not (needs and needs & pair[1].cannot_serve)
    ]
