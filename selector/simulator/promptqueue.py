"""The requests of a server model that do not run yet: who waits, whose prompts are in a pass, and who comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping

from selector.core.prefillcost import PrefillCost
from selector.simulator.job import Job
from selector.simulator.kvcache import KvCache, most_new_tokens
from selector.simulator.prefillpass import PrefillPass, pass_cost


class PromptQueue:
    """In order of arrival. Takes from the KV cache what a planned pass needs."""

    __slots__ = (
        "_cost", "_kv", "_max_running_requests", "_running", "chunk_tokens", "planned", "under_way", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        cost: PrefillCost,
        kv: KvCache,
        running: Mapping[Hashable, Job],
        *,
        max_running_requests: int,
        chunk_tokens: int,
    ) -> None:
        """`running` are the requests that decode, at any time."""
        self.waiting: deque[Job] = deque()
        """In no pass yet."""
        self.under_way: PrefillPass | None = None
        self.planned: PrefillPass | None = None
        """Begins at the next boundary."""
        self.chunk_tokens = chunk_tokens
        self._cost = cost
        self._kv = kv
        self._running = running
        self._max_running_requests = max_running_requests

    @property
    def count(self) -> int:
        """Requests that do not run yet."""
        count, under_way, planned = len(self.waiting), self.under_way, self.planned
        if under_way is not None:
            count += len(under_way.chunks)
        if planned is not None:
            count += len(planned.chunks)
            if under_way is not None and planned.chunks[0][0] is under_way.rest:
                count -= 1
        return count

    @property
    def queued_tokens(self) -> int:
        """Tokens that those in no pass yet have to prefill."""
        return sum(job._context - job._prefilled for job in self.waiting)

    def prefilling(self) -> list[Job]:
        """Whose prompts are in a pass that is under way or planned."""
        passes = [each for each in (self.under_way, self.planned) if each is not None]
        return list({id(job): job for each in passes for job, _ in each.chunks}.values())

    def plan(self, rest: Job | None) -> PrefillPass | None:
        """Takes waiting requests in order while places, KV tokens and the chunk budget last, `rest` before them."""
        if rest is None and not self.waiting:
            return None
        budget = self.chunk_tokens
        new_tokens = 0.0
        chunks: list[tuple[Job, int]] = []
        waiting = self.waiting
        places = self._max_running_requests - len(self._running)
        joining: list[Job] = []
        if self.under_way is not None:
            joining = [job for job, _ in self.under_way.chunks if job is not rest]
            places -= len(joining)
            new_tokens = self._kv.kept_for(joining)
        if rest is not None and not rest._gone:
            todo = min(rest._context - rest._prefilled, budget)
            budget -= todo
            chunks.append((rest, todo))
            self._kv.prefilling_tokens += todo
        while waiting and budget > 0 and len(chunks) < places:
            job = waiting[0]
            if (self._running or chunks or joining) and not self._kv.fits(job, new_tokens):
                break
            self._kv.take_cached(job)
            todo = min(job._context - job._prefilled, budget)
            budget -= todo
            chunks.append((job, todo))
            self._kv.prefilling_tokens += todo
            new_tokens += most_new_tokens(job, job._context - job.prompt_tokens)
            waiting.popleft()
        if not chunks:
            return None
        tokens = self.chunk_tokens - budget
        ms, j = pass_cost(self._cost, chunks, tokens)
        for job, todo in chunks:
            job._prefilled += todo
        self._kv.shrink()
        last = chunks[-1][0]
        return PrefillPass(chunks, tokens, ms, j, last if last._prefilled < last._context else None)

    def remove(self, key: Hashable) -> bool:
        """A request is aborted; False if it is not here. A pass that it is in goes on."""
        for job in self.waiting:
            if job.key == key:
                self.waiting.remove(job)
                job._gone = True
                self.drop(job)
                return True
        for job in self.prefilling():
            if job.key == key and not job._gone:
                job._gone = True
                return True
        return False

    def drop(self, job: Job) -> None:
        """A request goes before it joins the batch."""
        self._kv.release(job)
        self._kv.prefilling_tokens -= job._prefilled
