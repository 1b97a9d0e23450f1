"""What `simulate --oracle` prints for people, and its one number."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rich.console import Console

from selector.cli.arguments import figure
from selector.simulator.oracle.compared import Compared
from selector.simulator.page.names import target_words


def least_bound(compared: Sequence[Compared]) -> float | None:
    """The least of the bounds: it bounds every result that has one. `None` without any."""
    return min(_finite(compared), default=None)


def print_bounds(compared: Sequence[Compared], console: Console) -> None:
    """A line for each result."""
    if compared:
        console.print(
            "\noracle: with arrivals, lengths and accept lengths known, no policy that serves every request\n"
            "takes fewer joules per accepted token at the same attainment (a lower bound, see docs/oracle.md)"
        )
    several = len({each.tbt_target_ms for each in compared}) > 1
    for each in compared:
        name = each.policy + (f", {target_words(each.tbt_target_ms)}" if several else "")
        if each.j_per_accepted_token is None:
            console.print(f"{name}: no bound, for it refused requests that could be served")
            continue
        reached = "" if each.tbt_attainment is None else f" at {each.tbt_attainment:.1%} attained"
        above = "" if each.above_frac is None else f", the policy is {each.above_frac:.1%} above"
        console.print(f"{name}: {figure(each.j_per_accepted_token, 4)} J/token{reached}{above}")


def _finite(compared: Sequence[Compared]) -> list[float]:
    bounds = [each.j_per_accepted_token for each in compared]
    return [bound for bound in bounds if bound is not None and bound < inf]
