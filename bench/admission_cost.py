"""What asking for keys costs the router: CPU per request of finding the key, checking limits, and counting its end.

    .venv/bin/python bench/admission_cost.py --requests 20000

Prints one JSON document. `us_per_request` has one figure per number of holders of keys, each with a rate, a limit on
requests at a time and classes of its own; with 0 holders no key is asked for. `refused` are requests with a key that
nobody holds. The runs of all figures take turns, and the least of each is told, since noise only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _timing import cpu_model

from selector import __version__
from selector.files.security import Holder, key_digest
from selector.router.answers import RefusedRequest
from selector.router.keyring import KeyRing
from selector.router.metrics import RouterMetrics
from selector.router.wire import Headers

HOLDERS = (0, 1, 100, 10_000)
RUNS = 5
_OTHER_HEADERS: Headers = [
    (b"host", b"router:30800"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"OpenAI/Python 1.99.0"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-package-version", b"1.99.0"),
    (b"content-length", b"1234"),
]


def key_of(number: int) -> bytes:
    """The key of a holder."""
    return b"a-key-of-as-many-characters-as-a-hex-digest-has-for-holder-%06d" % number


def ring_of(holders: int) -> KeyRing:
    """A ring with that many holders, who come nowhere near their limits."""
    made = [
        Holder(
            name=f"holder-{number}",
            digests=frozenset({key_digest(key_of(number))}),
            slo_class="chat",
            slo_classes=frozenset({"chat"}),
            requests_per_minute=1e9,
            burst_requests=1_000_000,
            max_concurrent=1_000,
        )
        for number in range(holders)
    ]
    return KeyRing(made, RouterMetrics(), time.monotonic)


def measure(ring: KeyRing, keys: list[bytes], requests: int) -> float:
    """CPU microseconds a request."""
    heads = [[*_OTHER_HEADERS, (b"authorization", b"Bearer " + key), (b"x-slo-class", b"chat")] for key in keys]
    began = time.process_time()
    for number in range(requests):
        try:
            ring.admit(heads[number % len(heads)]).end()
        except RefusedRequest:
            continue
    return 1e6 * (time.process_time() - began) / requests


def main() -> None:
    """Measures, and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of a run")
    arguments = parser.parse_args()
    rings = {holders: ring_of(holders) for holders in HOLDERS}
    cases = {str(n): (ring, [key_of(i) for i in range(max(1, min(n, 1_000)))]) for n, ring in rings.items()}
    cases["refused"] = rings[100], [b"a-key-that-nobody-holds-but-is-of-the-same-length-%06d" % i for i in range(100)]
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(RUNS):
        for name, (ring, keys) in cases.items():
            least[name] = min(least[name], measure(ring, keys, arguments.requests))
    document = {
        "benchmark": "admission_cost",
        "host": {"cpu": cpu_model(), "cpus": os.cpu_count(), "load_1m": os.getloadavg()[0]},
        "versions": {"drafter-selector": __version__, "python": platform.python_version()},
        "command": " ".join(["bench/admission_cost.py", *sys.argv[1:]]),
        "requests": arguments.requests,
        "us_per_request": {name: round(value, 2) for name, value in least.items()},
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
