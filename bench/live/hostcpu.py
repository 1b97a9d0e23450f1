"""How busy the processors of the host were while a cell ran: steps of small batches wait for them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_QUOTA = Path("/sys/fs/cgroup/cpu.stat")


class CpuTimes(NamedTuple):
    """Ticks of all processors since the machine started."""

    busy: int
    """In processes, the kernel and interrupts."""
    stolen: int
    """In which a processor was to work and the machine below ran others."""
    total: int
    throttled_us: int | None = None
    """Microseconds in which processes of this container waited for its quota; `None` where nobody counts them."""


def cpu_times(stat: Path = _STAT, quota: Path = _QUOTA) -> CpuTimes | None:
    """Those of now; `None` where there is no `stat`."""
    try:
        first = stat.read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guests are counted in the first two
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, first.split()[1:9])
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, steal, busy + idle + iowait + steal, _throttled_us(quota))


def _throttled_us(quota: Path) -> int | None:
    try:
        counts = dict(line.split() for line in quota.read_text(encoding="ascii").splitlines())
        return int(counts["throttled_usec"])
    except (OSError, KeyError):
        return None


def shares(before: CpuTimes | None, after: CpuTimes | None) -> dict[str, float] | None:
    """Of all processor time in between, busy and stolen, and the seconds throttled where they are counted; `None` where
    nothing is known of it."""
    if before is None or after is None or after.total <= before.total:
        return None
    total = after.total - before.total
    found = {
        "busy_frac": round((after.busy - before.busy) / total, 4),
        "stolen_frac": round((after.stolen - before.stolen) / total, 4),
    }
    if before.throttled_us is not None and after.throttled_us is not None:
        found["throttled_s"] = round(1e-6 * (after.throttled_us - before.throttled_us), 3)
    return found
