"""The host's energy from powercap files, its wrap-around, and its absence."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.profiler.rapl import open_host_energy


def zone(root: Path, folder: str, name: str, energy_uj: int, range_uj: int = 1_000_000) -> Path:
    path = root / folder
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path


def test_packages_and_memory_are_summed_and_their_parts_are_not(tmp_path: Path) -> None:
    counted = [
        zone(tmp_path, "intel-rapl:0", "package-0", 100),
        zone(tmp_path, "intel-rapl:0:1", "dram", 100),
        zone(tmp_path, "intel-rapl:1", "package-1", 100),
    ]
    within = zone(tmp_path, "intel-rapl:0:0", "core", 100)
    host = open_host_energy(tmp_path)
    assert host is not None
    assert host.total_j() == 0.0
    for path in (*counted, within):
        (path / "energy_uj").write_text("500100")
    assert host.total_j() == pytest.approx(1.5)


def test_a_counter_that_wrapped_goes_on(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    host = open_host_energy(tmp_path)
    assert host is not None
    (path / "energy_uj").write_text("300000")
    assert host.total_j() == pytest.approx(0.4)
    (path / "energy_uj").write_text("400000")
    assert host.total_j() == pytest.approx(0.5)


def test_a_host_without_counters_has_none(tmp_path: Path) -> None:
    assert open_host_energy(tmp_path) is None
    broken = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (broken / "energy_uj").unlink()  # as where only root may read
    assert open_host_energy(tmp_path) is None
