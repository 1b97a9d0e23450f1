"""Decides, keeps the books, and logs: the router's hold on the controller.

    place(request) ──▶ Flight ──▶ end(flight)              exactly one end
                │         └──▶ retract(flight) ──▶ place(request, tried)
                └▷ settle()                                once the request is on its way

Everything that changes the controller goes through here and into the decision log in the same order, so that the log
can be replayed. What only tells of a decision (candidates, log, metrics, books) waits for `settle`, so that no request
waits for it: whoever sent a request asks for it soon, and whatever else changes the controller does before.

Not a line of HTTP: the relay brings requests, the watch brings polls and health.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from selector.core.acceptancestate import AcceptanceState, Contribution, check
from selector.core.controller import Controller
from selector.core.eligibility import can_ever_serve
from selector.core.speccounts import SpecCounts
from selector.core.types import (
    NO_CORRECTION,
    BackendView,
    Correction,
    Decision,
    Finish,
    LoadSignal,
    RequestView,
)
from selector.files.decision_log_writer import LogSection
from selector.router.accounts import Accounts
from selector.router.answers import RETRY_SOON, RefusedRequest
from selector.router.books import Books
from selector.router.flight import Flight
from selector.router.journal import Journal
from selector.router.metrics import RouterMetrics
from selector.router.refusals import never_served, none_available
from selector.router.request import ClientRequest


class Dispatcher:
    """One controller's dispatcher; belongs to the event loop that serves."""

    def __init__(
        self,
        controller: Controller,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        books: Books,
        *,
        log: LogSection | None = None,
        adaptive_arms: Collection[str] = (),
    ) -> None:
        """`clock` gives seconds since the router started. Adaptive arms report accept rates that mean nothing."""
        self.controller = controller
        self.flights: dict[str, Flight] = {}
        """In flight, by the router's request id."""
        self.journal = Journal(log)
        self._accounts = Accounts(books, metrics)
        self._metrics = metrics
        self._clock = clock
        self._adaptive_arms = frozenset(adaptive_arms)
        self.settings_due: Callable[[str, Mapping[str, float], str], None] | None = None
        """Called with a backend, the live settings to ask it for, and why; whoever sets it reports the answer."""
        self.drafting = frozenset(spec.name for spec in controller.context.backends if spec.cost.verify_tokens > 1)
        """Backends with a drafter."""
        self._unsettled: Callable[[], None] | None = None
        """What is left to do about the last decision."""

    @property
    def books(self) -> Books:
        """The books, with everything in them that happened so far."""
        return self._accounts.books

    def catch_up(self) -> None:
        """Nothing of what happened so far is kept back from books and metrics."""
        self._accounts.catch_up()

    def now_s(self) -> float:
        """Seconds since the router started."""
        return self._clock()

    def expected_output_tokens(
        self, text_type: str, max_output_tokens: int | None, probabilities: Sequence[float] | None
    ) -> float:
        """For building a `RequestView`."""
        return self.controller.lengths.expected(text_type, max_output_tokens, probabilities)

    def place(self, request: ClientRequest, tried: Collection[str] = ()) -> Flight:
        """Decides where `request` goes, `tried` backends left out; `settle` is due soon.

        Raises `RefusedRequest` when it can go nowhere.
        """
        self.settle()
        now_s = self._clock()
        if request.view is None:
            flight = self._least_loaded(request, tried, now_s)
        else:
            flight = self._decided(request, request.view, tried, now_s)
        self.flights[request.id] = flight
        return flight

    def settle(self) -> None:
        """Tells log, metrics and books of the last decision; nothing if they know it."""
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is not None:
            unsettled()

    def has_place(self, request: ClientRequest, tried: Collection[str]) -> bool:
        """Whether there is a backend left for the request, if it were taken back."""
        for view in self.controller.tracker.view(self._clock()).backends:
            if view.available and view.name not in tried and self._can_serve(view, request.view):
                return True
        return False

    def retract(self, flight: Flight, why: str) -> None:
        """The backend failed before the first byte; the request may be placed again."""
        self.settle()
        flight.over = True
        del self.flights[flight.request.id]
        if flight.request.view is not None:
            self._take_back(flight, why, self._clock())

    def end(self, flight: Flight, finish: Finish) -> None:
        """The request is over, however it went; what its observer saw is learnt. A second end does nothing."""
        if flight.over:
            return
        self.settle()
        now_s = self._clock()
        flight.over = True
        del self.flights[flight.request.id]
        view = flight.request.view
        if view is None:
            return
        outcome = flight.outcome(view, finish, now_s, self._believable(flight.arm, flight.observer.spec))
        self.controller.end(outcome, now_s)
        self.journal.ended(outcome, now_s)
        self._accounts.ended(view, outcome, now_s)

    def polled(self, backend: str, signal: LoadSignal) -> None:
        """A backend reported its load."""
        self.settle()
        now_s = self._clock()
        self.controller.tracker.polled(backend, signal, now_s)
        self.journal.write("poll", {"t_s": now_s, "backend": backend, "signal": signal})
        self.books.others(backend, self.controller.tracker.foreign(backend), now_s)

    def health_changed(self, backend: str, *, available: bool, reason: str | None) -> None:
        """A backend became available or not."""
        self.settle()
        now_s = self._clock()
        self._health(backend, available, reason, now_s)
        self._metrics.availability_changed(backend, available)
        if available and (launched := self.controller.started_again(backend, now_s)) is not None:
            self.books.settings_changed(backend, launched, now_s)
            self._settings_told(backend, launched, "in force", "as launched: it may have been restarted", now_s)

    def settings_changed(self, backend: str, settings: Mapping[str, float], why: str) -> None:
        """A server took live settings: costs and accept lengths are theirs from now on."""
        self.settle()
        now_s = self._clock()
        self.controller.settings_changed(backend, settings, now_s)
        self.books.settings_changed(backend, settings, now_s)
        self._settings_told(backend, settings, "in force", why, now_s)

    def settings_refused(self, backend: str, settings: Mapping[str, float], why: str) -> None:
        """A server does not change its live settings: they are fixed from now on."""
        self.settle()
        now_s = self._clock()
        self.controller.settings_refused(backend, now_s)
        self._settings_told(backend, settings, "refused", why, now_s)

    def settings_failed(self, backend: str, settings: Mapping[str, float], why: str) -> None:
        """There was no answer: nothing is known to have changed."""
        self.settle()
        self.controller.settings.failed(backend)
        self._settings_told(backend, settings, "failed", why, self._clock())

    def _settings_told(self, backend: str, settings: Mapping[str, float], result: str, why: str, now_s: float) -> None:
        self.journal.settings(backend, settings, result, why, now_s)
        self._metrics.settings_asked_for(backend, result)

    def corrected(self, backend: str, correction: Correction) -> None:
        """The step costs of a backend are its profile's times these factors from now on, as policies see them."""
        self.settle()
        self.controller.corrected(backend, correction)
        self.journal.write("correct", {"t_s": self._clock(), "backend": backend, "correction": correction})

    def restored(self, state: AcceptanceState) -> None:
        """What an earlier run learnt is taken over. Raises `DomainError`, and changes nothing, if it does not fit."""
        self.settle()
        self.controller.restored(state)
        self.journal.write("restored", {"t_s": self._clock(), "state": state})

    def check_contribution(self, contribution: Contribution) -> None:
        """Raises `DomainError` for what no router of this fleet can have learnt."""
        check(self.controller.context.acceptance, contribution)

    def heard(self, others: Mapping[str, Contribution]) -> None:
        """What the other routers learnt so far, checked before."""
        self.settle()
        self.controller.heard(others)
        self.journal.write("heard", {"t_s": self._clock(), "others": others})

    def _decided(self, request: ClientRequest, view: RequestView, tried: Collection[str], now_s: float) -> Flight:
        if not self.has_place(request, tried):
            raise never_served(view, self.controller.context.backends) or self._no_backend(tried)
        if tried:
            with self._hidden(tried, now_s):
                decision, flight = self._decide(request, view, now_s)
                self.settle()  # while what was hidden from the policy is
        else:
            decision, flight = self._decide(request, view, now_s)
        if decision.settings:
            self._ask_for_settings(decision, now_s)
        if flight is None:
            self.settle()
            raise RefusedRequest(503, f"the policy refused the request: {decision.reason}", headers=[RETRY_SOON])
        if flight.backend in tried:
            self._take_back(flight, "failed this request before", now_s)
            raise self._no_backend(tried)
        return flight

    def _decide(self, request: ClientRequest, view: RequestView, now_s: float) -> tuple[Decision, Flight | None]:
        controller = self.controller
        failures = controller.policy_failures
        decision = controller.decide(view, now_s)
        flight = self._flight(request, decision, now_s)
        fallback = controller.policy_failures > failures
        self._unsettled = partial(self._tell, request, view, decision, flight, now_s, fallback)
        return decision, flight

    def _flight(self, request: ClientRequest, decision: Decision, now_s: float) -> Flight | None:
        backend = decision.backend
        if backend is None:
            return None
        return Flight(
            request=request,
            backend=backend,
            arm=self.controller.context.spec(backend).arm,
            reason=decision.reason,
            dispatched_s=now_s,
        )

    def _tell(
        self,
        request: ClientRequest,
        view: RequestView,
        decision: Decision,
        flight: Flight | None,
        now_s: float,
        fallback: bool,
    ) -> None:
        """The part of a decision that nobody waits for."""
        decision = self.controller.explained(decision)
        chosen = decision.chosen
        if flight is not None and chosen is not None:
            flight.predicted_tbt_ms = chosen.tbt_ms
        arm, acceptance_arm, correction = None, None, NO_CORRECTION
        if decision.backend is not None:
            spec = self.controller.context.spec(decision.backend)
            arm, acceptance_arm = spec.arm, spec.acceptance_arm(self.controller.tracker.settings(spec.name))
            correction = self._accounts.correction(decision.backend)
        self.journal.decided(view, decision, arm, now_s, fallback=fallback)
        self._accounts.decided(
            view,
            request.rids,
            decision,
            chosen,
            now_s,
            arm=arm,
            acceptance_arm=acceptance_arm,
            correction=correction,
            fallback=fallback,
        )

    def _ask_for_settings(self, decision: Decision, now_s: float) -> None:
        backend, wanted = decision.backend, decision.settings
        if backend is None or self.settings_due is None:
            return
        if self.controller.settings.due(backend, wanted, now_s):
            self.settings_due(backend, wanted, decision.reason)

    def _take_back(self, flight: Flight, why: str, now_s: float) -> None:
        self.controller.retract(flight.request.id, now_s)
        self.journal.write("retract", {"t_s": now_s, "id": flight.request.id, "backend": flight.backend, "why": why})
        if flight.request.view is not None:
            self.books.retracted(flight.request.view, flight.backend, why, now_s)

    def _least_loaded(self, request: ClientRequest, tried: Collection[str], now_s: float) -> Flight:
        views = self._available(tried, now_s)
        if not views:
            raise self._no_backend(tried)
        own = [flight.backend for flight in self.flights.values() if flight.request.view is None]
        best = min(views, key=lambda view: view.batch + own.count(view.name))
        return Flight(
            request=request,
            backend=best.name,
            arm=best.arm,
            reason="least loaded, nothing is generated",
            dispatched_s=now_s,
        )

    def _no_backend(self, tried: Collection[str]) -> RefusedRequest:
        return none_available(self.controller.tracker.view(self._clock()).backends, tried)

    def _available(self, tried: Collection[str], now_s: float) -> list[BackendView]:
        views = self.controller.tracker.view(now_s).backends
        return [view for view in views if view.available and view.name not in tried]

    def _can_serve(self, backend: BackendView, view: RequestView | None) -> bool:
        return view is None or can_ever_serve(view, self.controller.context.spec(backend.name))

    @contextmanager
    def _hidden(self, tried: Collection[str], now_s: float) -> Iterator[None]:
        """Makes backends that failed this request, or may not get it, unavailable to the policy while it decides.

        In the log too, so that a replay sees what the policy saw.
        """
        hidden = [view.name for view in self._available((), now_s) if view.name in tried]
        for name in hidden:
            self._health(name, False, "left out of the decision on one request", now_s)
        try:
            yield
        finally:
            for name in hidden:
                self._health(name, True, None, now_s)

    def _health(self, backend: str, available: bool, reason: str | None, now_s: float) -> None:
        self.controller.tracker.health_changed(backend, available, reason, now_s)
        self.journal.write("health", {"t_s": now_s, "backend": backend, "available": available, "reason": reason})

    def _believable(self, arm: str, spec: SpecCounts | None) -> SpecCounts | None:
        """The counts, unless the rate beside them is impossible; the model judges the counts themselves."""
        if spec is None or spec.accept_rate is None or arm in self._adaptive_arms:
            return spec
        if 0.0 <= spec.accept_rate <= 1.0:
            return spec
        self._metrics.refused_rates.inc()
        return None
