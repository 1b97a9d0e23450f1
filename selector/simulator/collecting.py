"""Python's search for cycles, made seldom while a simulation runs.

A run makes no cycles but keeps a record of every request, and the search goes through all that is kept: at the
interpreter's own thresholds it takes a tenth of the time. It stays on, for policies that do make cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 100_000
"""So many more objects than before make the search begin, instead of some hundreds."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Within it cycles are looked for seldom; afterwards as before."""
    before = gc.get_threshold()
    gc.set_threshold(max(_NEW_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
