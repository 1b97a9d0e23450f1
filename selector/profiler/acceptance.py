"""How many tokens an arm gets accepted: real prompts of one text type, answered by a server with real weights.

From each answer come its verify passes, its accepted drafts and the histogram of drafts accepted per pass. Over all of
a type's answers,

    accept length   a = 1 + Σ accepted / Σ passes                     the bonus token included
    survival        S_k = share of passes that accepted k drafts or more,  k = 1 … verify width − 1;  a = 1 + Σ S_k
    request spread  σ / a, the relative standard deviation of the requests' own means m_i, the scatter of their finite
                    number of passes n_i taken out (one-way analysis of variance; N passes of R requests):
                    s² = Σ_i Σ_passes (x − m_i)² / (N − R),   σ² = (Σ n_i (m_i − a)² − s² (R − 1)) / N

A last pass that the answer's end cuts short counts as the server counted it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from selector.errors import UpstreamError
from selector.profiler.cells import AnswerCounts
from selector.profiler.client import ChatAnswer, SglangClient
from selector.profiler.prompts import Prompt

_REFUSED_FRAC = 0.5
"""With more than this share of its prompts refused, a type says nothing of the type any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How answers are made."""

    answer_tokens: int
    temperature: float
    concurrency: int
    seed: int


async def measure_acceptance(
    client: SglangClient, prompts: Sequence[Prompt], sampling: Sampling, verify_tokens: int
) -> tuple[list[AnswerCounts], int]:
    """Counts of every answer, and how many prompts the server refused (over its context, a schema it cannot compile).

    Raises `UpstreamError` when it refuses most, breaks down, or does not report its verify passes.
    """
    places = asyncio.Semaphore(sampling.concurrency)
    refused: list[str] = []

    async def one(prompt: Prompt) -> AnswerCounts | None:
        async with places:
            answer = await client.chat(
                {
                    **prompt.fields,
                    "max_tokens": sampling.answer_tokens,
                    "temperature": sampling.temperature,
                    "seed": sampling.seed,
                }
            )
        if isinstance(answer, str):
            refused.append(answer)
            return None
        return counts_of(prompt.id, answer, verify_tokens)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(prompt)) for prompt in prompts]
    except ExceptionGroup as failed:  # one server: the first failure tells the cause
        raise failed.exceptions[0] from None
    counts = [answer for task in tasks if (answer := task.result()) is not None]
    if not counts or len(refused) > _REFUSED_FRAC * len(prompts):
        raise UpstreamError(f"{len(refused)} of {len(prompts)} prompts were refused; the first: {refused[0]}")
    return counts, len(refused)


def counts_of(prompt_id: str, answer: ChatAnswer, verify_tokens: int) -> AnswerCounts:
    """An answer's counts. Raises `UpstreamError` for counts that cannot be."""
    if answer.verify_passes is None or answer.accepted_drafts is None:
        raise UpstreamError("answers lack spec_verify_ct and accepted drafts: does this server speculate?")
    passes, accepted = answer.verify_passes, answer.accepted_drafts
    if passes < 0 or not 0 <= accepted <= passes * (verify_tokens - 1):
        raise UpstreamError(
            f"an answer reports {accepted} accepted drafts in {passes} passes of {verify_tokens}: check verify_tokens"
        )
    return AnswerCounts(
        prompt=prompt_id,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        verify_passes=passes,
        accepted_drafts=accepted,
        accepted_histogram=answer.accepted_histogram,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAcceptance:
    """Acceptance of one arm on one text type, from all its answers."""

    mean: float
    request_spread: float | None
    """`None` without histograms, which tell the scatter of the passes from that of the requests."""
    survival: tuple[float, ...] | None
    requests: int
    passes: int


def summarised(answers: Sequence[AnswerCounts], verify_tokens: int) -> MeasuredAcceptance | None:
    """See the module; `None` when no answer had a verify pass (answers of a single token)."""
    some = [answer for answer in answers if answer.verify_passes > 0]
    passes = sum(answer.verify_passes for answer in some)
    if not passes:
        return None
    mean = 1.0 + sum(answer.accepted_drafts for answer in some) / passes
    histogram = _histogram(some, verify_tokens)
    survival = None
    if histogram is not None and (counted := sum(histogram)):
        survival = tuple(sum(histogram[k:]) / counted for k in range(1, verify_tokens))
    return MeasuredAcceptance(
        mean=mean,
        request_spread=_spread(some, mean, histogram),
        survival=survival,
        requests=len(some),
        passes=passes,
    )


def _histogram(answers: Sequence[AnswerCounts], verify_tokens: int) -> list[int] | None:
    """Passes by drafts accepted, over all answers; `None` unless every answer has its own."""
    total = [0] * verify_tokens
    for answer in answers:
        if answer.accepted_histogram is None or len(answer.accepted_histogram) > verify_tokens:
            return None
        for accepted, passes in enumerate(answer.accepted_histogram):
            total[accepted] += passes
    return total


def _spread(answers: Sequence[AnswerCounts], mean: float, histogram: Sequence[int] | None) -> float | None:
    passes, requests = sum(answer.verify_passes for answer in answers), len(answers)
    if histogram is None or requests < 2 or passes <= requests:
        return None
    total = sum(count * (1.0 + accepted - mean) ** 2 for accepted, count in enumerate(histogram))
    between = sum(
        answer.verify_passes * (1.0 + answer.accepted_drafts / answer.verify_passes - mean) ** 2 for answer in answers
    )
    scatter = max(0.0, total - between) / (passes - requests)
    return math.sqrt(max(0.0, between - scatter * (requests - 1)) / passes) / mean
