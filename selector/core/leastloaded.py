"""The least loaded backend, of given arms first: what the policies that predict nothing share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from selector.core.eligibility import able
from selector.core.policy import PolicyContext
from selector.core.types import BackendView, Decision, FleetView, RequestView
from selector.errors import PolicyError

REFUSAL = Decision(backend=None, reason="no available backend can serve it")
"""What every policy decides when there is nothing to choose from."""


def least_loaded_on(
    arms: Sequence[str], request: RequestView, fleet: FleetView, context: PolicyContext, *, why: str = ""
) -> Decision:
    """The eligible backend with the fewest requests on the first of `arms` that has one, else on any arm.

    The first in the fleet's order wins among equals. The reason says `why` (words for choosing the first arm) unless
    that arm cannot serve the request now, which it says instead.
    """
    serves = able(request, context)
    for arm in arms:
        of_arm = _fewest_requests(fleet.backends, serves, arm)
        if of_arm is not None:
            return _sent_to(of_arm.name, of_arm.batch, f"{why}least loaded of {arm}")
        why = f"no backend of {arms[0]} can serve it, "
    best = _fewest_requests(fleet.backends, serves, None)
    return REFUSAL if best is None else _sent_to(best.name, best.batch, f"{why}least loaded")


def _fewest_requests(views: Sequence[BackendView], serves: Sequence[bool], arm: str | None) -> BackendView | None:
    """The first with the fewest requests of those that are available, can serve it and run `arm`, if one is given."""
    best: BackendView | None = None
    fewest = 0
    for view, can in zip(views, serves, strict=True):
        if (best is None or view.batch < fewest) and can and view.available and (arm is None or view.arm == arm):
            best, fewest = view, view.batch
    return best


@lru_cache(maxsize=4_096)
def _sent_to(backend: str, batch: int, words: str) -> Decision:
    """The same few decisions come again and again."""
    return Decision(backend=backend, reason=f"{words}: {requests_in_words(batch)}")


def requests_in_words(count: int) -> str:
    """`1 request`, `3 requests`: for reasons."""
    return "1 request" if count == 1 else f"{count} requests"


def require_arm(arm: str, where: str, context: PolicyContext) -> str:
    """`arm`, if a backend of the fleet runs it. Raises `PolicyError` at `where` with the arms there are."""
    arms = context.by_arm()
    if arm not in arms:
        raise PolicyError(where, f"is {arm!r}, which no backend runs", f"choose one of {', '.join(arms)}")
    return arm
