"""The ASGI application of one emulated server: SGLang's routes, and two more.

    GET /energy      what its GPUs have drawn, see `selector.emulator.gpu`
    GET /emulator    whether the emulation keeps up: how late steps ended (real ms) over the last boundaries

No framework and no middleware: what a token costs here is one formatted chunk and one `send`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from selector.emulator.answers import DONE, Answer, sse
from selector.emulator.asks import Api, Ask, parse_body, read_ask
from selector.emulator.chat import ChatAnswer
from selector.emulator.completion import CompletionAnswer
from selector.emulator.engine import EmulatedEngine
from selector.emulator.generation import DuplicateRid, Generation, QueueFull
from selector.emulator.http import (
    JSON_TYPE,
    Handler,
    Receive,
    Scope,
    Send,
    end_chunked,
    header,
    query,
    read_body,
    send_bytes,
    send_chunk,
    send_json,
    send_raw_json,
    send_text,
    start_chunked,
)
from selector.emulator.info import Site, loads, model_card, model_info, models
from selector.emulator.internalstate import read_internal_state, set_internal_state
from selector.emulator.metrics import CONTENT_TYPE, metrics
from selector.emulator.native import NativeAnswer
from selector.emulator.openai import CHAT_CHUNK, COMPLETION, usage_event
from selector.emulator.promptbatch import bodies_of
from selector.emulator.refusals import Refusal, error_body, native_stream_error, refusal_body
from selector.emulator.report import Report
from selector.emulator.serverinfo import server_info

_EVENT_STREAM = b"text/event-stream; charset=utf-8"
_PATHS = {"/generate": Api.NATIVE, "/v1/chat/completions": Api.CHAT, "/v1/completions": Api.COMPLETION}
_FORMATS: Mapping[Api, Callable[[Report], Answer]] = {
    Api.CHAT: ChatAnswer,
    Api.COMPLETION: CompletionAnswer,
    Api.NATIVE: NativeAnswer,
}
_OPEN_PREFIXES = ("/health", "/ready", "/metrics")
"""Paths that need no API key."""
_LOAD_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})
_MODEL_PREFIX = "/v1/models/"


class EmulatorApp:
    """SGLang's HTTP surface over one engine. `energy` gives the body of `GET /energy`."""

    def __init__(
        self, site: Site, engine: EmulatedEngine, energy: Callable[[], bytes], *, api_key: str | None = None
    ) -> None:
        self._site = site
        self._engine = engine
        self._energy = energy
        self._api_key = api_key
        self._routes: dict[str, dict[str, Handler]] = {
            **{path: {"POST": self._answer} for path in _PATHS},
            "/v1/models": {"GET": self._models},
            "/v1/loads": {"GET": self._loads},
            "/server_info": {"GET": self._server_info},
            "/get_server_info": {"GET": self._server_info},
            "/model_info": {"GET": self._model_info},
            "/get_model_info": {"GET": self._model_info},
            "/ready": {"GET": self._healthy},
            "/health": {"GET": self._healthy},
            "/health_generate": {"GET": self._healthy},
            "/metrics": {"GET": self._metrics},
            "/abort_request": {"POST": self._abort_request},
            "/set_internal_state": {"POST": self._set_internal_state, "PUT": self._set_internal_state},
            "/flush_cache": {"GET": self._flush_cache, "POST": self._flush_cache},
            "/energy": {"GET": self._energy_report},
            "/emulator": {"GET": self._emulator},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if not self._authorized(scope, path):
            await send_bytes(send, b'{"error":"Unauthorized"}', status=401, headers=[JSON_TYPE])
            return
        handlers = self._routes.get(path)
        if handlers is None and path.startswith(_MODEL_PREFIX):
            handlers = {"GET": self._model}
        if handlers is None:
            await send_json(send, {"detail": "Not Found"}, status=404)
            return
        handler = handlers.get(method)
        if handler is None:
            allow = (b"allow", ", ".join(handlers).encode())
            await send_json(send, {"detail": "Method Not Allowed"}, status=405, extra=[allow])
            return
        await handler(scope, receive, send)

    def _authorized(self, scope: Scope, path: str) -> bool:
        if self._api_key is None or path.startswith(_OPEN_PREFIXES):
            return True
        scheme, _, token = (header(scope, "authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), self._api_key.encode())

    # ---- answers

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        api = _PATHS[scope["path"]]
        body: dict[str, object] = {}
        try:
            if api is not Api.NATIVE:
                _check_content_type(header(scope, "content-type"))
            body = parse_body(await read_body(receive))
            batch = bodies_of(body) if api is Api.NATIVE else None
            asks = [
                read_ask(api, one, lambda name: header(scope, name), self._site.limits, drafts=self._engine.drafts)
                for one in batch or [body]
            ]
            ask = asks[0]
            generations = self._submit(asks)
        except Refusal as refusal:
            await _refuse(send, refusal, api, stream=body.get("stream") is True)
            return
        except DuplicateRid as duplicate:
            await _refuse(send, Refusal.of_value(str(duplicate)), api, stream=ask.stream)
            return
        except QueueFull as full:
            await _refuse_full(send, ask, api, self._engine.clock.unix_now_s(), str(full))
            return
        async with self._aborted_with_client(receive, generations):
            answers = [
                _FORMATS[api](Report(one, generation, self._engine))
                for one, generation in zip(asks, generations, strict=True)
            ]
            if ask.stream:
                await _stream(send, generations[0], answers[0])
                return
            for generation in generations:
                await generation.end()
            whole = [answer.whole() for answer in answers]
            await send_raw_json(send, whole[0] if batch is None else b"[%b]" % b",".join(whole))

    def _submit(self, asks: Sequence[Ask]) -> list[Generation]:
        """All of them, or none. Raises `QueueFull` and `DuplicateRid`."""
        taken: list[Generation] = []
        try:
            for ask in asks:
                taken.append(self._engine.submit(ask))
        except BaseException:
            self._abort(taken)
            raise
        return taken

    def _abort(self, generations: Iterable[Generation]) -> None:
        for generation in generations:
            self._engine.abort(generation)

    @asynccontextmanager
    async def _aborted_with_client(self, receive: Receive, generations: Sequence[Generation]) -> AsyncIterator[None]:
        """Ends the request when its client closes the connection, or when the block is left early."""
        watch = asyncio.create_task(self._abort_on_disconnect(receive, generations))
        try:
            yield
        finally:
            watch.cancel()
            self._abort(generations)

    async def _abort_on_disconnect(self, receive: Receive, generations: Sequence[Generation]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abort(generations)

    # ---- control

    async def _abort_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = parse_body(await read_body(receive))
        except Refusal as refusal:
            await send_json(send, refusal_body(refusal, native=False), status=400)
            return
        rid = body.get("rid")
        if body.get("abort_all") is True:
            self._engine.abort_all()
        elif isinstance(rid, str):
            self._engine.abort_rid(rid)
        await send_text(send)

    async def _set_internal_state(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            wanted = read_internal_state(parse_body(await read_body(receive)))
        except Refusal as refusal:
            await send_json(send, refusal_body(refusal, native=False), status=400)
            return
        # One answer for each data-parallel rank, of which there is one.
        await send_json(send, [set_internal_state(self._engine, self._site.arm.algorithm, wanted)])

    async def _flush_cache(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._engine.running or self._engine.waiting:
            await send_text(send, b"Flush cache failed.\n", status=400)
            return
        await send_text(
            send,
            b"Cache flushed.\nPlease check backend logs for more details. "
            b"(When there are running or waiting requests, the operation will not be performed.)\n",
        )

    # ---- information

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, models(self._site, self._engine))

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix(_MODEL_PREFIX)
        if name == self._site.model_name:
            await send_json(send, model_card(self._site, self._engine))
            return
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        await send_json(send, {"error": error}, status=404)

    async def _loads(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = query(scope, "include")
        include = frozenset(section.strip() for section in asked.split(",")) if asked else None
        if include is not None and not include <= _LOAD_SECTIONS:
            plain = (b"content-type", b"text/plain; charset=utf-8")
            await send_bytes(send, b"Internal Server Error", status=500, headers=[plain])
            return
        await send_json(send, loads(self._site, self._engine, include))

    async def _server_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, server_info(self._site, self._engine))

    async def _model_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, model_info(self._site))

    async def _healthy(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_text(send)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await start_chunked(send, CONTENT_TYPE)
        await send_chunk(send, metrics(self._site, self._engine))
        await end_chunked(send)

    async def _emulator(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine = self._engine
        p50_ms, p99_ms = engine.lag_ms(0.5, 0.99)
        document = {
            "arm": self._site.spec.arm,
            "time_scale": engine.clock.time_scale,
            "boundaries": engine.boundaries,
            "lag_p50_ms": p50_ms,
            "lag_p99_ms": p99_ms,
        }
        await send_json(send, document)

    async def _energy_report(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_raw_json(send, self._energy())


def _check_content_type(value: str | None) -> None:
    media_type = (value or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refusal.of_schema(
            "value_error",
            ("header", "content-type"),
            "Unsupported Media Type: Only 'application/json' is allowed",
            value,
        )


async def _stream(send: Send, generation: Generation, answer: Answer) -> None:
    if answer.headers_first:
        await start_chunked(send, _EVENT_STREAM)
    seen, tokens = 0, await generation.more(0)
    if not answer.headers_first:
        await start_chunked(send, _EVENT_STREAM)
    for event in answer.begin():
        await send_chunk(send, event)
    while True:
        ended = generation.ended
        content = answer.event(seen, tokens, ended=ended)
        if content is not None:
            await send_chunk(send, content)
        if ended:
            break
        seen, tokens = tokens, await generation.more(tokens)
    for event in answer.end():
        await send_chunk(send, event)
    await end_chunked(send)


async def _refuse(send: Send, refusal: Refusal, api: Api, *, stream: bool) -> None:
    native = api is Api.NATIVE
    if native and stream and not refusal.schema:
        await _send_events(send, sse(native_stream_error(refusal)))
    else:
        await send_json(send, refusal_body(refusal, native=native), status=400)


async def _refuse_full(send: Send, ask: Ask, api: Api, unix_s: float, message: str) -> None:
    """503, but in a stream an event after HTTP 200, since there the scheduler's verdict comes as the first output."""
    if not ask.stream:
        await send_json(send, error_body(message, "503", 503), status=503)
    elif api is Api.NATIVE:
        finish = {"type": "abort", "status_code": 503, "message": message}
        meta = {
            "id": ask.rid,
            "finish_reason": finish,
            "weight_version": "default",
            "e2e_latency": 0.0,
            "weight_versions": [{"version": "default", "start": 0, "end": 0}],
            "completion_tokens": 0,
            "response_sent_to_client_ts": unix_s,
        }
        await _send_events(send, sse({"text": "", "output_ids": [], "meta_info": meta}))
    else:
        # SGLang writes this one event with the standard library's spacing.
        error = json.dumps({"error": error_body(message, "SERVICE_UNAVAILABLE", 503)})
        events = [f"data: {error}\n\n".encode()]
        if ask.include_usage:
            kind = CHAT_CHUNK if api is Api.CHAT else COMPLETION
            events.append(usage_event(kind, ask, int(unix_s), prompt_tokens=0, completion_tokens=0))
        await _send_events(send, *events)


async def _send_events(send: Send, *events: bytes) -> None:
    await start_chunked(send, _EVENT_STREAM)
    for event in (*events, DONE):
        await send_chunk(send, event)
    await end_chunked(send)
