"""Every claim of the published study gets a row, and its verdict follows the profiles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from selector.files.profile import NO_DRAFTER, Profile

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _claims_data import Finding, Measured, shipped
from paper_claims import found

from tests.profiles import sparse_profile

CONTEXT = 704.0


def renamed(target: str, *, variant: str = "", scale: dict[tuple[str, int], float] | None = None) -> Measured:
    """The first profile as one of another target, without accept lengths; step costs of (arm, batch) scaled."""
    profile = sparse_profile()
    lent = {name: arm.acceptance for name, arm in profile.arms.items()}
    arms = {
        name: arm.model_copy(
            update={
                "acceptance": {},
                "cells": tuple(
                    cell.model_copy(
                        update={
                            "step_ms": cell.step_ms * (scale or {}).get((name, cell.batch), 1.0),
                            "step_j": cell.step_j * (scale or {}).get((name, cell.batch), 1.0),
                        }
                    )
                    for cell in arm.cells
                ),
            }
        )
        for name, arm in profile.arms.items()
    }
    other: Profile = profile.model_copy(
        update={"arms": arms, "target": profile.target.model_copy(update={"name": target})}
    )
    return Measured(target, other, variant, lent)


def rows(findings: list[Finding], words: str) -> list[Finding]:
    return [finding for finding in findings if words in finding.claim]


def test_every_claim_has_a_row_even_where_nothing_was_measured() -> None:
    findings = found(shipped(), CONTEXT)
    for words in (
        "TBT growth", "cuts single-stream TBT", "turns into loss", "verification, not drafting",
        "graphs off inflates", "graphs off flips", "confidence scheduling", "misses 25 ms", "miss 10 ms",
        "code accepts more", "tighter target", "DVFS", "balance point",
    ):  # fmt: skip
        assert rows(findings, words), words
    assert {finding.target for finding in rows(findings, "flips")} == {"Qwen3.6-35B-A3B", "gemma-4-26B-A4B"}


def test_a_mixture_is_held_against_the_range_of_mixtures() -> None:
    [flat] = rows(found([renamed("GLM-4.7-Flash")], CONTEXT), "TBT growth")
    assert (flat.target, flat.agrees) == ("GLM-4.7-Flash", False)
    steep = renamed("GLM-4.7-Flash", scale={(NO_DRAFTER, 1): 0.4})
    [growing] = rows(found([steep], CONTEXT), "TBT growth")
    assert growing.agrees is True and "MoE" in growing.paper


def test_borrowed_accept_lengths_are_said_to_be() -> None:
    [cut] = rows(found([renamed("Qwen3-14B")], CONTEXT), "cuts single-stream TBT")
    assert "Qwen3-8B's accept" in cut.ours


def test_lent_accept_lengths_say_nothing_of_a_target_s_text_types() -> None:
    [lent] = [row for row in rows(found([renamed("Qwen3-14B")], CONTEXT), "code accepts") if row.target == "Qwen3-14B"]
    assert (lent.agrees, lent.ours) == (None, "no accept lengths of its own")


@pytest.mark.parametrize(("days", "agrees"), [(("29", "29"), True), (("29", "30"), None)])
def test_a_mode_measured_on_another_day_is_not_judged_by_a_few_points(
    days: tuple[str, str], agrees: bool | None
) -> None:
    profile = sparse_profile()
    block = profile.arm("dspark-8")
    arms, provenance = dict(profile.arms), dict(profile.provenance)
    source = provenance[block.cells[0].provenance]
    for name, day, scale in (("dspark-8", days[0], 1.0), ("dspark-8-compact", days[1], 1.05)):
        provenance[name] = source.model_copy(update={"date": f"2026-11-{day}T10:00:00+00:00"})
        cells = [c.model_copy(update={"step_j": scale * c.step_j, "provenance": name}) for c in block.cells]
        arms[name] = block.model_copy(update={"cells": tuple(cells)})
    one = Measured("p", profile.model_copy(update={"arms": arms, "provenance": provenance}))
    [finding] = rows(found([one], CONTEXT), "confidence scheduling")
    assert finding.ours.startswith("dspark-8-compact: +5")
    assert finding.agrees is agrees and ("another day" in finding.ours) == (agrees is None)


def test_rankings_flip_only_where_the_order_changes() -> None:
    usual = renamed("gemma-4-26B-A4B")
    same = renamed("gemma-4-26B-A4B", variant="no-graphs")
    other = renamed("gemma-4-26B-A4B", variant="no-graphs", scale={("dspark-8", 1): 9.0, ("dflash-16", 1): 9.0})
    for off, flips in ((same, False), (other, True)):
        verdicts = {finding.target: finding.agrees for finding in rows(found([usual, off], CONTEXT), "flips")}
        assert verdicts == {"gemma-4-26B-A4B": flips, "Qwen3.6-35B-A3B": None}


@pytest.mark.parametrize(("scale", "agrees"), [(1.0, False), (9.0, True)])
def test_the_slowest_target_misses_25_ms_only_if_every_batch_does(scale: float, agrees: bool) -> None:
    slow = renamed("gemma-4-31B-it", scale={(NO_DRAFTER, batch): scale for batch in (1, 8, 16, 32, 64)})
    [finding] = rows(found([slow], CONTEXT), "misses 25 ms")
    assert finding.agrees is agrees
