"""What each request asks of each kind of backend, at least: steps, energy of its own, earliest times.

Arrays over pairs run over every (request, kind that can serve it), a request's pairs next to one another. Times in s,
energies in J.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from selector.core.acceptance import AcceptancePrior
from selector.core.eligibility import can_ever_serve
from selector.core.policy import BackendSpec
from selector.core.types import RequestView
from selector.simulator.draws import AcceptDraws
from selector.simulator.kvcache import MOST_RESERVED_TOKENS
from selector.simulator.oracle.kinds import Boards, FloatArray, IntArray, Kind, PrefillBound, PrefillTable, kind_of
from selector.simulator.prefixcache import prompt_blocks
from selector.simulator.run import SimulatedRequest
from selector.simulator.truth import Truth, truth_of


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
    reserved_tokens: FloatArray
    """At most what a server keeps free for it when it takes others."""
    own_j: FloatArray
    """Net energy that is its own: prefill, and β times the context of its steps."""
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

    @property
    def starts(self) -> IntArray:
        """The first pair of each request."""
        return np.flatnonzero(np.diff(self.request, prepend=-1))

    def of_pairs(self, keep: npt.NDArray[np.bool_]) -> Work:
        """The same with those pairs alone, at least one of every request. A backend without any never works."""
        used = {name for number in set(self.kind[keep].tolist()) for name in self.kinds[number].backends}
        kinds = tuple(kind.with_turns(1 + len(kind.neighbours & used)) for kind in self.kinds)
        slower = [new.most_step_s[0] / old.most_step_s[0] for new, old in zip(kinds, self.kinds, strict=True)]
        pairs = {name: getattr(self, name)[keep] for name in _PER_PAIR}
        pairs["prefill_s"] = pairs["prefill_s"] * np.array(slower)[pairs["kind"]]
        return replace(self, kinds=kinds, **pairs)


_PER_PAIR = (
    "request", "kind", "steps", "tokens", "kv_tokens", "reserved_tokens", "own_j", "budget_s", "first_token_s",
    "least_step_s", "decode_s", "prefill_s",
)  # fmt: skip


def work_of(
    specs: Sequence[BackendSpec],
    acceptance: Mapping[tuple[str, str], AcceptancePrior] | Truth,
    requests: Sequence[SimulatedRequest],
    *,
    seed: int,
    session_prefixes: bool,
    apart: bool = False,
) -> Work:
    """Bounds what `requests` ask of the backends, with the accept lengths that a simulation with `seed` draws.

    With `apart` every backend is a kind of its own.
    """
    longest = [spec.longest_tokens for spec in specs]
    able = [_able(request, specs, max(longest)) for request in requests]
    served = [number for number, backends in enumerate(able) if backends]
    traces = [requests[number].trace for number in served]
    most_tokens = max((trace.prompt_tokens + trace.output_tokens for trace in traces), default=1)
    least_tokens = min((trace.prompt_tokens for trace in traces), default=0)
    prefills = {id(spec.cost.prefill): PrefillTable(spec.cost.prefill, most_tokens) for spec in specs}
    boards = Boards(specs, prefills)
    groups = _groups(specs, acceptance, requests, boards, apart=apart)
    contexts = (float(least_tokens), float(most_tokens))
    kinds = tuple(kind_of(specs, members, boards, contexts) for members in groups)
    kind_number = {member: number for number, members in enumerate(groups) for member in members}
    bounds = [PrefillBound(boards, members[0], prefills[id(specs[members[0]].cost.prefill)]) for members in groups]
    cached = _cacheable(requests, session_prefixes=session_prefixes)
    drawn, truth = _Drawn(seed), truth_of(acceptance)
    rows: list[tuple[float, ...]] = []
    for index, number in enumerate(served):
        request, trace = requests[number], requests[number].trace
        for kind_at in sorted({kind_number[backend] for backend in able[number]}):
            kind, spec = kinds[kind_at], kinds[kind_at].spec
            tokens = min(trace.output_tokens, longest[groups[kind_at][0]] - trace.prompt_tokens)
            steps, generated = drawn.steps_and_context(
                number, tokens, truth(spec.name, request, request.trace.arrival_s), spec.cost.verify_tokens
            )
            context = steps * (trace.prompt_tokens + 1) + generated
            net_j, least_prefill_s, most_prefill_s = bounds[kind_at].of(trace.prompt_tokens, cached[number])
            may_generate = min(max(1, spec.max_context_tokens - trace.prompt_tokens - 1), MOST_RESERVED_TOKENS)
            rows.append(
                (
                    index,
                    kind_at,
                    steps,
                    tokens,
                    trace.prompt_tokens + max(1, tokens),
                    may_generate,
                    net_j + kind.beta_j * context,
                    _budget_s(request.tbt_target_ms, tokens),
                    trace.arrival_s + least_prefill_s,
                    float(kind.least_step_s[0]) + kind.least_s_per_token * (trace.prompt_tokens + 1),
                    steps * float(kind.least_step_s[0]) + kind.least_s_per_token * context,
                    most_prefill_s,
                )
            )
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(_PER_PAIR))
    columns = {name: table[:, place] for place, name in enumerate(_PER_PAIR)}
    return Work(
        kinds=kinds,
        arrival_s=np.array([trace.arrival_s for trace in traces], dtype=np.float64),
        last_arrival_s=requests[-1].trace.arrival_s if requests else 0.0,
        idle_w=sum(boards.idle_w.values()),
        least_context=float(least_tokens),
        judged_elsewhere=sum(
            1
            for request, backends in zip(requests, able, strict=True)
            if not backends
            and request.tbt_target_ms is not None
            and request.trace.prompt_tokens + request.trace.output_tokens <= max(longest)
        ),
        request=columns.pop("request").astype(np.int64),
        kind=columns.pop("kind").astype(np.int64),
        **columns,
    )


def _able(request: SimulatedRequest, specs: Sequence[BackendSpec], longest: int) -> list[int]:
    """Numbers of the backends that a policy may send a request to; none for one that the simulation drops."""
    trace = request.trace
    if trace.prompt_tokens + trace.output_tokens > longest:
        return []
    view = RequestView(
        request_id=trace.request_id,
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        expected_output_tokens=1.0,
        max_output_tokens=trace.max_output_tokens,
        text_type=request.text_type,
    )
    return [number for number, spec in enumerate(specs) if can_ever_serve(view, spec)]


def _groups(
    specs: Sequence[BackendSpec],
    acceptance: Mapping[tuple[str, str], AcceptancePrior] | Truth,
    requests: Sequence[SimulatedRequest],
    boards: Boards,
    *,
    apart: bool,
) -> list[list[int]]:
    """Numbers of the backends of each kind."""
    text_types = sorted({request.text_type for request in requests})
    groups: dict[Hashable, list[int]] = {}
    for number, spec in enumerate(specs):
        if apart or callable(acceptance):
            key: Hashable = number
        else:
            truth = tuple(acceptance.get((spec.name, text_type)) for text_type in text_types)
            places = (spec.max_running_requests, spec.overlaps)
            limits = (spec.max_kv_tokens, spec.max_context_tokens, spec.cannot_serve)
            shared = (boards.turns(number), boards.of_backend_w(number), boards.busy_frac(number))
            key = (id(spec.cost), places, limits, shared, truth)
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _budget_s(tbt_target_ms: float | None, tokens: int) -> float:
    if tbt_target_ms is None:
        return inf
    return tbt_target_ms / 1e3 * (tokens - 1) if tokens > 1 else -1.0


def _cacheable(requests: Sequence[SimulatedRequest], *, session_prefixes: bool) -> list[int]:
    """Prompt tokens of each request that a prefix cache holds at best: every block that came before, kept for ever."""
    known: set[Hashable] = set()
    found = []
    for request in requests:
        trace = request.trace
        ids, block_tokens = prompt_blocks(trace, by_session=session_prefixes)
        blocks = 0
        while blocks < len(ids) and ids[blocks] in known:
            blocks += 1
        known.update(ids)
        found.append(max(0, min(blocks * block_tokens, trace.prompt_tokens - 1)))
    return found


class _Drawn:
    """Accept lengths as the simulation draws them."""

    def __init__(self, seed: int) -> None:
        self._draws = AcceptDraws(seed)
        self._known: dict[Hashable, tuple[int, float]] = {}
        self._number = -1

    def steps_and_context(
        self, number: int, tokens: int, truth: AcceptancePrior | None, verify_tokens: int
    ) -> tuple[int, float]:
        """Steps of a request, and at least the tokens generated before each of them, summed; the first token apart.

        The KV cache of a running request grows by the mean of its draws; a retraction restarts that line at what was
        delivered, which is never lower than the line by more than the lowest deviation of the draws.
        """
        if tokens < 2:
            return 0, 0.0
        if number != self._number:
            self._number, self._known = number, {}
        key = (tokens, truth, verify_tokens)
        if key not in self._known:
            self._known[key] = self._draw(number, tokens, truth, verify_tokens)
        return self._known[key]

    def _draw(self, number: int, tokens: int, truth: AcceptancePrior | None, verify_tokens: int) -> tuple[int, float]:
        passes = self._draws.passes(
            number,
            tokens=tokens - 1,
            accept_length=truth.mean if truth else 1.0,
            spread=truth.request_spread if truth else 0.0,
            verify_tokens=verify_tokens,
        )
        if passes is None:
            return tokens - 1, (tokens - 1) * (tokens - 2) / 2
        steps, growth = passes.count, (tokens - 1) / passes.count
        lowest = min(0.0, float(np.min(np.array(passes.cumulative) - growth * np.arange(1, steps + 1))))
        return steps, growth * steps * (steps - 1) / 2 + lowest * steps
