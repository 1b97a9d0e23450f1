"""Energy of the host's processors and memory through RAPL (Linux powercap), where the host has it.

A zone's counter is in microjoules and wraps at `max_energy_range_uj`, after some minutes under load, so it must be
read at least once per turn. Top-level `package-*` zones hold cores, caches and, below them, `dram`, which counts apart.
"""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class HostEnergy:
    """Running total of processors and memory in joules, from the moment it was opened."""

    def __init__(self, zones: list[Path]) -> None:
        self._zones = zones
        self._range_uj = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._last_uj = [_number(zone / "energy_uj") for zone in zones]
        self._total_uj = 0

    def total_j(self) -> float:
        """Joules since opening. Raises `OSError` when a counter can no longer be read."""
        for index, zone in enumerate(self._zones):
            now_uj = _number(zone / "energy_uj")
            moved = now_uj - self._last_uj[index]
            self._total_uj += moved if moved >= 0 else moved + self._range_uj[index]
            self._last_uj[index] = now_uj
        return self._total_uj / 1e6


def open_host_energy(root: Path = POWERCAP) -> HostEnergy | None:
    """The host's counters; `None` where there are none or they may not be read (root only on many systems)."""
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _counts(zone)]
    if not zones:
        return None
    try:
        return HostEnergy(zones)
    except (OSError, ValueError):
        return None


def _counts(zone: Path) -> bool:
    try:
        name = (zone / "name").read_text(encoding="ascii").strip()
    except OSError:
        return False
    return name.startswith("package") or name == "dram"


def _number(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))
