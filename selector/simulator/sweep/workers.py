"""Cells on local processes. An executor takes inputs and cells and yields records as they are done, in any order."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from selector.simulator.sweep.cells import Cell, CellRecord, Inputs, failed_record, run_cell


def in_this_process(inputs: Inputs, cells: Sequence[Cell]) -> Iterator[CellRecord]:
    """One cell after the other."""
    for cell in cells:
        yield run_cell(inputs, cell)


def on_processes(inputs: Inputs, cells: Sequence[Cell], jobs: int) -> Iterator[CellRecord]:
    """On `jobs` processes of this machine. Those that still work are ended when the caller stops taking records.

    A process that dies (killed for memory, say) takes the pool with it; the cells that were under way are then run
    once more, each alone, so that only the one which kills its process is recorded as failed.
    """
    suspects: list[Cell] = []
    waiting = deque(cells)
    while waiting:
        yield from _until_broken(inputs, waiting, jobs, suspects)
        for cell in suspects:
            again: list[Cell] = []
            yield from _until_broken(inputs, deque([cell]), 1, again)
            if again:
                yield failed_record(cell, BrokenProcessPool("its process died; too little memory?"))
        suspects.clear()


def _until_broken(inputs: Inputs, waiting: deque[Cell], jobs: int, suspects: list[Cell]) -> Iterator[CellRecord]:
    """Takes cells from `waiting` until none is left or a process died; the cells then under way go to `suspects`."""
    before = set(multiprocessing.active_children())
    # Not forked: the caller has threads, and Ray or a progress bar in a copy of them would hang.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(waiting)), spawn, initializer=_begin, initargs=(inputs,))
    running: dict[Future[CellRecord], Cell] = {}
    finished = False
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.popleft()
                running[pool.submit(_run, cell)] = cell
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                record = future.result()
                del running[future]
                yield record
        finished = True
    except BrokenProcessPool:
        suspects += running.values()
        finished = True
    finally:
        pool.shutdown(wait=finished, cancel_futures=True)
        if not finished:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
                process.join()


_inputs: Inputs | None = None
"""Of the sweep that this worker process serves: sent once, not with every cell."""


def _begin(inputs: Inputs) -> None:
    global _inputs
    _inputs = inputs
    # Ctrl-C reaches the whole group; the parent decides what to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(cell: Cell) -> CellRecord:
    assert _inputs is not None
    return run_cell(_inputs, cell)
