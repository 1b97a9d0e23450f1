"""`emulate`: SGLang servers without GPUs, as a profile measured them."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from selector.cli.arguments import count, port, positive
from selector.emulator.asks import DEFAULT_MEAN_OUTPUT_TOKENS
from selector.emulator.fleet import EmulatedFleet
from selector.errors import FleetError, UsageError
from selector.files.fleet import Fleet, LoadedFleet, load_fleet_with_profiles
from selector.files.profile import load_profile
from selector.files.validation import validated

NAME = "emulate"

_LOOPBACK = "127.0.0.1"
_MAX_RUNNING_REQUESTS = 64
_MAX_KV_TOKENS = 400_000
_CONTEXT_LENGTH = 8_192

_EPILOG = """\
examples:
  one server on the profile's board, then a request:
    drafter-selector emulate --profile h200__qwen3-8b --arm dspark-8 --port 30000
    curl -N http://127.0.0.1:30000/v1/chat/completions -H 'content-type: application/json' -d '{
      "model": "Qwen3-8B", "stream": true, "max_tokens": 40, "ignore_eos": true,
      "messages": [{"role": "user", "content": "Write a function that sorts a list."}]}'
  what its GPU has drawn so far, and what SGLang would say of its load:
    curl http://127.0.0.1:30000/energy
    curl 'http://127.0.0.1:30000/v1/loads?include=core,spec'
  all backends of a fleet file on their ports, at half speed:
    drafter-selector emulate --fleet fleet.toml --time-scale 0.5

Step times, energies and accept lengths are the profile's; texts are filler words, one a token. Timestamps, latencies
and energy are those of the emulated machine: at --time-scale 0.5 an answer takes twice as long to arrive as it says.
Requests may carry ground truth for experiments, which a router in front must not read:
  x-emulated-text-type: code      whose accept length it gets; otherwise the text is classified
  x-emulated-draw-key: 17         equal keys draw equal lengths and equal luck; otherwise a hash of the prompt
It prints a line per server when all are ready and runs until SIGINT or SIGTERM. Whether this machine keeps up:
  curl http://127.0.0.1:30000/emulator
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="SGLang servers without GPUs, as a profile measured them",
        description="Serves SGLang's HTTP surface from a profile's step times, energies and accept lengths.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fleet", type=Path, metavar="F", help="a fleet file (TOML): all its backends, on their ports")
    what.add_argument("--profile", metavar="P", help="a profile by name or path: one server, with --arm and --port")
    one = parser.add_argument_group("one server (with --profile)")
    one.add_argument("--arm", metavar="A", help="the arm it runs")
    one.add_argument("--port", type=port, metavar="N", help="where it listens; 0 is any free port")
    one.add_argument("--host", metavar="H", help=f"default: {_LOOPBACK}")
    one.add_argument("--max-running-requests", type=count, metavar="N", help=f"default: {_MAX_RUNNING_REQUESTS}")
    one.add_argument("--max-kv-tokens", type=count, metavar="N", help=f"default: {_MAX_KV_TOKENS}")
    one.add_argument("--context-length", type=count, metavar="N", help=f"default: {_CONTEXT_LENGTH}")
    one.add_argument("--api-key-env", metavar="NAME", help="environment variable with the API key it asks for")
    parser.add_argument(
        "--time-scale",
        type=positive,
        default=1.0,
        metavar="S",
        help="emulated seconds per real second; 0.5 is half speed; default: 1",
    )
    parser.add_argument(
        "--max-queued-requests", type=count, metavar="N", help="refuse requests beyond this queue; default: no bound"
    )
    parser.add_argument(
        "--mean-output-tokens",
        type=positive,
        default=DEFAULT_MEAN_OUTPUT_TOKENS,
        metavar="N",
        help=f"mean length of answers that end by themselves; default: {DEFAULT_MEAN_OUTPUT_TOKENS:.0f}",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of all draws; default: 0")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until told to end. Raises `InputError` for what cannot be served."""
    loaded = load_fleet_with_profiles(args.fleet) if args.fleet else _fleet_of_one(args)
    if args.fleet:
        _refuse_options_of_one(args)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(loaded, args))


def _fleet_of_one(args: argparse.Namespace) -> LoadedFleet:
    if args.arm is None or args.port is None:
        raise UsageError("--profile", "names no server by itself", "add --arm and --port")
    profile = load_profile(args.profile)
    profile.arm(args.arm)
    backend = {
        "name": args.arm,
        "url": f"http://{args.host or _LOOPBACK}:{args.port}" if args.port else None,
        "arm": args.arm,
        "gpus": [f"gpu{index}" for index in range(profile.gpu.count)],
        "profile": args.profile,
        "max_running_requests": _given(args.max_running_requests, _MAX_RUNNING_REQUESTS),
        "max_kv_tokens": _given(args.max_kv_tokens, _MAX_KV_TOKENS),
        "max_context_tokens": _given(args.context_length, _CONTEXT_LENGTH),
        "api_key_env": args.api_key_env,
    }
    data = {"version": 1, "target": profile.target.name, "backends": [backend]}
    fleet = validated(Fleet, data, NAME, FleetError)
    return LoadedFleet(fleet, NAME, {args.profile: profile})


def _refuse_options_of_one(args: argparse.Namespace) -> None:
    options = ("arm", "port", "host", "max_running_requests", "max_kv_tokens", "context_length", "api_key_env")
    for name in options:
        if getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(flag, "is for one server, --fleet serves many", "say it in the fleet file")


async def _serve(loaded: LoadedFleet, args: argparse.Namespace) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    emulated = EmulatedFleet(
        loaded,
        any_port=args.port == 0,
        host=args.host or _LOOPBACK,
        time_scale=args.time_scale,
        seed=args.seed,
        mean_output_tokens=args.mean_output_tokens,
        max_queued_requests=args.max_queued_requests,
    )
    async with emulated as fleet:
        print(f"energy url={fleet.energy_url}")
        for server in fleet.servers:
            print(f"ready url={server.url} arm={server.arm} name={server.name} time_scale={args.time_scale:g}")
        sys.stdout.flush()
        await told.wait()
    return 0


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
