"""Traces: spans of a request, W3C context from the client and on to the backend; nothing of it where it is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from selector.errors import UsageError
from selector.files.policy import load_policy_file
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import FakeUpstream, broken, streaming
from tests.integration.router.harness import CHAT, chat_stream, fleet_of
from tests.integration.router.raw_client import request

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
Spans = Callable[[], dict[str, ReadableSpan]]


@asynccontextmanager
async def traced(*upstreams: FakeUpstream) -> AsyncIterator[tuple[RunningRouter, Spans]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    fleet = fleet_of([upstream.url for upstream in upstreams], ["none"] * len(upstreams))
    chosen, fallback = load_policy_file("min_energy"), load_policy_file("least_loaded")
    async with RunningRouter(fleet, chosen, fallback, port=0, tracer_provider=provider) as router:
        yield router, lambda: {span.name: span for span in exporter.get_finished_spans()}


async def ask(router: RunningRouter, **headers: str) -> str | None:
    async with request(router.url, body={**CHAT, "stream": True}, headers=headers) as answer:
        await answer.body()
        return answer.header("x-drafter-selector-rid")


async def test_a_request_is_one_trace_from_the_client_to_the_backend() -> None:
    async with (
        FakeUpstream(script=streaming(*chat_stream("a", "b", tokens=7))) as upstream,
        traced(upstream) as (router, spans),
    ):
        rid = await ask(router, **TRACEPARENT)
        exchange = await upstream.next_exchange()
        found = spans()
        assert set(found) == {"POST /v1/chat/completions", "decide", "upstream b0"}
        whole, decide, asked = (found[name] for name in ("POST /v1/chat/completions", "decide", "upstream b0"))
        for span in found.values():
            assert f"{span.context.trace_id:032x}" == TRACE
        assert whole.parent is not None
        assert f"{whole.parent.span_id:016x}" == PARENT
        assert whole.kind is SpanKind.SERVER
        for inner in (decide, asked):
            assert inner.parent is not None
            assert inner.parent.span_id == whole.context.span_id
        # one context, not the client's as well
        assert exchange.header("traceparent") == f"00-{TRACE}-{asked.context.span_id:016x}-01"
        assert exchange.header("tracestate") == "vendor=1"
        assert whole.attributes is not None
        assert whole.attributes["drafter_selector.rid"] == rid
        assert whole.attributes["http.response.status_code"] == 200
        assert decide.attributes is not None
        assert decide.attributes["drafter_selector.backend"] == "b0"
        assert float(str(decide.attributes["drafter_selector.predicted_tbt_ms"])) > 0
        assert asked.attributes is not None
        assert asked.attributes["gen_ai.usage.output_tokens"] == 7
        assert "Hello" not in str([(span.name, dict(span.attributes or {}), span.events) for span in found.values()])


async def test_a_backend_that_failed_is_a_span_of_its_own() -> None:
    async with (
        FakeUpstream(script=broken) as first,
        FakeUpstream(script=streaming(*chat_stream("a"))) as second,
        traced(first, second) as (router, spans),
    ):
        await ask(router, traceparent="no context")
        found = spans()
        assert found["upstream b0"].status.status_code is StatusCode.ERROR
        assert found["upstream b1"].status.status_code is StatusCode.UNSET
        assert found["POST /v1/chat/completions"].parent is None


async def test_a_refusal_says_why() -> None:
    async with FakeUpstream(script=broken) as upstream, traced(upstream) as (router, spans):
        async with request(router.url, body=b"no json") as answer:
            assert answer.status == 400
        assert (spans()["POST /v1/chat/completions"].attributes or {})["http.response.status_code"] == 400
        await ask(router)
        assert spans()["POST /v1/chat/completions"].status.status_code is StatusCode.ERROR


def test_without_traces_nothing_is_imported_for_them() -> None:
    # FastAPI itself imports the interface of OpenTelemetry where it is installed.
    code = """if True:
        import sys, selector.cli.serve
        wanted = ("opentelemetry.sdk", "opentelemetry.exporter", "selector.router.tracing")
        print([name for name in sys.modules if name.startswith(wanted)])
        """
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_without_traces_the_clients_context_passes_through() -> None:
    async with FakeUpstream(script=streaming(*chat_stream("a"))) as upstream:
        fleet = fleet_of([upstream.url], ["none"])
        chosen = load_policy_file("least_loaded")
        async with RunningRouter(fleet, chosen, chosen, port=0) as router:
            await ask(router, **TRACEPARENT)
            exchange = await upstream.next_exchange()
            assert exchange.header("traceparent") == TRACEPARENT["traceparent"]


async def test_traces_without_the_extra_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "selector.router.tracing", None)
    async with FakeUpstream() as upstream:
        fleet = fleet_of([upstream.url], ["none"], tables_more="[tracing]\nenabled = true")
        chosen = load_policy_file("least_loaded")
        with pytest.raises(
            UsageError, match=r"tracing\.enabled: needs OpenTelemetry .*; install drafter-selector\[otel\]"
        ):
            async with RunningRouter(fleet, chosen, chosen, port=0):
                pass
