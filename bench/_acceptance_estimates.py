"""Estimates of `acceptance_learning` that need no fleet: requests of one arm, straight into a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import NormalDist
from typing import Any

from _acceptance_scenes import PROFILE, REQUESTS, SPREAD, changed, fleet_of, profile_table, widths_of

from selector.core.acceptance import AcceptanceModel, AcceptancePrior, accept_length_of, step_variance
from selector.core.acceptancesums import Sums
from selector.core.types import TEXT_TYPES
from selector.files.profile import load_profile
from selector.simulator.draws import AcceptDraws

LEARNT_WITHIN, LEARNT_REQUESTS = 0.05, 200
"""The error that is allowed, after so many requests of a type on an arm."""
STATIONARY = (
    (2, 1.7, 1.0, 0.0),
    (8, 3.5, 1.5, 0.0),
    (16, 5.4, 0.6, 0.0),
    (8, 1.02, 1.0, 0.0),
    (8, 3.5, 1.0, 0.1),
    (8, 3.5, 1.0, -0.1),
)
"""Verify width, accept length, that over the profile's, and the power of an answer's length that it goes with."""


def delivered_mean(mean: float, width: int) -> float:
    """What the draws deliver around a mean near 1 or the verify width, where requests cannot differ to both sides."""
    if mean <= 1.0:
        return 1.0
    deviates = [min(max(NormalDist().inv_cdf((point + 0.5) / 1_000), -2.5), 2.5) for point in range(1_000)]
    own = (min(max(mean / (1.0 + SPREAD * z), 1.0), float(width)) for z in deviates)
    return len(deviates) / math.fsum(1.0 / each for each in own)


def learning(seeds: int) -> dict[str, Any]:
    """Errors of estimates after 200 requests of each type on each arm."""
    arms = tuple(arm for arm in load_profile(PROFILE).arms if arm != "none")
    fleet = fleet_of(arms)
    widths, profile = widths_of(fleet), profile_table(arms)
    rows: list[dict[str, Any]] = []
    for ratio in (0.5, 1.5):
        table = changed(profile, widths, lambda ratio=ratio: ratio)  # type: ignore[misc] # the ratio of this round
        errors: list[tuple[float, float, float, float, str]] = []
        false_alarms = 0
        for seed in range(seeds):
            model, draws, random = fleet.policy_context().acceptance, AcceptDraws(seed), Random(seed)
            for arm in arms:
                seen = {name: Sums() for name in TEXT_TYPES}
                for number in range(LEARNT_REQUESTS * len(TEXT_TYPES)):
                    text_type = TEXT_TYPES[number % len(TEXT_TYPES)]
                    tokens = int(min(1_500.0, max(8.0, random.lognormvariate(math.log(230.0), 0.7)))) - 1
                    drawn = draws.passes(
                        number,
                        tokens=tokens,
                        accept_length=table[arm, text_type].mean,
                        spread=SPREAD,
                        verify_tokens=widths[arm],
                    )
                    passes, surplus = (tokens, 0) if drawn is None else (drawn.count, drawn.surplus)
                    model.observe(arm, text_type, passes, tokens + surplus - passes)
                    seen[text_type].add(passes, tokens + surplus)
                for text_type, sums in seen.items():
                    truth = delivered_mean(table[arm, text_type].mean, widths[arm])
                    drawn_ratio, found = sums.tokens / sums.passes, model.accept_length(arm, text_type)
                    variance = sums.ratio_variance(step_variance(truth, widths[arm]), SPREAD)
                    errors.append(
                        (
                            abs(found / truth - 1.0),
                            drawn_ratio / truth - 1.0,
                            found / drawn_ratio - 1.0,
                            math.sqrt(variance) / truth,
                            f"{arm} on {text_type}",
                        )
                    )
            false_alarms += model.drift_alarm_count
        errors.sort()
        error, drawn_error, beyond, standard_error, where = errors[-1]
        rows.append(
            {
                "truth_over_profile": ratio,
                "estimates": len(errors),
                "median_error": errors[len(errors) // 2][0],
                "p95_error": errors[int(0.95 * len(errors))][0],
                "worst_error": error,
                "worst": where,
                "worst_error_of_the_requests_drawn": drawn_error,
                "worst_error_beyond_them": beyond,
                "standard_error_of_the_worst": standard_error,
                "most_error_beyond_the_requests_drawn": max(abs(each[2]) for each in errors),
                "median_standard_error": sorted(each[3] for each in errors)[len(errors) // 2],
                "allowed_error": LEARNT_WITHIN,
                "estimates_over_it": sum(each[0] > LEARNT_WITHIN for each in errors),
                "drift_alarms": false_alarms,
            }
        )
    return {"rows": rows, "worst_error": max(row["worst_error"] for row in rows)}


def alarms(seeds: int) -> dict[str, Any]:
    """False alarms of stationary arms, and the delay until a fall is seen."""
    false_alarms = runs = 0
    delays: list[int] = []
    types = TEXT_TYPES[:4]
    for seed in range(seeds):
        for width, truth, ratio, rise in STATIONARY:
            for spread in (0.0, 0.15, 0.4):
                for median_tokens in (12.0, 250.0):
                    feed = _Feed(width, truth / ratio, spread, median_tokens, seed, rise)
                    for _ in range(REQUESTS):
                        feed.send(types, truth)
                    false_alarms += feed.model.drift_alarm_count
                    runs += 1
        for width in (2, 4, 8, 16):
            for names in (TEXT_TYPES[:1], types, TEXT_TYPES):
                feed = _Feed(width, accept_length_of(0.6, width), SPREAD, 250.0, seed)
                for _ in range(2_000):
                    feed.send(names, accept_length_of(0.6, width))
                delay = 0
                while feed.model.drift_alarm_count == 0 and delay < 1_000:
                    feed.send(names, accept_length_of(0.05, width))
                    delay += 1
                delays.append(delay)
    return {
        "stationary_runs": runs,
        "requests_each": REQUESTS,
        "false_alarms": false_alarms,
        "falls": len(delays),
        "requests_until_seen_median": sorted(delays)[len(delays) // 2],
        "requests_until_seen_most": max(delays),
    }


class _Feed:
    """Requests of one arm, straight into a model."""

    def __init__(
        self, width: int, prior: float, spread: float, median_tokens: float, seed: int, rise: float = 0.0
    ) -> None:
        """Accept lengths go with (tokens / `median_tokens`) to the power of `rise`."""
        mean = min(max(prior, 1.0), float(width))
        priors = {name: AcceptancePrior(mean=mean, request_spread=SPREAD) for name in TEXT_TYPES}
        self.model = AcceptanceModel({"arm": priors}, {"arm": width})
        self._width, self._spread, self._median_tokens, self._rise = width, spread, median_tokens, rise
        self._draws, self._random, self._sent = AcceptDraws(seed), Random(seed), 0

    def send(self, types: Sequence[str], truth: float) -> None:
        """One request; each type a little below the one before."""
        place = self._sent % len(types)
        tokens = int(min(3_000.0, max(2.0, self._random.lognormvariate(math.log(self._median_tokens), 1.0))))
        drawn = self._draws.passes(
            self._sent,
            tokens=tokens,
            accept_length=(1.0 + (truth - 1.0) * (1.0 - 0.1 * place)) * (tokens / self._median_tokens) ** self._rise,
            spread=self._spread,
            verify_tokens=self._width,
        )
        passes, surplus = (tokens, 0) if drawn is None else (drawn.count, drawn.surplus)
        self._sent += 1
        self.model.observe("arm", types[place], passes, tokens + surplus - passes)
