"""`meter`: serves the energy counters of this host's GPUs over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import sys
import time

import uvloop
from aiohttp import web

from selector.cli.arguments import port
from selector.errors import InputError, MeterError
from selector.profiler.meterserver import MeterServer
from selector.profiler.monitor import EnergyMonitor
from selector.profiler.nvml import GpuFacts, NvmlGpu, gpu_count, open_gpus
from selector.profiler.rapl import open_host_energy

NAME = "meter"

_DESCRIPTION = """\
Runs on a GPU host and serves what its boards' own energy counters say: JSON at /energy, server-sent events at
/energy/stream, Prometheus at /metrics.
An emulated fleet answers /energy alike.

The counter is NVML's total energy (Volta and newer), in millijoules, and moves about every 100 ms; each answer carries
the time at which it last moved. Nothing on the board is changed.
"""

_EXAMPLES = """\
examples:
  all GPUs, on every interface:
    drafter-selector meter --host 0.0.0.0 --port 9400

  two of them under the name that the fleet file uses (gpus = ["host0:0"]), and one reading on the terminal:
    drafter-selector meter --gpus 0,1 --host-name host0 --port 9400
    drafter-selector meter --once
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="serve the energy counters of this host's GPUs",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpus", type=_indices, metavar="I,J", help="NVML indices; default: all")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on; default: 127.0.0.1")
    parser.add_argument("--port", type=port, default=9400, metavar="N", help="default: 9400; 0 is any free port")
    parser.add_argument(
        "--host-name", default=socket.gethostname(), metavar="NAME", help="before each GPU's index in its id"
    )
    parser.add_argument("--once", action="store_true", help="print one reading as JSON and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until told to end. Raises `InputError` when no counter can be read."""
    gpus, facts = _opened(args.gpus)
    monitor = EnergyMonitor(gpus, now_s=time.monotonic, unix_ns=time.time_ns)
    server = MeterServer(monitor, open_host_energy(), args.host_name)
    if args.once:
        monitor.poll()
        print(json.dumps({"gpu": facts.name, "driver": facts.driver, **server.document()}))
        return 0
    with monitor, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(server, args))


def _opened(indices: list[int] | None) -> tuple[list[NvmlGpu], GpuFacts]:
    try:
        return open_gpus(range(gpu_count()) if indices is None else indices)
    except MeterError as failed:
        raise InputError("--gpus", str(failed), "run it on the GPU host, and name GPUs that nvidia-smi lists") from None


async def _serve(server: MeterServer, args: argparse.Namespace) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, args.host, args.port)
        try:
            await site.start()
        except OSError as failed:
            problem = f"{args.host}:{args.port} cannot be used ({failed.strerror})"
            raise InputError("--port", problem, "choose another") from None
        host, number = runner.addresses[0][:2]
        print(f"ready url=http://{host}:{number} gpus={','.join(map(server.gpu_id, server.readings()))}")
        sys.stdout.flush()
        await told.wait()
    finally:
        await runner.cleanup()
    return 0


def _indices(text: str) -> list[int]:
    try:
        indices = [int(part) for part in text.split(",")]
    except ValueError:
        indices = [-1]
    if min(indices) < 0 or len(set(indices)) < len(indices):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPU indices such as 0,1")
    return indices
