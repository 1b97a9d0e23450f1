"""One request on a server model, and what a server has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise

from selector.core.depthbatch import UNTOLD, DepthRequest
from selector.simulator.depthpasses import DepthPasses
from selector.simulator.draws import Passes


@dataclass(slots=True, kw_only=True)
class Job:
    """One request on a server. The first block is given, the second is what happened to it."""

    key: Hashable
    draw_key: int
    prompt_tokens: int
    output_tokens: int
    """Tokens it will deliver, at least 1; known to the model alone."""
    accept_length: float
    accept_spread: float
    arrived_s: float
    max_new_tokens: int | None = None
    """The bound that the client set."""
    prefix_ids: tuple[Hashable, ...] = ()
    """Ids of the prompt's blocks (see `prefixcache`); empty: nothing of it is shared."""
    prefix_block_tokens: int = 0
    told: DepthRequest = UNTOLD
    """What its engine is told, where it chooses its draft depth."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache, at the first prefill."""

    prefill_started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    verify_passes: int = 0
    decode_j: float = 0.0
    """Its share of decode energy: each step's energy over the batch."""
    prefill_j: float = 0.0
    retractions: int = 0
    _context: int = 0
    """Tokens that its prefill has to put into the KV cache: the prompt, and what a retracted one had generated."""
    _most_new_tokens: int = 0
    """Tokens it may generate, by its client, the context and the KV cache."""
    _held: tuple[Hashable, ...] = ()
    """Blocks that it holds in the prefix cache."""
    _prefilled: int = 0
    _passes: Passes | DepthPasses | None = None
    """Its verify passes; `None` where each gives one token, as without a drafter."""
    _steps_needed: int = 0
    _started_step: int = 0
    _steps_before: int = 0
    """Steps done before it last joined the batch."""
    _end_step: int = -1
    """The step after which it leaves the batch; -1 outside."""
    _joined_tokens: int = 0
    _growth: float = 0.0
    _share_start_j: float = 0.0
    _gone: bool = False

    def delivered(self, step: int) -> int:
        """Tokens delivered once the server has finished `step` steps."""
        if self.first_token_s is None:
            return 0
        taken = self._steps_before + (step - self._started_step if self._end_step >= 0 else 0)
        taken = min(taken, self._steps_needed)
        if taken <= 0:
            return 1
        return 1 + (taken if self._passes is None else self._passes.after(taken))

    def tokens_by_pass(self, passes: int) -> list[int]:
        """What each of its first `passes` passes delivered."""
        if self._passes is None:
            return [1] * passes
        after = self._passes.after
        return [later - before for before, later in pairwise([0, *(after(done) for done in range(1, passes + 1))])]

    def passes_by_accepted_drafts(self) -> list[int]:
        """Verify passes that accepted 0, 1, 2 … drafts, up to the most that one accepted; once it left the batch.

        Counts drafts beyond the end of the answer too, as `accepted_drafts` does.
        """
        if self._passes is None:
            return [self.verify_passes] if self.verify_passes else []
        tokens = self.tokens_by_pass(self.verify_passes)
        if len(tokens) == self._passes.count:
            tokens[-1] += self._passes.surplus
        counts = Counter(tokens)
        return [counts[accepted + 1] for accepted in range(max(counts, default=0))]

    @property
    def accepted_drafts(self) -> int:
        """Drafts accepted in all its verify passes, once finished; SGLang counts those beyond the end too."""
        surplus = self._passes.surplus if self._passes is not None else 0
        return self.output_tokens - 1 + surplus - self.verify_passes


@dataclass(slots=True, kw_only=True)
class Totals:
    """What a server has done so far."""

    decode_j: float = 0.0
    prefill_j: float = 0.0
    extrapolated_j: float = 0.0
    """Part of `decode_j` from outside the measured cells."""
    decode_ms: float = 0.0
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    accepted_tokens: float = 0.0
    """Of those running the mean of their draws per step; exact once they left."""
    first_tokens: int = 0
    finished: int = 0
    retractions: int = 0
    steps: int = 0
    """Decode steps, n; below: Σb, Σb² and Σb·t over them."""
    request_steps: int = 0
    request_square_steps: int = 0
    request_ms: float = 0.0

    @property
    def decode_s(self) -> float:
        """Time spent on decode steps."""
        return self.decode_ms / 1e3

    @property
    def moments(self) -> list[float]:
        """SGLang's `decode_moments`: [n, Σb, Σt_us, Σb², Σb·t_us, Σtokens] over decode steps."""
        return [
            float(self.steps),
            float(self.request_steps),
            1e3 * self.decode_ms,
            float(self.request_square_steps),
            1e3 * self.request_ms,
            self.accepted_tokens - self.first_tokens,
        ]
