"""OpenTelemetry traces: one span for a request, in it one per decision and one per backend that was asked.

    request (server) ──┬─ decide             which arm, why, what was predicted
                       └─ upstream (client)  one backend's answer; its context goes to the backend as `traceparent`

The client's own trace goes on, if it sends one. Prompts and answers are never in a span. Only imported where traces are
asked for: it needs the extra `otel`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from selector import __version__
from selector.router.answers import RefusedRequest
from selector.router.client import Incoming, header_texts
from selector.router.flight import Flight
from selector.router.request import ClientRequest
from selector.router.wire import Headers

_OWN = "drafter_selector."
_CONTEXT_HEADERS = frozenset({b"traceparent", b"tracestate"})
_PROPAGATOR = TraceContextTextMapPropagator()
Place = Callable[[ClientRequest, Collection[str]], Flight]


def provider_to_collector(service_name: str) -> TracerProvider:
    """Spans go to the collector that the standard `OTEL_EXPORTER_OTLP_` variables name, in the background."""
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Tracing:
    """Begins the trace of each request."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("drafter-selector", __version__)

    def request(self, incoming: Incoming) -> RequestTrace:
        """A request came."""
        texts = {
            name: text for name, text in header_texts(incoming.headers).items() if name.encode() in _CONTEXT_HEADERS
        }
        span = self._tracer.start_span(
            f"POST {incoming.route.path}",
            context=_PROPAGATOR.extract(texts),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": "POST", "url.path": incoming.route.path},
        )
        return RequestTrace(self._tracer, span)


class RequestTrace:
    """The spans of one request. `end` it, whatever happens."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._upstream: Span | None = None

    def deciding(self, place: Place) -> Place:
        """`place`, with a span of its own."""

        def traced(request: ClientRequest, tried: Collection[str]) -> Flight:
            self._describe(request)
            span = self._tracer.start_span("decide", context=self._context)
            try:
                flight = place(request, tried)
            except RefusedRequest as refused:
                span.set_status(Status(StatusCode.ERROR, refused.message))
                raise
            else:
                span.set_attributes(
                    {
                        f"{_OWN}arm": flight.arm,
                        f"{_OWN}backend": flight.backend,
                        f"{_OWN}reason": flight.reason,
                        f"{_OWN}attempt": len(tried) + 1,
                    }
                )
                if flight.predicted_tbt_ms is not None:
                    span.set_attribute(f"{_OWN}predicted_tbt_ms", flight.predicted_tbt_ms)
                return flight
            finally:
                span.end()

        return traced

    def asking(self, flight: Flight, url: str, headers: Headers) -> Headers:
        """A backend is asked; the headers to send, with the context of the span in place of the client's."""
        self._upstream = self._tracer.start_span(
            f"upstream {flight.backend}",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={f"{_OWN}arm": flight.arm, f"{_OWN}backend": flight.backend, "url.full": url},
        )
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._upstream))
        passed = [header for header in headers if header[0] not in _CONTEXT_HEADERS]
        return [*passed, *((name.encode(), value.encode("latin-1")) for name, value in carrier.items())]

    def answered(self, status: int) -> None:
        """The backend's answer begins."""
        if self._upstream is not None:
            self._upstream.set_attribute("http.response.status_code", status)
            self._upstream.add_event("first byte")
        self._span.set_attribute("http.response.status_code", status)

    def left(self, flight: Flight, *, delivered: bool) -> None:
        """The backend is done with; without `delivered` the request goes on to another, or was given up."""
        span, self._upstream = self._upstream, None
        if span is None:
            return
        seen = flight.observer
        if seen.completion_tokens is not None:
            span.set_attribute("gen_ai.usage.output_tokens", seen.completion_tokens)
        if seen.tbt_ms is not None:
            span.set_attribute(f"{_OWN}tbt_ms", seen.tbt_ms)
        if not delivered:
            span.set_status(Status(StatusCode.ERROR, "not delivered"))
        span.end()

    def refused(self, refused: RefusedRequest) -> None:
        """The router answered with an error of its own."""
        self._span.set_attribute("http.response.status_code", refused.status)
        if refused.status >= 500:
            self._span.set_status(Status(StatusCode.ERROR, refused.message))

    def end(self) -> None:
        """The request is over."""
        self._span.end()

    def _describe(self, request: ClientRequest) -> None:
        self._span.set_attribute(f"{_OWN}rid", request.id)
        if request.view is not None:
            self._span.set_attribute(f"{_OWN}text_type", request.view.text_type)
            self._span.set_attribute(f"{_OWN}slo_class", request.view.slo_class)
