"""Reads the energy counters of GPUs while something runs on them, and answers what a window of time took.

    counter (mJ)                                    ┌──────
      as it is                               ┌──────┘ edge 4
                                      ┌──────┘ edge 3
                               ┌──────┘ edge 2
                        ───────┘ edge 1
    polls           · · · · · · · · · · · · · · · · · · · ·        every few ms, one thread for all GPUs
    kept            ───────────1──────2──────3──────4──────        time and value of each edge, nothing between
    instant power   p p p p p p p p p p p p p p p p p p p p        field 186, integrated as a second opinion
    state           s           s           s           s          clocks, temperature, throttle, processes

    window                 start├───────────────────┤end           energy = interpolated(end) − interpolated(start)
                             edge 1 ≤ start < edge 2   … ≤ end ≤ edge 4: an edge must follow the end, so `window` waits
                             for it, and refuses when none comes

The thread does nothing but read. Everything else is in `energy.py`, on readings alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TextIO

from selector.errors import MeterError
from selector.profiler.clock import Clock
from selector.profiler.energy import MIN_UPDATES, EnergySource, EnergyWindow, GpuTrace, Span, evaluate

_POLL_PAUSE_S = 0.003
"""Between two rounds of polls; with calls of a few ms an edge is placed to about ±5 ms."""

_STATE_INTERVAL_S = 0.1

_EDGE_TIMEOUT_S = 3.0
"""How long `window` waits for the edge after its end before it calls the counter stalled."""

_EDGE_POLL_S = 0.02


class EnergyMeter:
    """Energy of one or several GPUs, summed. A context manager: reading goes on inside it.

    Windows are asked for on the meter's clock. `record`, where given, gets one JSON line per counter edge, which
    `load_recording` reads. With a clock that is not real, `poll` is called by hand instead of entering the context.
    """

    def __init__(
        self,
        sources: Sequence[EnergySource],
        *,
        clock: Clock,
        record: TextIO | None = None,
    ) -> None:
        if not sources:
            raise MeterError("no GPU to meter")
        self._sources = tuple(sources)
        self._clock = clock
        self._record = record
        self._traces = [GpuTrace(gpu=source.gpu, power_limit_w=source.power_limit_w) for source in sources]
        self._last: list[tuple[float, int] | None] = [None] * len(sources)
        self._allowed: Callable[[int], bool] | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: MeterError | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids of the metered GPUs."""
        return tuple(source.gpu for source in self._sources)

    @property
    def power_limit_w(self) -> float:
        """Sum of the enforced limits."""
        return sum(source.power_limit_w for source in self._sources)

    def __enter__(self) -> EnergyMeter:
        self._stop.clear()
        self._thread = threading.Thread(target=self._read_on, name="energy-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._record is not None:
            self._record.flush()

    def allow_processes(self, allowed: Callable[[int], bool] | None) -> None:
        """Says of a process id whether it may use the GPUs in a window; `None` (at first) leaves others unnoticed."""
        self._allowed = allowed

    def processes(self) -> frozenset[int] | None:
        """Processes that compute on the GPUs now; `None` where the driver does not list them."""
        seen: frozenset[int] = frozenset()
        for source in self._sources:
            listed = source.state().processes
            if listed is None:
                return None
            seen |= listed
        return seen

    async def window(self, start_s: float, end_s: float, *, min_updates: int = MIN_UPDATES) -> EnergyWindow:
        """Energy between two times, as soon as the counter has passed the later one.

        Raises `MeterError` with the reason when it must not be used.
        """
        return await self.over([(start_s, end_s)], min_updates=min_updates)

    async def over(self, spans: Sequence[Span], *, min_updates: int = MIN_UPDATES) -> EnergyWindow:
        """Energy of several stretches of time taken together, each bounded as a window is."""
        end_s = max(end for _, end in spans)
        while self._failure is None and not self._covers(end_s) and self._clock.now() < end_s + _EDGE_TIMEOUT_S:
            await self._clock.sleep(_EDGE_POLL_S)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            return evaluate(self._traces, spans, min_updates=min_updates, allowed=self._allowed)

    def poll(self) -> None:
        """Reads every GPU once. Raises `MeterError` when a sensor fails."""
        for index, source in enumerate(self._sources):
            before_s = self._clock.now()
            counter_mj = source.counter_mj()
            after_s = self._clock.now()
            power_w = source.instant_power_w()
            trace = self._traces[index]
            due = not trace.state_s or after_s - trace.state_s[-1] >= _STATE_INTERVAL_S
            state = source.state() if due else None
            now_s = (before_s + after_s) / 2
            last = self._last[index]
            self._last[index] = (now_s, counter_mj)
            with self._lock:
                if power_w is not None:
                    trace.power_s.append(after_s)
                    trace.power_w.append(power_w)
                if state is not None:
                    trace.state_s.append(after_s)
                    trace.states.append(state)
                # The first value seen is no edge: when it appeared is unknown.
                if last is not None and counter_mj != last[1]:
                    trace.edge_s.append((last[0] + now_s) / 2)
                    trace.edge_j.append(counter_mj / 1e3)
                    self._write_edge(trace, counter_mj)

    def _covers(self, end_s: float) -> bool:
        return all(trace.edge_s and trace.edge_s[-1] >= end_s for trace in self._traces)

    def _read_on(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
            except MeterError as failed:
                self._failure = failed
                return
            self._stop.wait(_POLL_PAUSE_S)

    def _write_edge(self, trace: GpuTrace, counter_mj: int) -> None:
        if self._record is None:
            return
        state = trace.states[-1]
        line = {
            "gpu": trace.gpu,
            "t_s": round(trace.edge_s[-1], 6),
            "counter_mj": counter_mj,
            "power_w": trace.power_w[-1] if trace.power_w else None,
            "power_limit_w": trace.power_limit_w,
            "sm_mhz": state.sm_mhz,
            "temperature_c": state.temperature_c,
            "throttle": sorted(state.throttle),
            "processes": None if state.processes is None else sorted(state.processes),
        }
        self._record.write(json.dumps(line) + "\n")
