"""The ring of keys without a socket: whole digests count, and strangers leave nothing behind."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from selector.files.security import Holder, key_digest
from selector.router.answers import RefusedRequest
from selector.router.keyring import FREE, KeyRing
from selector.router.metrics import RouterMetrics
from selector.router.wire import Headers

KEY = b"a-made-up-key-of-a-holder"


def holder(name: str, *digests: bytes) -> Holder:
    return Holder(
        name=name, digests=frozenset(digests), slo_class=f"class of {name}", requests_per_minute=1.0, burst_requests=10
    )


def ring(*holders: Holder) -> KeyRing:
    return KeyRing(holders, RouterMetrics(), lambda: 0.0)


def bearer(key: bytes) -> Headers:
    return [(b"authorization", b"Bearer " + key)]


def test_no_key_is_asked_for_where_there_is_none() -> None:
    keys = ring()
    assert not keys.asks
    assert keys.admit([]) is FREE and keys.admit(bearer(b"whatever")) is FREE
    keys.look([], control=True)


def test_a_digest_has_to_be_the_same_to_its_end() -> None:
    digest = key_digest(KEY)
    alike = [digest[:size] + bytes(len(digest) - size) for size in (8, 16, 31)]
    with pytest.raises(RefusedRequest, match="not known"):
        ring(holder("one", *alike[:2]), holder("other", alike[2])).admit(bearer(KEY))
    found = ring(holder("one", *alike), holder("alice", digest)).admit(bearer(KEY))
    assert found.default_class == "class of alice"


def test_an_end_counts_once() -> None:
    keys = ring(holder("alice", key_digest(KEY)))
    lease = keys.admit(bearer(KEY))
    assert keys.running("alice") == 1
    lease.end()
    lease.end()
    assert keys.running("alice") == 0


def test_strangers_and_refusals_leave_nothing_behind() -> None:
    keys = ring(holder("alice", key_digest(KEY)))

    def refused(count: int) -> int:
        """How much memory is in use after that many more of each kind."""
        refusals = 0
        for number in range(count):
            for head in (bearer(b"stranger-%d" % number), bearer(KEY), []):
                try:
                    keys.admit(head).end()
                except RefusedRequest:
                    refusals += 1
        assert refusals == 3 * count
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    for _ in range(10):
        keys.admit(bearer(KEY)).end()  # the burst
    tracemalloc.start()
    try:
        assert abs(refused(3_000) - refused(100)) < 10_000
    finally:
        tracemalloc.stop()
