"""What servers that share a GPU do to one another: they take turns.

Measured on an H200 with two SGLang servers of Qwen3-8B (no drafter and dspark-8, 16 requests each): alone, one after
the other, they took 7.63 s and 4,745 J; both at once 8.30 s and 4,916 J. Step times add up, and each switch costs a
little: 9 % of the time and 3.6 % of the energy of both. A server whose neighbours idle costs what it costs on an empty
GPU.

That the overhead of more than two is that of two is an assumption; three busy at once were not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from selector.core.policy import BackendSpec

DRAINING = 1.5
"""How many times longer an answer takes beside a server that drains: half of the tokens of those who run there are yet
to come, and until they came both go at half of the pace."""
_SWITCHING_TIME_FRAC = 0.09
_SWITCHING_ENERGY_FRAC = 0.036


def neighbours(backends: Sequence[BackendSpec]) -> list[tuple[int, ...]]:
    """For each backend, the places in the fleet of those that share a GPU with it."""
    on_gpu: dict[str, list[int]] = {}
    for index, spec in enumerate(backends):
        for gpu in spec.gpus:
            on_gpu.setdefault(gpu, []).append(index)
    return [
        tuple(sorted({other for gpu in spec.gpus for other in on_gpu[gpu]} - {index}))
        for index, spec in enumerate(backends)
    ]


def turns_slowdown(busy_servers: int) -> float:
    """How many times longer a step or prefill takes while that many servers of its GPU work, itself included."""
    return 1.0 if busy_servers <= 1 else busy_servers * (1.0 + _SWITCHING_TIME_FRAC)


def turns_energy(busy_servers: int) -> float:
    """How many times the energy of the same work alone it then takes."""
    return 1.0 if busy_servers <= 1 else 1.0 + _SWITCHING_ENERGY_FRAC
