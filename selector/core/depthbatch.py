"""What a choice of depth knows of the requests that run: how many there are of each text type and TBT target.

    requests    code 10 ms   romansh -   code 10 ms   code 25 ms
    groups      code 10 ms × 2           code 25 ms × 1           romansh - × 1
    rows        code: 0, 2, 3            romansh: 1

A group is what targets are judged by; rows say whose accepted drafts teach what of which text.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Requests of one text type and target."""

    text_type: str
    target_ms: float
    requests: int


class DepthBatch:
    """Immutable; made when requests join or leave, and looked at before every step."""

    __slots__ = ("groups", "rows", "size", "tightest_ms")

    def __init__(self, requests: Sequence[DepthRequest]) -> None:
        self.size = len(requests)
        counts: dict[DepthRequest, int] = {}
        for request in requests:
            counts[request] = counts.get(request, 0) + 1
        self.groups = tuple([Group(text, target_ms, count) for (text, target_ms), count in counts.items()])
        self.tightest_ms = min([group.target_ms for group in self.groups], default=inf)
        """`inf` where no request has a target."""
        texts = {group.text_type for group in self.groups}
        self.rows: dict[str, list[int] | None] = dict.fromkeys(texts)
        """Places of the requests of each text type; `None` where all are of one."""
        if len(texts) > 1:
            rows: dict[str, list[int]] = {text: [] for text in texts}
            for place, (text, _) in enumerate(requests):
                rows[text].append(place)
            self.rows.update(rows)

    @classmethod
    def alike(cls, requests: int, target_ms: float | None = None, text_type: str = UNTOLD_TEXT) -> DepthBatch:
        """So many requests of one text type and target."""
        return cls([DepthRequest(text_type, inf if target_ms is None else target_ms)] * requests)
