"""A progress bar with the time left, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0
"""Where standard error is no terminal, a line this often at most."""


@contextmanager
def progress(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """Gives a function to call once for each of `total` things done."""
    if quiet or total < 1:
        yield lambda: None
        return
    if not sys.stderr.isatty():
        yield _lines(what, total)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _lines(what: str, total: int) -> Callable[[], None]:
    started = told = time.monotonic()
    done = 0

    def advance() -> None:
        nonlocal told, done
        done += 1
        now = time.monotonic()
        if now - told >= _LINE_EVERY_S and done < total:
            told = now
            left_s = (now - started) / done * (total - done)
            print(f"{what}: {done} of {total}, about {left_s:.0f} s left", file=sys.stderr, flush=True)

    return advance
