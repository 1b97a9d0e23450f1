"""Kinds of backends, and what a decode step or a prefill on one of them costs at least.

Backends that differ in nothing that costs (arm, limits, neighbours on their GPUs, acceptance) are one *kind*. The cost
of a decode step is enclosed between functions that are affine in the tokens of context C = b · c of the batch:

    net energy   E(b, c) − w T(b, c) ≥ α(b) + β C          w: idle power of the backend's GPUs
    time         θ(b) + φ C ≤ T(b, c) ≤ Θ(b) + Φ C

so that what depends on the context belongs to each request alone, and only α, θ and Θ are shared. Times in s, energies
in J. Net energy is what a GPU spends beyond the idle power that it would have drawn in the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from selector.core.contention import neighbours, turns_energy, turns_slowdown
from selector.core.cost import StepCost
from selector.core.policy import BackendSpec
from selector.core.prefillcost import PrefillCost
from selector.simulator.server import DEFAULT_CHUNK_TOKENS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """See the module."""

    spec: BackendSpec
    """One of them."""
    backends: tuple[str, ...]
    neighbours: frozenset[str]
    """Backends that share a GPU with one of them."""
    turns: int
    """Servers that may take turns on its GPU."""
    alpha_j: FloatArray
    """α(b) at b = 1 … `max_running_requests`, as are the next two."""
    least_step_s: FloatArray
    most_step_s: FloatArray
    beta_j: float
    """β per token."""
    least_s_per_token: float
    most_s_per_token: float

    def with_turns(self, most: int) -> Kind:
        """The same with at most that many servers that take turns."""
        turns = min(self.turns, most)
        faster = turns_slowdown(turns) / turns_slowdown(self.turns)
        return replace(
            self,
            turns=turns,
            most_step_s=self.most_step_s * faster,
            most_s_per_token=self.most_s_per_token * faster,
        )


class Boards:
    """The GPUs of the fleet: who is on each, and what it draws when idle."""

    def __init__(self, specs: Sequence[BackendSpec], prefills: Mapping[int, PrefillTable]) -> None:
        self._specs = specs
        self._neighbours = neighbours(specs)
        self._residents: dict[str, list[int]] = {}
        for number, spec in enumerate(specs):
            for gpu in dict.fromkeys(spec.gpus):
                self._residents.setdefault(gpu, []).append(number)
        self.idle_w = {gpu: specs[who[0]].cost.idle.watts(len(who)) for gpu, who in self._residents.items()}
        # Less idle power only lowers the energy of a run. It is lowered where a token more to prefill would otherwise
        # cost less than idling meanwhile, so that prefill that may or may not happen never has a negative net energy.
        share = 1.0
        for number, spec in enumerate(specs):
            idle_w = self.busy_frac(number) * self.of_backend_w(number)
            table = prefills[id(spec.cost.prefill)]
            if idle_w * table.most_ms_per_token > 0.0:
                share = min(share, table.least_j_per_token / (idle_w * table.most_ms_per_token / 1e3))
        self.idle_w = {gpu: share * watts for gpu, watts in self.idle_w.items()}

    def of_backend_w(self, number: int) -> float:
        """w: idle power of all GPUs of a backend."""
        return sum(self.idle_w[gpu] for gpu in self._specs[number].gpus)

    def turns(self, number: int) -> int:
        """Servers on the fullest GPU of a backend."""
        return max(len(self._residents[gpu]) for gpu in self._specs[number].gpus)

    def neighbours(self, number: int) -> frozenset[str]:
        """Names of the others on its GPUs."""
        return frozenset(self._specs[other].name for other in self._neighbours[number])

    def busy_frac(self, number: int) -> float:
        """How much longer than its work alone takes a backend may keep its GPUs busy, by taking turns.

        Servers with the same GPUs share the time of each turn, and only switching adds to it. Where the GPUs of one
        backend have different residents, one may wait for the turns on another.
        """
        turns = self.turns(number)
        if turns == 1:
            return 1.0
        mine = set(self._specs[number].gpus)
        alike = all(set(self._specs[other].gpus) == mine for gpu in mine for other in self._residents[gpu])
        return turns_slowdown(turns) / (turns if alike else 1)


def kind_of(
    specs: Sequence[BackendSpec], members: Sequence[int], boards: Boards, contexts: tuple[float, float]
) -> Kind:
    """The kind of the backends with those numbers; no request's context is outside `contexts`."""
    first = members[0]
    spec, turns = specs[first], boards.turns(first)
    batches = np.arange(1, spec.max_running_requests + 1)
    at = sorted({*contexts, *(knot for knot in spec.cost.step.context_knots if contexts[0] < knot < contexts[1])})
    ms, j = _step_tables(spec.cost.step, batches, at)
    seconds = ms / 1e3
    idle_w = boards.of_backend_w(first)
    # At any moment it either has its GPUs for itself or takes turns.
    net_j = np.minimum(j - idle_w * seconds, turns_energy(turns) * j - idle_w * boards.busy_frac(first) * seconds)
    beta_j, pace = _slope(net_j, batches, at), _slope(seconds, batches, at)
    tokens = np.outer(batches, at)
    least_s = np.min(seconds - pace * tokens, axis=1)
    return Kind(
        spec=spec,
        backends=tuple(specs[number].name for number in members),
        neighbours=frozenset[str]().union(*(boards.neighbours(number) for number in members)),
        turns=turns,
        alpha_j=np.min(net_j - beta_j * tokens, axis=1),
        least_step_s=np.minimum.accumulate(least_s[::-1])[::-1],
        most_step_s=np.maximum.accumulate(np.max(seconds - pace * tokens, axis=1)) * turns_slowdown(turns),
        beta_j=beta_j,
        least_s_per_token=pace,
        most_s_per_token=pace * turns_slowdown(turns),
    )


def _step_tables(step: StepCost, batches: IntArray, contexts: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """(ms, J), each of shape (batches, contexts)."""
    pairs = np.array([[step.step(int(b), c) for c in contexts] for b in batches])
    return pairs[:, :, 0], pairs[:, :, 1]


def _slope(values: FloatArray, batches: IntArray, contexts: Sequence[float]) -> float:
    """Value per token of context of the whole batch, by least squares, at least 0. Any choice gives a valid bound."""
    tokens = np.outer(batches, np.array(contexts) - contexts[0])
    weight = float(np.sum(tokens * tokens))
    if weight == 0.0:
        return 0.0
    return max(0.0, float(np.sum(tokens * (values - values[:, :1]))) / weight)


class PrefillTable:
    """Prefill of 0 … n tokens of a prompt: the work alone; floor and padding of a pass others may pay."""

    def __init__(self, cost: PrefillCost, longest: int) -> None:
        table = np.array([cost.work(tokens) for tokens in range(max(longest, DEFAULT_CHUNK_TOKENS) + 1)])
        self.pass_ms = cost.most_beside_work_ms()
        self.ms: FloatArray = table[:, 0]
        self.j: FloatArray = table[:, 1]
        # Of prompts in one pass the whole may cost less than the parts, but no token costs less than these.
        self.least_ms_per_token = float(np.min(np.diff(self.ms)))
        # (A token of padding too: it is priced by the cheapest of all lengths, and the table may end before those.)
        self.least_j_per_token = min(float(np.min(np.diff(self.j))), cost.token_j)
        self.most_ms_per_token = float(np.max(np.diff(self.ms)))


class PrefillBound:
    """Net energy and time of a prompt's prefill on a kind: with others in one pass, in chunks, or alone."""

    def __init__(self, boards: Boards, number: int, table: PrefillTable) -> None:
        """`number` is that of a backend of the kind."""
        self._table = table
        self._idle_w = boards.of_backend_w(number)
        self._busy_frac = boards.busy_frac(number)
        turns = boards.turns(number)
        self._slowdown, self._energy_frac = turns_slowdown(turns), turns_energy(turns)

    def of(self, prompt_tokens: int, cached_tokens: int) -> tuple[float, float, float]:
        """(net J at least, s at least, s at most) when up to `cached_tokens` of it may be in the prefix cache."""
        table, todo = self._table, prompt_tokens - cached_tokens
        least_j = todo * table.least_j_per_token
        own_s = float(table.ms[prompt_tokens] - table.ms[cached_tokens]) / 1e3
        net_j = min(
            least_j - self._idle_w * own_s, self._energy_frac * least_j - self._idle_w * self._busy_frac * own_s
        )
        # Every pass over a part of it takes its floor or padding, and a resumption, at most beside the work.
        passes = -(-prompt_tokens // DEFAULT_CHUNK_TOKENS)
        most_s = (float(table.ms[prompt_tokens]) + passes * table.pass_ms) / 1e3 * self._slowdown
        return net_j, todo * table.least_ms_per_token / 1e3, most_s
