"""The client's side of one request: its headers, its body, and its leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from selector.errors import SelectorError
from selector.router.answers import CLOSE, RefusedRequest

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(SelectorError):
    """The client closed its connection."""


def header_texts(headers: list[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Headers by lower-case name; of several of one name the first."""
    texts: dict[str, str] = {}
    for name, value in headers:
        texts.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip())
    return texts


async def read_body(receive: Receive, headers: Mapping[str, str], max_body_bytes: int) -> bytes:
    """The whole body. Raises `RefusedRequest` (413) when it is larger, `ClientGone` when it does not come."""
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_body_bytes:
        raise _too_large(max_body_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_body_bytes:
            raise _too_large(max_body_bytes)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_body_bytes: int) -> RefusedRequest:
    # The rest of the body is not read, so the connection cannot be used again.
    return RefusedRequest(413, f"the body is larger than {max_body_bytes} bytes", headers=[CLOSE])


class ClientWatch:
    """Ends the block under it at once when the client goes away, with `ClientGone`.

    Works as `asyncio.timeout` does: the task that entered is cancelled, and the cancellation becomes `ClientGone` where
    the block ends. The body must have been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGone from None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()
