"""The GPUs of a simulated fleet: when one idles, and how many servers take turns on it.

The energy of a step or a prefill is a measured board energy, idle power included, so idle power counts only while none
of a GPU's servers works, and once however many servers are resident.
"""

from __future__ import annotations

from collections.abc import Sequence

from selector.core.contention import neighbours
from selector.core.policy import BackendSpec
from selector.simulator.timeline import Recorder


class Board:
    """One GPU."""

    __slots__ = ("busy", "idle_s", "idle_w", "name", "servers", "since_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[int] = []
        """Numbers of the servers resident."""
        self.busy = 0
        """How many of them work now."""
        self.idle_s = 0.0
        """Time in which none worked, up to the last change."""
        self.idle_w = 0.0
        self.since_s = 0.0
        """When it last fell idle."""

    def started(self, at_s: float, recorder: Recorder | None) -> None:
        """One more of its servers works."""
        if self.busy == 0:
            self.idle_s += at_s - self.since_s
            if recorder is not None:
                recorder.idled(self.name, self.since_s, at_s, self.idle_w)
        self.busy += 1

    def stopped(self, at_s: float) -> None:
        """One fewer works."""
        self.busy -= 1
        if self.busy == 0:
            self.since_s = at_s

    def idle_j(self, at_s: float) -> float:
        """Energy while idle until `at_s`."""
        return self.idle_w * (self.idle_s + (at_s - self.since_s if self.busy == 0 else 0.0))


class Boards:
    """All GPUs of a fleet."""

    def __init__(self, specs: Sequence[BackendSpec], recorder: Recorder | None = None) -> None:
        self.by_name: dict[str, Board] = {}
        self._recorder = recorder
        for index, spec in enumerate(specs):
            for gpu in spec.gpus:
                self.by_name.setdefault(gpu, Board(gpu)).servers.append(index)
        for board in self.by_name.values():
            board.idle_w = specs[board.servers[0]].cost.idle.watts(len(board.servers))
        self._of_server = [tuple(self.by_name[gpu] for gpu in spec.gpus) for spec in specs]
        self.neighbours = neighbours(specs)
        """Of each server, those that it shares a GPU with."""

    def changed(self, server: int, working: bool, at_s: float) -> None:
        """A server started or stopped working."""
        for board in self._of_server[server]:
            if working:
                board.started(at_s, self._recorder)
            else:
                board.stopped(at_s)

    def turns(self, server: int) -> int:
        """How many servers take turns on the fullest of a server's GPUs, at least 1."""
        return max(1, *(board.busy for board in self._of_server[server]))

    def idle_j(self, at_s: float) -> float:
        """Energy of all GPUs while idle until `at_s`."""
        return sum(board.idle_j(at_s) for board in self.by_name.values())

    def close(self, at_s: float) -> None:
        """The run ended: tells the recorder of GPUs that idle."""
        if self._recorder is not None:
            for board in self.by_name.values():
                if board.busy == 0:
                    self._recorder.idled(board.name, board.since_s, at_s, board.idle_w)
