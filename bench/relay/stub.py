"""A server that answers like SGLang and costs next to nothing: what proxies are measured in front of.

One process, one address per backend. What a request asks for says how it is answered:

    max_tokens   content chunks of the stream (64 by default), each about 250 bytes
    seed         milliseconds between two of them; 0 sends all at once
    stream       without it one whole answer comes at once

Every content chunk says when it was written (`t<nanoseconds>.` of the monotonic clock that all processes of a machine
share), so that a reader can tell how long it was on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any

import uvloop

MODEL = "Qwen3-8B"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_MOST_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_PACE = re.compile(rb'"seed":\s*(\d+)')
_STREAMS = re.compile(rb'"stream":\s*true')
_WANTS_USAGE = re.compile(rb'"include_usage":\s*true')
_HEAD_LIMIT = 65_536

_START = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1764400000,"model":"Qwen3-8B",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":"'
)
_AFTER = b'"},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}\n\n'
_FINISH = _START + b'"},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}\n\n'
_DONE = b"data: [DONE]\n\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\nserver: stub\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LOAD = {
    "dp_rank": 0,
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_used_tokens": 0,
    "max_total_num_tokens": 4_000_000,
    "max_running_requests": 4_096,
}


def framed(event: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def content_chunk() -> bytes:
    """One content chunk as it goes over the wire, stamped with the time of now."""
    stamp = b"t%d." % time.monotonic_ns()
    return framed(b"".join((_START, stamp, b"x" * (32 - len(stamp)), _AFTER)))


def usage_event(tokens: int) -> bytes:
    """The usage chunk."""
    counts = b'{"prompt_tokens":32,"total_tokens":%d,"completion_tokens":%d}' % (tokens + 32, tokens)
    head = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1764400000,"model":"Qwen3-8B",'
    return head + b'"choices":[],"usage":' + counts + b"}\n\n"


def whole_answer(tokens: int) -> bytes:
    """The body of an answer that is not streamed."""
    usage = {"prompt_tokens": 32, "completion_tokens": tokens, "total_tokens": tokens + 32}
    message = {"role": "assistant", "content": "x" * 4 * tokens}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    document = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1764400000, "model": MODEL}
    return json.dumps({**document, "choices": [choice], "usage": usage}).encode()


class Stub(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._info = info
        self._pending = b""
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """The other side connected."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side left, perhaps in mid-stream."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._pending += data
        self._next()

    def _next(self) -> None:
        while not self._busy:
            end = self._pending.find(b"\r\n\r\n") + 4
            if end < 4:
                if len(self._pending) > _HEAD_LIMIT:
                    self._transport.abort()
                return
            head = self._pending[:end]
            match = _LENGTH.search(head)
            length = int(match.group(1)) if match else 0
            if len(self._pending) < end + length:
                return
            body = self._pending[end : end + length]
            self._pending = self._pending[end + length :]
            self._answer(head.split(b" ", 2)[1].partition(b"?")[0], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if not body:
            document = self._about(path)
            self._whole(200 if document is not None else 404, json.dumps(document).encode())
            return
        match = _MOST_TOKENS.search(body)
        tokens = int(match.group(1)) if match else 64
        if _STREAMS.search(body) is None:
            self._whole(200, whole_answer(tokens))
            return
        match = _PACE.search(body)
        pace_s = int(match.group(1)) / 1e3 if match else 0.0
        events = [_FINISH, *([usage_event(tokens)] if _WANTS_USAGE.search(body) else []), _DONE]
        end = b"".join(map(framed, events)) + b"0\r\n\r\n"
        if pace_s == 0.0:
            self._transport.write(_STREAM_HEAD + b"".join([content_chunk() for _ in range(tokens)]) + end)
            return
        self._busy = True
        self._transport.write(_STREAM_HEAD + content_chunk())
        self._pace(self._loop.time() + pace_s, pace_s, tokens - 1, end)

    def _pace(self, at_s: float, pace_s: float, left: int, end: bytes) -> None:
        if left:
            self._timer = self._loop.call_at(at_s, self._tick, at_s, pace_s, left, end)
        else:
            self._transport.write(end)
            self._busy = False
            self._next()

    def _tick(self, at_s: float, pace_s: float, left: int, end: bytes) -> None:
        self._transport.write(content_chunk())
        self._pace(at_s + pace_s, pace_s, left - 1, end)

    def _whole(self, status: int, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 %d Stub\r\nserver: stub\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _about(self, path: bytes) -> object:
        """What the server says of itself; `None` for a path it does not know."""
        match path.decode("latin-1"):
            case "/health" | "/ready" | "/health_generate":
                return {"status": "ok"}
            case "/server_info" | "/get_server_info":
                return {
                    "version": "0.5.23",
                    "model_path": MODEL,
                    "served_model_name": MODEL,
                    "tp_size": 1,
                    "dp_size": 1,
                    "stream_response_default_include_usage": False,
                    "internal_states": [{}],
                    **self._info,
                }
            case "/model_info" | "/get_model_info":
                return {"model_path": MODEL, "is_generation": True}
            case "/v1/models":
                return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "sglang"}]}
            case "/v1/loads":
                return {"version": "0.5.23", "loads": [_LOAD]}
            case _:
                return None


async def serve(backends: Mapping[int, Mapping[str, Any]]) -> None:
    """Serves every port until the process is ended."""
    loop = asyncio.get_running_loop()
    for port, info in backends.items():
        await loop.create_server(lambda info=info: Stub(info), "127.0.0.1", port, backlog=4_096)
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", type=json.loads, help='JSON: {"port": fields of /server_info, ...}')
    given = parser.parse_args().backends
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve({int(port): info for port, info in given.items()}))


if __name__ == "__main__":
    main()
