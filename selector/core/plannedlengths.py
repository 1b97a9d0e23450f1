"""Accept lengths as a plan takes them: what a few requests happened to get moves no traffic.

An estimate starts at the profile's accept length and follows what requests get. Its first steps are mostly chance: with
15 % between requests, two unlucky ones on an arm put it behind another that nobody tried, and there the next two may be
unlucky too. So a plan takes an estimate m with the standard deviation σ, and the prior m₀, as

    m₀ + (m − m₀) z² / (z² + 1)        z = (m − m₀) / σ

A change of one standard deviation counts half, one that is certain counts whole (`chance`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from selector.core.acceptance import AcceptanceModel
from selector.core.acceptancearm import Cell
from selector.core.chance import believed_frac

_HALF_AT_DEVIATIONS = 1.0


class Lengths(Protocol):
    """What a plan asks for; `AcceptanceModel` has it, with what the arguments mean."""

    def accept_length(self, arm: str, text_type: str) -> float:
        """Mean accept length."""
        ...

    def accept_lengths(
        self, arm: str, text_type: str, probabilities: Sequence[float] | None, output_tokens: float, quantile: float
    ) -> tuple[float, float]:
        """(mean, what a request of `output_tokens` reaches with probability `quantile`)."""
        ...


class PlannedLengths:
    """What an `AcceptanceModel` knows, as a plan takes it. Raises what that does."""

    def __init__(self, acceptance: AcceptanceModel) -> None:
        self._acceptance = acceptance

    def accept_length(self, arm: str, text_type: str) -> float:
        """Mean accept length of a request on `arm`."""
        length = self._acceptance.accept_length(arm, text_type)
        return max(1.0, length * self._believed(arm, text_type))

    def accept_lengths(
        self, arm: str, text_type: str, probabilities: Sequence[float] | None, output_tokens: float, quantile: float
    ) -> tuple[float, float]:
        """(mean, what a request of `output_tokens` reaches with probability `quantile`)."""
        mean, slow = self._acceptance.accept_lengths(arm, text_type, probabilities, output_tokens, quantile)
        believed = self._believed(arm, text_type)
        return max(1.0, mean * believed), max(1.0, slow * believed)

    def unsure_frac(self, tokens_per_s: Mapping[tuple[str, str], float]) -> float:
        """Relative standard deviation of what is known of the accept length of all tokens, by (arm, text type)."""
        variance = 0.0
        for (arm, text_type), rate in tokens_per_s.items():
            cell = known_cell(self._acceptance, arm, text_type)
            if cell is not None:
                variance += (rate * cell.deviation / cell.mean) ** 2
        return float(variance**0.5 / sum(tokens_per_s.values())) if variance else 0.0

    def _believed(self, arm: str, text_type: str) -> float:
        """The accept length that is believed over the one that is estimated."""
        cell = known_cell(self._acceptance, arm, text_type)
        if cell is None or cell.deviation <= 0.0:
            return 1.0
        change = cell.mean - cell.prior.mean
        believed = believed_frac((change / cell.deviation) ** 2, half_at=_HALF_AT_DEVIATIONS)
        return (cell.prior.mean + change * believed) / cell.mean


def known_cell(acceptance: AcceptanceModel, arm: str, text_type: str) -> Cell | None:
    """What is known of an arm on a text type; `None` where there is nothing to learn."""
    learning = acceptance.learning.get(arm)
    return learning.cells.get(text_type) if learning else None
