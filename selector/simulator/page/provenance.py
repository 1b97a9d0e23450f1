"""Where the numbers of a page are from, as (name, value) rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from selector.files.fleet import LoadedFleet
from selector.page.facts import Facts, profile_facts
from selector.simulator.report import PolicyResult


def policy_facts(results: Iterable[PolicyResult]) -> Facts:
    """Each policy file once."""
    return [
        (f"policy {name}", f"sha256 {digest}")
        for name, digest in dict.fromkeys((r.policy, r.policy_sha256) for r in results)
    ]


def fleet_facts(loaded: LoadedFleet) -> Facts:
    """The fleet, and of each profile that it uses what was measured, published, derived and assumed."""
    arms = Counter(spec.arm for spec in loaded.specs)
    gpus = {gpu for spec in loaded.specs for gpu in spec.gpus}
    facts = [
        (
            "fleet",
            f"{loaded.where}: {loaded.fleet.target}, {len(loaded.specs)} backends on {len(gpus)} GPUs: "
            + ", ".join(f"{count} × {arm}" for arm, count in arms.items()),
        )
    ]
    for name, profile in loaded.profiles.items():
        used = [backend.arm for backend in loaded.fleet.backends if backend.profile == name]
        facts += profile_facts(name, profile, list(dict.fromkeys(used)))
    return facts
