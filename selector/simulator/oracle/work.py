"""What each request asks of each kind of backend, as the oracle bounds it: steps, energy of its own, earliest times.

Backends that differ in nothing that costs (arm, limits, GPUs of their own, acceptance) are one *kind*. For a kind the
cost of a decode step is enclosed between functions that are affine in the tokens of context C = b · c of the batch:

    net energy   E(b, c) − w T(b, c) ≥ α(b) + γ C          w: idle power of the kind's GPUs
    time         θ(b) + φ C ≤ T(b, c) ≤ Θ(b) + Φ C

so that what depends on the context belongs to each request alone, and only α, θ and Θ are shared. Times in s, energies
in J. Arrays over pairs run over every (request, kind that can serve it), a request's pairs next to one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from selector.core.acceptance import AcceptancePrior
from selector.core.cost import StepCost
from selector.core.eligibility import can_ever_serve
from selector.core.policy import BackendSpec
from selector.core.types import RequestView
from selector.simulator.draws import AcceptDraws
from selector.simulator.engine import SimulatedRequest
from selector.simulator.server import DEFAULT_CHUNK_TOKENS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Backends that are alike, and what their steps cost at least."""

    spec: BackendSpec
    """One of them."""
    backends: tuple[str, ...]
    idle_w: float
    """w: at most the idle power of the GPUs of one of them."""
    neighbours: frozenset[str]
    """Backends that share a GPU with one of them."""
    turns: int
    """Servers that may take turns on its GPU."""
    alpha_j: FloatArray
    """α(b) at b = 1 … `max_running_requests`, as are the next two."""
    least_step_s: FloatArray
    most_step_s: FloatArray
    gamma_j: float
    """γ per token."""
    least_s_per_token: float
    most_s_per_token: float


    def with_turns(self, most: int) -> Kind:
        """The same with at most that many servers that take turns."""
        turns = min(self.turns, most)
        return replace(
            self,
            turns=turns,
            most_step_s=self.most_step_s * (turns / self.turns),
            most_s_per_token=self.most_s_per_token * (turns / self.turns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Every request on every kind that can serve it."""

    kinds: tuple[Kind, ...]
    arrival_s: FloatArray
    """Per request, in order; only those that some backend can serve."""
    last_arrival_s: float
    """Of all requests."""
    idle_w: float
    """At most the idle power of all GPUs."""
    longest_step_s: float
    """No step of any kind takes longer, were its GPU its own."""
    least_context: float
    """Tokens of context that every request has at least."""
    judged_elsewhere: int
    """Requests with a target that no backend can serve: every policy rejects them, and each counts as a miss."""
    request: IntArray
    """Per pair, as all that follows."""
    kind: IntArray
    steps: FloatArray
    tokens: FloatArray
    kv_tokens: FloatArray
    """In the KV cache at the end."""
    own_j: FloatArray
    """Net energy that is its own: prefill, and γ times the context of its steps."""
    budget_s: FloatArray
    """What its decoding may take to meet the target; infinite without a target, −1 where no TBT is judged."""
    first_token_s: FloatArray
    """Earliest time."""
    least_step_s: FloatArray
    """A step of it takes at least this."""
    decode_s: FloatArray
    """All its steps take at least this."""
    prefill_s: FloatArray
    """At most."""

    def first_step_j(self) -> FloatArray:
        """Per kind, α(1)."""
        return np.array([kind.alpha_j[0] for kind in self.kinds])

    def of_pairs(self, keep: npt.NDArray[np.bool_]) -> Work:
        """The same with those pairs alone, at least one of every request. A backend without any never works."""
        used = {name for number in set(self.kind[keep].tolist()) for name in self.kinds[number].backends}
        kinds = tuple(kind.with_turns(1 + len(kind.neighbours & used)) for kind in self.kinds)
        slower = np.array([new.turns / old.turns for new, old in zip(kinds, self.kinds, strict=True)])
        pairs = {name: getattr(self, name)[keep] for name in _PER_PAIR}
        pairs["prefill_s"] = pairs["prefill_s"] * slower[pairs["kind"]]
        return replace(self, kinds=kinds, **pairs)



_PER_PAIR = (
    "request", "kind", "steps", "tokens", "kv_tokens", "own_j", "budget_s", "first_token_s", "least_step_s", "decode_s",
    "prefill_s",
)  # fmt: skip


def work_of(
    specs: Sequence[BackendSpec],
    acceptance: Mapping[tuple[str, str], AcceptancePrior],
    requests: Sequence[SimulatedRequest],
    seed: int,
    *,
    apart: bool = False,
) -> Work:
    """Bounds what `requests` ask of the backends, with the accept lengths that a simulation with `seed` draws.

    With `apart` every backend is a kind of its own.
    """
    largest = max(spec.max_context_tokens for spec in specs)
    views = [_view(request) for request in requests]
    able = [
        [
            number
            for number, spec in enumerate(specs)
            if can_ever_serve(view, spec) and view.prompt_tokens < spec.max_context_tokens
        ]
        if request.trace.prompt_tokens + request.trace.output_tokens <= largest
        else []
        for request, view in zip(requests, views, strict=True)
    ]
    served = [number for number, backends in enumerate(able) if backends]
    prompts = [requests[number].trace.prompt_tokens for number in served] or [0]
    ends = [requests[number].trace.prompt_tokens + requests[number].trace.output_tokens for number in served] or [1]
    contexts = (float(min(prompts)), float(max(ends)))
    text_types = sorted({request.text_type for request in requests})
    tables: dict[int, tuple[FloatArray, FloatArray]] = {}
    for spec in specs:
        if id(spec.cost.prefill) not in tables:
            tables[id(spec.cost.prefill)] = _prefill_table(spec, max(ends))
    watts = _idle_watts(specs, tables)
    groups: dict[object, list[int]] = {}
    for number, spec in enumerate(specs):
        truth = tuple(acceptance.get((spec.name, text_type)) for text_type in text_types)
        limits = (spec.max_running_requests, spec.max_kv_tokens, spec.max_context_tokens, spec.cannot_serve)
        turns = _turns(specs, number)
        shared = sum(watts[gpu] for gpu in spec.gpus)
        groups.setdefault((number if apart else None, id(spec.cost), limits, turns, shared, truth), []).append(number)
    kinds = tuple(_kind(specs, members, watts, contexts) for members in groups.values())
    longest_step_s = max(_longest_step_s(kind, len(served), float(sum(ends)), float(max(ends))) for kind in kinds)
    kind_of = {member: kind for kind, members in enumerate(groups.values()) for member in members}
    prefills = [_PrefillBound(kind, tables[id(kind.spec.cost.prefill)]) for kind in kinds]
    draws = AcceptDraws(seed)
    drawn: dict[tuple[object, ...], tuple[int, float]] = {}
    cached = _cacheable(requests)
    rows: list[tuple[float, ...]] = []
    for index, number in enumerate(served):
        request = requests[number]
        trace = request.trace
        for kind_number in sorted({kind_of[backend] for backend in able[number]}):
            kind = kinds[kind_number]
            prior = acceptance.get((kind.spec.name, request.text_type))
            tokens = min(trace.output_tokens, kind.spec.max_context_tokens - trace.prompt_tokens)
            accept = (prior.mean, prior.request_spread) if prior else (1.0, 0.0)
            key = (number, accept, kind.spec.cost.verify_tokens, tokens)
            if key not in drawn:
                cumulative, _ = draws.steps(
                    number,
                    tokens=tokens - 1,
                    accept_length=accept[0],
                    spread=accept[1],
                    verify_tokens=kind.spec.cost.verify_tokens,
                )
                drawn[key] = _steps_and_context(cumulative)
            steps, generated = drawn[key]
            context = steps * (trace.prompt_tokens + 1) + generated
            net_j, least_prefill_s, most_prefill_s = prefills[kind_number].of(trace.prompt_tokens, cached[number])
            least_step_s = float(kind.least_step_s[0]) + kind.least_s_per_token * (trace.prompt_tokens + 1)
            target = request.tbt_target_ms
            if target is None:
                budget_s = float("inf")
            elif tokens < 2:
                budget_s = -1.0
            else:
                budget_s = target / 1e3 * (tokens - 1)
            rows.append(
                (
                    index,
                    kind_number,
                    steps,
                    tokens,
                    trace.prompt_tokens + tokens,
                    net_j + kind.gamma_j * context,
                    budget_s,
                    trace.arrival_s + least_prefill_s,
                    least_step_s,
                    steps * float(kind.least_step_s[0]) + kind.least_s_per_token * context,
                    most_prefill_s,
                )
            )
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 11)
    return Work(
        kinds=kinds,
        arrival_s=np.array([requests[number].trace.arrival_s for number in served], dtype=np.float64),
        last_arrival_s=requests[-1].trace.arrival_s if requests else 0.0,
        idle_w=sum(watts.values()),
        longest_step_s=longest_step_s,
        least_context=contexts[0],
        judged_elsewhere=sum(
            1
            for request, backends in zip(requests, able, strict=True)
            if not backends
            and request.tbt_target_ms is not None
            and request.trace.prompt_tokens + request.trace.output_tokens <= largest
        ),
        request=table[:, 0].astype(np.int64),
        kind=table[:, 1].astype(np.int64),
        steps=table[:, 2],
        tokens=table[:, 3],
        kv_tokens=table[:, 4],
        own_j=table[:, 5],
        budget_s=table[:, 6],
        first_token_s=table[:, 7],
        least_step_s=table[:, 8],
        decode_s=table[:, 9],
        prefill_s=table[:, 10],
    )


def _view(request: SimulatedRequest) -> RequestView:
    trace = request.trace
    return RequestView(
        request_id=trace.request_id,
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        expected_output_tokens=1.0,
        max_output_tokens=trace.max_output_tokens,
        text_type=request.text_type,
    )


def _cacheable(requests: Sequence[SimulatedRequest]) -> list[int]:
    """Prompt tokens of each request that a prefix cache may at best hold: its session's longest earlier text."""
    longest: dict[str, int] = {}
    found = []
    for request in requests:
        trace = request.trace
        held = 0
        if trace.session_key is not None:
            held = min(longest.get(trace.session_key, 0), trace.prompt_tokens - 1)
            longest[trace.session_key] = max(
                longest.get(trace.session_key, 0), trace.prompt_tokens + trace.output_tokens
            )
        found.append(held)
    return found


def _steps_and_context(cumulative: IntArray) -> tuple[int, float]:
    """Steps, and at least the tokens generated before each step, summed over the steps (the first token apart).

    The KV cache of a running request grows by the mean of its draws; a retraction restarts that line at what was
    delivered, which is never lower than the line by more than the lowest deviation of the draws.
    """
    steps = len(cumulative)
    if steps == 0:
        return 0, 0.0
    growth = float(cumulative[-1]) / steps
    lowest = float(min(0.0, np.min(cumulative - growth * np.arange(1, steps + 1))))
    return steps, growth * steps * (steps - 1) / 2 + lowest * steps


# ---- kinds


def _residents(specs: Sequence[BackendSpec]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        for gpu in dict.fromkeys(spec.gpus):
            found.setdefault(gpu, []).append(number)
    return found


def _turns(specs: Sequence[BackendSpec], number: int) -> int:
    residents = _residents(specs)
    return max(len(residents[gpu]) for gpu in specs[number].gpus)


def _alike(specs: Sequence[BackendSpec], members: Sequence[int]) -> bool:
    """Whether the GPUs of these backends each have the same residents, so that taking turns adds no idle time."""
    residents = _residents(specs)
    return all(
        len({tuple(residents[gpu]) for gpu in specs[other].gpus}) == 1
        for number in members
        for gpu in specs[number].gpus
        for other in residents[gpu]
    )


def _idle_watts(
    specs: Sequence[BackendSpec], tables: Mapping[int, tuple[FloatArray, FloatArray]]
) -> dict[str, float]:
    """Idle power of each GPU, lowered where a prefill would otherwise cost less than idling through it.

    Less idle power only lowers the energy of a run, so a bound on it stays one.
    """
    residents = _residents(specs)
    watts = {gpu: specs[who[0]].cost.idle.watts(len(who)) for gpu, who in residents.items()}
    share = 1.0
    for number, spec in enumerate(specs):
        idle_w = _turns(specs, number) * sum(watts[gpu] for gpu in spec.gpus)
        j, ms = tables[id(spec.cost.prefill)]
        most_ms_per_token = float(np.max(np.diff(ms)))
        if idle_w > 0.0 and most_ms_per_token > 0.0:
            share = min(share, float(np.min(np.diff(j))) / (idle_w * most_ms_per_token / 1e3))
    return {gpu: share * value for gpu, value in watts.items()}


def _kind(
    specs: Sequence[BackendSpec], members: Sequence[int], watts: Mapping[str, float], contexts: tuple[float, float]
) -> Kind:
    spec = specs[members[0]]
    idle_w = sum(watts[gpu] for gpu in spec.gpus)
    turns = _turns(specs, members[0])
    batches = np.arange(1, spec.max_running_requests + 1)
    at = sorted({*contexts, *(knot for knot in spec.cost.step.context_knots if contexts[0] < knot < contexts[1])})
    ms, j = _step_tables(spec.cost.step, batches, at)
    seconds = ms / 1e3
    # Where the GPUs of a backend have different neighbours, one of them may wait for the other's turns.
    net_j = j - idle_w * (1 if _alike(specs, members) else turns) * seconds
    gamma_j = _slope(net_j, batches, at)
    pace = _slope(seconds, batches, at)
    tokens = np.outer(batches, at)
    low_s = np.min(seconds - pace * tokens, axis=1)
    return Kind(
        spec=spec,
        backends=tuple(specs[number].name for number in members),
        idle_w=idle_w,
        neighbours=frozenset(
            specs[other].name
            for number in members
            for gpu in specs[number].gpus
            for other in _residents(specs)[gpu]
            if other != number
        ),
        turns=turns,
        alpha_j=np.min(net_j - gamma_j * tokens, axis=1),
        least_step_s=np.minimum.accumulate(low_s[::-1])[::-1],
        most_step_s=np.maximum.accumulate(np.max(seconds - pace * tokens, axis=1)) * turns,
        gamma_j=gamma_j,
        least_s_per_token=pace,
        most_s_per_token=pace * turns,
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


def _longest_step_s(kind: Kind, requests: int, all_kv_tokens: float, most_kv_tokens: float) -> float:
    """No step of the kind takes longer, were its GPU its own."""
    batch = max(1, min(requests, kind.spec.max_running_requests))
    kv_tokens = min(all_kv_tokens, max(float(kind.spec.max_kv_tokens), most_kv_tokens))
    return (float(kind.most_step_s[batch - 1]) + kind.most_s_per_token * kv_tokens) / kind.turns


# ---- prefill


def _prefill_table(spec: BackendSpec, longest: int) -> tuple[FloatArray, FloatArray]:
    """(J, ms) of a prompt of 0 … n tokens."""
    ends = range(max(longest, DEFAULT_CHUNK_TOKENS) + 1)
    table = np.array([spec.cost.prefill.cost(tokens) for tokens in ends])
    return table[:, 1], table[:, 0]


class _PrefillBound:
    """Least net energy and time to prefill a prompt: with others in one pass, in chunks, or alone."""

    def __init__(self, kind: Kind, table: tuple[FloatArray, FloatArray]) -> None:
        self._j, self._ms = table
        self._least_j = float(np.min(np.diff(self._j)))
        self._least_ms = float(np.min(np.diff(self._ms)))
        self._idle_w = kind.idle_w
        self._turns = kind.turns

    def of(self, prompt_tokens: int, cached_tokens: int) -> tuple[float, float, float]:
        """(net J at least, s at least, s at most)."""
        todo = prompt_tokens - cached_tokens
        least_j, least_ms = todo * self._least_j, todo * self._least_ms
        # The net energy of what may or may not be cached is at least 0: see `_idle_watts`.
        own_ms = float(self._ms[prompt_tokens] - self._ms[cached_tokens])
        most_ms = float(self._ms[prompt_tokens])
        return least_j - self._idle_w * own_ms / 1e3, least_ms / 1e3, most_ms * self._turns / 1e3
