"""A server that answers like SGLang until it is told to misbehave: one backend of the soak, in a process of its own.

    python bench/_soak_backend.py PORT ARM SEED

Prints `ready`, then takes one mood a line from standard input (see `MOODS`). Seven of ten requests suffer from the
mood, the others are answered well, as from a server that is only half broken.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import Mapping
from typing import Any

MOODS = (
    "fine",
    "breaks",  # closes the connection instead of answering
    "hangs",  # never answers
    "cut",  # closes in the middle of a stream
    "truncated",  # ends a stream cleanly, but without its end
    "malformed",  # events that are no JSON
    "no_http",  # bytes that are no answer
    "error",  # 500
    "refuses",  # 400
    "full",  # 503: the queue is full
    "stalls",  # pauses in the middle of a stream
    "slow",  # streams at a tenth of the pace
    "deaf",  # accepts no connection
    "unready",  # /ready says 503
)
MODEL = "Qwen3-8B"
INFO: Mapping[str, Mapping[str, Any]] = {
    "none": {"speculative_algorithm": None},
    "eagle3-k3": {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "speculative_adaptive": False,
    },
}
_SUFFERS_FRAC = 0.7
_CHUNKS = 12
_PACE_S = 0.004


class Backend:
    """One server."""

    def __init__(self, arm: str, seed: int) -> None:
        self.mood = "fine"
        self._arm = arm
        self._random = random.Random(seed)
        self._steps = 0
        self._running = 0
        self._hearing = asyncio.Event()
        self._hearing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        """Serves until it is cancelled."""
        loop = asyncio.get_running_loop()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
            listener.setblocking(False)
            print("ready", flush=True)
            while True:
                await self._hearing.wait()
                connection, _ = await loop.sock_accept(listener)
                task = asyncio.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def feel(self, mood: str) -> None:
        """From now on."""
        self.mood = mood
        if mood == "deaf":
            self._hearing.clear()
        else:
            self._hearing.set()

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].partition(b"?")[0]
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line[15:])
                body = await reader.readexactly(length)
                if path in (b"/ready", b"/v1/loads", b"/server_info"):
                    self._tell(path, writer)
                    await writer.drain()
                else:
                    self._running += 1
                    try:
                        await self._answer(json.loads(body or b"{}"), reader, writer)
                    finally:
                        self._running -= 1
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    def _tell(self, path: bytes, writer: asyncio.StreamWriter) -> None:
        if path == b"/ready":
            _whole(writer, 503 if self.mood == "unready" else 200, {})
        elif path == b"/server_info":
            _whole(writer, 200, {"version": "0.5.17", "served_model_name": MODEL, "tp_size": 1, **INFO[self._arm]})
        else:
            steps = self._steps
            load = {
                "num_running_reqs": self._running,
                "num_waiting_reqs": 0,
                "num_used_tokens": 100 * self._running,
                "decode_moments": [steps, steps, 1e3 * steps, steps, 1e3 * steps, 2 * steps],
            }
            _whole(writer, 200, {"loads": [load]})

    async def _answer(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mood = self.mood if self._random.random() < _SUFFERS_FRAC else "fine"
        match mood:
            case "breaks":
                raise ConnectionError
            case "hangs":
                await reader.read(1)  # until the router gives up
                raise ConnectionError
            case "no_http":
                writer.write(b"220 mail.example ESMTP\r\n")
            case "error":
                _whole(writer, 500, {"object": "error", "message": "CUDA error", "code": 500})
            case "refuses":
                _whole(writer, 400, {"object": "error", "message": "temperature", "code": 400})
            case "full":
                _whole(writer, 503, {"object": "error", "message": "The request queue is full.", "code": 503})
            case _ if body.get("stream"):
                await self._stream(mood, reader, writer)
            case "cut" | "truncated" | "stalls":
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"half"')
                await writer.drain()
                raise ConnectionError
            case _:
                choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
                counts = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
                _whole(writer, 200, {"object": "chat.completion", "choices": [choice], "usage": counts})
        await writer.drain()

    async def _stream(self, mood: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        pace_s = 10 * _PACE_S if mood == "slow" else _PACE_S
        for number in range(_CHUNKS):
            if number == _CHUNKS // 2:
                if mood == "cut":
                    raise ConnectionError
                if mood == "truncated":
                    writer.write(b"0\r\n\r\n")
                    return
                if mood == "stalls":
                    await reader.read(1)  # until the router gives up
                    raise ConnectionError
                if mood == "malformed":
                    _chunk(writer, b'data: {"choices": [}\n\ndata: \xff\xfe\n\nnonsense\n\n')
            delta = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
            _event(writer, {"object": "chat.completion.chunk", "choices": [delta]})
            self._steps += 1
            await writer.drain()
            await asyncio.sleep(pace_s)
        counts = {"prompt_tokens": 10, "completion_tokens": 2 * _CHUNKS, "total_tokens": 10 + 2 * _CHUNKS}
        _event(writer, {"object": "chat.completion.chunk", "choices": [], "usage": counts})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def _whole(writer: asyncio.StreamWriter, status: int, document: object) -> None:
    data = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


def _event(writer: asyncio.StreamWriter, document: object) -> None:
    _chunk(writer, b"data: " + json.dumps(document).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def main() -> None:
    """Serves; moods come on standard input, and its end is the end."""
    port, arm, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    backend = Backend(arm, seed)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    serving = asyncio.create_task(backend.listen(port))
    while line := await orders.readline():
        backend.feel(line.decode().strip())
    serving.cancel()


if __name__ == "__main__":
    asyncio.run(main())
