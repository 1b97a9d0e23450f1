"""Backends whose engine chooses its draft depth, for tests: depths 0, 1 and 7 of the made-up fleet's arms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthengines import OwnDepth, PluginDepths, ScheduledDepths, tiers_by_batch
from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtable import DepthTable
from selector.core.depthtexts import DepthAcceptances
from selector.core.policy import BackendSpec
from selector.core.sglangadaptive import Schedule, Tier
from selector.files.depthcosts import depth_table
from tests.fleets import arm_cost, backend_spec

DEPTH_ARMS = ("none", "eagle3-k1", "dspark-8")
DEPTHS = (0, 1, 7)
RESTLESS: Schedule = {
    1: Tier(candidate_steps=(1, 7), update_interval=3, warmup_batches=2),
    3: Tier(candidate_steps=(0, 1, 7), update_interval=2, warmup_batches=0),
    8: Tier(candidate_steps=(0,)),
}
"""Moves every few batches, and back: depth 0 is left after each interval."""


def table() -> DepthTable:
    """What the depths cost."""
    return depth_table({depth: arm_cost(arm).step for depth, arm in zip(DEPTHS, DEPTH_ARMS, strict=True)})


def plugin_choice(survival_rate: float = 0.6, options: ChoiceOptions | None = None) -> DepthChoice:
    """The plugin's choice before it has seen anything; by default it tries deeper depths often."""
    acceptance = DepthAcceptances(geometric_survivals(survival_rate, 7), SlowRequests.at(spread_frac=0.1))
    options = options or ChoiceOptions(dwell_steps=4, trial_every_steps=10)
    return DepthChoice(table(), acceptance, options, start_depth=7)


def _plugin(survival_rate: float) -> PluginDepths:
    return PluginDepths(plugin_choice(survival_rate))


def own_depth(by: str, *, survival_rate: float = 0.6, default_target_ms: float | None = None) -> OwnDepth:
    """How an engine chooses: by `plugin` or by `schedule`."""
    if by == "plugin":
        return OwnDepth(
            start=partial(_plugin, survival_rate),
            tiers=((1, DEPTHS),),
            takes_tbt_target=True,
            default_target_ms=default_target_ms,
        )
    return OwnDepth(
        start=partial(ScheduledDepths, RESTLESS, table(), start_depth=7), tiers=tiers_by_batch(RESTLESS, (), 64)
    )


def choosing(spec: BackendSpec, own: OwnDepth) -> BackendSpec:
    """A backend of `dspark-8` whose engine chooses among all depths."""
    depths = tuple(replace(spec, arm=arm, cost=replace(arm_cost(arm), prefill=spec.cost.prefill)) for arm in DEPTH_ARMS)
    return replace(spec, depths=depths, own_depth=own)


def choosing_spec(name: str, by: str, *, default_target_ms: float | None = None, **limits: int) -> BackendSpec:
    """Such a backend with a GPU of its own."""
    own = own_depth(by, default_target_ms=default_target_ms)
    return choosing(backend_spec(name, "dspark-8", **limits), own)  # type: ignore[arg-type]  # the limits are numbers
