"""Energy and tokens of the measured window: the difference of two readings of every server and board."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from selector.simulator.boards import Boards
from selector.simulator.run import Run
from selector.simulator.server import ServerModel


class _Reading(NamedTuple):
    at_s: float
    decode_j: float
    prefill_j: float
    idle_j: float
    extrapolated_j: float
    accepted_tokens: float
    retractions: int


class Meter:
    """Reads a run from `begin` to the first `end` after it. Servers must have been advanced to both."""

    def __init__(self, servers: Sequence[ServerModel], boards: Boards, run: Run) -> None:
        self._servers = servers
        self._boards = boards
        self._run = run
        self._start: _Reading | None = None

    def begin(self, at_s: float) -> None:
        """The window opens."""
        self._start = self._read(at_s)

    def end(self, at_s: float) -> None:
        """The window closes, if it is open: what was used in it goes into the run."""
        start, last, run = self._start, self._read(at_s), self._run
        if start is None:
            return
        self._start = None
        run.duration_s = last.at_s - start.at_s
        run.decode_j = last.decode_j - start.decode_j
        run.prefill_j = last.prefill_j - start.prefill_j
        run.idle_j = last.idle_j - start.idle_j
        run.extrapolated_j = last.extrapolated_j - start.extrapolated_j
        run.accepted_tokens = round(last.accepted_tokens - start.accepted_tokens)
        run.retractions = last.retractions - start.retractions

    def _read(self, at_s: float) -> _Reading:
        energies = [server.energy_j(at_s) for server in self._servers]
        totals = [server.totals for server in self._servers]
        return _Reading(
            at_s=at_s,
            decode_j=sum(decode_j for decode_j, _ in energies),
            prefill_j=sum(prefill_j for _, prefill_j in energies),
            idle_j=self._boards.idle_j(at_s),
            extrapolated_j=sum(each.extrapolated_j for each in totals),
            accepted_tokens=sum(each.accepted_tokens for each in totals),
            retractions=sum(each.retractions for each in totals),
        )
