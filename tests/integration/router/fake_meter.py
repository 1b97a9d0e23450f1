"""A meter whose counters a test turns by hand."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from aiohttp import web


class FakeMeter:
    """Answers `/energy` on a free port. `joules` and `seconds` of each GPU go on by `draw`."""

    def __init__(self, *gpus: str) -> None:
        self.counters = {gpu: [1_000_000, 1_700_000_000_000_000_000] for gpu in gpus}
        self.status = 200
        self.body: bytes | None = None
        """Answered instead, if given."""
        self.asked = 0
        self._answered = asyncio.Condition()

    def draw(self, gpu: str, joules: float, seconds: float) -> None:
        self.counters[gpu][0] += round(joules * 1e3)
        self.counters[gpu][1] += round(seconds * 1e9)

    def document(self) -> dict[str, Any]:
        return {
            "gpus": [
                {"id": gpu, "energy_mj": millijoules, "timestamp_ns": edge, "power_w": None, "stalled": False}
                for gpu, (millijoules, edge) in self.counters.items()
            ],
            "host_energy_j": None,
        }

    async def read_afresh(self) -> None:
        """Returns when a reading that began after this call was answered, and the one after it was asked for."""
        async with self._answered:
            wanted = self.asked + 2
            await self._answered.wait_for(lambda: self.asked >= wanted)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/energy", self._energy)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _energy(self, request: web.Request) -> web.Response:
        async with self._answered:
            self.asked += 1
            self._answered.notify_all()
        if self.body is not None:
            return web.Response(body=self.body, status=self.status)
        return web.json_response(self.document(), status=self.status)
