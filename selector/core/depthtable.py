"""What a decode step costs at each draft depth of one engine: the table that a choice of depth looks up.

An engine that drafts k tokens a step runs at depth k; depth 0 does not draft. The costs are those of the arms with that
many draft steps (`selector.files.depthcosts` makes the table from a profile), so here they are plain lines:

    table.step(k, b, c) = (T_k(b, c) in ms, E_k(b, c) in J)       b = requests in the batch, c = context tokens of each

For every depth and every whole batch there is a chain of lines over the context, as `StepCost.lines` gives them. Beyond
the last batch the table goes on by its last two rows, as `StepCost` does. Standard library only: it is read inside the
engine's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from selector.errors import DomainError

Line = tuple[float, float, float, float, float]
"""(context tokens, ms there, ms per token beyond, J there, J per token beyond)."""
Chain = tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPoint:
    """One depth under one load."""

    depth: int
    accept_length: float
    step_ms: float
    step_j: float
    tbt_ms: float
    """At the quantile that targets are judged at."""
    j_per_accepted_token: float

    def nearness(self, target_ms: float) -> float:
        """How likely a request is to meet a target, as a number to compare depths by: 1 at the quantile, 0 at the mean.

        Requests' accept lengths spread around the mean a, with the slow one at the quantile: (a − T / target) over
        (a − slow), the deviations between the mean and the accept length that the target asks for. Where they do not
        spread it is without bound, above or below.
        """
        asked = self.step_ms / target_ms
        spread = self.accept_length - self.step_ms / self.tbt_ms
        if spread <= 1e-9:
            return inf if self.accept_length >= asked else -inf
        return (self.accept_length - asked) / spread


class DepthTable:
    """Step costs by depth. Immutable; a lookup takes less than a microsecond.

    Raises `DomainError` for no depth, a depth below 0, rows of unequal number, or a chain that does not start at 0.
    """

    __slots__ = ("_rows", "depths", "max_batch")

    def __init__(self, rows: Mapping[int, Sequence[Sequence[Line]]]) -> None:
        """`rows[depth][batch - 1]` is the chain of a batch."""
        if not rows or min(rows) < 0:
            raise DomainError(f"depths {sorted(rows)} are none to choose from: they are counted from 0")
        counts = {len(of_depth) for of_depth in rows.values()}
        if len(counts) > 1 or not min(counts):
            raise DomainError(f"the depths have rows for {sorted(counts)} batches; all must have the same, 1 at least")
        self.depths: tuple[int, ...] = tuple(sorted(rows))
        self.max_batch = counts.pop()
        """Largest batch with a row."""
        self._rows: dict[int, tuple[Chain, ...]] = {}
        for depth in self.depths:
            chains = tuple(tuple(chain) for chain in rows[depth])
            for batch, chain in enumerate(chains, start=1):
                contexts = [line[0] for line in chain]
                if not chain or contexts[0] != 0.0 or contexts != sorted(set(contexts)):
                    raise DomainError(f"depth {depth}, batch {batch}: contexts {contexts} do not rise from 0")
            self._rows[depth] = chains

    def step(self, depth: int, batch: int, context_tokens: float) -> tuple[float, float]:
        """(ms, J) of a step. Raises `KeyError` for a depth that is not there; a batch counts as 1 at least."""
        chains = self._rows[depth]
        last = self.max_batch
        if batch <= last:
            return _on(chains[batch - 1 if batch > 1 else 0], context_tokens)
        ms, j = _on(chains[-1], context_tokens)
        if last == 1:
            return ms * batch, j * batch  # in proportion: the pessimistic bound
        below_ms, below_j = _on(chains[-2], context_tokens)
        more = batch - last
        return ms + more * (ms - below_ms), j + more * (j - below_j)

    def points(
        self, batch: int, context_tokens: float, lengths: Sequence[float], slow: Sequence[float]
    ) -> list[DepthPoint]:
        """What each depth gives under a load, shallowest first, with accept lengths by depth: mean and slow ones."""
        found = []
        for depth in self.depths:
            ms, j = self.step(depth, batch, context_tokens)
            found.append(
                DepthPoint(
                    depth=depth,
                    accept_length=lengths[depth],
                    step_ms=ms,
                    step_j=j,
                    tbt_ms=ms / slow[depth],
                    j_per_accepted_token=j / (batch * lengths[depth]),
                )
            )
        return found

    def chains(self, depth: int) -> tuple[Chain, ...]:
        """What the table was made from, of one depth. Raises `KeyError`."""
        return self._rows[depth]

    def only(self, depths: Sequence[int]) -> DepthTable:
        """The table of those depths alone. Raises `DomainError` when none of them is there."""
        return DepthTable({depth: self._rows[depth] for depth in depths if depth in self._rows})


def _on(chain: Chain, context_tokens: float) -> tuple[float, float]:
    line = chain[0]
    for later in chain[1:]:  # three or four knots
        if later[0] > context_tokens:
            break
        line = later
    beyond = context_tokens - line[0]
    return line[1] + line[2] * beyond, line[3] + line[4] * beyond
