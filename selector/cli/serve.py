"""`serve`: the router in front of SGLang servers."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from selector.cli.arguments import LAST_PORT, PortOrDistance, port, port_or_distance
from selector.errors import UsageError
from selector.files.changes import FileChanges
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.router.configuration import Configuration
from selector.router.running import RunningRouter

NAME = "serve"

_EPILOG = """\
examples:
  serve a fleet, with the policy of its file:
    drafter-selector serve --config fleet.toml
  one fixed arm, every decision logged for `simulate --trace decisions.jsonl`:
    drafter-selector serve --config fleet.toml --policy static:none --decision-log decisions.jsonl

Clients use it as they use SGLang. They may say how fast they want to read:
  x-tbt-target-ms: 25          milliseconds per token (x-slo-tpot-ms is understood too)
  x-slo-class: chat            a class of the fleet file, for its target
Every answer says where it came from: x-drafter-selector-arm, -backend, -reason, -predicted-tbt-ms and -rid.
Look at / (the dashboard), /explain?rid=, /router/state, /router/decisions and /metrics, on --control-port if given.
SIGHUP, or a change of the fleet file or of a file it names, reloads the configuration: all of it, or nothing when it
cannot be used. SIGTERM or Ctrl-C ends it once running requests are over; a second one ends it at once.
"""

_GC_THRESHOLDS = (20_000, 20, 20)
"""What a request leaves behind is freed by reference counts: looking for cycles at every few requests is wasted."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="the router in front of SGLang servers",
        description="Serves the OpenAI routes and /generate, each request on the backend that the policy chooses.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, type=Path, metavar="F", help="the fleet file (TOML)")
    parser.add_argument("--policy", metavar="P", help="a policy by name or path, instead of the fleet file's")
    parser.add_argument("--host", metavar="H", help="where to listen; default: the fleet file's, 127.0.0.1")
    parser.add_argument("--port", type=port, metavar="N", help="default: the fleet file's, 30800; 0 is any free one")
    parser.add_argument("--control-host", metavar="H", help="default: the fleet file's, 127.0.0.1")
    parser.add_argument(
        "--control-port",
        type=port_or_distance,
        metavar="N",
        help="for metrics, dashboard and /router; +N is that far above --port; default: the fleet file's, or none",
    )
    parser.add_argument("--decision-log", type=Path, metavar="PATH", help="JSONL file of decisions and outcomes")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of policies that draw at random")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command until it is told to end."""
    changes = FileChanges([args.config])  # from before it is read
    configuration = configuration_of(args)
    changes.watch(configuration.files)
    router = RunningRouter(
        configuration.fleet,
        configuration.policy,
        configuration.fallback,
        params=configuration.params,
        host=args.host,
        port=args.port,
        control_host=args.control_host,
        control_port=_control_port(args, configuration.fleet),
        decision_log=args.decision_log,
        seed=args.seed,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(router, configuration, changes, args))


def _control_port(args: argparse.Namespace, loaded: LoadedFleet) -> int | None:
    given: PortOrDistance | None = args.control_port
    if given is None:
        return None
    own = loaded.fleet.router.port if args.port is None else args.port
    found = given.number + own if given.is_distance else given.number
    if found > LAST_PORT or (given.is_distance and own == 0):
        raise UsageError("--control-port", f"is +{given.number}, above port {own}", "give a port")
    return found


def configuration_of(args: argparse.Namespace) -> Configuration:
    """What the options ask for, read from its files as they are now. Raises `InputError`."""
    loaded = load_fleet_with_profiles(args.config)
    chosen = loaded.fleet.policy
    return Configuration(
        fleet=loaded,
        policy=load_policy_file(args.policy or chosen.name),
        fallback=load_policy_file(chosen.fallback),
        params=chosen.params if args.policy in (None, chosen.name) else {},
    )


async def _serve(
    router: RunningRouter, configuration: Configuration, changes: FileChanges, args: argparse.Namespace
) -> int:
    loop = asyncio.get_running_loop()
    told, reload_wanted = asyncio.Event(), asyncio.Event()
    serving = asyncio.current_task()
    assert serving is not None

    def end() -> None:
        if told.is_set():
            serving.cancel()  # asked twice: do not wait for running requests
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, reload_wanted.set)
    try:
        async with router:
            # What was made by now stays: collections need not go through it again, while streams wait.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            if router.state.snapshots.problem is not None:
                print(f"serve: {router.state.snapshots.problem}", file=sys.stderr)
            print(_ready_line("ready", router), flush=True)
            reloading = asyncio.create_task(_reload_when_wanted(router, configuration, changes, args, reload_wanted))
            await told.wait()
            reloading.cancel()
            if not await router.drain():
                print("serve: requests still running were cut off at the drain timeout", file=sys.stderr)
    except asyncio.CancelledError:
        print("serve: ended without waiting for running requests", file=sys.stderr)
    return 0


async def _reload_when_wanted(
    router: RunningRouter,
    configuration: Configuration,
    changes: FileChanges,
    args: argparse.Namespace,
    wanted: asyncio.Event,
) -> None:
    """Reloads on SIGHUP and when a file of the configuration has changed; one that cannot be used is told of."""
    while True:
        every_s = configuration.fleet.fleet.router.reload_check_s
        with suppress(TimeoutError):
            async with asyncio.timeout(every_s or None):
                await wanted.wait()
        if not wanted.is_set() and not await asyncio.to_thread(changes.settled):
            continue
        wanted.clear()
        changes.accept()
        try:
            configuration = await router.reload(lambda: configuration_of(args))
        except Exception:  # noqa: BLE001 - whatever is wrong with what was read, the router goes on; the state says what
            problem = router.state.reloads.last_problem
            print(f"serve: reload refused, the configuration stays as it was: {problem}", file=sys.stderr, flush=True)
            continue
        print(_ready_line("reloaded", router), flush=True)
        for key in router.state.reloads.kept_back:
            print(f"serve: a change of {key} needs a restart", file=sys.stderr, flush=True)
        changes.watch(configuration.files)


def _ready_line(what: str, router: RunningRouter) -> str:
    state = router.state
    backends = ", ".join(
        f"{name} ({watched.upstream.arm}): {watched.state}" + (f", {watched.reason}" if watched.reason else "")
        for name, watched in state.watch.backends.items()
    )
    policy = f"{state.policy.label} sha256={state.policy.sha256[:12]}"
    control = f" control={router.control_url}" if router.control_url != router.url else ""
    return f"{what} url={router.url}{control} target={state.target} policy={policy} backends: {backends}"
