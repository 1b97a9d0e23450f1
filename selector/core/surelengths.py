"""Accept lengths of a request as a decision takes them that nobody corrects: less what chance explains.

Where no place is within a target, requests go where the fewest misses are expected, and an arm that looks worse gets
no further request that could tell otherwise. With 15 % between requests, one or two unlucky ones are enough, whatever
the arm is like. So what was learned of an arm, its estimate m with the standard deviation σ against the profile's m₀,
counts as far as it is beyond one standard deviation (soft thresholding; Donoho and Johnstone, Ideal spatial adaptation
by wavelet shrinkage, Biometrika 81, 1994):

    m₀ + (m − m₀) max(0, 1 − 1 / z)        z = |m − m₀| / σ

Requests that run are taken as estimated: where they are many, so is what is known of them.
"""

from __future__ import annotations

from selector.core.chance import beyond_frac
from selector.core.plannedlengths import known_cell
from selector.core.runningload import AcceptLengths


class SureLengths(AcceptLengths):
    """Accept lengths that one decision needs."""

    __slots__ = ()

    def of_request(self, arm: str) -> tuple[float, float]:
        """(mean, slow) of the new request on `arm`."""
        found = self._of_request.get(arm)
        if found is None:
            sure = self._sure(arm)
            mean, slow = super().of_request(arm)
            found = self._of_request[arm] = max(1.0, mean * sure), max(1.0, slow * sure)
        return found

    def _sure(self, arm: str) -> float:
        """The accept length that chance does not explain over the one that is estimated."""
        cell = known_cell(self._acceptance, arm, self.request.text_type)
        if cell is None or cell.deviation <= 0.0:
            return 1.0
        change = cell.mean - cell.prior.mean
        return (cell.prior.mean + change * beyond_frac(change / cell.deviation)) / cell.mean
