"""What a choice of depth knows of the requests that run: of each text type how many, and their tightest TBT target.

    requests    code 10 ms   romansh -   code 10 ms   code 25 ms
    groups      code 10 ms × 3           romansh - × 1
    rows        code: 0, 2, 3            romansh: 1

A group is what targets are judged by; rows say whose accepted drafts teach what of which text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

UNTOLD_TEXT = ""
"""The text type of a request of which nobody said one."""


class DepthRequest(NamedTuple):
    """One request of a batch."""

    text_type: str = UNTOLD_TEXT
    target_ms: float = inf
    """Its TBT target; `inf` for none."""


UNTOLD = DepthRequest()


class Group(NamedTuple):
    """The requests of one text type."""

    text_type: str
    target_ms: float
    """The tightest of their targets."""
    requests: int


class DepthBatch:
    """Immutable; made when requests join or leave, and looked at before every step."""

    __slots__ = ("fresh", "groups", "rows", "size", "tightest_ms")

    def __init__(self, requests: Sequence[DepthRequest], fresh: Iterable[int] = ()) -> None:
        """`fresh` are the places of those that were not in the batch that was looked at before."""
        self.size = len(requests)
        rows: dict[str, list[int]] = {}
        tightest: dict[str, float] = {}
        for place, (text_type, target_ms) in enumerate(requests):
            of_text = rows.get(text_type)
            if of_text is None:
                rows[text_type], tightest[text_type] = [place], target_ms
            else:
                of_text.append(place)
                if target_ms < tightest[text_type]:
                    tightest[text_type] = target_ms
        self.rows = rows
        """Places of the requests of each text type."""
        self.groups = [Group(text_type, tightest[text_type], len(of_text)) for text_type, of_text in rows.items()]
        self.fresh: dict[str, int] = {}
        """How many of each text type nothing has been seen of."""
        for place in fresh:
            text_type = requests[place][0]
            self.fresh[text_type] = self.fresh.get(text_type, 0) + 1
        self.tightest_ms = min(tightest.values(), default=inf)
        """`inf` where no request has a target."""

    @classmethod
    def alike(cls, requests: int, target_ms: float | None = None, text_type: str = UNTOLD_TEXT) -> DepthBatch:
        """So many requests of one text type and target."""
        return cls([DepthRequest(text_type, inf if target_ms is None else target_ms)] * requests)
