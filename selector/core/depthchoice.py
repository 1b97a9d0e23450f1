"""Which depth an engine drafts at next: least energy per accepted token within the tightest target of the batch.

    for each depth d      TBT_d = T_d(b, c) / slow_d        J_d = E_d(b, c) / (b · a_d)

Among the depths with TBT_d within the target the one of least J_d is taken, and if there is none, the one at which a
request is most likely to meet it. A change costs the engine a swap of its graphs, so

    - a depth that no longer meets the target is left at once, if another one does;
    - otherwise a change has to save `margin_frac` at least, and to a depth within the target by `clear_frac`;
    - and it waits `dwell_steps` steps after the last one.

Positions deeper than the present depth are not observed. So every now and then a deeper depth is tried for a few steps,
if it meets the target and would pay were all its drafts accepted; trials that change nothing become rarer. At depth 0
nothing is observed at all, and what is known is of the text that was there when drafting stopped: from there a depth is
tried that would meet the target were all its drafts accepted.

No clock and no chance: the ranks of a tensor-parallel engine see the same batches and must choose alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf

from selector.core.depthacceptance import DepthAcceptance
from selector.core.depthtable import DepthPoint, DepthTable
from selector.errors import DomainError

_CLEARLY_NEARER = 0.1
"""Of the distance between the mean and the quantile: below it two depths are as likely to meet a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """How willing the choice is to move."""

    margin_frac: float = 0.01
    """A change of depth has to save this share of the energy."""
    clear_frac: float = 0.03
    """A depth is changed to only if it is within the target by this share: what it is predicted to give trembles."""
    dwell_steps: int = 16
    """Steps between two changes that no target asks for."""
    headroom_frac: float = 0.0
    """Share of a target that is kept free for what steps do not show: pauses while prompts are prefilled."""
    trial_every_steps: int = 512
    """Steps between the first trials of a deeper depth; 0 tries none."""
    trial_requests: int = 16
    """Requests × steps that one trial lasts."""
    most_trial_steps: int = 8_192
    """To which the time between trials that changed nothing grows."""

    def __post_init__(self) -> None:
        """Raises `DomainError` for options that cannot be."""
        fracs = self.margin_frac, self.clear_frac, self.headroom_frac
        counts = self.dwell_steps, self.trial_every_steps, self.trial_requests
        if not all(0.0 <= frac < 1.0 for frac in fracs) or min(counts) < 0 or self.most_trial_steps < counts[1]:
            raise DomainError(f"no way to choose a depth: {self}")


class DepthChoice:
    """The depth of one engine, step by step. Not thread-safe."""

    __slots__ = (
        "_awaiting_trial",
        "_options",
        "_since_change",
        "_since_trial",
        "_table",
        "_trial_every",
        "_trial_left",
        "_trying",
        "acceptance",
        "changes",
        "depth",
        "trials",
    )

    def __init__(
        self, table: DepthTable, acceptance: DepthAcceptance, options: ChoiceOptions, *, start_depth: int
    ) -> None:
        """Raises `DomainError` when the table lacks `start_depth`, or has depths that `acceptance` knows nothing of."""
        if start_depth not in table.depths:
            raise DomainError(f"depth {start_depth} is not one of {table.depths}")
        if table.depths[-1] > acceptance.deepest:
            raise DomainError(f"depth {table.depths[-1]} is beyond the {acceptance.deepest} positions with a survival")
        self._table = table
        self._options = options
        self._since_change = options.dwell_steps
        self._since_trial = 0
        self._trial_every = options.trial_every_steps
        self._trial_left = 0
        self._trying = self._awaiting_trial = False
        self.acceptance = acceptance
        self.depth = start_depth
        """The depth in force, trials apart."""
        self.changes = 0
        self.trials = 0

    def points(self, batch: int, context_tokens: float) -> list[DepthPoint]:
        """What each depth is predicted to give under a load, shallowest first."""
        return self._table.points(batch, context_tokens, self.acceptance.lengths, self.acceptance.slow)

    def choose(self, batch: int, context_tokens: float, target_ms: float | None) -> int:
        """The depth of the next step of `batch` ≥ 1 requests; `target_ms` is their tightest target, if any has one."""
        options = self._options
        self._since_change += 1
        self._trying = self._awaiting_trial = False
        bound_ms = inf if target_ms is None else target_ms * (1.0 - options.headroom_frac)
        clear_ms = bound_ms * (1.0 - options.clear_frac)
        step, lengths, slow = self._table.step, self.acceptance.lengths, self.acceptance.slow
        current = self.depth
        best = settled = deeper = -1  # least energy within the target; least energy well within it; the next to try
        best_j = settled_j = deeper_j = inf
        current_j = current_ms = inf
        for depth in self._table.depths:
            ms, step_j = step(depth, batch, context_tokens)
            tbt_ms = ms / slow[depth]
            j = step_j / lengths[depth]
            if depth == current:
                current_j, current_ms = j, tbt_ms
            elif deeper < 0 and depth > current and (ms / (depth + 1) if current == 0 else tbt_ms) <= clear_ms:
                deeper, deeper_j = depth, step_j / (depth + 1)
            if tbt_ms > bound_ms:
                continue
            if j < best_j:
                best, best_j = depth, j
            if j < settled_j and (tbt_ms <= clear_ms or depth == current):
                settled, settled_j = depth, j
        if best < 0:
            return self._nearest(batch, context_tokens, bound_ms)
        if current_ms > bound_ms:
            return self._change(best)
        if settled_j < current_j * (1.0 - options.margin_frac) and self._settled():
            return self._change(settled)
        return self._tried(deeper, batch, worthwhile=deeper_j < current_j)

    def keeps_for(self, batch: int) -> int:
        """For how many steps of `batch` requests the depth just chosen may be kept by who does not ask before each.

        That one included: to the end of a trial, else as long as the choice dwells. `kept` has to hear of the others.
        """
        if self._trying:
            return 1 + max(0, math.ceil(self._trial_left / batch))
        return max(1, self._options.dwell_steps)

    def kept(self, steps: int, batch: int) -> None:
        """So many further steps of `batch` requests were made at the depth that was chosen last, without asking."""
        self._since_change += steps
        if self._trying:
            self._trial_left -= steps * batch
        elif self._awaiting_trial:
            self._since_trial += steps

    def _nearest(self, batch: int, context_tokens: float, target_ms: float) -> int:
        """The depth most likely to meet a target that none meets at the quantile; a change has to be clearly better."""
        points = self.points(batch, context_tokens)
        ranks = {point.depth: (point.nearness(target_ms), -point.tbt_ms) for point in points}
        nearest = max(ranks, key=ranks.__getitem__)
        better = ranks[nearest][0] > ranks[self.depth][0] + _CLEARLY_NEARER
        faster = -ranks[nearest][1] < -ranks[self.depth][1] * (1.0 - self._options.margin_frac)
        alike = ranks[nearest][0] == ranks[self.depth][0]
        if (better or (alike and faster)) and self._settled():
            return self._change(nearest)
        # Deeper drafts may be what meets it, if they are better than is known.
        deeper = next((p for p in points if p.depth > self.depth and p.step_ms / (p.depth + 1) <= target_ms), None)
        return self._tried(-1 if deeper is None else deeper.depth, batch, worthwhile=True)

    def _settled(self) -> bool:
        return self._since_change > self._options.dwell_steps

    def _change(self, depth: int) -> int:
        if depth != self.depth:
            self.depth = depth
            self.changes += 1
            self._since_change = 0
            self._since_trial = self._trial_left = 0
            self._trial_every = self._options.trial_every_steps
        return depth

    def _tried(self, deeper: int, batch: int, *, worthwhile: bool) -> int:
        """The depth in force, or `deeper` while a trial of it lasts; below 0 there is none to try."""
        if deeper < 0 or not worthwhile or not self._options.trial_every_steps:
            self._trial_left = 0
            return self.depth
        if self._trial_left > 0:
            self._trial_left -= batch
            self._trying = True
            return deeper
        self._since_trial += 1
        if self._since_trial < self._trial_every:
            self._awaiting_trial = True
            return self.depth
        self._since_trial = 0
        self._trial_every = min(2 * self._trial_every, self._options.most_trial_steps)
        self._trial_left = self._options.trial_requests - batch
        self._trying = True
        self.trials += 1
        return deeper
