"""Reads the energy counters of the fleet's GPUs in the background, and tells the books.

Each address is asked for `/energy` (`drafter-selector meter` on a GPU host, or an emulated fleet) by a task of its own,
less and less often while it does not answer. A request never waits for any of it.

    first reading                         ──▶ begin       what came before is not known
    the counter moved                     ──▶ reading     joules between the two edges
    it did not move                       ──▶ nothing     the interval goes on
    it fell, or the board cannot have     ──▶ begin       refused, counted, and the reason shown
    drawn what it says

What happened between two answers is taken to have happened between the edges of the counter before them: that is off by
up to the counter's own step (0.1 s), so intervals should be much longer. Sums are exact all the same.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selector.errors import UpstreamError
from selector.files.fleet import Energy
from selector.router.books import Books

_LONGEST_WAIT_S = 60.0
_MOST_BYTES = 1024 * 1024
_LIMIT_TOLERANCE_FRAC = 1.02
"""Boards hold their power limit as exactly as this over the time between two answers."""
_EDGE_S = 0.1
"""The counter's own step: by so much an interval may be longer than it says."""


class _Gpu(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    id: str
    energy_mj: int = Field(ge=0)
    timestamp_ns: int = Field(ge=0)


class _Document(BaseModel):
    """What of `/energy` is used."""

    model_config = ConfigDict(frozen=True)
    gpus: tuple[_Gpu, ...]


class Meter:
    """One address, and what is known of it."""

    def __init__(self, url: str) -> None:
        self.url = url.removesuffix("/energy") + "/energy"
        self.name = urlsplit(url).netloc
        self.up = False
        self.failures = 0
        self.last_error: str | None = None
        self.answered_s: float | None = None
        """On the router's clock."""
        self.gpus: dict[str, tuple[int, int]] = {}
        """The fleet's GPUs that it is the first to tell of, with counter (mJ) and time of its edge (ns)."""
        self.refused = 0
        """Readings that cannot be."""
        self.last_refused: str | None = None
        """Why the last of them was."""


class Meters:
    """All of a fleet's. `run` until it is cancelled, then `close`."""

    def __init__(
        self,
        options: Energy,
        books: Books,
        clock: Callable[[], float],
        tls: ssl.SSLContext,
        power_limits_w: Mapping[str, float],
    ) -> None:
        """`clock` gives seconds since the router started; `tls` verifies meters with an `https://` address.

        `power_limits_w` are those of the fleet's GPUs by their profiles.
        """
        self.meters: Sequence[Meter] = [Meter(url) for url in dict.fromkeys(options.urls)]
        self._options = options
        self._books = books
        self._clock = clock
        self._power_limits_w = power_limits_w
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=options.poll_timeout_s),
        )

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()

    @property
    def unmetered(self) -> list[str]:
        """GPUs of the fleet that no meter has told of."""
        return sorted(self._power_limits_w.keys() - set().union(*[meter.gpus for meter in self.meters]))

    async def run(self) -> None:
        """Reads regularly."""
        async with asyncio.TaskGroup() as group:
            for meter in self.meters:
                group.create_task(self._follow(meter))

    async def read(self, meter: Meter) -> bool:
        """Reads one meter; whether it answered."""
        try:
            document = await self._document(meter)
        except UpstreamError as failed:
            meter.up, meter.last_error = False, str(failed)
            meter.failures += 1
            return False
        now_s = self._clock()
        meter.up, meter.last_error, meter.answered_s = True, None, now_s
        for gpu in document.gpus:
            if gpu.id in self._power_limits_w and not any(gpu.id in other.gpus for other in self._others(meter)):
                self._take(meter, gpu, now_s)
        return True

    def _others(self, meter: Meter) -> list[Meter]:
        return [other for other in self.meters if other is not meter]

    def _take(self, meter: Meter, gpu: _Gpu, now_s: float) -> None:
        last = meter.gpus.get(gpu.id)
        if last is not None and gpu.timestamp_ns == last[1]:
            return
        meter.gpus[gpu.id] = gpu.energy_mj, gpu.timestamp_ns
        if last is None:
            self._books.begin(gpu.id, now_s)
            return
        joules, seconds = (gpu.energy_mj - last[0]) / 1e3, (gpu.timestamp_ns - last[1]) / 1e9
        impossible = _impossible(joules, seconds, self._power_limits_w[gpu.id])
        if impossible is None:
            self._books.reading(gpu.id, joules, seconds, now_s)
        else:
            meter.refused += 1
            meter.last_refused = f"{gpu.id}: {impossible}"
            self._books.begin(gpu.id, now_s)

    async def _follow(self, meter: Meter) -> None:
        wait_s = self._options.poll_interval_s
        while True:
            if await self.read(meter):
                wait_s = self._options.poll_interval_s
            else:
                wait_s = min(2.0 * wait_s, max(_LONGEST_WAIT_S, self._options.poll_interval_s))
            await asyncio.sleep(wait_s)

    async def _document(self, meter: Meter) -> _Document:
        body = bytearray()
        try:
            async with self._session.get(meter.url, allow_redirects=False) as response:
                status = response.status
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise UpstreamError("answered more than a meter has to say")
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise UpstreamError(str(failed) or type(failed).__name__) from failed
        if status != 200:
            raise UpstreamError(f"answered {status}")
        try:
            return _Document.model_validate_json(bytes(body))
        except ValidationError as invalid:
            first = invalid.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the answer"
            raise UpstreamError(f"{where}: {first['msg']}") from None


def _impossible(joules: float, seconds: float, power_limit_w: float) -> str | None:
    """What is wrong with a counter that went on by so much; `None` if it can be."""
    if joules < 0.0 or seconds < 0.0:
        return "the counter went backwards: the board or its driver was reset"
    most_j = _LIMIT_TOLERANCE_FRAC * power_limit_w * (seconds + _EDGE_S)
    if joules > most_j:
        return (
            f"{joules:.0f} J in {seconds:.2f} s is more than a board limited to {power_limit_w:g} W can draw;"
            " compare the profile's power limit with the board's"
        )
    return None
