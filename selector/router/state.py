"""What the router's parts share, for those that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from selector.files.decision_log import PolicyRecord
from selector.files.decision_log_writer import DecisionLogWriter
from selector.router.configuration import Reloads
from selector.router.dispatch import Dispatcher
from selector.router.keyring import KeyRing
from selector.router.meters import Meters
from selector.router.metrics import RouterMetrics
from selector.router.retries import Retries
from selector.router.sharing import AcceptanceSharing
from selector.router.snapshots import AcceptanceSnapshots
from selector.router.watch import FleetWatch


@dataclass(slots=True, kw_only=True)
class RouterState:
    """One running router."""

    target: str
    policy: PolicyRecord
    fallback: PolicyRecord
    dispatcher: Dispatcher
    watch: FleetWatch
    metrics: RouterMetrics
    keys: KeyRing
    log: DecisionLogWriter | None
    snapshots: AcceptanceSnapshots
    sharing: AcceptanceSharing | None
    meters: Meters | None
    """`None` where no energy is metered."""
    corrects: bool
    """Whether corrections of the cost model are put in force."""
    reloads: Reloads
    retries: Retries
    now_s: Callable[[], float]
    """Seconds since the router started."""
    draining: bool = False
    """New requests are refused; running ones may end."""

    @property
    def ready(self) -> bool:
        """Whether a request could be served now."""
        fleet = self.dispatcher.controller.tracker.view(self.now_s())
        return not self.draining and any(backend.available for backend in fleet.backends)
