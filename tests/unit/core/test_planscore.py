"""What an assignment of demands to arms costs: where overflow goes."""

from __future__ import annotations

from tests.demands import demand, planner


def test_overflow_goes_where_so_much_of_it_costs_least() -> None:
    asked = demand("conversation", 1.0, target_ms=8.0)
    solver = planner("dspark-8", "eagle3-k1", "dflash-16", "none")
    few, many = (
        solver.evaluate([asked], {asked.key: "dspark-8"}, population=population).arms_of[asked.key][1]
        for population in (60.0, 106.0)
    )
    # A block drafter is the cheaper the emptier its backend, and the dearer the fuller.
    assert (few, many) == ("dflash-16", "eagle3-k1")
