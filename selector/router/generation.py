"""Everything that is built from one configuration: backends, policy, books, watch. A reload replaces it as a whole.

    prepare ──▶ activate ──▶ retire       another one serves: running requests end here, then it is closed
                     └─────▶ close        the router ends

Nothing of it is seen before `activate`: a configuration that cannot be prepared leaves no trace but its error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI

from selector.core.acceptancestate import state_of
from selector.core.controller import Controller
from selector.files.decision_log_writer import DecisionLogWriter, LogSection
from selector.files.security import load_holders
from selector.files.trust import trust
from selector.router.admission import Admission
from selector.router.books import Books
from selector.router.configuration import Configuration, Reloads
from selector.router.control import control_app
from selector.router.corrections import correct_regularly
from selector.router.dispatch import Dispatcher
from selector.router.headers import Passing
from selector.router.keyring import KeyRing
from selector.router.livesettings import SettingsKeeper
from selector.router.meters import Meters
from selector.router.metrics import RouterMetrics
from selector.router.outliers import Outliers
from selector.router.readings import read_by_metrics
from selector.router.relay import Relay
from selector.router.request import RequestReader
from selector.router.retries import Retries
from selector.router.sharing import AcceptanceSharing
from selector.router.snapshots import AcceptanceSnapshots
from selector.router.state import RouterState
from selector.router.upstream import Upstream
from selector.router.watch import FleetWatch

if TYPE_CHECKING:
    from selector.router.tracing import Tracing


class Generation:
    """One configuration at work. `close` it, or `retire` it, whatever became of it."""

    state: RouterState
    relay: Relay
    admission: Admission
    control: FastAPI
    private: FastAPI

    def __init__(self, configuration: Configuration, *, log: DecisionLogWriter | None, section: LogSection | None):
        """`section` is the part of the `log` that is this generation's."""
        self.configuration = configuration
        self._log = log
        self._section = section
        self._heir_of: Generation | None = None
        self._serves = False
        self._stack = AsyncExitStack()
        """What has to be closed."""
        self._work = AsyncExitStack()
        """What runs in the background."""

    async def prepare(
        self,
        *,
        seed: int,
        now_s: Callable[[], float],
        metrics: RouterMetrics,
        keys: KeyRing,
        own_control_port: bool,
        reloads: Reloads,
        tracing: Tracing | None,
        before: Generation | None = None,
    ) -> None:
        """Builds everything and looks at the backends once. Raises `InputError` for what the user gave wrongly.

        `keys` outlast a reload, so that no limit begins anew with one.
        What `before`, which still serves, has learnt is taken over in `activate`, if it was learnt of the same arms.
        """
        configuration, log = self.configuration, self._section
        loaded, fleet = configuration.fleet, configuration.fleet.fleet
        self._holders = load_holders(fleet, loaded.where)
        keys.check(self._holders)
        tls = trust(fleet, loaded.where)
        context = loaded.policy_context(seed)
        controller = Controller(
            context,
            configuration.policy.make(configuration.params, context),
            fallback=configuration.fallback.make({}, context),
            explains=False,
        )
        upstreams: dict[str, Upstream] = {}
        for backend, spec in zip(fleet.backends, loaded.specs, strict=True):
            tells = bool(loaded.profiles[backend.profile].arm(backend.arm).takes_tbt_target)
            upstreams[backend.name] = Upstream(backend, spec, fleet.router, loaded.where, tls, takes_tbt_target=tells)
            self._stack.push_async_callback(upstreams[backend.name].close)
        profiles = {backend.name: loaded.profiles[backend.profile] for backend in fleet.backends}
        adaptive = [
            backend.arm
            for backend in fleet.backends
            if "--speculative-adaptive" in profiles[backend.name].arm(backend.arm).launch.flags
        ]
        energy = fleet.energy
        outliers = Outliers(upstreams, fleet.faults)
        books = Books(loaded.specs, context.acceptance, metrics, metered=bool(energy.urls), outliers=outliers, log=log)
        dispatcher = Dispatcher(controller, metrics, now_s, books, log=log, adaptive_arms=adaptive)
        self._keeper = SettingsKeeper(upstreams, dispatcher)
        limits_w = {gpu: profiles[backend.name].gpu.power_limit_w for backend in fleet.backends for gpu in backend.gpus}
        meters = Meters(energy, books, now_s, tls, limits_w) if energy.urls else None
        if meters is not None:
            self._stack.push_async_callback(meters.close)
        learning = fleet.acceptance
        snapshots = AcceptanceSnapshots(
            dispatcher,
            None if learning.snapshot is None else Path(learning.snapshot),
            every_s=learning.snapshot_every_s,
            target=fleet.target,
        )
        if before is not None and before.state.snapshots.fingerprint == snapshots.fingerprint:
            self._heir_of = before
            snapshots.router = before.state.snapshots.router
        else:
            snapshots.restore()
        watch = FleetWatch(upstreams, profiles, dispatcher, fleet.router, fleet.faults, outliers)
        sharing = None
        if learning.redis_url is not None:
            sharing = AcceptanceSharing(
                dispatcher,
                learning,
                target=fleet.target,
                fingerprint=snapshots.fingerprint,
                router=snapshots.router,
            )
        retries = Retries(fleet.faults, random.random)
        self.state = RouterState(
            target=fleet.target,
            policy=configuration.policy_record,
            fallback=configuration.fallback_record,
            dispatcher=dispatcher,
            watch=watch,
            metrics=metrics,
            keys=keys,
            log=self._log,
            snapshots=snapshots,
            sharing=sharing,
            meters=meters,
            corrects=energy.correct,
            reloads=reloads,
            retries=retries,
            now_s=now_s,
        )
        reader = RequestReader(fleet, dispatcher.expected_output_tokens)
        passing = Passing(fleet.security)
        self.relay = Relay(upstreams, dispatcher, watch, reader, metrics, now_s, retries, passing, tracing)
        self.admission = Admission(self.state, max_body_bytes=fleet.router.max_body_bytes)
        self.control = control_app(self.state, private=not own_control_port, keyed=True)
        self.private = control_app(self.state, private=True, keyed=False)
        await watch.first_look()

    def activate(self) -> None:
        """It serves from now on: its part of the log begins, metrics read from it, and its background work starts."""
        state, self._serves = self.state, True
        state.keys.replace(self._holders)
        if self._heir_of is not None:
            inherited = self._heir_of.state.dispatcher.controller
            state.dispatcher.restored(state_of(inherited.context.acceptance))
            state.dispatcher.controller.lengths = inherited.lengths
            self._heir_of = None
        if self._section is not None:
            self._section.begin()
        state.metrics.forget_readings()
        read_by_metrics(state)
        self._run(state.snapshots.run())
        self._run(self._keeper.run())
        if state.sharing is not None:
            self._work.push_async_callback(state.sharing.stop, asyncio.create_task(state.sharing.run()))
        self._run(state.watch.run())
        if state.meters is not None:
            self._run(state.meters.run())
        if state.corrects:
            self._run(correct_regularly(state.dispatcher, self.configuration.fleet.fleet.energy.correct_every_s))

    def supersede(self) -> None:
        """Another one serves from now on."""
        self._serves = False
        # A decision that waits for its request to be sent is of this section still.
        self.state.dispatcher.settle()
        if self._section is not None:
            self._section.end()

    async def retire(self) -> None:
        """Stops its background work, waits for its requests, however long they take, and closes it."""
        async with self._stack:
            await self._work.aclose()
            # At once, before the one that serves now sets its own.
            await self._keeper.restore()
            await self.relay.idle()
            self.state.dispatcher.catch_up()

    async def close(self) -> None:
        """Ends it; what it learnt is kept if it was serving."""
        async with self._stack:
            await self._work.aclose()
            if self._serves:
                await self._keeper.restore()
                await self.state.snapshots.write()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        self._work.push_async_callback(_cancelled, asyncio.create_task(work))


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
