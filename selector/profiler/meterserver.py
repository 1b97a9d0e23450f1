"""The HTTP face of an `EnergyMonitor`: JSON, server-sent events and Prometheus.

    GET /energy                  {"gpus": [{"id", "energy_mj", "timestamp_ns", "power_w", "power_limit_w", "sm_mhz",
                                 "temperature_c", "throttle", "dropped_jumps", "stalled"}], "host_energy_j"}
    GET /energy/stream           the same as events, one every `interval_s` (default 1, at least 0.1)
    GET /metrics                 Prometheus: drafter_selector_gpu_energy_joules_total and others
    GET /health                  200, or 503 with the reason once a counter cannot be read

`timestamp_ns` is the Unix time at which the counter last moved: two readings give the energy between those moments. An
emulated fleet answers `/energy` alike, so that who reads it need not know which it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from selector.errors import MeterError
from selector.profiler.monitor import EnergyMonitor, GpuReading
from selector.profiler.rapl import HostEnergy

_PREFIX = "drafter_selector_gpu_"
_LEAST_INTERVAL_S = 0.1


class MeterServer:
    """Answers for one host. `host_name` goes before each GPU's index: `host0:0` in a fleet file."""

    def __init__(self, monitor: EnergyMonitor, host: HostEnergy | None, host_name: str) -> None:
        self._monitor = monitor
        self._host = host
        self._host_name = host_name
        self._registry = CollectorRegistry()
        self._registry.register(_GpuCollector(self))

    def app(self) -> web.Application:
        """The application; closing it ends open streams."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/energy", self._energy),
                web.get("/energy/stream", self._stream),
                web.get("/metrics", self._metrics),
                web.get("/health", self._health),
            ]
        )
        return app

    def gpu_id(self, reading: GpuReading) -> str:
        """As fleet files name it."""
        return f"{self._host_name}:{reading.gpu}"

    def readings(self) -> list[GpuReading]:
        """Raises `MeterError`."""
        return self._monitor.read()

    def document(self) -> dict[str, Any]:
        """The body of `/energy`. Raises `MeterError`."""
        return {
            "gpus": [
                {
                    "id": self.gpu_id(reading),
                    "energy_mj": reading.energy_mj,
                    "timestamp_ns": reading.edge_ns,
                    "power_w": reading.power_w,
                    "power_limit_w": reading.power_limit_w,
                    "sm_mhz": reading.state.sm_mhz if reading.state else None,
                    "temperature_c": reading.state.temperature_c if reading.state else None,
                    "throttle": sorted(reading.state.throttle) if reading.state else [],
                    "dropped_jumps": reading.dropped_jumps,
                    "stalled": reading.stalled,
                }
                for reading in self.readings()
            ],
            "host_energy_j": self._host_j(),
        }

    def _host_j(self) -> float | None:
        try:
            return None if self._host is None else self._host.total_j()
        except (OSError, ValueError):  # the counters went away: unknown from now on
            self._host = None
            return None

    async def _energy(self, request: web.Request) -> web.Response:
        try:
            return web.Response(body=orjson.dumps(self.document()), content_type="application/json")
        except MeterError as failed:
            return _unavailable(failed)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("interval_s", "1")
        try:
            interval_s = float(text)
        except ValueError:
            interval_s = math.nan
        if not _LEAST_INTERVAL_S <= interval_s < math.inf:
            problem = f"interval_s is {text!r}; give seconds, {_LEAST_INTERVAL_S} or more"
            return web.json_response({"detail": problem}, status=400)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
        await response.prepare(request)
        while True:
            try:
                await response.write(b"data: " + orjson.dumps(self.document()) + b"\n\n")
            except MeterError as failed:
                await response.write(b"event: error\ndata: " + orjson.dumps({"detail": str(failed)}) + b"\n\n")
                return response
            except ConnectionError:
                return response
            await asyncio.sleep(interval_s)

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            return web.Response(body=generate_latest(self._registry), content_type="text/plain")
        except MeterError as failed:
            return _unavailable(failed)

    async def _health(self, request: web.Request) -> web.Response:
        try:
            self.readings()
        except MeterError as failed:
            return _unavailable(failed)
        return web.Response(text="ok\n")


def _unavailable(failed: MeterError) -> web.Response:
    return web.json_response({"detail": str(failed)}, status=503)


class _GpuCollector(Collector):
    """Reads the monitor at each scrape."""

    def __init__(self, server: MeterServer) -> None:
        self._server = server

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        energy = CounterMetricFamily(f"{_PREFIX}energy_joules", "Board energy by its own counter.", labels=["gpu"])
        dropped = CounterMetricFamily(f"{_PREFIX}energy_jumps", "Jumps of the counter left out.", labels=["gpu"])
        gauges = {
            "power_watts": GaugeMetricFamily(f"{_PREFIX}power_watts", "Instant power.", labels=["gpu"]),
            "power_limit_watts": GaugeMetricFamily(f"{_PREFIX}power_limit_watts", "Enforced limit.", labels=["gpu"]),
            "sm_hertz": GaugeMetricFamily(f"{_PREFIX}sm_hertz", "SM clock.", labels=["gpu"]),
            "temperature_celsius": GaugeMetricFamily(f"{_PREFIX}temperature_celsius", "Temperature.", labels=["gpu"]),
        }
        for reading in self._server.readings():
            labels = [self._server.gpu_id(reading)]
            energy.add_metric(labels, reading.energy_mj / 1e3)
            dropped.add_metric(labels, reading.dropped_jumps)
            state = reading.state
            values = {
                "power_watts": reading.power_w,
                "power_limit_watts": reading.power_limit_w,
                "sm_hertz": None if state is None or state.sm_mhz is None else 1e6 * state.sm_mhz,
                "temperature_celsius": None if state is None else state.temperature_c,
            }
            for name, value in values.items():
                if value is not None:
                    gauges[name].add_metric(labels, value)
        return [energy, dropped, *gauges.values()]
