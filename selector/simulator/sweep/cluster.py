"""Cells on a Ray cluster. This package is sent there with the work; its dependencies must be installed on the nodes."""

from __future__ import annotations

import importlib
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from selector.errors import SelectorError, UsageError
from selector.files.shipped import PACKAGE_DIR
from selector.simulator.sweep.cells import Cell, CellRecord, Inputs, code_sha256, failed_record, run_cell

_KNOCK_S = 5.0

_AHEAD = 2
"""Cells submitted per CPU, so that no node waits for its next one."""


class Cluster:
    """A connection to a cluster, while it is entered.

    Raises `UsageError` when Ray is not installed or `address` (HOST:PORT, ray://HOST:PORT, or `auto`) does not answer.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ray = _ray()

    def __enter__(self) -> Cluster:
        self._knock()
        try:
            self._ray.init(
                address=self._address,
                runtime_env={"py_modules": [str(PACKAGE_DIR)]},
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as failed:
            raise self._silent(" ".join(str(failed).split())[:120]) from None
        return self

    def _knock(self) -> None:
        """Ray itself tries for minutes before it says that nobody is there."""
        host, colon, port = self._address.removeprefix("ray://").rpartition(":")
        if not colon:
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
        except (OSError, ValueError, OverflowError) as failed:
            raise self._silent(str(failed)) from None

    def _silent(self, why: str) -> UsageError:
        return UsageError("--ray", f"no cluster answers at {self._address!r} ({why})", "see `ray status` there")

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    @property
    def cpus(self) -> int:
        """CPUs of the whole cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, inputs: Inputs, cells: Sequence[Cell]) -> Iterator[CellRecord]:
        """Records as they are done, in any order. A cell whose worker dies is tried once more before it fails.

        Raises `SelectorError` when a node runs other code than this process: its results would be filed under our key.
        """
        ray = self._ray
        shared = [ray.put(inputs)]
        task = ray.remote(num_cpus=1, max_retries=1)(_run_there)
        waiting = deque(cells)
        running: dict[Any, Cell] = {}
        while waiting or running:
            while waiting and len(running) < _AHEAD * self.cpus:
                cell = waiting.popleft()
                # In a list, the reference stays one: each worker fetches the inputs once, not with every cell.
                running[task.remote(shared, cell)] = cell
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                cell = running.pop(reference)
                try:
                    record: CellRecord = ray.get(reference)
                except ray.exceptions.RayError as failed:
                    record = failed_record(cell, failed)
                if record.code_sha256 != code_sha256():
                    raise SelectorError("a node of the cluster runs another version of drafter-selector")
                yield record


_fetched: dict[str, Inputs] = {}
"""In a worker of the cluster: the inputs of the sweep it serves, by reference."""


def _run_there(shared: list[Any], cell: Cell) -> CellRecord:
    name = shared[0].hex()
    if name not in _fetched:
        _fetched.clear()
        _fetched[name] = _ray().get(shared[0])
    return run_cell(_fetched[name], cell)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        remedy = "pip install 'drafter-selector[ray]', or leave --ray out to run on local processes"
        raise UsageError("--ray", "Ray is not installed", remedy) from None
