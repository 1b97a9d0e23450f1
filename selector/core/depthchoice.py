"""Which depth an engine drafts at next: least energy per accepted token within the targets of the batch.

    for each depth d and each group g of the batch (its requests of one text type, with the tightest of their targets)

        TBT_dg = T_d(b, c) / slow_dg / (1 - prefill share)        J_d = E_d(b, c) / Σ_g b_g · a_dg

Among the depths with every TBT_dg within the group's target the one of least J_d is taken. With `open_load` J_d is not
that of the present batch but that of the batch at which the depth would serve as many tokens a second (`depthpace`),
as far as there is room for it. If no depth is within the targets, the one at which most requests are likely to meet
theirs; of depths that are about as good in that, and about as fast, the one of least J_d. A change costs the engine a
swap of its graphs, so

    - a depth that no longer meets the targets is left at once, if another one does;
    - otherwise a change has to save `margin_frac` at least, and to a depth within the targets by `clear_frac`;
    - and it waits `dwell_steps` steps after the last one.

Positions deeper than the present depth are not observed. So every now and then a deeper depth is tried for a few steps,
if it meets the targets and would pay were all its drafts accepted; trials that change nothing become rarer. At depth 0
nothing is observed at all, and what is known is of the text that was there when drafting stopped: from there a depth is
tried that would meet the targets were all its drafts accepted.

No clock and no chance: the ranks of a tensor-parallel engine see the same batches and must choose alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf

from selector.core.depthacceptance import DepthAcceptance
from selector.core.depthbatch import UNTOLD_TEXT, DepthBatch
from selector.core.depthpace import j_at_rate
from selector.core.depthtable import DepthPoint, DepthTable
from selector.core.depthtexts import DepthAcceptances
from selector.core.prefillshare import EnginePrefillShare
from selector.core.stalls import miss_probability
from selector.errors import DomainError

_AS_LIKELY_FRAC = 0.05
"""Depths are as good when so few requests more or less are likely to meet their targets."""
_AS_FAST_FRAC = 0.1
"""… and about as fast within so much."""

_NO_ROOM = 1e6
"""Times what a depth costs at the present batch: it comes behind all that have room, and as dear as it is among others
without."""

_Yield = tuple[float, float]
"""Of a batch at a depth: mean tokens of a request and step; the longest step that meets every target, in ms."""


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
    """Share of a target that is kept free, beside that of the time which prompts are reckoned to take."""
    trial_every_steps: int = 512
    """Steps between the first trials of a deeper depth; 0 tries none."""
    trial_requests: int = 16
    """Requests × steps that one trial lasts."""
    most_trial_steps: int = 8_192
    """To which the time between trials that changed nothing grows."""
    open_load: bool = False
    """Requests come by themselves, however fast they are served; else clients wait for their answers."""
    idle_w: float = 0.0
    """Power of the server's GPUs while it has no request; counts under an open load alone."""

    def __post_init__(self) -> None:
        """Raises `DomainError` for options that cannot be."""
        fracs = self.margin_frac, self.clear_frac, self.headroom_frac
        counts = self.dwell_steps, self.trial_every_steps, self.trial_requests
        least = min(*counts, self.idle_w)
        if not all(0.0 <= frac < 1.0 for frac in fracs) or least < 0 or self.most_trial_steps < counts[1]:
            raise DomainError(f"no way to choose a depth: {self}")


class DepthChoice:
    """The depth of one engine, step by step. Not thread-safe."""

    __slots__ = (
        "_awaiting_trial",
        "_open_js",
        "_open_js_of",
        "_options",
        "_since_change",
        "_since_trial",
        "_step_ms",
        "_table",
        "_trial_every",
        "_trial_left",
        "_trying",
        "_yields",
        "_yields_of",
        "acceptance",
        "changes",
        "depth",
        "prefill",
        "trials",
    )

    def __init__(
        self,
        table: DepthTable,
        acceptance: DepthAcceptances,
        options: ChoiceOptions,
        *,
        start_depth: int,
        prefill: EnginePrefillShare | None = None,
    ) -> None:
        """`prefill` reckons what prompts cost; without it they are taken to cost nothing.

        Raises `DomainError` when the table lacks `start_depth`, or has depths that `acceptance` knows nothing of.
        """
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
        self._step_ms = 0.0
        self._open_js: dict[int, float] = {}
        self._open_js_of: tuple[object, int, int, int] | None = None
        self._yields: dict[int, _Yield] = {}
        self._yields_of: tuple[DepthBatch, int] | None = None
        self.acceptance = acceptance
        self.prefill = prefill or EnginePrefillShare()
        """To be told of every pass over prompts."""
        self.depth = start_depth
        """The depth in force, trials apart."""
        self.changes = 0
        self.trials = 0

    def points(self, batch: int, context_tokens: float, text_type: str = UNTOLD_TEXT) -> list[DepthPoint]:
        """What each depth is predicted to give requests of a text type under a load, shallowest first.

        Without the time that prompts take.
        """
        acceptance = self.acceptance.of(text_type)
        return self._table.points(batch, context_tokens, acceptance.lengths, acceptance.slow)

    def choose(self, batch: DepthBatch, context_tokens: float, size: int | None = None) -> int:
        """The depth of the next step of a batch of 1 request at least, of so many tokens each in the mean.

        `size` requests are in the step, where the batch was looked at some steps ago.
        """
        size = batch.size if size is None else size
        depth = self._choose(batch, context_tokens, size)
        self._step_ms = self._table.step(depth, size, context_tokens)[0]
        self.prefill.stepped(self._step_ms)
        return depth

    def _choose(self, batch: DepthBatch, context_tokens: float, size: int) -> int:
        options = self._options
        self._since_change += 1
        self._trying = self._awaiting_trial = False
        kept_frac = (1.0 - options.headroom_frac) * (1.0 - self.prefill.frac)
        clear_frac = 1.0 - options.clear_frac
        yields = self._yields_at(batch)
        js = self._open_js_at(size, context_tokens) if options.open_load else None
        step, current = self._table.step, self.depth
        best = settled = deeper = -1  # least energy within the targets; least energy well within; the next to try
        best_j = settled_j = deeper_j = inf
        present_j = current_j = inf  # at the present batch; what depths are compared by
        current_within = True
        for depth in self._table.depths:
            ms, step_j = step(depth, size, context_tokens)
            tokens, longest_ms = yields[depth]
            at_batch_j = step_j / tokens
            j = at_batch_j if js is None else js[depth]
            longest_ms *= kept_frac
            clear_ms = longest_ms * clear_frac
            if depth == current:
                present_j, current_j, current_within = at_batch_j, j, ms <= longest_ms
            elif deeper < 0 and depth > current:
                most_ms = clear_ms if current else batch.tightest_ms * kept_frac * clear_frac * (depth + 1)
                if ms <= most_ms:
                    deeper, deeper_j = depth, step_j / (depth + 1)
            if ms > longest_ms:
                continue
            if j < best_j:
                best, best_j = depth, j
            if j < settled_j and (ms <= clear_ms or depth == current):
                settled, settled_j = depth, j
        if best < 0:
            return self._likeliest(batch, context_tokens, size, kept_frac)
        if not current_within:
            return self._change(best)
        if settled_j < current_j * (1.0 - options.margin_frac) and self._settled():
            return self._change(settled)
        return self._tried(deeper, size, worthwhile=deeper_j < present_j)

    def _groups(self, batch: DepthBatch) -> list[tuple[DepthAcceptance, float, int]]:
        of = self.acceptance.of
        return [(of(text_type), target_ms, requests) for text_type, target_ms, requests in batch.groups]

    def _yields_at(self, batch: DepthBatch) -> dict[int, _Yield]:
        """By depth; worked out when the batch is another, or something was learnt."""
        known = self._yields_of
        if known is None or known[0] is not batch:
            self.acceptance.renew(batch)
        elif known[1] == self.acceptance.version:
            return self._yields
        groups = self._groups(batch)
        for depth in self._table.depths:
            tokens, longest_ms = 0.0, inf
            for acceptance, target_ms, requests in groups:
                tokens += requests * acceptance.lengths[depth]
                of_group_ms = target_ms * acceptance.slow[depth]
                if of_group_ms < longest_ms:
                    longest_ms = of_group_ms
            self._yields[depth] = tokens / batch.size, longest_ms
        self._yields_of = batch, self.acceptance.version
        return self._yields

    def _open_js_at(self, size: int, context_tokens: float) -> dict[int, float]:
        """By depth: J per token at the tokens per ms that the present depth gives. Depths without room for them come
        last, by their J at the present batch."""
        of = (self._yields_of, size, self.depth, int(context_tokens) >> 7)
        if self._open_js_of != of:
            table, idle_w = self._table, self._options.idle_w
            rate = size * self._yields[self.depth][0] / table.step(self.depth, size, context_tokens)[0]
            for depth in table.depths:
                tokens = self._yields[depth][0]
                j = j_at_rate(table, depth, tokens, rate, batch=size, context_tokens=context_tokens, idle_w=idle_w)
                if j == inf:
                    j = _NO_ROOM * table.step(depth, size, context_tokens)[1] / (size * tokens)
                self._open_js[depth] = j
            self._open_js_of = of
        return self._open_js

    @property
    def trying(self) -> bool:
        """Whether the depth just chosen is a trial, of which what comes should be learnt."""
        return self._trying

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
        self.prefill.stepped(steps * self._step_ms)
        if self._trying:
            self._trial_left -= steps * batch
        elif self._awaiting_trial:
            self._since_trial += steps

    def _likeliest(self, batch: DepthBatch, context_tokens: float, size: int, kept_frac: float) -> int:
        """Where no depth meets every target: the depth at which most requests are likely to meet theirs."""
        groups = self._groups(batch)
        deviate = self.acceptance.slow.deviate
        shares, paces, js = {}, {}, {}
        deeper = -1
        for depth in self._table.depths:
            ms, step_j = self._table.step(depth, size, context_tokens)
            likely = 0.0
            for acceptance, target_ms, requests in groups:
                asked = ms / (target_ms * kept_frac)
                # An accept length is missed from above as a time is from below.
                missed = miss_probability(-acceptance.lengths[depth], -acceptance.slow[depth], -asked, deviate)
                likely += requests * (1.0 - missed)
            tokens = self._yields[depth][0]
            shares[depth], paces[depth], js[depth] = likely / batch.size, tokens / ms, step_j / tokens
            # Deeper drafts may be what meets it, if they are better than is known.
            if deeper < 0 and depth > self.depth and ms <= batch.tightest_ms * kept_frac * (depth + 1):
                deeper = depth
        likeliest = max(shares.values())
        good = [depth for depth, share in shares.items() if share >= likeliest - _AS_LIKELY_FRAC]
        fastest = max(paces[depth] for depth in good)
        good = [depth for depth in good if paces[depth] >= fastest * (1.0 - _AS_FAST_FRAC)]
        wanted, now = min(good, key=js.__getitem__), self.depth
        better = (
            shares[wanted] > shares[now] + 2.0 * _AS_LIKELY_FRAC
            or paces[wanted] * (1.0 - _AS_FAST_FRAC) > paces[now]
            or js[wanted] < js[now] * (1.0 - self._options.margin_frac)
        )
        if better and self._settled():
            return self._change(wanted)
        return self._tried(deeper, size, worthwhile=True)

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
