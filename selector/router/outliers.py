"""Which backends do so much worse than their peers that they are left out for a while: without I/O, without a clock.

Two things are compared, each only where both sides have seen enough requests:
- the share of requests that failed, against that of all other backends together;
- how much slower decode steps were than the profile says for the load there was, against the same of the others. The
  profile takes out what differs for good reasons: arm, batch, GPU.

What all backends do alike (a client that sends poison, a profile that is too optimistic) ejects nobody. At most a share
of the backends that would serve is out at once, and when no other is left all come back. Evidence fades with a
half-life; that of an ejected backend is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import floor

from selector.files.faults import Faults


@dataclass(slots=True)
class _Evidence:
    """Faded sums of one backend, or of several together."""

    requests: float = 0.0
    failures: float = 0.0
    timed: float = 0.0
    """Requests whose steps are known."""
    made: float = 0.0
    """Steps those got."""
    modelled: float = 0.0
    """Steps that the profile says for their time."""

    def fade(self, keep: float) -> None:
        self.requests *= keep
        self.failures *= keep
        self.timed *= keep
        self.made *= keep
        self.modelled *= keep

    def add(self, other: _Evidence) -> None:
        self.requests += other.requests
        self.failures += other.failures
        self.timed += other.timed
        self.made += other.made
        self.modelled += other.modelled

    @property
    def failed_frac(self) -> float:
        return self.failures / self.requests

    @property
    def slowness(self) -> float:
        return self.modelled / self.made


@dataclass(slots=True)
class _Ejection:
    """One backend's past and present outside."""

    reason: str | None = None
    until_s: float = 0.0
    in_a_row: int = 0
    forgiven_s: float = 0.0
    """From when on an ejection is not one more in a row."""


class Outliers:
    """All backends of a fleet. Times in seconds, never going back."""

    def __init__(self, names: Iterable[str], options: Faults) -> None:
        self._options = options
        self._evidence = {name: _Evidence() for name in names}
        self._ejections = {name: _Ejection() for name in self._evidence}
        self._faded_s: float | None = None
        self.counts = dict.fromkeys(self._evidence, 0)
        """Ejections so far."""

    def answered(self, name: str, *, ok: bool) -> None:
        """A request ended with an answer, or with a failure that lies with the backend."""
        evidence = self._evidence[name]
        evidence.requests += 1.0
        evidence.failures += 0.0 if ok else 1.0

    def stepped(self, name: str, made: float, modelled: float) -> None:
        """A request got `made` steps in a time for which the profile says `modelled`; both above 0."""
        evidence = self._evidence[name]
        evidence.timed += 1.0
        evidence.made += made
        evidence.modelled += modelled

    def reason(self, name: str) -> str | None:
        """Why a backend is ejected; `None` if it is not."""
        return self._ejections[name].reason

    def judge(self, now_s: float, serving: Collection[str]) -> list[str]:
        """Ejects and takes back; returns the backends for which that changed.

        `serving` are those that would get requests if none were ejected.
        """
        self._fade(now_s)
        changed = [name for name, ejection in self._ejections.items() if self._back(ejection, now_s)]
        out = [name for name in serving if self._ejections[name].reason is not None]
        inside = [name for name in serving if self._ejections[name].reason is None]
        if out and not inside:
            for name in out:  # a poor backend is better than none
                self._ejections[name].reason = None
            return changed + out
        share = floor(self._options.outlier_max_ejected_frac * len(serving)) - len(out)
        places = max(0, min(share, len(inside) - 1))
        for _, name, reason in sorted(self._worst(inside), reverse=True)[:places]:
            self._eject(name, reason, now_s)
            changed.append(name)
        return changed

    def _worst(self, inside: Collection[str]) -> Iterable[tuple[float, str, str]]:
        """How much worse than allowed, who, and in words: of those that are outliers."""
        options, least = self._options, self._options.outlier_min_requests
        everything = _Evidence()
        for name in inside:
            everything.add(self._evidence[name])
        for name in inside:
            own = self._evidence[name]
            peers = _Evidence(
                requests=everything.requests - own.requests,
                failures=everything.failures - own.failures,
                timed=everything.timed - own.timed,
                made=everything.made - own.made,
                modelled=everything.modelled - own.modelled,
            )
            if min(own.requests, peers.requests) >= least:
                excess = own.failed_frac - peers.failed_frac
                if excess >= options.outlier_error_frac:
                    words = f"{own.failed_frac:.0%} of its requests fail, of its peers' {peers.failed_frac:.0%}"
                    yield excess / options.outlier_error_frac, name, words
                    continue
            if min(own.timed, peers.timed) >= least:
                times = own.slowness / peers.slowness
                if times >= options.outlier_slowness:
                    yield times / options.outlier_slowness, name, f"it takes {times:.1f} times as long as its peers"

    def _eject(self, name: str, reason: str, now_s: float) -> None:
        ejection, options = self._ejections[name], self._options
        ejection.in_a_row = ejection.in_a_row + 1 if now_s < ejection.forgiven_s else 1
        lasts_s = min(options.outlier_eject_max_s, options.outlier_eject_s * 2.0 ** min(ejection.in_a_row - 1, 64))
        ejection.reason = f"ejected as an outlier for {lasts_s:g} s: {reason}"
        ejection.until_s = now_s + lasts_s
        ejection.forgiven_s = now_s + 2.0 * lasts_s
        self._evidence[name] = _Evidence()
        self.counts[name] += 1

    def _back(self, ejection: _Ejection, now_s: float) -> bool:
        if ejection.reason is None or now_s < ejection.until_s:
            return False
        ejection.reason = None
        return True

    def _fade(self, now_s: float) -> None:
        if self._faded_s is not None and now_s > self._faded_s:
            keep = 0.5 ** ((now_s - self._faded_s) / self._options.outlier_half_life_s)
            for evidence in self._evidence.values():
                evidence.fade(keep)
        self._faded_s = now_s
