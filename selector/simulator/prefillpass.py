"""A pass over prompts on a server model: planned, then under way."""

from __future__ import annotations

from dataclasses import dataclass

from selector.core.prefillcost import PrefillCost
from selector.simulator.job import Job


@dataclass(slots=True)
class PrefillPass:
    """The first block is what was planned, the second holds from `begin` on."""

    chunks: list[tuple[Job, int]]
    """Job, prompt tokens of it in this pass; they count as prefilled from the plan on."""
    tokens: int
    ms: float
    """Alone on the GPU, and nobody waiting to go on decoding; `j` likewise."""
    j: float
    rest: Job | None
    """The last job, if the end of its prompt has to wait for another pass."""

    start_s: float = 0.0
    seconds: float = 0.0
    """Of the whole pass at the present pace; `energy_j` likewise."""
    energy_j: float = 0.0
    since_s: float = 0.0
    """When the pace was last set."""
    todo_frac: float = 1.0
    """The part of the pass that was left then."""
    spent_j: float = 0.0
    """What the other part took."""
    end_s: float = 0.0

    def begin(self, now_s: float, seconds: float, energy_j: float) -> None:
        """From `now_s` on it is under way, and takes so long and so much at the present pace."""
        self.start_s = self.since_s = now_s
        self.seconds, self.energy_j = seconds, energy_j
        self.end_s = now_s + seconds

    def change_pace(self, at_s: float, time_frac: float, energy_frac: float) -> None:
        """From `at_s` on the whole pass would take so many times as long, and as much energy, as up to then."""
        self.todo_frac, self.spent_j = self.at(at_s)
        self.since_s = max(self.since_s, at_s)
        self.seconds *= time_frac
        self.energy_j *= energy_frac
        self.end_s = self.since_s + self.todo_frac * self.seconds

    def at(self, now_s: float) -> tuple[float, float]:
        """Of the pass, the part that is left at a time, and the energy spent by then."""
        done_frac = min(self.todo_frac, max(0.0, now_s - self.since_s) / self.seconds)
        return self.todo_frac - done_frac, self.spent_j + done_frac * self.energy_j


def pass_cost(cost: PrefillCost, chunks: list[tuple[Job, int]], tokens: int) -> tuple[float, float]:
    """(ms, J) of one forward pass over the chunks, not yet counted as prefilled, alone on the GPU."""
    job, todo = chunks[0]
    ms, j = cost.work(todo, after=job._prefilled)
    if len(chunks) > 1:
        for job, todo in chunks[1:]:
            more_ms, more_j = cost.work(todo, after=job._prefilled)
            ms, j = ms + more_ms, j + more_j
        # What a pass takes beside its tokens is paid once, but attention is not that of one long prompt.
        whole_ms, whole_j = cost.work(tokens)
        ms, j = min(ms, whole_ms), min(j, whole_j)
    return cost.of_pass(ms, j, tokens)
