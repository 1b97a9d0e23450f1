"""Shares acceptance estimates with other routers of the fleet over Redis or Valkey.

    every few seconds    SET <fleet>:<router> (what this router saw itself, whole) with an expiry
                         SADD <fleet>, SMEMBERS <fleet>, MGET the others  ──▶  the model adds them up

See `selector.core.acceptancestate` for why nothing is counted twice. A task of its own does this; requests never wait
for it. A server that is down or slow is counted and asked less often; what was heard before stays in use.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from selector.core.acceptancestate import Contribution, contribution_of
from selector.errors import DomainError, StateError, UsageError
from selector.files.acceptance_state import SharedContribution, decoded_contribution, encoded_contribution
from selector.files.fleet import Acceptance
from selector.router.dispatch import Dispatcher

_KEPT_S = 3_600
"""How long what a router told is kept without news of it."""
_LONGEST_BACK_OFF_S = 60.0


class AcceptanceSharing:
    """One router's part. Raises `UsageError` when the client library or the password is missing."""

    def __init__(
        self, dispatcher: Dispatcher, options: Acceptance, *, target: str, fingerprint: str, router: str
    ) -> None:
        self._dispatcher = dispatcher
        self._model = dispatcher.controller.context.acceptance
        self._every_s, self._timeout_s = options.share_every_s, options.share_timeout_s
        self._target, self._fingerprint, self._router = target, fingerprint, router
        self._group = f"drafter-selector:acceptance:{target}:{fingerprint}"
        self._redis = _client(options)
        self._heard: dict[str, bytes] = {}
        self._closing = False
        self.rounds = 0
        """Times that it worked."""
        self.failures = 0
        """Times that the server did not answer in time, or refused."""
        self.refused = 0
        """Contributions of others that could not be used."""
        self.last_error: str | None = None

    @property
    def others(self) -> int:
        """Routers heard of."""
        return len(self._heard)

    async def run(self) -> None:
        """Shares until it is told to `stop`, or cancelled."""
        wait_s = self._every_s
        # A client library may lose a cancellation that meets a time-out of its own; the flag is seen all the same.
        while not self._closing:
            await asyncio.sleep(wait_s)
            wait_s = self._every_s if await self.share() else min(2.0 * wait_s, _LONGEST_BACK_OFF_S)

    async def share(self) -> bool:
        """One round; whether the server answered."""
        try:
            async with asyncio.timeout(self._timeout_s):
                told = await self._exchange()
        except Exception as failed:  # noqa: BLE001 - whatever the client library raises must not end the sharing
            self.failures += 1
            self.last_error = f"{type(failed).__name__}: {failed}" if str(failed) else type(failed).__name__
            return False
        self.rounds += 1
        if told != self._heard:
            self._heard = told
            self._take(told)
        return True

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Ends the task of `run` and lets go of the connection; what was told stays until it expires."""
        self._closing = True
        running.cancel()
        await asyncio.wait([running], timeout=2.0 * self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._redis.aclose()
        except Exception as failed:  # noqa: BLE001 - as in `share`
            self.last_error = f"{type(failed).__name__}: {failed}"

    async def _exchange(self) -> dict[str, bytes]:
        own = SharedContribution(
            target=self._target,
            fingerprint=self._fingerprint,
            router=self._router,
            cells=contribution_of(self._model),
        )
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(f"{self._group}:{self._router}", encoded_contribution(own), ex=_KEPT_S)
            pipe.sadd(self._group, self._router)
            pipe.expire(self._group, _KEPT_S)
            pipe.smembers(self._group)
            *_, members = await pipe.execute()
        others = sorted(name.decode() for name in members if name.decode() != self._router)
        if not others:
            return {}
        values = await self._redis.mget([f"{self._group}:{name}" for name in others])
        gone = [name for name, value in zip(others, values, strict=True) if value is None]
        if gone:
            await self._redis.srem(self._group, *gone)
        return {name: value for name, value in zip(others, values, strict=True) if value is not None}

    def _take(self, told: dict[str, bytes]) -> None:
        others: dict[str, Contribution] = {}
        for name, data in told.items():
            try:
                heard = decoded_contribution(data, f"router {name}", target=self._target, fingerprint=self._fingerprint)
                self._dispatcher.check_contribution(heard.cells)
            except (StateError, DomainError) as bad:
                self.refused += 1
                self.last_error = str(bad)
                continue
            others[name] = heard.cells
        self._dispatcher.heard(others)


def _client(options: Acceptance) -> Any:
    """The client of the fleet file's server; it connects when it is first used."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        problem = "needs the package redis, which is not installed"
        raise UsageError("acceptance.redis_url", problem, "pip install 'drafter-selector[redis]'") from None
    password = None
    if options.redis_password_env is not None:
        password = os.environ.get(options.redis_password_env)
        if password is None:
            problem = f"names {options.redis_password_env}, which is not set"
            raise UsageError("acceptance.redis_password_env", problem, "set it, or leave the option out")
    given: dict[str, Any] = {} if password is None else {"password": password}
    return Redis.from_url(
        str(options.redis_url),
        socket_timeout=options.share_timeout_s,
        socket_connect_timeout=options.share_timeout_s,
        retry=Retry(NoBackoff(), 0),
        **given,
    )
