"""What an acceptance model has learnt, as plain data: to keep over a restart, and to share between routers.

Each router shares the sums of what it saw itself, whole, under its own name; a reader adds up the latest of every other
one. Telling the same thing twice, or not at all, changes nothing that telling it once would not have (a state-based
replicated sum: Shapiro et al., Conflict-free Replicated Data Types, 2011, the G-Counter), which increments of a common
total could not promise over a network that loses answers. Sums of one router fade with the requests of all.

A drift test that fires begins a new epoch of its cells. Sums of an older epoch are of a world that is gone and are left
out; a router that hears of a newer one gives its own up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from selector.core.acceptance import AcceptanceModel
from selector.core.acceptancearm import DOUBTED
from selector.core.acceptancesums import SUM_NAMES, Sums
from selector.core.effects import EffectsState
from selector.core.types import TEXT_TYPES
from selector.errors import DomainError

_SLACK = 1.0 + 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """One arm on one text type, as one router saw it."""

    epoch: int
    seen: float
    """Requests since ever, none faded."""
    sums: tuple[float, ...]
    """In the order of `SUM_NAMES`."""


Contribution = Mapping[str, Mapping[str, CellState]]
"""What one router saw: by arm and text type, cells without a request or restart left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceState:
    """All that a model learnt itself."""

    cells: Contribution
    requests: Mapping[str, int]
    """By arm."""
    effects: Mapping[str, EffectsState]
    """By arm."""
    keys: tuple[tuple[str, str, tuple[float, ...]], ...]
    """As `Refinement.state` gives them."""


def fingerprint(model: AcceptanceModel) -> str:
    """16 hexadecimal digits that differ where profile or verify widths do: only equals can be shared or restored."""
    known = [
        (name, arm.width, [(text_type, cell.prior, cell.known) for text_type, cell in arm.cells.items()])
        for name, arm in sorted(model.learning.items())
    ]
    return blake2b(repr(known).encode(), digest_size=8).hexdigest()


def contribution_of(model: AcceptanceModel) -> dict[str, dict[str, CellState]]:
    """What the model saw itself."""
    return {
        name: {
            text_type: CellState(
                epoch=cell.epoch, seen=cell.seen, sums=tuple(getattr(cell.own, each) for each in SUM_NAMES)
            )
            for text_type, cell in arm.cells.items()
            if cell.seen or cell.epoch
        }
        for name, arm in model.learning.items()
    }


def state_of(model: AcceptanceModel) -> AcceptanceState:
    """All that the model learnt itself."""
    return AcceptanceState(
        cells=contribution_of(model),
        requests={name: arm.requests for name, arm in model.learning.items()},
        effects={name: arm.effects.state() for name, arm in model.learning.items()},
        keys=model.refinement.state(),
    )


def restore(model: AcceptanceModel, state: AcceptanceState) -> None:
    """Gives a fresh model what another one learnt. Raises `DomainError`, and changes nothing, if it does not fit."""
    check(model, state.cells)
    if any(len(numbers) != 5 or min(numbers) < 0.0 or numbers[1] <= 0.0 for _, _, numbers in state.keys):
        raise DomainError("numbers of a refinement key cannot be")
    for name, arm in model.learning.items():
        for text_type, saved in state.cells.get(name, {}).items():
            cell = arm.cells[text_type]
            cell.own, cell.seen, cell.epoch = _sums(saved), saved.seen, saved.epoch
            cell.doubt = DOUBTED if saved.epoch else 1.0
            cell.refresh()
        arm.requests = state.requests.get(name, 0)
        if name in state.effects:
            arm.effects.restore(state.effects[name])
        model.derive(name)
    model.refinement.restore(state.keys)


def check(model: AcceptanceModel, contribution: Contribution) -> None:
    """Raises `DomainError` for sums that no requests of the model's arms can have."""
    for name, cells in contribution.items():
        arm = model.learning.get(name)
        if arm is None:
            raise DomainError(f"arm {name!r} is none of this fleet")
        for text_type, cell in cells.items():
            if text_type not in TEXT_TYPES:
                raise DomainError(f"{text_type!r} is no text type")
            if not _possible(cell, arm.width):
                raise DomainError(f"sums of {name} on {text_type} cannot be: {cell.sums}")


def _possible(cell: CellState, width: int) -> bool:
    if len(cell.sums) != len(SUM_NAMES) or not all(math.isfinite(each) and each >= 0.0 for each in cell.sums):
        return False
    sums = _sums(cell)
    return (
        cell.epoch >= 0
        and 0.0 <= cell.seen < math.inf
        and (sums.requests > 0.0) == (sums.passes > 0.0)
        and sums.weight_squares <= sums.requests * _SLACK
        and sums.passes <= sums.tokens * _SLACK
        and sums.tokens <= width * sums.passes * _SLACK
    )


def _sums(cell: CellState) -> Sums:
    return Sums(**dict(zip(SUM_NAMES, cell.sums, strict=True)))


class OtherModels:
    """What other routers told about the arms of one model."""

    def __init__(self, model: AcceptanceModel) -> None:
        self._model = model
        self._heard: dict[tuple[str, str, str], float] = {}

    def combine(self, others: Mapping[str, Contribution]) -> None:
        """Takes the latest of every other router, by its name, in place of what they told before.

        Raises `DomainError`, and changes nothing, for sums that cannot be (see `check`).
        """
        for contribution in others.values():
            check(self._model, contribution)
        for name, arm in self._model.learning.items():
            for text_type, cell in arm.cells.items():
                told = {
                    router: contribution[name][text_type]
                    for router, contribution in others.items()
                    if text_type in contribution.get(name, {})
                }
                newest = max((each.epoch for each in told.values()), default=0)
                if newest > cell.epoch:
                    cell.restart(None)
                    cell.epoch = newest
                elsewhere = 0.0
                cell.others = Sums()
                for router, each in told.items():
                    # What a router did before it was first heard of is no news about our own requests' age.
                    elsewhere += max(0.0, each.seen - self._heard.get((router, name, text_type), each.seen))
                    self._heard[router, name, text_type] = each.seen
                    if each.epoch == cell.epoch:
                        cell.others.include(_sums(each))
                if elsewhere:
                    cell.own.fade(0.5 ** (elsewhere / self._model.half_life_requests))
                cell.refresh()
            self._model.derive(name)
