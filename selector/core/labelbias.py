"""What requests taken for a text type take over what the probabilities of their types promise.

Requests whose type is uncertain teach each type by its probability, so that types which are often confused move towards
each other, and probabilities may be wrong by themselves. Either way requests of one label deviate steadily from the
mixture of their types. What is steady is no drift: per arm and label it is learnt as

    r = (Σ k n + m n̄') / (Σ k n' + m n̄')        n: passes, n': expected ones, n̄': their mean, k: fading weights

with the weight of m = `PRIOR_REQUESTS` that found nothing, and drift tests look at what goes beyond it. Requests count
by their length, as they do in `acceptancesums`. One of a single certain type has no such ratio: its type's own estimate
follows it already.
"""

from __future__ import annotations

PRIOR_REQUESTS = 20.0


class LabelBias:
    """r above, of one label."""

    __slots__ = ("_expected", "_passes", "requests")

    def __init__(self) -> None:
        self._passes = self._expected = 0.0
        self.requests = 0.0
        """Σ k."""

    @property
    def ratio(self) -> float:
        """r; 1 before the first request."""
        if not self.requests:
            return 1.0
        prior = PRIOR_REQUESTS * self._expected / self.requests
        return (self._passes + prior) / (self._expected + prior)

    def add(self, passes: float, expected_passes: float, keep: float) -> None:
        """A request, as its length counts; what was known keeps the share `keep` of its weight."""
        self._passes = self._passes * keep + passes
        self._expected = self._expected * keep + expected_passes
        self.requests = self.requests * keep + 1.0
