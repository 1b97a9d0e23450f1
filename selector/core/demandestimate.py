"""What is asked of a fleet now: demands with their rates and lengths, and whether the clients wait for answers.

Under *open* arrivals (many independent clients) requests come whatever happens to earlier ones; under *closed* ones (a
fixed number of clients, agents, batch jobs) each answer makes room for the next request. It matters to a plan: slower
service leaves the rate of open arrivals alone, and lowers that of closed ones while idle power goes on. From one bin of
time to the next, with A arrivals and D ends in it,

    n = A + D,  d = A − D         of a bin, n' and d' of the one before
    q = (d − d')² / (n + n')      about 1 on average when arrivals and ends are independent, 0 when each end brings one

so the mean of q over recent bins tells which it is; that the load rises or falls all the while changes d but not d −
d'. Bins are half as long as an answer takes, at most half a second, and each ends with an arrival.
"""

from __future__ import annotations

import math

from selector.core.dispersion import CountDispersion
from selector.core.poolload import Demand, DemandKey
from selector.core.ratetrend import RateTrend, Trend
from selector.core.stalls import PrefillWork
from selector.core.types import Outcome, RequestView

_MOST_DEMANDS = 32
"""Text types × targets that are planned for. Clients may ask for any target; each new one makes a new plan."""
_LONGEST_BIN_S, _SHORTEST_BIN_S = 0.5, 0.02
_BINS = 40
"""Memory of the openness, in bins in which something happened."""
_PRIOR_BINS, _PRIOR_BINS_SHARED = 4.0, 10.0
"""Open until so many bins say otherwise; more where servers share a GPU, since a mistake changes servers there."""
_MOST_Q = 3.0
"""A single burst (all clients starting at once) tells no more than this."""
_CLOSED_BELOW, _OPEN_ABOVE = 0.35, 0.5
_RECENT_FRAC = 0.2
"""The last part of the window, whose rate is compared with that of the whole."""
_JUMP_DEVIATIONS = 2.0
"""Standard deviations by which the recent rate must differ to be believed alone."""
_LEAST_PER_S = 1e-3
"""A falling rate ends here: a demand is either there or forgotten."""


class _Arrivals:
    """Arrival rate and mean lengths of one demand; older arrivals fade over the window, and sooner after a jump."""

    __slots__ = ("count", "dispersion", "output_tokens", "prompt_tokens", "rate", "recent", "then_s")

    def __init__(self, now_s: float, window_s: float) -> None:
        self.count = self.recent = self.prompt_tokens = self.output_tokens = 0.0
        self.then_s = now_s
        self.rate = RateTrend(now_s, window_s=window_s)
        self.dispersion = CountDispersion(now_s, bin_s=_RECENT_FRAC * window_s)

    def add(self, request: RequestView, now_s: float, window_s: float) -> None:
        keep = math.exp((self.then_s - now_s) / window_s)
        self.count = self.count * keep + 1.0
        self.recent = self.recent * keep ** (1.0 / _RECENT_FRAC) + 1.0
        self.prompt_tokens = self.prompt_tokens * keep + request.prompt_tokens
        self.output_tokens = self.output_tokens * keep + request.expected_output_tokens
        self.then_s = now_s
        self.rate.arrived(now_s)
        self.dispersion.arrived(now_s)

    def trend(self, now_s: float, window_s: float) -> Trend:
        """The rate now. Where that of the last part of the window is clearly another, what came before is forgotten.

        At a steady rate r the rate over a memory of v seconds has the variance d r / 2 v, with d the dispersion of the
        arrivals: 1 when they are independent, more when they are in the habit of coming in bursts, which are no jumps.
        """
        dispersion = self.dispersion.value
        trend = self.rate.trend(now_s, dispersion)
        recent_s = _RECENT_FRAC * window_s
        if self.rate.age_s(now_s) < 3.0 * recent_s:
            return trend
        recent = self.recent * math.exp((self.then_s - now_s) / recent_s) / recent_s
        expected = trend.before(recent_s)
        if abs(recent - expected) <= _JUMP_DEVIATIONS * math.sqrt(dispersion * max(expected, 1e-9) / (2.0 * recent_s)):
            return trend
        self.rate.restart(now_s, age_s=recent_s, per_s=recent)
        return Trend(recent, 0.0)

    def demand(self, key: DemandKey, now_s: float, window_s: float, work: PrefillWork, ahead_s: float) -> Demand | None:
        if self.count * math.exp((self.then_s - now_s) / window_s) < 0.05:
            return None
        trend = self.trend(now_s, window_s)
        return Demand(
            text_type=key[0],
            tbt_target_ms=key[1],
            requests_per_s=max(trend.per_s, trend.before(-ahead_s), _LEAST_PER_S),
            prompt_tokens=self.prompt_tokens / self.count,
            output_tokens=max(1.0, self.output_tokens / self.count),
            prefill_dispersion_s=work.bursts.dispersion_s,
            prefill_excess_s=work.bursts.excess_s,
        )


class Openness:
    """Whether clients wait for answers before they ask again."""

    __slots__ = ("_arrivals", "_before", "_bins", "_ended", "_ends", "_latency_s", "_mean", "_since_s", "closed")

    def __init__(self, *, prior_bins: float) -> None:
        self._since_s: float | None = None
        self._arrivals = self._ends = 0
        self._ended = False
        self._before: tuple[int, int] | None = None
        self._latency_s = 1.0
        self._mean, self._bins = 1.0, prior_bins
        self.closed = False

    def arrived(self, now_s: float) -> None:
        """A request came."""
        self._arrivals += 1
        if self._since_s is None:
            self._since_s = now_s
        if not self._ended:  # before the first end, nobody can have waited for it
            self._since_s, self._arrivals = now_s, 0
        elif now_s - self._since_s >= min(max(0.5 * self._latency_s, _SHORTEST_BIN_S), _LONGEST_BIN_S):
            events, net = self._arrivals + self._ends, self._arrivals - self._ends
            if self._before is not None:
                change = net - self._before[1]
                q = min(change * change / (events + self._before[0]), _MOST_Q)
                self._bins = min(self._bins + 1.0, float(_BINS))
                self._mean += (q - self._mean) / self._bins
            self._before = events, net
            self._since_s, self._arrivals, self._ends = now_s, 0, 0
            self.closed = self._mean < (_OPEN_ABOVE if self.closed else _CLOSED_BELOW)

    def ended(self, latency_s: float) -> None:
        """A request ended, `latency_s` after it was sent."""
        self._ends += 1
        self._ended = True
        if 0.0 < latency_s < math.inf:
            self._latency_s += 0.05 * (latency_s - self._latency_s)


class DemandEstimate:
    """Folds arrivals and ends into demands."""

    def __init__(self, *, window_s: float, sharing_gpus: bool = False) -> None:
        self._window_s = window_s
        self._arrivals: dict[DemandKey, _Arrivals] = {}
        self._openness = Openness(prior_bins=_PRIOR_BINS_SHARED if sharing_gpus else _PRIOR_BINS)

    def arrived(self, request: RequestView, now_s: float) -> DemandKey:
        """A request came. Returns the demand that it belongs to: with many of them, the nearest known one."""
        key = request.text_type, request.tbt_target_ms
        arrivals = self._arrivals.get(key)
        if arrivals is None:
            if len(self._arrivals) < _MOST_DEMANDS:
                arrivals = self._arrivals[key] = _Arrivals(now_s, self._window_s)
            else:
                key = self._nearest(*key)
                arrivals = self._arrivals[key]
        arrivals.add(request, now_s, self._window_s)
        self._openness.arrived(now_s)
        return key

    def ended(self, outcome: Outcome) -> None:
        """A request ended, however it did."""
        self._openness.ended(outcome.finished_s - outcome.dispatched_s)

    @property
    def closed(self) -> bool:
        """Whether arrivals answer ends (see the module)."""
        return self._openness.closed

    def demands(self, now_s: float, work: PrefillWork, *, ahead_s: float = 0.0) -> list[Demand]:
        """The present demands, at the rates that they will have `ahead_s` later if they go on rising as they do.

        Those that fall count as they are, those that have faded away are forgotten.
        """
        demands = []
        for key, arrivals in list(self._arrivals.items()):
            demand = arrivals.demand(key, now_s, self._window_s, work, ahead_s)
            if demand is None:
                del self._arrivals[key]
            else:
                demands.append(demand)
        return demands

    def _nearest(self, text_type: str, target_ms: float | None) -> DemandKey:
        """The known demand that is most like this one."""

        def apart(known: DemandKey) -> tuple[bool, float]:
            return known[0] != text_type, abs(_tokens_per_ms(known[1]) - _tokens_per_ms(target_ms))

        return min(self._arrivals, key=apart)


def _tokens_per_ms(tbt_target_ms: float | None) -> float:
    """The pace that a target asks for: none without one."""
    return 0.0 if tbt_target_ms is None else 1.0 / tbt_target_ms
