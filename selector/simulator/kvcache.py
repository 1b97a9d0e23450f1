"""The KV cache of one server: who has how much of it, and when a waiting request gets a part.

    taken when   prompt to prefill + m  <  free tokens − r · Σ m of those running
    m            tokens that a request may still generate, at most 4,096
    r            the new-token ratio: 0.7 at the start, falling to 0.098 over 600 decode steps; after a retraction
                 what the running requests have generated of what they may, 20 steps ahead

(`PrefillAdder.add_one_req` and `NewTokenRatioTracker` of SGLang 0.5.23.) A client that sets no bound may generate up to
the end of the context. Prefixes that no request uses any more take only what is free (`prefixcache`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from selector.simulator.decoding import Decoding
from selector.simulator.job import Job
from selector.simulator.prefixcache import PrefixCache, block_sizes

MOST_RESERVED_TOKENS = 4_096
_FIRST_RATIO = 0.7
_LEAST_RATIO = _FIRST_RATIO * 0.14
_DECAY_PER_STEP = (_FIRST_RATIO - _LEAST_RATIO) / 600
_STEPS_AHEAD = 20


class KvCache:
    """Tokens of a server's requests. Those running are counted by the batch itself."""

    __slots__ = (
        "_decoding", "_prefixes", "_ratio", "_ratio_step", "_verify_tokens", "max_tokens", "prefilling_tokens",
    )  # fmt: skip

    def __init__(self, max_tokens: int, decoding: Decoding, verify_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.prefilling_tokens = 0
        """Of prompts that are not prefilled to their end."""
        self._decoding = decoding
        self._verify_tokens = verify_tokens
        self._prefixes = PrefixCache()
        self._ratio = _FIRST_RATIO
        self._ratio_step = 0

    @property
    def tokens(self) -> float:
        """Of all requests; a prefix that several share counts once."""
        return self._decoding.kv_tokens + self.prefilling_tokens - self._prefixes.shared_tokens

    @property
    def room(self) -> float:
        """Tokens left, those of unused prefixes included."""
        # `tokens` in place: asked for at every change.
        used = self._decoding.kv_tokens + self.prefilling_tokens - self._prefixes.shared_tokens
        return self.max_tokens - used

    def needs(self, job: Job) -> int:
        """Tokens that a request adds: its prompt, unless others hold a part of it, and what it may generate."""
        held_tokens = self._prefixes.match(job.prefix_ids)[2] if job.prefix_ids else 0
        return job._context - held_tokens + most_new_tokens(job, job._context - job.prompt_tokens)

    def fits(self, job: Job, ahead_tokens: float) -> bool:
        """Whether a request is taken; `ahead_tokens` is kept for those before it that do not run yet."""
        room = self.room - self.needs(job) - ahead_tokens
        if room <= 0:
            return False
        ratio = self._new_token_ratio()
        if len(self._decoding.jobs) * MOST_RESERVED_TOKENS * ratio < room:
            return True
        return ratio * self._reserved() < room

    def kept_for(self, joining: Sequence[Job]) -> float:
        """Tokens kept for what requests may generate that join the batch when the pass under way ends."""
        return self._new_token_ratio() * sum(
            [most_new_tokens(job, job._context - job.prompt_tokens) for job in joining]
        )

    def steps_to_wait(self, job: Job) -> int | None:
        """Decode steps for which a request that does not fit certainly does not, at least 1.

        `None`: for as long as nobody leaves. Of k steps, each takes the decay from r and at most w tokens per request
        from what is reserved, and the requests' growth from the room:

            (r − d k) (R − b w k) < room − g k        a quadratic, whose lower root is the answer
        """
        room = self.room - self.needs(job)
        if room <= 0:
            return None
        decoding = self._decoding
        shrinking = len(decoding.jobs) * self._verify_tokens
        ratio, reserved = self._new_token_ratio(), self._reserved()
        square = _DECAY_PER_STEP * shrinking
        half = (ratio * shrinking + _DECAY_PER_STEP * reserved - decoding.growth) / 2
        short = ratio * reserved - room
        discriminant = half * half - square * short
        if half <= 0 or discriminant < 0:
            return None
        return max(1, int((half - math.sqrt(discriminant)) / square))

    def _new_token_ratio(self) -> float:
        ratio = self._ratio - _DECAY_PER_STEP * (self._decoding.step - self._ratio_step)
        return ratio if ratio > _LEAST_RATIO else _LEAST_RATIO

    def _reserved(self) -> int:
        """Σ m of the running requests."""
        step = self._decoding.step
        return sum([most_new_tokens(job, job.delivered(step)) for job in self._decoding.jobs.values()])

    def retracted(self) -> None:
        """A request was retracted: sets r by those that are left."""
        decoding = self._decoding
        step, left = decoding.step, decoding.jobs.values()
        generated = sum(job.delivered(step) + _STEPS_AHEAD for job in left)
        self._ratio = min(1.0, generated / (sum(job._most_new_tokens for job in left) + 1))
        self._ratio_step = step

    # ---- prefixes

    def take_cached(self, job: Job) -> None:
        """The part of its prompt that is there is a request's own at once, prefilled."""
        if job.prefix_ids:
            blocks, tokens, _ = self._prefixes.match(job.prefix_ids)
            # The last token is always computed: its output is the first token of the answer.
            job._prefilled = min(tokens, job._context - 1)
            self.hold(job, blocks)
            if job.first_token_s is None:
                job.cached_tokens = job._prefilled
        self.prefilling_tokens += job._prefilled

    def hold(self, job: Job, blocks: int) -> None:
        """A request has the first `blocks` of its prompt there."""
        more = slice(len(job._held), blocks)
        sizes = block_sizes(job.prompt_tokens, len(job.prefix_ids), job.prefix_block_tokens)
        self._prefixes.hold(job.prefix_ids[more], sizes[more])
        job._held = job.prefix_ids[:blocks]

    def release(self, job: Job) -> None:
        """A request goes; call it while its tokens still count. What it held stays as an unused prefix."""
        if job._held:
            # Before that, what there was no place for any more is gone.
            self._prefixes.shrink(self.room)
            self._prefixes.release(job._held)
            job._held = ()

    def shrink(self) -> None:
        """Unused prefixes give way to what requests took."""
        if self._prefixes.unused_tokens:
            self._prefixes.shrink(self.room)


def most_new_tokens(job: Job, generated: int) -> int:
    """m of a request that has generated so many tokens."""
    left = job._most_new_tokens - generated
    return 0 if left < 0 else left if left < MOST_RESERVED_TOKENS else MOST_RESERVED_TOKENS
