"""Who holds a key, and how much each of them has under way.

    headers ──▶ key ──▶ SHA-256 ──▶ account by the digest's first bytes ──▶ whole digests compared ──▶ account
                                                                                                        │
    Lease.end() ◀── the request is over, however it went ◀── Lease ◀── class, concurrency, rate ────────┘

How long it takes to find a key tells nothing about any: a dictionary is asked for part of its digest, which nobody can
choose without inverting SHA-256, and the whole digest is then compared in constant time. Keys themselves are not kept.

Memory is one account a holder: nothing is remembered of callers without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from hmac import compare_digest
from math import ceil

from selector.errors import FleetError
from selector.files.security import Holder, key_digest
from selector.router.answers import CLOSE, RefusedRequest
from selector.router.metrics import RouterMetrics
from selector.router.ratelimit import RateLimit
from selector.router.request import CLASS_HEADER, TARGET_HEADERS
from selector.router.wire import Headers

_INDEX_BYTES = 8
_CLASS = CLASS_HEADER.encode()
_TARGETS = frozenset(name.encode() for name in TARGET_HEADERS)


class _Account:
    """What one holder has under way."""

    __slots__ = ("_shown", "holder", "rate", "running")

    def __init__(self, holder: Holder, metrics: RouterMetrics) -> None:
        self._shown = metrics.key_in_flight(holder.name)
        self.running = 0
        self.rate: RateLimit | None = None
        self.change(holder, 0.0)

    def change(self, holder: Holder, now_s: float) -> None:
        """Other keys or limits; what is under way stays counted."""
        self.holder = holder
        if holder.requests_per_minute is None:
            self.rate = None
        elif self.rate is None:
            self.rate = RateLimit(holder.requests_per_minute, holder.burst_requests)
        else:
            self.rate.change(holder.requests_per_minute, holder.burst_requests, now_s=now_s)

    def count(self, difference: int) -> None:
        """So many requests more, or less, are under way."""
        self.running += difference
        self._shown.inc(difference)


class Lease:
    """Leave to serve one request. `end` it when the request is over, as often as convenient."""

    __slots__ = ("_account", "default_class", "keyed")

    def __init__(self, account: _Account | None = None) -> None:
        self._account = account
        self.keyed = account is not None
        """Whether a key was asked for."""
        self.default_class = None if account is None else account.holder.slo_class
        """SLO class of a request that names none; `None`: the fleet's default."""
        if account is not None:
            account.count(1)

    def end(self) -> None:
        """The request is over."""
        account, self._account = self._account, None
        if account is not None:
            account.count(-1)


FREE = Lease()
"""Where no key is asked for. It counts nothing, so that one is enough for all."""


class KeyRing:
    """The holders of keys of one router; `replace` them at any time. Belongs to the event loop that serves."""

    def __init__(self, holders: Collection[Holder], metrics: RouterMetrics, clock: Callable[[], float]) -> None:
        """`clock` gives seconds on a clock that never goes back."""
        self._metrics = metrics
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._index: Mapping[bytes, tuple[tuple[bytes, _Account], ...]] = {}
        self._take(holders)

    @property
    def asks(self) -> bool:
        """Whether a key is asked for: there is one."""
        return bool(self._accounts)

    def check(self, holders: Collection[Holder]) -> None:
        """Raises `FleetError` for what `replace` must not do.

        A router that asks for keys does not stop asking because a file came out empty.
        """
        if self.asks and not holders:
            raise FleetError("keys", "there are none any more", "give one, or restart the router to serve everybody")

    def replace(self, holders: Collection[Holder]) -> None:
        """These holders from now on, all at once; who stays keeps what was counted, and what runs may end.

        Raises as `check` does, and has changed nothing then.
        """
        self.check(holders)
        self._take(holders)

    def running(self, name: str) -> int:
        """Requests that a holder has under way."""
        account = self._accounts.get(name)
        return 0 if account is None else account.running

    def admit(self, headers: Headers) -> Lease:
        """Leave for a request with these headers (names in lower case).

        Raises `RefusedRequest`: 401 without a known key, 403 for a class or target that is not the holder's to ask for,
        429 over a limit.
        """
        if not self._accounts:
            return FREE
        account = self._identified(headers)
        try:
            self._check(account, headers)
        except RefusedRequest as refused:
            self._metrics.keyed(account.holder.name, "forbidden" if refused.status == 403 else "limited")
            raise
        self._metrics.keyed(account.holder.name, "admitted")
        return Lease(account)

    def look(self, headers: Headers, *, control: bool) -> None:
        """Leave to look at what the router says of itself; `control` for what not every client needs to know.

        Raises `RefusedRequest` (401 or 403).
        """
        if self._accounts and control and not self._identified(headers).holder.control:
            raise _refused(403, "this API key does not open this route", "permission_denied")
        if self._accounts and not control:
            self._identified(headers)

    def _take(self, holders: Collection[Holder]) -> None:
        accounts: dict[str, _Account] = {}
        index: dict[bytes, tuple[tuple[bytes, _Account], ...]] = {}
        for holder in holders:
            account = accounts[holder.name] = self._accounts.get(holder.name) or _Account(holder, self._metrics)
            account.change(holder, self._clock())
            for digest in holder.digests:
                start = digest[:_INDEX_BYTES]
                index[start] = (*index.get(start, ()), (digest, account))
        self._accounts, self._index = accounts, index

    def _identified(self, headers: Headers) -> _Account:
        key = _presented(headers)
        if key is None:
            raise _refused(401, "no API key: send `Authorization: Bearer KEY`", "invalid_api_key")
        digest = key_digest(key)
        for known, account in self._index.get(digest[:_INDEX_BYTES], ()):
            if compare_digest(known, digest):
                return account
        raise _refused(401, "this API key is not known", "invalid_api_key")

    def _check(self, account: _Account, headers: Headers) -> None:
        holder = account.holder
        if holder.slo_classes is not None:
            wanted = next((value.decode("latin-1") for name, value in headers if name == _CLASS), None)
            if wanted is not None and wanted not in holder.slo_classes:
                may = ", ".join(sorted(holder.slo_classes))
                raise _refused(403, f"this API key may use these classes alone: {may}", "permission_denied")
        if not holder.may_set_target and any(name in _TARGETS for name, _ in headers):
            raise _refused(403, "this API key may not ask for a target of its own", "permission_denied")
        if holder.max_concurrent is not None and account.running >= holder.max_concurrent:
            message = f"this API key has {account.running} requests under way, its limit is {holder.max_concurrent}"
            raise _refused(429, message, "rate_limit_exceeded", retry_after_s=1)
        wait_s = 0.0 if account.rate is None else account.rate.take(self._clock())
        if wait_s > 0.0:
            message = f"this API key is limited to {holder.requests_per_minute:g} requests per minute"
            raise _refused(429, message, "rate_limit_exceeded", retry_after_s=ceil(wait_s))


def _presented(headers: Headers) -> bytes | None:
    """The key that came with a request; `None` without one, or with several headers that could each be meant."""
    given = [value for name, value in headers if name == b"authorization"]
    if given:
        scheme, _, key = given[0].partition(b" ")
        return key.strip() if len(given) == 1 and scheme.lower() == b"bearer" else None
    given = [value for name, value in headers if name == b"x-api-key"]
    return given[0] if len(given) == 1 else None


def _refused(status: int, message: str, code: str, *, retry_after_s: int | None = None) -> RefusedRequest:
    """The body of such a request is not read, so the connection cannot be used again."""
    headers = [CLOSE]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % retry_after_s))
    return RefusedRequest(status, message, headers=headers, code=code)
