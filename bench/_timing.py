"""What the scripts that time the program itself share: a fleet of any size, and the processor's name."""

from __future__ import annotations

import platform
from pathlib import Path

from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.profile import load_profile


def make_fleet(profile_name: str, backends: int) -> LoadedFleet:
    """That many backends, each with a GPU of its own, cycling through the profile's arms."""
    profile = load_profile(profile_name)
    arms = tuple(profile.arms)
    fleet = Fleet(
        version=1,
        target=profile.target.name,
        backends=tuple(
            Backend(name=f"b{i}", arm=arms[i % len(arms)], gpus=(f"gpu{i}",), profile=profile_name)
            for i in range(backends)
        ),
    )
    return LoadedFleet(fleet, f"{backends} backends", {profile_name: profile})


def cpu_model() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
