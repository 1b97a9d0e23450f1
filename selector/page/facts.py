"""Where the numbers of a page are from, as (name, value) rows."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import scipy

import selector
from selector.errors import ProfileError
from selector.files.digest import sha256_of
from selector.files.profile import Profile
from selector.files.shipped import profile_path

Facts = list[tuple[str, str]]


def program_facts(command: str) -> Facts:
    """The command line, when it ran, and the versions that ran it."""
    return [
        ("command", command),
        ("made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        (
            "versions",
            f"drafter-selector {selector.__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
            f"scipy {scipy.__version__}, {platform.system()} {platform.machine()}",
        ),
    ]


def profile_facts(name: str, profile: Profile, arms: Iterable[str]) -> Facts:
    """What the numbers of these arms rest on, kind by kind."""
    digest = sha256_of(profile_path(name), "profile", ProfileError)
    kind = {key: source.kind for key, source in profile.provenance.items()}
    facts = [
        (f"profile {name}", f"{profile.gpu.name} × {profile.gpu.count}, {profile.target.name}, sha256 {digest}"),
        ("prefill costs", _kinds(kind[point.provenance] for point in profile.prefill)),
        ("idle power", f"{profile.idle.served_w:g} W with a server resident, {kind[profile.idle.provenance]}"),
    ]
    for arm_name in arms:
        arm = profile.arms[arm_name]
        steps = [profile.provenance[cell.provenance] for cell in arm.cells]
        setups = dict.fromkeys(
            ", ".join(part for part in (step.engine, step.driver and f"driver {step.driver}",
                                        step.weights and f"{step.weights} weights") if part)
            for step in steps
        )  # fmt: skip
        facts.append(
            (f"{arm_name}: step costs", f"{_kinds(step.kind for step in steps)}; {'; '.join(filter(None, setups))}")
        )
        if arm.acceptance:
            by_kind: dict[str, list[str]] = {}
            for text_type, accepted in arm.acceptance.items():
                by_kind.setdefault(kind[accepted.provenance], []).append(text_type)
            told = "; ".join(f"{how}: {', '.join(names)}" for how, names in by_kind.items())
            facts.append((f"{arm_name}: accept lengths", told))
    return facts


def _kinds(kinds: Iterable[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).items())
