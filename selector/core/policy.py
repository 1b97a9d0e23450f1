"""The contract that policy authors read.

A policy is one Python file with

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Params: ...                                     # every field has a default; the fleet file's [policy.params]

    def make_policy(params: Params, context: PolicyContext) -> Policy: ...

Rules, enforced by tests/contract for every shipped policy:
    - `decide` and `observe` are synchronous and deterministic: same context and same views give the same decisions.
    - No I/O, no clock, no global randomness. Time is `fleet.now_s`; random choices come from `context.seed`.
    - `decide` names an available backend whenever one that can serve the request exists.
    - A policy may raise: the router then uses its fallback and counts it, the simulator stops and shows the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from selector.core.acceptance import AcceptanceModel
from selector.core.cost import ArmCost
from selector.core.depthengines import OwnDepth
from selector.core.livesettings import ArmSetting
from selector.core.types import Capability, Decision, FleetView, Outcome, RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """What is fixed about a backend while it runs."""

    name: str
    arm: str
    gpus: tuple[str, ...]
    cost: ArmCost
    max_running_requests: int
    max_kv_tokens: int
    max_context_tokens: int
    cannot_serve: frozenset[Capability] = frozenset()
    overlaps: bool = True
    """Whether its scheduler forms a batch and launches it while the one before still runs."""
    settings: tuple[ArmSetting, ...] = ()
    """What the arm's live settings can be, as launched first; empty for an arm without."""
    depths: tuple[BackendSpec, ...] = ()
    """The backend as if fixed at each draft depth among which its engine chooses by itself, shallowest first.

    Each under the name of the arm that has this depth, by which its accept lengths are known. Empty where the depth is
    fixed. What such a backend costs depends on the load: predictions go by the best of them, `cost` is the deepest's.
    """
    own_depth: OwnDepth | None = None
    """How its engine chooses, where it does."""

    def setting(self, values: Mapping[str, float]) -> ArmSetting | None:
        """The arm at these live settings; `None` where they were not profiled."""
        return next((setting for setting in self.settings if setting.values == values), None)

    def acceptance_arm(self, values: Mapping[str, float]) -> str:
        """The name by which the acceptance model knows the arm at these live settings."""
        setting = self.setting(values) if self.settings else None
        return self.arm if setting is None else setting.named(self.arm)

    def depths_at(self, batch: float) -> Sequence[BackendSpec]:
        """Those of `depths` among which its engine chooses at a batch."""
        if self.own_depth is None:
            return self.depths
        candidates = self.own_depth.candidates(max(1, round(batch)))
        return [each for each in self.depths if each.cost.verify_tokens - 1 in candidates]

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request that it can hold, by its context and by its KV cache."""
        return min(self.max_context_tokens, self.max_kv_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What a policy is built from. The acceptance model is live: its host feeds it every outcome before `observe`."""

    target: str
    backends: tuple[BackendSpec, ...]
    acceptance: AcceptanceModel
    tbt_quantile: float = 0.9
    """A TBT target counts as met when this quantile of the request's predicted TBT is within it."""
    seed: int = 0
    settings_every_s: float = 10.0
    """Live settings of a backend change at most this often, whatever a policy wants."""
    alike: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """For each backend, the place of the first one that can serve the same requests: who asks once need not again."""
    kinds: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The places that occur in `alike`, once each."""
    least_context_tokens: int = field(init=False, repr=False, compare=False)
    """The tightest context of all backends; what it holds they all hold. `least_kv_tokens` likewise."""
    least_kv_tokens: int = field(init=False, repr=False, compare=False)
    all_serve: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    """`True` for each backend: what most requests find."""
    _by_name: Mapping[str, BackendSpec] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        first: dict[object, int] = {}
        alike = [
            first.setdefault((spec.max_context_tokens, spec.max_kv_tokens, spec.cannot_serve), place)
            for place, spec in enumerate(self.backends)
        ]
        object.__setattr__(self, "alike", tuple(alike))
        object.__setattr__(self, "kinds", tuple(first.values()))
        object.__setattr__(self, "least_context_tokens", min((s.max_context_tokens for s in self.backends), default=0))
        object.__setattr__(self, "least_kv_tokens", min((s.max_kv_tokens for s in self.backends), default=0))
        object.__setattr__(self, "all_serve", (True,) * len(self.backends))
        object.__setattr__(self, "_by_name", {spec.name: spec for spec in self.backends})

    def spec(self, backend: str) -> BackendSpec:
        """The spec of the backend of that name. Raises `KeyError`."""
        return self._by_name[backend]

    def by_arm(self) -> Mapping[str, tuple[BackendSpec, ...]]:
        """Backends by arm, in the fleet's order."""
        grouped: dict[str, list[BackendSpec]] = {}
        for spec in self.backends:
            grouped.setdefault(spec.arm, []).append(spec)
        return {arm: tuple(specs) for arm, specs in grouped.items()}


class Policy(Protocol):
    """Chooses a backend for each request."""

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Where `request` goes, given the fleet as it is at `fleet.now_s`.

        It may name live settings that it wants in force there. Views tell which are: until then, and where a server
        refuses, costs and accept lengths are those of the settings in force.
        """
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learns how a request it decided on turned out."""
        ...


@runtime_checkable
class ShowsState(Protocol):
    """What a policy may offer beside `Policy`: something for people to look at, on the dashboard.

    Plain data (mappings, lists, strings, numbers, `None`) of bounded size, made when it is asked for; nothing may
    depend on whether it was. The dashboard knows how to show

        {"plan": [{"text_type", "tbt_target_ms", "tokens_per_s", "arms": [best first]}],
         "arms": [{"arm", "batch", "tokens_per_s", "settings"}], "power_w": above idle, "planned_s": when}

    and shows anything else as it is.
    """

    def state(self) -> Mapping[str, object]:
        """What the policy has in mind at present."""
        ...
