"""What boards and engines say of themselves while a cell runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import aiohttp

from selector.errors import UpstreamError
from selector.files.fleet import LoadedFleet
from selector.profiler.client import SglangClient, StepTotals, open_session

_SAMPLE_S = 0.5
_ENGINES_EVERY_SAMPLES = 3


class Board:
    """Power, clocks and throttling over a run, as far as the meter tells; how joules and tokens came about in it."""

    def __init__(self, urls: Sequence[str], loaded: LoadedFleet) -> None:
        self._urls = urls
        self._loaded = loaded
        self._samples: list[Mapping[str, Any]] = []
        self._timeline: list[tuple[float, ...]] = []

    async def follow(self) -> None:
        """Samples until it is cancelled; who does not answer once is asked again."""
        began_s = time.monotonic()
        count = 0
        async with aiohttp.ClientSession() as session:
            while True:
                with suppress(UpstreamError, aiohttp.ClientError, TimeoutError):
                    await self._sample(session, began_s, engines=count % _ENGINES_EVERY_SAMPLES == 0)
                count += 1
                await asyncio.sleep(_SAMPLE_S)

    async def _sample(self, session: aiohttp.ClientSession, began_s: float, *, engines: bool) -> None:
        boards: dict[str, Mapping[str, Any]] = {}
        for url in self._urls:
            async with session.get(url) as answer:
                boards |= {gpu["id"]: gpu for gpu in (await answer.json())["gpus"]}
        self._samples += boards.values()
        if not engines:
            return
        energy_j = sum(gpu["energy_mj"] for gpu in boards.values()) / 1e3
        at_s = time.monotonic() - began_s
        totals = (await engine_totals(self._loaded)).values()
        names = ("steps", "request_steps", "tokens")
        self._timeline.append((at_s, energy_j, *(sum(getattr(each, name) for each in totals) for name in names)))

    def summary(self) -> dict[str, Any]:
        """Means over the samples."""

        def mean(name: str) -> float | None:
            known = [float(sample[name]) for sample in self._samples if sample.get(name) is not None]
            return fmean(known) if known else None

        throttled = [bool(sample["throttle"]) for sample in self._samples if "throttle" in sample]
        return {
            "power_w_mean": mean("power_w"),
            "sm_mhz_mean": mean("sm_mhz"),
            "temperature_c_mean": mean("temperature_c"),
            "throttled_frac": fmean(throttled) if throttled else None,
            "samples": len(self._samples),
        }

    def timeline(self) -> list[dict[str, float]]:
        """What was done since the run began, all boards and engines together, every so often.

        Decode steps, requests × steps and tokens of them; engines publish those every 15 steps or so.
        """
        if not self._timeline:
            return []
        names = ("energy_j", "steps", "request_steps", "tokens")
        first = self._timeline[0][1:]
        return [
            {"at_s": round(at_s, 3)}
            | {name: round(now - begun, 3) for name, now, begun in zip(names, done, first, strict=True)}
            for at_s, *done in self._timeline
        ]


async def engine_totals(loaded: LoadedFleet) -> dict[str, StepTotals]:
    """Every server's own counters, by backend. Raises `UpstreamError`."""
    async with open_session() as session:
        clients = {b.name: SglangClient(session, str(b.url), time.monotonic) for b in loaded.fleet.backends}
        return {name: await client.step_totals() for name, client in clients.items()}


def engines(before: Mapping[str, StepTotals], after: Mapping[str, StepTotals]) -> dict[str, dict[str, float | None]]:
    """What each server counted in between: where its time went, apart from what a client sees."""
    counted = {}
    for name, end in after.items():
        start = before[name]
        steps, request_steps = end.steps - start.steps, end.request_steps - start.request_steps
        counted[name] = {
            "steps": steps,
            "mean_batch": request_steps / steps if steps else None,
            "mean_step_ms": 1e3 * (end.step_s - start.step_s) / steps if steps else None,
            "tokens_per_request_step": (end.tokens - start.tokens) / request_steps if request_steps else None,
            "prefill_s": end.prefill_s - start.prefill_s,
            "prefill_tokens": end.prefill_tokens - start.prefill_tokens,
        }
    return counted
