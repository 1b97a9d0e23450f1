"""Shares what the boards counted out over the requests that ran on them, so that nothing is lost and nothing invented.

Every reading of a board's counter ends an interval. Its joules are split in three, which sum to the reading:

    idle        idle power × the time in which nothing ran on the board, at most all of it
    others      requests of others (other routers, direct clients), by their weight
    requests    ours, by their weight in the interval

The weight of a request is what the profile says it draws there (`fleetwork`): its part of the steps that it took part
in, and its own prefill, when it starts. Hence the rule for a GPU with several servers: what they draw together is split
by what each should draw at its load; a server without requests draws nothing beyond idling. A backend of n GPUs puts
1/n of a weight on each.

A request's joules are known once every one of its boards was read after its end. They are `None` when part of its time
was not metered; what was metered of it stays in the sums. Idle power while requests run belongs to them: they are why
the board cannot rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from selector.core.fleetwork import FleetWork
from selector.core.policy import BackendSpec

_MOST_WAITING = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What one request drew."""

    request_id: str
    backend: str
    joules: float | None
    """`None` when a part of it was not metered."""
    modelled_j: float
    """By the profile, for the load that there was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """How one reading of a board was shared out: `joules` = `idle_j` + `others_j` + `requests_j`."""

    gpu: str
    joules: float
    idle_j: float
    others_j: float
    requests_j: float
    drew: Mapping[str, tuple[float, float]]
    """Of each backend that worked: joules counted and modelled, others' requests included, idling left out."""
    settled: tuple[Settled, ...]
    """Requests whose joules are known now."""


@dataclass(slots=True, kw_only=True)
class _Request:
    id: str
    lane: _Lane
    weighed: dict[str, float]
    """By GPU that is yet to be read: the joules per request of its backend at the last reading there, or its start."""
    prefill_j: dict[str, float]
    """Likewise, what is not weighed yet."""
    whole: bool
    over_at: float | None = None
    """The joules per request of its backend at its end."""
    joules: float = 0.0
    modelled_j: float = 0.0


@dataclass(slots=True)
class _Lane:
    name: str
    gpus: tuple[str, ...]
    idle_w: float
    requests: dict[str, _Request] = field(default_factory=dict)
    """In flight, and ended but not settled."""


@dataclass(slots=True)
class _Board:
    gpu: str
    lanes: list[_Lane] = field(default_factory=list)
    since_s: float | None = None
    """Of the last reading; `None` when there is none to go on from."""
    empty_since_s: float | None = 0.0
    empty_s: float = 0.0
    others: dict[str, float] = field(default_factory=dict)
    """By backend: joules of others at the last reading."""
    forgotten_j: float = 0.0
    """Weight of requests that are no longer waited for."""


class EnergyShare:
    """One fleet. `work` must have been told of everything before this is: both get the same calls."""

    def __init__(self, backends: Iterable[BackendSpec], work: FleetWork, *, most_waiting: int = _MOST_WAITING) -> None:
        """At most `most_waiting` ended requests wait for a reading; the oldest are given up beyond that."""
        self._work = work
        self.most_waiting = most_waiting
        self._lanes: dict[str, _Lane] = {}
        self._boards: dict[str, _Board] = {}
        self._waiting: dict[tuple[str, str], _Request] = {}
        for spec in backends:
            lane = self._lanes[spec.name] = _Lane(spec.name, spec.gpus, spec.cost.idle.watts(1))
            for gpu in spec.gpus:
                self._boards.setdefault(gpu, _Board(gpu)).lanes.append(lane)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of the fleet."""
        return tuple(self._boards)

    @property
    def waiting(self) -> int:
        """Requests that ended and are not settled."""
        return len(self._waiting)

    def started(self, request_id: str, backend: str, prefill_j: float, now_s: float) -> None:
        """A request was sent. Raises `KeyError` for an unknown backend, `ValueError` for a request that is there."""
        lane = self._lanes[backend]
        if request_id in lane.requests:
            raise ValueError(f"request {request_id} was started twice on {backend}")
        metered = [gpu for gpu in lane.gpus if self._boards[gpu].since_s is not None]
        drawn = self._work.joules_per_request(backend, now_s)
        lane.requests[request_id] = _Request(
            id=request_id,
            lane=lane,
            weighed=dict.fromkeys(metered, drawn),
            prefill_j=dict.fromkeys(metered, prefill_j),
            whole=len(metered) == len(lane.gpus),
        )
        self._occupied(lane, now_s)

    def ended(self, request_id: str, backend: str, now_s: float) -> None:
        """A request is over. Does nothing for one that is not there."""
        lane = self._lanes[backend]
        request = lane.requests.get(request_id)
        if request is None or request.over_at is not None:
            return
        request.over_at = self._work.joules_per_request(backend, now_s)
        self._occupied(lane, now_s)
        if not request.weighed:
            del lane.requests[request_id]
            return
        self._waiting[backend, request_id] = request
        if len(self._waiting) > self.most_waiting:
            self._give_up(next(iter(self._waiting.values())))

    def others_changed(self, backend: str, now_s: float) -> None:
        """The requests of others on a backend changed."""
        self._occupied(self._lanes[backend], now_s)

    def begin(self, gpu: str, now_s: float) -> tuple[Settled, ...]:
        """The counter of a GPU is followed from now on, or again: what it drew until now is not known.

        Returns requests that waited for it alone. Raises `KeyError` for a GPU that is not the fleet's.
        """
        board = self._boards[gpu]
        settled = []
        for lane in board.lanes:
            drawn = self._work.joules_per_request(lane.name, now_s)
            for request in list(lane.requests.values()):
                request.whole = False
                if request.over_at is None:
                    request.weighed[gpu] = drawn
                    request.prefill_j[gpu] = 0.0
                elif request.weighed.pop(gpu, None) is not None and not request.weighed:
                    settled.append(self._settle(request))
        self._restart(board, now_s)
        return tuple(settled)

    def reading(self, gpu: str, joules: float, seconds: float, now_s: float) -> Interval:
        """A GPU drew `joules` in the `seconds` (by its own clock) since it was read, or begun, the last time.

        Raises `KeyError` for a GPU that is not the fleet's, `ValueError` without a beginning.
        """
        board = self._boards[gpu]
        if board.since_s is None:
            raise ValueError(f"{gpu} was read without a beginning")
        stretch = seconds / (now_s - board.since_s) if now_s > board.since_s else 1.0
        weights = self._weights(board, now_s)
        others = self._others(board, now_s)
        empty_s = board.empty_s + (0.0 if board.empty_since_s is None else now_s - board.empty_since_s)
        total = sum(weight for _, weight in weights) + sum(others.values()) + board.forgotten_j
        if total <= 0.0 and weights and empty_s <= 0.0:
            # Nothing but prefill that was weighed before: alike then.
            weights, total = [(request, 1.0) for request, _ in weights], float(len(weights))
            stretch = 0.0
        idle_w = max(lane.idle_w for lane in board.lanes)
        idle_j = min(joules, idle_w * empty_s * stretch) if total > 0.0 else joules
        scale = (joules - idle_j) / total if total > 0.0 else 0.0
        drew: dict[str, tuple[float, float]] = {}
        for request, weight in weights:
            request.joules += weight * scale
            request.modelled_j += weight * stretch
            _add(drew, request.lane.name, weight * scale, weight * stretch)
        for name, weight in others.items():
            if weight > 0.0:
                _add(drew, name, weight * scale, weight * stretch)
        others_j = scale * (sum(others.values()) + board.forgotten_j)
        settled = tuple([self._settle(request) for request, _ in weights if not request.weighed])
        self._restart(board, now_s)
        return Interval(
            gpu=gpu,
            joules=joules,
            idle_j=idle_j,
            others_j=others_j,
            requests_j=joules - idle_j - others_j,
            drew=drew,
            settled=settled,
        )

    def _weights(self, board: _Board, now_s: float) -> list[tuple[_Request, float]]:
        """Every request that ran on the board since the last reading, with its weight there; weighs them."""
        weights = []
        for lane in board.lanes:
            drawn = self._work.joules_per_request(lane.name, now_s)
            for request in lane.requests.values():
                if board.gpu in request.weighed:
                    weights.append((request, self._weigh(request, board.gpu, drawn)))
        return weights

    def _weigh(self, request: _Request, gpu: str, drawn: float) -> float:
        over = request.over_at is not None
        until = drawn if request.over_at is None else request.over_at
        weight = until - request.weighed[gpu] + request.prefill_j[gpu]
        if over:
            del request.weighed[gpu]
        else:
            request.weighed[gpu], request.prefill_j[gpu] = until, 0.0
        return max(0.0, weight) / len(request.lane.gpus)

    def _others(self, board: _Board, now_s: float) -> dict[str, float]:
        return {
            lane.name: (self._work.joules_of_others(lane.name, now_s) - board.others.get(lane.name, 0.0))
            / len(lane.gpus)
            for lane in board.lanes
        }

    def _settle(self, request: _Request) -> Settled:
        del request.lane.requests[request.id]
        self._waiting.pop((request.lane.name, request.id), None)
        return Settled(
            request_id=request.id,
            backend=request.lane.name,
            joules=request.joules if request.whole else None,
            modelled_j=request.modelled_j,
        )

    def _give_up(self, request: _Request) -> None:
        """A request is waited for no longer; its weight stays."""
        for gpu in list(request.weighed):
            self._boards[gpu].forgotten_j += self._weigh(request, gpu, 0.0)
        del request.lane.requests[request.id]
        del self._waiting[request.lane.name, request.id]

    def _occupied(self, lane: _Lane, now_s: float) -> None:
        """Looks at whether anything runs on the lane's boards."""
        for gpu in lane.gpus:
            board = self._boards[gpu]
            busy = any(self._work.requests(each.name) for each in board.lanes)
            if busy and board.empty_since_s is not None:
                board.empty_s += now_s - board.empty_since_s
                board.empty_since_s = None
            elif not busy and board.empty_since_s is None:
                board.empty_since_s = now_s

    def _restart(self, board: _Board, now_s: float) -> None:
        board.since_s = now_s
        board.empty_s = board.forgotten_j = 0.0
        if board.empty_since_s is not None:
            board.empty_since_s = now_s
        for lane in board.lanes:
            board.others[lane.name] = self._work.joules_of_others(lane.name, now_s)


def _add(drew: dict[str, tuple[float, float]], name: str, counted_j: float, modelled_j: float) -> None:
    counted, modelled = drew.get(name, (0.0, 0.0))
    drew[name] = counted + counted_j, modelled + modelled_j
