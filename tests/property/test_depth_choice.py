"""What holds of every choice of depth, whatever the costs, the text, the load and the targets."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.depthbatch import DepthBatch
from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtable import DepthTable
from selector.core.depthtexts import DepthAcceptances
from tests.depthtables import straight_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One step's batch and target."""

    batch: int
    target_ms: float | None


tables = st.builds(
    straight_table,
    st.sets(st.integers(0, 7), min_size=1, max_size=5).map(lambda depths: tuple(sorted(depths))),
    ms=st.floats(1.0, 20.0),
    ms_per_depth=st.floats(0.0, 3.0),
    j=st.floats(0.5, 10.0),
    j_per_depth=st.floats(0.0, 3.0),
    ms_per_request=st.floats(0.0, 0.2),
    j_per_request=st.floats(0.0, 0.3),
)
loads = st.lists(
    st.builds(Load, batch=st.integers(1, 80), target_ms=st.none() | st.floats(0.5, 30.0)), min_size=1, max_size=60
)


def chosen(table: DepthTable, survival: float, options: ChoiceOptions, spread: float) -> DepthChoice:
    acceptance = DepthAcceptances(geometric_survivals(survival, 7), SlowRequests.at(0.9, spread_frac=spread))
    return DepthChoice(table, acceptance, options, start_depth=table.depths[len(table.depths) // 2])


@given(
    table=tables,
    survival=st.floats(0.01, 0.99),
    seen=st.floats(0.01, 0.99),
    spread=st.floats(0.0, 0.4),
    loads=loads,
    trial_every_steps=st.sampled_from([0, 1, 7]),
    dwell_steps=st.integers(0, 30),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_never_an_infeasible_depth_when_a_feasible_one_exists(
    table: DepthTable,
    survival: float,
    seen: float,
    spread: float,
    loads: list[Load],
    trial_every_steps: int,
    dwell_steps: int,
    seed: int,
) -> None:
    options = ChoiceOptions(trial_every_steps=trial_every_steps, dwell_steps=dwell_steps)
    choice, draw = chosen(table, survival, options, spread), Random(seed)
    for load in loads:
        for _ in range(3):
            tbt_ms = {point.depth: point.tbt_ms for point in choice.points(load.batch, 0.0)}
            depth = choice.choose(DepthBatch.alike(load.batch, load.target_ms), 0.0)
            assert depth in tbt_ms
            if load.target_ms is not None and min(tbt_ms.values()) <= load.target_ms:
                if depth > 0 and choice.depth == 0:
                    # Without drafts nothing is learnt: a trial goes by what a depth would give if all were accepted.
                    assert table.step(depth, load.batch, 0.0)[0] <= load.target_ms * (depth + 1)
                else:
                    assert tbt_ms[depth] <= load.target_ms
            accepted = [sum(draw.random() < seen for _ in range(depth)) for _ in range(load.batch)]
            choice.acceptance.observe(depth, accepted, DepthBatch.alike(load.batch))


@given(
    table=tables,
    survival=st.floats(0.05, 0.95),
    batch=st.integers(1, 64),
    target_ms=st.none() | st.floats(0.5, 30.0),
    dwell_steps=st.integers(1, 50),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_under_a_steady_load_and_noise_it_settles_near_the_best(
    table: DepthTable, survival: float, batch: int, target_ms: float | None, dwell_steps: int, seed: int
) -> None:
    options = ChoiceOptions(dwell_steps=dwell_steps, trial_every_steps=0)
    choice, draw = chosen(table, survival, options, 0.1), Random(seed)
    curve = geometric_survivals(survival, 7)
    steps = 400
    for _ in range(steps):
        depth = choice.choose(DepthBatch.alike(batch, target_ms), 0.0)
        chances = [draw.random() for _ in range(batch)]
        accepted = [sum(chance < s for s in curve[:depth]) for chance in chances]
        choice.acceptance.observe(depth, accepted, DepthBatch.alike(batch))
    points = choice.points(batch, 0.0)
    within = [point for point in points if target_ms is None or point.tbt_ms <= target_ms]
    if target_ms is None:
        assert choice.changes <= 1 + steps // (dwell_steps + 1)
    if within and target_ms is None:
        best = min(point.j_per_accepted_token for point in within)
        taken = next(point for point in points if point.depth == choice.depth)
        waits = dwell_steps > steps // 4
        assert waits or taken.j_per_accepted_token <= best / (1.0 - options.margin_frac) * 1.02


def test_noise_at_the_break_even_does_not_make_it_flap() -> None:
    # Depths 0 and 1 cost the same per token at the survival that is drawn: only noise tells them apart.
    survival = 0.6
    table = straight_table((0, 1), j=2.0, j_per_depth=2.0 * survival, j_per_request=0.0)
    for batch in (1, 8, 64):
        acceptance = DepthAcceptances(geometric_survivals(survival, 1), SlowRequests.at(0.9))
        choice, draw = DepthChoice(table, acceptance, ChoiceOptions(), start_depth=1), Random(batch)
        steps = 5_000
        for _ in range(steps):
            depth = choice.choose(DepthBatch.alike(batch), 0.0)
            if depth:
                accepted = [int(draw.random() < survival) for _ in range(batch)]
                choice.acceptance.observe(depth, accepted, DepthBatch.alike(batch))
        assert choice.changes < steps / 250
