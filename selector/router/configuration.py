"""What a router runs by: the fleet file with its profiles, and the policies. A reload replaces all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from selector import __version__
from selector.files.decision_log import BackendRecord, PolicyRecord, StartEvent
from selector.files.fleet import LoadedFleet
from selector.files.policy import LoadedPolicy
from selector.files.shipped import profile_path

_NEEDS_RESTART = ("host", "port", "control_host", "control_port", "decision_log")
"""Of the table `[router]`: they belong to the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Read and checked, not yet in force."""

    fleet: LoadedFleet
    policy: LoadedPolicy
    fallback: LoadedPolicy
    params: Mapping[str, object] = field(default_factory=dict)
    """The policy's."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that it was read from."""
        profiles = [profile_path(name) for name in self.fleet.profiles]
        security = self.fleet.fleet.security
        named = [Path(file) for file in (security.keys_file, security.ca_file) if file is not None]
        return Path(self.fleet.where), self.policy.path, self.fallback.path, *profiles, *named

    @property
    def policy_record(self) -> PolicyRecord:
        """For logs and for people."""
        return PolicyRecord(label=self.policy.label, sha256=self.policy.sha256, params=dict(self.params))

    @property
    def fallback_record(self) -> PolicyRecord:
        """Likewise."""
        return PolicyRecord(label=self.fallback.label, sha256=self.fallback.sha256)

    def start_event(self, seed: int, *, reloaded: bool = False) -> StartEvent:
        """What a decision log says of it."""
        return StartEvent(
            wall=wall_time(),
            version=__version__,
            target=self.fleet.fleet.target,
            policy=self.policy_record,
            fallback=self.fallback_record,
            seed=seed,
            backends=tuple(BackendRecord(name=spec.name, arm=spec.arm) for spec in self.fleet.specs),
            reloaded=reloaded,
        )

    def kept_back(self, running: Configuration) -> list[str]:
        """What of this configuration only a restart brings into force, after `running`."""
        before, now = running.fleet.fleet, self.fleet.fleet
        changed = [f"router.{key}" for key in _NEEDS_RESTART if getattr(before.router, key) != getattr(now.router, key)]
        return changed + (["tracing"] if before.tracing != now.tracing else [])


@dataclass(slots=True, kw_only=True)
class Reloads:
    """How the configuration came to be in force."""

    since: str
    """UTC, ISO 8601."""
    done: int = 0
    refused: int = 0
    last_problem: str | None = None
    """Why the last one was refused; `None` once one was done."""
    kept_back: list[str] = field(default_factory=list)
    """Changes that wait for a restart."""


def wall_time() -> str:
    """Now, as provenance."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
