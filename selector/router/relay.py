"""The data path: a request to a backend, its answer back, byte for byte.

    read ──▶ place ──▶ send on ──▶ head of the answer ──▶ body, event by event ──▶ end
               ▲           │ fails before the first byte: retract
               └───────────┘ and place again among the backends not tried yet

After the first byte of an answer nothing is retried. Whatever happens, the flight ends exactly once, and the backend's
connection is closed as soon as its answer is of no use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from selector.core.types import Finish
from selector.errors import UpstreamError
from selector.router.additions import Additions, additions_for, answer_without, body_with
from selector.router.answers import RETRY_SOON, RefusedRequest, Send, broken_stream, send_whole
from selector.router.answerstream import AnswerStream
from selector.router.client import ClientGone, ClientWatch, Receive, header_texts, read_body
from selector.router.dispatch import Dispatcher, Flight
from selector.router.headers import request_headers, response_headers
from selector.router.metrics import RouterMetrics
from selector.router.request import ClientRequest, RequestReader
from selector.router.routes import Route
from selector.router.upstream import Upstream, UpstreamAnswer
from selector.router.watch import FleetWatch

Scope = MutableMapping[str, Any]

_SLOWEST_TBT_S = 0.25
"""Slower than any reader would accept: only for telling a long answer from none."""
_QUERY_SAFE = "!$%&'()*+,/:;=?@[]~"
"""Everything a query may hold as it is; a client's own escapes stay."""


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
        *,
        max_body_bytes: int,
    ) -> None:
        """`clock` gives seconds since the router started."""
        self._upstreams = upstreams
        self._dispatcher = dispatcher
        self._watch = watch
        self._reader = reader
        self._metrics = metrics
        self._clock = clock
        self._max_body_bytes = max_body_bytes

    async def serve(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, answered in every case but that of a client that left."""
        arrival_s = self._clock()
        headers = header_texts(scope["headers"])
        try:
            body = await read_body(receive, headers, self._max_body_bytes)
            request = self._reader.read(route, headers, body, request_id=uuid4().hex, arrival_s=arrival_s)
            async with ClientWatch(receive):
                await self._deliver(request, scope, send)
        except RefusedRequest as refused:
            self._metrics.refused_requests.labels(str(refused.status)).inc()
            await refused.answer(route.dialect, send)
        except ClientGone:
            return

    async def _deliver(self, request: ClientRequest, scope: Scope, send: Send) -> None:
        tried: set[str] = set()
        delivered = False
        while not delivered:
            flight = self._dispatcher.place(request, tried)
            tried.add(flight.backend)
            try:
                delivered = await self._deliver_from(flight, tried, scope, send)
            except asyncio.CancelledError:
                # Some clients close as soon as they have read the last event.
                self._dispatcher.end(flight, _streamed(flight) if flight.observer.done else Finish.CANCELLED)
                raise
            finally:
                # Only an error of the router itself leaves a flight open.
                self._dispatcher.end(flight, Finish.FAILED)

    async def _deliver_from(self, flight: Flight, tried: set[str], scope: Scope, send: Send) -> bool:
        """Whether the client got its answer; if not, the flight is retracted and there is another backend to try."""
        request, upstream = flight.request, self._upstreams[flight.backend]
        facts = self._watch.backends[flight.backend].facts
        additions = additions_for(request, spec_details=facts.spec_details, usage_by_default=facts.usage_by_default)
        query = quote(scope["query_string"], safe=_QUERY_SAFE)
        path = f"{request.route.path}?{query}" if query else request.route.path
        try:
            answer = await upstream.post(
                path,
                request_headers(scope["headers"], upstream.api_key),
                body_with(request, additions),
                generating_s=_generating_s(request, upstream),
            )
        except UpstreamError as failed:
            self._backend_failed(flight, str(failed))
            if self._dispatcher.has_place(request, tried):
                self._dispatcher.retract(flight, str(failed))
                return False
            self._dispatcher.end(flight, Finish.FAILED)
            message = f"backend {flight.backend} failed: {failed}"
            raise RefusedRequest(503, message, headers=[RETRY_SOON, *flight.headers]) from None
        try:
            if answer.status == 503 and self._dispatcher.has_place(request, tried):
                # Its queue is full, or it is going down: neither has produced anything.
                self._dispatcher.retract(flight, "answered 503")
                return False
            if answer.is_event_stream:
                await self._pass_on_stream(flight, answer, additions, send)
            else:
                await self._pass_on_whole(flight, answer, additions, send)
        finally:
            answer.close()
        return True

    async def _pass_on_stream(self, flight: Flight, answer: UpstreamAnswer, additions: Additions, send: Send) -> None:
        headers = response_headers(answer.raw_headers, keep_length=False) + flight.headers
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        stream = AnswerStream(additions, flight.observer)
        broke: str | None = None
        try:
            while piece := await answer.next_piece():
                passed = stream.feed(piece, self._clock())
                if passed:
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
        except UpstreamError as failed:
            broke = str(failed)
        last = stream.finish(self._clock())
        if not flight.observer.done:
            broke = broke or "the stream ended before the answer was complete"
            self._backend_failed(flight, broke)
            message = f"backend {flight.backend} failed in the middle of the answer: {broke}"
            last += broken_stream(flight.request.route.dialect, message)
        else:
            self._watch.traffic_succeeded(flight.backend)
        if last:
            await send({"type": "http.response.body", "body": last, "more_body": True})
        self._dispatcher.end(flight, _streamed(flight))
        await send({"type": "http.response.body", "body": b""})

    async def _pass_on_whole(self, flight: Flight, answer: UpstreamAnswer, additions: Additions, send: Send) -> None:
        try:
            body = await answer.whole_body()
        except UpstreamError as failed:
            self._backend_failed(flight, str(failed))
            self._dispatcher.end(flight, Finish.FAILED)
            message = f"backend {flight.backend} failed in the middle of the answer: {failed}"
            raise RefusedRequest(502, message, headers=flight.headers) from None
        if answer.status < 500:
            self._watch.traffic_succeeded(flight.backend)
        if answer.status < 400:
            flight.observer.answer(body, self._clock())
            body = answer_without(body, additions)
        headers = response_headers(answer.raw_headers, keep_length=False) + flight.headers
        self._dispatcher.end(flight, _answered(answer.status))
        await send_whole(send, answer.status, body, headers)

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
