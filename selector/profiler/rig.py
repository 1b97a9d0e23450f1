"""A server under test with what measures it, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from selector.profiler.client import SglangClient
from selector.profiler.clock import Clock
from selector.profiler.energy import MIN_UPDATES, EnergyWindow, Span
from selector.profiler.meter import EnergyMeter
from selector.profiler.rapl import HostEnergy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A server under test and what measures it."""

    client: SglangClient
    clock: Clock
    meter: EnergyMeter | None
    """`None` measures time alone."""
    host: HostEnergy | None
    vocab_size: int
    context_length: int

    async def energy(self, spans: list[Span], min_updates: int = MIN_UPDATES) -> EnergyWindow | None:
        """Energy of these times; `None` without a meter. Raises `MeterError`."""
        return None if self.meter is None else await self.meter.over(spans, min_updates=min_updates)

    def host_j(self) -> float | None:
        """The host's running total; `None` where it has no counter."""
        return None if self.host is None else self.host.total_j()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What runs: a batch of prompts of one length on an arm."""

    batch: int
    prompt_tokens: int
    verify_tokens: int
