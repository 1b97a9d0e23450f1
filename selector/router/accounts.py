"""What books and metrics are told of requests: of a dozen at once, and before anybody reads either.

    dispatcher ──decided, ended──▶ Accounts ──▶ some events in memory ──▶ metrics, books
                                                        ▲
                          a scrape, a page, a poll, a meter, a correction asks first

Told of one request at a time, between tokens of others, they would cost several times as much: what they touch has left
the processor's caches each time. Nothing is decided by them in between, and every event carries its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from selector.core.types import Candidate, Correction, Decision, Outcome, RequestView
from selector.router.books import Books
from selector.router.metrics import RouterMetrics

_TOLD_AT_ONCE = 24
"""Events; a request has two."""


class Accounts:
    """Of one dispatcher. Events are told in the order in which they came."""

    def __init__(self, books: Books, metrics: RouterMetrics) -> None:
        """Where energy is metered, joules are shared out between readings, so that nothing waits."""
        self._books = books
        self._metrics = metrics
        self._untold: list[Callable[[], None]] = []
        self._most_untold = 1 if books.gpus else _TOLD_AT_ONCE
        metrics.ask_before_a_scrape(self)

    @property
    def books(self) -> Books:
        """The books, with everything in them that happened so far."""
        self.catch_up()
        return self._books

    def catch_up(self) -> None:
        """Tells everything that was kept back."""
        untold, self._untold = self._untold, []
        for tell in untold:
            tell()

    def correction(self, backend: str) -> Correction:
        """In force on a backend; what was kept back has no part in it."""
        return self._books.corrections.in_force(backend)

    def decided(
        self,
        view: RequestView,
        rids: Sequence[str],
        decision: Decision,
        chosen: Candidate | None,
        now_s: float,
        *,
        arm: str | None,
        acceptance_arm: str | None,
        correction: Correction,
        fallback: bool,
    ) -> None:
        """A policy decided, and predicted this of the backend it `chosen`, if it predicts."""
        self._metrics_and_books(
            partial(self._metrics.decided, arm, decision.reason),
            partial(
                self._books.decided,
                view,
                rids,
                decision,
                arm,
                now_s,
                fallback=fallback,
                correction=correction,
                acceptance_arm=acceptance_arm,
            ),
        )
        if chosen is None or chosen.accept_length is None:
            # The books will ask the acceptance model themselves: for what it knows by now.
            self.catch_up()

    def ended(self, view: RequestView, outcome: Outcome, now_s: float) -> None:
        """A request ended."""
        self._metrics_and_books(
            partial(self._metrics.ended, view, outcome), partial(self._books.ended, view, outcome, now_s)
        )

    def _metrics_and_books(self, *tell: Callable[[], None]) -> None:
        self._untold += tell
        if len(self._untold) >= 2 * self._most_untold:
            self.catch_up()
