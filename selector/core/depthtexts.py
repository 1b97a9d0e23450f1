"""Accept lengths at every draft depth of one engine, by text type: what is learnt of code says nothing of Romansh.

Each text type has an estimate of its own (`depthacceptance`), from when its first request is there. It begins at the
curve that was measured for that type, or else at the one for all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selector.core.depthacceptance import HALF_LIFE_REQUESTS, PRIOR_REQUESTS, DepthAcceptance
from selector.core.depthbatch import UNTOLD_TEXT, DepthBatch
from selector.core.depthsurvival import SlowRequests
from selector.errors import DomainError

MOST_TEXTS = 32
"""Text types with an estimate of their own; any more share the one of requests of which no type was told."""


class DepthAcceptances:
    """Deterministic, no clock. Not thread-safe."""

    __slots__ = ("_by_text", "_half_life", "_prior_requests", "_priors", "slow", "version")

    def __init__(
        self,
        prior: Sequence[float],
        slow: SlowRequests,
        *,
        priors: Mapping[str, Sequence[float]] | None = None,
        prior_requests: float = PRIOR_REQUESTS,
        half_life_requests: float = HALF_LIFE_REQUESTS,
    ) -> None:
        """`prior` holds the survival of every position that may be drafted, `priors` those of text types.

        Raises `DomainError` for a curve that is none, or of another number of positions.
        """
        self._priors = {**(priors or {}), UNTOLD_TEXT: prior}
        self._prior_requests = prior_requests
        self._half_life = half_life_requests
        self.slow = slow
        """Which request targets are judged by."""
        self.version = 0
        """Another number whenever accept lengths are others."""
        self._by_text: dict[str, DepthAcceptance] = {}
        for text_type, curve in self._priors.items():
            if len(curve) != len(prior):
                raise DomainError(f"{text_type} has {len(curve)} positions with a survival, the others {len(prior)}")
            self._begin(text_type)

    @property
    def deepest(self) -> int:
        """The last position that is known of."""
        return len(self._priors[UNTOLD_TEXT])

    def of(self, text_type: str) -> DepthAcceptance:
        """The estimate of a text type."""
        known = self._by_text.get(text_type)
        return self._begin(text_type) if known is None else known

    def observe(self, depth: int, accepted: Sequence[int], batch: DepthBatch) -> bool:
        """Drafts accepted of each request of one pass of a batch; returns whether all were possible and used."""
        if len(accepted) != batch.size:
            return False
        used = True
        alone = len(batch.rows) == 1
        for text_type, rows in batch.rows.items():
            of_text = accepted if alone else [accepted[row] for row in rows]
            acceptance = self.of(text_type)
            before = acceptance.derived
            used &= acceptance.observe(depth, of_text)
            self.version += acceptance.derived - before
        return used

    def renew(self, batch: DepthBatch) -> None:
        """Other requests are in the batch than before."""
        for text_type, _, requests in batch.groups:
            acceptance = self.of(text_type)
            before = acceptance.derived
            acceptance.renew(requests, batch.fresh.get(text_type, 0))
            self.version += acceptance.derived - before

    def _begin(self, text_type: str) -> DepthAcceptance:
        if len(self._by_text) >= MOST_TEXTS:
            return self._by_text[UNTOLD_TEXT]
        self._by_text[text_type] = begun = DepthAcceptance(
            self._priors.get(text_type, self._priors[UNTOLD_TEXT]),
            self.slow,
            prior_requests=self._prior_requests,
            half_life_requests=self._half_life,
        )
        return begun
