"""The backends that plans are made over: those of an arm as one pool, and what each does under a mix of demands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.core.contention import neighbours
from selector.core.livesettings import ArmSetting
from selector.core.plannedlengths import Lengths
from selector.core.policy import BackendSpec
from selector.core.poolload import Mix, PoolCurve, PoolLoad


@dataclass(frozen=True, slots=True)
class Pool:
    """The equal backends of one arm."""

    spec: BackendSpec
    """The one with the smallest batch limit stands for all."""
    backends: int
    neighbours: tuple[str, ...] = ()
    """Arms whose backends share a GPU with this arm's."""

    def limit(self, batch: float) -> int:
        """Requests up to which a backend is filled that has `batch` of them in the mean: some come on top by chance."""
        return min(self.spec.max_running_requests, math.ceil(batch + math.sqrt(batch)))


def pools_of(backends: Sequence[BackendSpec]) -> dict[str, Pool]:
    """Backends by arm, each with the arms that it shares GPUs with."""
    by_arm: dict[str, list[BackendSpec]] = {}
    sharing: dict[str, set[str]] = {}
    for spec, others in zip(backends, neighbours(backends), strict=True):
        by_arm.setdefault(spec.arm, []).append(spec)
        sharing.setdefault(spec.arm, set()).update(backends[other].arm for other in others)
    pools = {}
    for arm, specs in by_arm.items():
        smallest = min(specs, key=lambda spec: spec.max_running_requests)
        pools[arm] = Pool(smallest, len(specs), tuple(sorted(sharing[arm] - {arm})))
    return pools


class UsablePools:
    """Pools of which so many backends are usable. Each of their curves is worked out once."""

    def __init__(
        self, pools: Mapping[str, Pool], counts: Mapping[str, int], acceptance: Lengths, quantile: float
    ) -> None:
        """`counts` are the usable backends by arm; targets count at the `quantile`."""
        self.of_arm = pools
        self.counts = counts
        self.arms = [arm for arm, count in counts.items() if count > 0]
        self._acceptance = acceptance
        self._quantile = quantile
        self._curves: dict[object, PoolCurve] = {}

    def curve(self, arm: str, mix: Mix, slowdown: int, setting: ArmSetting | None) -> PoolCurve:
        """Batch and power of a backend of the arm: see `PoolLoad`; mixes alike to a hundredth have the same curve."""
        total = sum(rate for _, rate in mix) or 1.0
        values = None if setting is None else tuple(setting.values.values())
        key = arm, values, slowdown, tuple([(demand.key, round(rate / total, 2)) for demand, rate in mix])
        curve = self._curves.get(key)
        if curve is None:
            load = self.load(arm, mix, slowdown, setting)
            curve = self._curves[key] = PoolCurve(load, load.full())
        return curve

    def load(self, arm: str, mix: Mix, slowdown: int, setting: ArmSetting | None) -> PoolLoad:
        """A backend of the arm under a mix of demands."""
        return PoolLoad(self.of_arm[arm].spec, mix, self._acceptance, self._quantile, slowdown, setting)
