"""The data path: a request to a backend, its answer back, byte for byte.

    read ──▶ place ──▶ send on ──▶ head of the answer ──▶ body, event by event ──▶ end
               ▲           │ fails before the first byte: retract, pause (`retries`),
               └───────────┘ and place again among the backends not tried yet

After the first byte of an answer nothing is retried, nor what a backend may have begun and must not do twice. Whatever
happens, the flight ends exactly once, and the backend's connection is closed as soon as its answer is of no use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from os import urandom
from typing import TYPE_CHECKING

from selector.core.types import Finish
from selector.errors import UnreachedError, UpstreamError
from selector.router.additions import Additions, additions_for, answer_for, body_with
from selector.router.answers import RETRY_SOON, RefusedRequest, broken_stream
from selector.router.client import Client, Incoming, header_texts, refuse
from selector.router.dispatch import Dispatcher
from selector.router.exchange import Exchange
from selector.router.flight import Flight
from selector.router.headers import Passing, response_headers
from selector.router.metrics import RouterMetrics
from selector.router.passage import Passage
from selector.router.request import ClientRequest, RequestReader
from selector.router.retries import Denied, Retries
from selector.router.turns import Turns
from selector.router.upstream import Upstream
from selector.router.watch import FleetWatch

if TYPE_CHECKING:
    from selector.router.tracing import Tracing

_SLOWEST_TBT_S = 0.25
"""Slower than any reader would accept: only for telling a long answer from none."""


class Relay:
    """Serves the routes that are passed on."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        dispatcher: Dispatcher,
        watch: FleetWatch,
        reader: RequestReader,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        retries: Retries,
        passing: Passing,
        tracing: Tracing | None = None,
    ) -> None:
        """`clock` gives seconds since the router started; `passing` says which headers go on."""
        self._passing = passing
        self._tracing = tracing
        self._upstreams = upstreams
        self._dispatcher = dispatcher
        self._watch = watch
        self._reader = reader
        self._metrics = metrics
        self._clock = clock
        self.retries = retries
        self.successor: Relay | None = None
        """The relay of another configuration, which serves instead of this one."""
        self._turns = Turns()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def serve(self, incoming: Incoming, client: Client) -> None:
        """One request, answered in every case but that of a client that left: then the task is cancelled."""
        self._running += 1
        self._idle.clear()
        if self._tracing is not None:
            incoming.trace = self._tracing.request(incoming)
        try:
            await self._turns.mine()
            request = self._read(incoming)
            await self._deliver(request, incoming, client)
        except RefusedRequest as refused:
            refuse(client, incoming.route, refused, self._metrics)
            if incoming.trace is not None:
                incoming.trace.refused(refused)
        finally:
            if incoming.trace is not None:
                incoming.trace.end()
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def idle(self) -> None:
        """Returns when no request is being relayed."""
        await self._idle.wait()

    def _read(self, incoming: Incoming) -> ClientRequest:
        body, incoming.body = incoming.body, b""
        headers = header_texts(incoming.headers)
        return self._reader.read(
            incoming.route,
            headers,
            body,
            incoming.lease.default_class,
            request_id=urandom(16).hex(),
            arrival_s=self._clock(),
        )

    async def _deliver(self, request: ClientRequest, incoming: Incoming, client: Client) -> None:
        tried: set[str] = set()
        delivered = False
        trace = incoming.trace
        place = self._dispatcher.place if trace is None else trace.deciding(self._settled)
        settle_soon = asyncio.get_running_loop().call_soon
        self.retries.requested(self._clock())
        while not delivered:
            if self.successor is not None:
                # Where it goes, first or next, is for the configuration that is in force by now.
                await self.successor._deliver(request, incoming, client)
                return
            flight = place(request, tried)
            settle_soon(self._dispatcher.settle)  # when the request is on its way, or its connection is
            tried.add(flight.backend)
            request.sent += 1
            self._watch.sent(flight.backend)
            try:
                delivered = await self._deliver_from(flight, tried, incoming, client)
            except asyncio.CancelledError:
                # Some clients close as soon as they have read the last event.
                self._dispatcher.end(flight, _streamed(flight) if flight.observer.done else Finish.CANCELLED)
                raise
            finally:
                # Only an error of the router itself leaves a flight open.
                self._dispatcher.end(flight, Finish.FAILED)
                self._watch.left(flight.backend)
                if trace is not None:
                    trace.left(flight, delivered=delivered)

    def _settled(self, request: ClientRequest, tried: Collection[str]) -> Flight:
        """For traces, which tell all of a decision at once."""
        flight = self._dispatcher.place(request, tried)
        self._dispatcher.settle()
        return flight

    async def _deliver_from(self, flight: Flight, tried: set[str], incoming: Incoming, client: Client) -> bool:
        """Whether the client got its answer; if not, the flight is retracted and there is another backend to try."""
        request, upstream = flight.request, self._upstreams[flight.backend]
        facts = self._watch.backends[flight.backend].facts
        additions = additions_for(
            request,
            spec_details=facts.spec_details,
            usage_by_default=facts.usage_by_default,
            takes_tbt_target=upstream.takes_tbt_target,
        )
        path = request.route.path.encode()
        headers = self._passing.request_headers(incoming.headers, upstream.api_key, keyed=incoming.lease.keyed)
        if incoming.trace is not None:
            headers = incoming.trace.asking(flight, upstream.url + request.route.path, headers)
        try:
            answer = await upstream.post(
                b"%b?%b" % (path, incoming.query) if incoming.query else path,
                headers,
                body_with(request, additions),
                generating_s=_generating_s(request, upstream),
            )
        except UpstreamError as failed:
            self._backend_failed(flight, str(failed))
            safe = request.repeatable or isinstance(failed, UnreachedError)
            if await self._retracted(flight, tried, str(failed), safe=safe):
                return False
            self._dispatcher.end(flight, Finish.FAILED)
            message = f"backend {flight.backend} failed: {failed}"
            raise RefusedRequest(503, message, headers=[RETRY_SOON, *flight.headers]) from None
        self._dispatcher.settle()  # long since, unless the backend was faster than the loop
        if incoming.trace is not None:
            incoming.trace.answered(answer.status)
        try:
            # Its queue is full, or it is going down: neither has produced anything.
            if answer.status == 503 and await self._retracted(flight, tried, "answered 503", safe=True):
                return False
            if answer.status == 400 and await self._refused_for_its_drafter(flight, tried):
                return False
            # From here on nothing is sent again: an answer may take long, and what was asked is not kept for it.
            request.release()
            incoming.headers = []
            if answer.is_event_stream:
                await self._pass_on_stream(flight, answer, additions, client)
            else:
                await self._pass_on_whole(flight, answer, additions, client)
        finally:
            answer.close()
        return True

    async def _retracted(self, flight: Flight, tried: set[str], why: str, *, safe: bool) -> bool:
        """Takes the request back, to be placed again after a pause; or says in the metrics why it is not."""
        pause_s: float | Denied
        if not self._dispatcher.has_place(flight.request, tried):
            pause_s = Denied.NO_BACKEND
        elif not safe:
            pause_s = Denied.UNSAFE
        else:
            pause_s = self.retries.ask(flight.request.sent - 1, self._clock())
        if isinstance(pause_s, Denied):
            self._metrics.retries_denied.labels(pause_s.value).inc()
            return False
        self._dispatcher.retract(flight, why)
        await asyncio.sleep(pause_s)
        return True

    async def _refused_for_its_drafter(self, flight: Flight, tried: set[str]) -> bool:
        """Takes a request back that may have been refused for want of a capability, to try it without a drafter.

        Profiles say what arms cannot serve, but a release may refuse more. Only backends without a drafter are left to
        the request then, so that it is sent on once, and what is wrong with it itself is told by one of those.
        """
        view, drafting = flight.request.view, self._dispatcher.drafting
        if view is None or not view.needs or flight.backend not in drafting:
            return False
        if not self._dispatcher.has_place(flight.request, tried | drafting):
            return False
        why = f"answered 400 to a request that needs {', '.join(sorted(view.needs))}"
        if not await self._retracted(flight, tried | drafting, why, safe=True):
            return False
        self._watch.traffic_succeeded(flight.backend)
        tried |= drafting
        return True

    async def _pass_on_stream(self, flight: Flight, answer: Exchange, additions: Additions, client: Client) -> None:
        client.start(answer.status, response_headers(answer.headers) + flight.headers)
        client.follow(answer)
        passage = Passage(additions, flight.observer, client, self._clock)
        broke: str | None = None
        try:
            await answer.pass_to(passage)
        except UpstreamError as failed:
            broke = str(failed)
        if not passage.end():
            broke = broke or "the stream ended before the answer was complete"
            self._backend_failed(flight, broke)
            message = f"backend {flight.backend} failed in the middle of the answer: {broke}"
            passage.broke(broken_stream(flight.request.route.dialect, message))
        elif flight.observer.error is None:
            self._watch.traffic_succeeded(flight.backend)
        else:
            self._watch.traffic_faulted(flight.backend)
        self._dispatcher.end(flight, _streamed(flight))

    async def _pass_on_whole(self, flight: Flight, answer: Exchange, additions: Additions, client: Client) -> None:
        try:
            body = await answer.whole_body()
        except UpstreamError as failed:
            self._backend_failed(flight, str(failed))
            self._dispatcher.end(flight, Finish.FAILED)
            message = f"backend {flight.backend} failed in the middle of the answer: {failed}"
            raise RefusedRequest(502, message, headers=flight.headers) from None
        if answer.status < 500:
            self._watch.traffic_succeeded(flight.backend)
        elif answer.status != 503:  # a full queue is no fault
            self._watch.traffic_faulted(flight.backend)
        if answer.status < 400:
            flight.observer.answer(body, self._clock())
            body = answer_for(body, additions, flight.observer.spec)
        headers = response_headers(answer.headers) + flight.headers
        if answer.status == 503 and all(name != b"retry-after" for name, _ in headers):
            headers.append(RETRY_SOON)
        self._dispatcher.end(flight, _answered(answer.status))
        client.whole(answer.status, headers, body)

    def _backend_failed(self, flight: Flight, why: str) -> None:
        self._metrics.upstream_errors.labels(flight.backend).inc()
        self._watch.traffic_failed(flight.backend, why)


def _generating_s(request: ClientRequest, upstream: Upstream) -> float:
    """A whole answer comes after its last token."""
    if request.view is None or request.streams:
        return 0.0
    return _SLOWEST_TBT_S * (request.view.max_output_tokens or upstream.spec.max_context_tokens)


def _streamed(flight: Flight) -> Finish:
    complete = flight.observer.done and flight.observer.error is None
    return Finish.DONE if complete else Finish.FAILED


def _answered(status: int) -> Finish:
    """A refusal of the request's own making counts neither as met nor as missed, like a client that left."""
    if status < 400:
        return Finish.DONE
    return Finish.CANCELLED if status < 500 else Finish.FAILED
