"""A steady load: the least joules per accepted token over all stationary allocations of a number of requests.

In a closed loop every client sends its next request when its last one ended, so arrivals depend on the policy and the
bound of a trace (`bound`) does not apply. What does not depend on it is the number N of requests in the system and
their mix.

An *allocation* splits N over the backends; a backend that holds b requests decodes batches of b and stops for the
prefill of each that follows one that ended. An answer of type j on backend k, held with b, then takes of the backend

    time      t = n T(b, c) / b + prefill time            n = answer tokens / accept length
    energy    e = n E(b, c) / b + prefill energy          beyond idle power

and the backend's time is shared among types as its traffic is. Mixtures of allocations over time are allowed. By linear
programming duality the least energy per request is the most that prices w(j) prove with which no allocation earns more
than it costs:

    idle power + Σ_k min_j (e − w(j)) / t  ≥  0          for every split of N

The prices are found by cutting planes: the split that earns most, by dynamic programming over the backends, becomes a
constraint of a small linear program.

Where N changes slowly against the time of an answer, the load is a sequence of steady ones: the left side above is then
its mean over the times that N has each value. Prices, and with them the mix, are those of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec
from selector.errors import DomainError
from selector.simulator.oracle.kinds import Boards, FloatArray, Kind, PrefillBound, PrefillTable, kind_of
from selector.simulator.run import SimulatedRequest

_MOST_CUTS = 400
_ENOUGH = 2e-4
"""The search ends when scaling the prices down by this share makes them allowed."""
_BISECTIONS = 30
_HIGHEST_PRICE_J = 1e7


@dataclass(frozen=True, slots=True)
class _Type:
    """The mean request of a text type."""

    share: float
    tokens: float
    decode_tokens: float
    prompt_tokens: float
    context_tokens: float
    """Over its steps."""


def steady_j_per_accepted_token(
    specs: Sequence[BackendSpec],
    acceptance: Mapping[tuple[str, str], AcceptancePrior],
    requests: Sequence[SimulatedRequest],
    *,
    in_system: int | Mapping[int, float],
    tbt_target_ms: float | None = None,
    any_arms_on_gpus: int | None = None,
) -> float:
    """No stationary allocation of `in_system` requests like these does better; their arrival times do not count.

    `in_system` may give several numbers with the share of the time of each. With a target, only allocations count in
    which the mean request of each type is within it; infinite without any. Means over accept lengths are used, so a
    run has to be long for this to hold. With `any_arms_on_gpus` the fleet is so many GPUs, each of which may run the
    backend of any of `specs`, and another at any time: no fleet of so many of them does better.

    Raises `DomainError` without requests, for less than one in the system, for requests that a backend's context does
    not hold, and for backends that share a GPU, or that have several where any may run.
    """
    time_at = {in_system: 1.0} if isinstance(in_system, int) else in_system
    if not requests or min(time_at, default=0) < 1:
        raise DomainError(f"no steady load has {len(requests)} requests, {in_system} of them in the system")
    longest = max(request.trace.prompt_tokens + request.trace.output_tokens for request in requests)
    least = min(request.trace.prompt_tokens for request in requests)
    if longest > min(spec.longest_tokens for spec in specs):
        raise DomainError(f"a request of {longest} tokens does not fit every backend's context")
    gpus = [gpu for spec in specs for gpu in spec.gpus]
    if len(set(gpus)) < len(gpus):
        raise DomainError("a steady load is bounded only where every backend has its own GPUs")
    if any_arms_on_gpus is not None and len(gpus) > len(specs):
        raise DomainError("any arm on any GPU is bounded only where every backend has one GPU")
    tables = {id(spec.cost.prefill): PrefillTable(spec.cost.prefill, longest) for spec in specs}
    boards = Boards(specs, tables)
    names = sorted({request.text_type for request in requests})
    types = [_type_of([request for request in requests if request.text_type == name], len(requests)) for name in names]
    servers = []
    for number, spec in enumerate(specs):
        priors = [acceptance.get((spec.name, name)) for name in names]
        kind = kind_of(specs, [number], boards, (float(least), float(longest)))
        prefill = PrefillBound(boards, number, tables[id(spec.cost.prefill)])
        servers.append(_Server(kind, types, priors, prefill, max(time_at), tbt_target_ms))
    idle_w = sum(boards.idle_w.values())
    places: list[_Server] | list[_AnyOf] = servers
    if any_arms_on_gpus is not None:
        places = [_AnyOf(servers)] * any_arms_on_gpus
        idle_w = any_arms_on_gpus * min(boards.idle_w.values())
    return _Search(places, types, idle_w, time_at).least_j() / sum(each.share * each.tokens for each in types)


def _type_of(requests: Sequence[SimulatedRequest], all_requests: int) -> _Type:
    prompts = np.array([request.trace.prompt_tokens for request in requests], dtype=np.float64)
    outputs = np.array([request.trace.output_tokens for request in requests], dtype=np.float64)
    steps = np.maximum(outputs - 1.0, 1e-9)
    context = prompts + 0.5 * outputs
    return _Type(
        share=len(requests) / all_requests,
        tokens=float(outputs.mean()),
        decode_tokens=float((outputs - 1.0).mean()),
        prompt_tokens=float(prompts.mean()),
        context_tokens=float((context * steps).sum() / steps.sum()),
    )


class _Server:
    """What an answer takes of one backend."""

    def __init__(
        self,
        kind: Kind,
        types: Sequence[_Type],
        priors: Sequence[AcceptancePrior | None],
        prefill: PrefillBound,
        in_system: int,
        tbt_target_ms: float | None,
    ) -> None:
        accept = np.array([max(1.0, prior.mean) if prior else 1.0 for prior in priors])
        batches = np.arange(1, min(in_system, len(kind.alpha_j)) + 1)
        bounds = [prefill.of(int(each.prompt_tokens), 0) for each in types]
        least_s, alpha_j = kind.least_step_s[: len(batches)], kind.alpha_j[: len(batches)]
        context = np.array([each.context_tokens for each in types])[:, None]
        steps = np.array([max(each.decode_tokens, 1e-9) for each in types])[:, None] / accept[:, None]
        self.answer_s: FloatArray = steps * (least_s / batches + kind.least_s_per_token * context)
        prefill_s = np.array([[seconds] for _, seconds, _ in bounds])
        self.answer_s += prefill_s
        """Time of an answer, of shape (types, requests held): index 0 is one request, as of the next."""
        self.answer_j: FloatArray = steps * (alpha_j / batches + kind.beta_j * context)
        self.answer_j += np.array([[net_j] for net_j, _, _ in bounds])
        self._in_system = in_system
        # By Little's law an answer stays as long as it takes of the backend times how many are there.
        decode_s = batches * self.answer_s - prefill_s
        tokens = np.array([each.decode_tokens for each in types])[:, None]
        self._late = np.zeros(decode_s.shape, dtype=np.bool_)
        if tbt_target_ms is not None:
            self._late = decode_s > tbt_target_ms / 1e3 * tokens

    def costs_w(self, prices_j: FloatArray) -> FloatArray:
        """Beyond idle power and less what is earned, with 0 … N requests there."""
        lowest = np.min(self._each_w(prices_j), axis=0)
        found = np.zeros(self._in_system + 1)
        found[1 : len(lowest) + 1] = lowest
        found[len(lowest) + 1 :] = lowest[-1]  # the rest waits for a place
        return found

    def best(self, prices_j: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The type that earns most with 0 … N requests there: (its number, W beyond idle power, answers per second)."""
        kinds = np.argmin(self._each_w(prices_j), axis=0)
        batches = np.arange(len(kinds))
        answer_s = self.answer_s[kinds, batches]
        power_w = self.answer_j[kinds, batches] / answer_s
        pad = 0, self._in_system - len(kinds)
        found = [np.pad(each, pad, mode="edge") for each in (kinds, power_w, 1.0 / answer_s)]
        none, nothing_w, no_answers = (np.concatenate([[0.0], each]) for each in found)
        return none, nothing_w, no_answers

    def _each_w(self, prices_j: FloatArray) -> FloatArray:
        net: FloatArray = (self.answer_j - prices_j[:, None]) / self.answer_s
        net[self._late] = np.inf
        return net


class _AnyOf:
    """A GPU that may run any of several backends, another one whenever another number of requests is there."""

    def __init__(self, servers: Sequence[_Server]) -> None:
        self._servers = servers

    def costs_w(self, prices_j: FloatArray) -> FloatArray:
        """As `_Server.costs_w`, of whichever is best."""
        found: FloatArray = np.min([server.costs_w(prices_j) for server in self._servers], axis=0)
        return found

    def best(self, prices_j: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """As `_Server.best`, of whichever is best."""
        chosen = np.argmin([server.costs_w(prices_j) for server in self._servers], axis=0)
        each = np.array([server.best(prices_j) for server in self._servers])
        kinds, power_w, answers = each[chosen, :, np.arange(len(chosen))].T
        return kinds, power_w, answers


class _Search:
    """Cutting planes over the prices."""

    def __init__(
        self,
        servers: Sequence[_Server | _AnyOf],
        types: Sequence[_Type],
        idle_w: float,
        time_at: Mapping[int, float],
    ) -> None:
        self._servers = servers
        self._idle_w = idle_w
        self._share = np.array([each.share for each in types])
        self._in_system = np.array(list(time_at))
        self._time = np.array(list(time_at.values())) / sum(time_at.values())

    def least_j(self) -> float:
        """Energy per request at least."""
        rows: list[FloatArray] = []
        powers: list[float] = []
        best = 0.0
        prices_j = np.zeros(len(self._share))
        if self._lowest_w(prices_j)[0] == np.inf:
            return inf
        for _ in range(_MOST_CUTS):
            value_j = float(self._share @ prices_j)
            best = max(best, self._allowed(prices_j) * value_j)
            if rows and best >= (1.0 - _ENOUGH) * value_j:
                break
            power_w, answers = self._worst_state(prices_j)
            rows.append(answers)
            powers.append(power_w)
            bounds = [(0.0, _HIGHEST_PRICE_J)] * len(self._share)
            found = linprog(-self._share, A_ub=np.array(rows), b_ub=np.array(powers), bounds=bounds)
            prices_j = np.asarray(found.x, dtype=np.float64)
        return best

    def _allowed(self, prices_j: FloatArray) -> float:
        """The largest share of the prices under which no allocation earns more than it costs."""
        if self._lowest_w(prices_j)[0] >= 0.0:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self._lowest_w(middle * prices_j)[0] >= 0.0:
                low = middle
            else:
                high = middle
        return low

    def _lowest_w(self, prices_j: FloatArray) -> tuple[float, list[npt.NDArray[np.int64]]]:
        """The least power less earnings in the mean over the time, and how many requests each backend gets then.

        The latter as a table for each backend, over the requests that it and those before it share.
        """
        size = int(self._in_system.max()) + 1
        index = np.arange(size)
        before = index[:, None] - index[None, :]
        totals = np.full(size, np.inf)
        totals[0] = self._idle_w
        choices = []
        for server in self._servers:
            table = np.where(before >= 0, totals[np.maximum(before, 0)] + server.costs_w(prices_j)[None, :], np.inf)
            choices.append(np.argmin(table, axis=1))
            totals = table[index, choices[-1]]
        return float(self._time @ totals[self._in_system]), choices

    def _worst_state(self, prices_j: FloatArray) -> tuple[float, FloatArray]:
        """(power in W, answers per second of each type) of the allocations that earn most beyond their cost."""
        power_w, answers = self._idle_w, np.zeros(len(self._share))
        left = self._in_system
        choices = self._lowest_w(prices_j)[1]
        for server, chosen in zip(reversed(self._servers), reversed(choices), strict=True):
            there = chosen[left]
            left = left - there
            kinds, powers_w, rates = server.best(prices_j)
            power_w += float(self._time @ powers_w[there])
            np.add.at(answers, kinds[there].astype(np.int64), self._time * rates[there])
        return power_w, answers
