"""Which rows of a long file can belong to a slice of it, decided as they come, so that the others are never held."""

from __future__ import annotations

import math

from selector.files.traces.rows import Row

DISORDER_S = 3_600.0
"""How far out of order rows may be for a slice or a limit to be exact. Reading stops once a row arrives this much after
the end, so a minute of a file of tens of millions of rows does not cost reading all of it."""


class Slice:
    """The rows that arrive from `from_s` to before `to_s`, both after the first arrival; the first `limit` of them.

    The first arrival is known for certain only when all rows have been seen: until then `takes` also keeps rows that
    would belong if an earlier one turned up, and `cut` makes the choice exact.
    """

    def __init__(self, from_s: float, to_s: float, limit: int | None, *, first_s: float | None = None) -> None:
        self.over = False
        """No row after the last one that was offered can belong."""
        self.first_s = first_s
        """The earliest arrival so far, or where the clock of the trace was said to begin."""
        self.latest_s = -math.inf
        self._from_s = from_s
        self._to_s = to_s
        self._limit = limit
        self._left = math.inf if limit is None else limit
        self._end_s = math.inf

    def takes(self, arrival_s: float) -> bool:
        """Whether to keep a row that arrives then."""
        if self.first_s is None or arrival_s < self.first_s:
            self.first_s = arrival_s
        self._end_s = min(self._end_s, self.first_s + self._to_s)
        if arrival_s >= self._end_s:
            self.over = arrival_s >= self._end_s + DISORDER_S
            self.latest_s = max(self.latest_s, arrival_s)
            return False
        if arrival_s > self.latest_s:
            self.latest_s = arrival_s
        start_s = self.first_s + self._from_s
        if arrival_s >= start_s:
            self._left -= 1
            if self._left == 0:
                # The rows so far fill the limit: one that arrives with the latest of them, or later, comes after them.
                self._end_s = self.latest_s
        return arrival_s >= start_s - DISORDER_S

    def cut(self, rows: list[Row]) -> tuple[list[Row], float]:
        """Of the rows taken, those that belong, by arrival, and the time from which their arrivals count."""
        first_s = 0.0 if self.first_s is None else self.first_s
        start_s, end_s = first_s + self._from_s, first_s + self._to_s
        kept = [row for row in rows if start_s <= row.arrival_s < end_s]
        kept.sort(key=lambda row: row.arrival_s)
        return kept if self._limit is None else kept[: self._limit], start_s
