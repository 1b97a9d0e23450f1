"""Claims about targets met, text types, CUDA graphs and the GPU itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from _claims_data import RESULTS, Finding, Measured

from selector.files.profile import NO_DRAFTER
from selector.profiler.acceptance import summarised
from selector.profiler.cells import read_cells
from selector.profiler.joinacceptance import acceptance_cells

PAPER_TARGETS = 11
SLOW_TARGET = "gemma-4-31B-it"
FLIPPING = ("Qwen3.6-35B-A3B", "gemma-4-26B-A4B")
CPU_ARM, NGRAM_WIDTH = "ngram-8", 8
CPU_CELLS = Path(__file__).resolve().parents[1] / "profiles" / "raw" / "cpu__smollm2-135m.cells.jsonl"


def misses_without(usual: Sequence[Measured], context: float) -> Finding:
    """Which batches of `none` miss 25 ms on the slowest target."""
    claim = f"without speculation {SLOW_TARGET} misses 25 ms at every batch"
    one = next((each for each in usual if each.target == SLOW_TARGET), None)
    if one is None:
        return Finding(claim=claim, paper="yes", target=SLOW_TARGET, ours="not profiled", agrees=None)
    cells = [(batch, one.step(NO_DRAFTER, batch, context)) for batch in (1, 2, 4, 8, 16, 32, 64)]
    known = [(batch, step[0]) for batch, step in cells if step]
    return Finding(
        claim=claim,
        paper="yes",
        target=one.target,
        ours=", ".join(f"{ms:.1f} ms at {batch}" for batch, ms in known),
        agrees=all(ms > 25 for _, ms in known) if known else None,
    )


def meets_with(usual: Sequence[Measured], context: float) -> Finding:
    """Targets that miss 10 ms at batch 1 without speculation, and whether some drafter meets it."""
    missing, meeting = [], []
    for one in usual:
        plain = one.step(NO_DRAFTER, 1, context)
        if plain is None or plain[0] <= 10:
            continue
        missing.append(one.target)
        times = [
            own[0] / accept
            for arm in one.drafters()
            if (own := one.step(arm, 1, context)) and (accept := one.accept(arm, "conversation"))
        ]
        if times and min(times) <= 10:
            meeting.append(one.target)
    ours = f"{len(missing)} of {len(usual)} profiled targets miss 10 ms without, {len(meeting)} of those meet it with"
    agrees = None if len(usual) < PAPER_TARGETS else len(missing) == 4 and meeting == missing
    return Finding(
        claim="4 of 11 models miss 10 ms without speculation, all meet it with", paper="4 of 11", target="all",
        ours=ours, agrees=agrees,
    )  # fmt: skip


def text_types(one: Measured) -> Finding:
    """Order of accept lengths between text types, of arms that have their own: lent ones say nothing of the target."""
    rows, right, assumed = [], [], False
    for arm in one.drafters():
        if one.is_lent(arm, "code"):
            continue
        code, talk = one.accept(arm, "code"), one.accept(arm, "conversation")
        news, romansh = one.accept(arm, "news"), one.accept(arm, "romansh")
        if None in (code, talk, news, romansh) or one.profile.arms[arm].algorithm == "NGRAM":
            continue
        assumed = assumed or "assumed" in (one.origin(arm, "news"), one.origin(arm, "romansh"))
        rows.append(f"{arm}: {code:.2f} > {talk:.2f}, {news:.2f} > {romansh:.2f}")
        right.append(code > talk)  # type: ignore[operator]  # none of them is None here
    note = "; news and Romansh are assumptions, so only the first is compared" if assumed else ""
    return Finding(
        claim="code accepts more than conversation, English news more than Romansh", paper="yes", target=one.target,
        ours=("; ".join(rows) or "no accept lengths of its own") + note, agrees=all(right) if right else None,
    )  # fmt: skip


def graphs_off(usual: Sequence[Measured], profiles: Sequence[Measured], context: float) -> Finding:
    """Saving of drafters at batch 1 with and without CUDA graphs, where both were profiled."""
    rows, right = [], []
    for one in usual:
        other = next((each for each in profiles if each.target == one.target and each.variant == "no-graphs"), None)
        if other is None:
            continue
        points = []
        for arm in set(one.drafters()) & set(other.drafters()):
            accept = one.accept(arm, "conversation")
            pair = [
                1 - own[1] / accept / plain[1]
                for each in (one, other)
                if accept and (own := each.step(arm, 1, context)) and (plain := each.step(NO_DRAFTER, 1, context))
            ]
            if len(pair) == 2:
                points.append(100 * (pair[1] - pair[0]))
        if points:
            mean = fmean(points)
            rows.append(f"{one.target}: {mean:+.0f} points")
            right.append(19 <= mean <= 39 if one.is_mixture else 0 < mean < 10)
    return Finding(
        claim="CUDA graphs off inflates the saving", paper="< 10 points (dense), 19-39 (MoE)", target="all",
        ours="; ".join(rows) or "no target was profiled without graphs", agrees=all(right) if right else None,
    )  # fmt: skip


def rankings(usual: Sequence[Measured], profiles: Sequence[Measured], context: float) -> list[Finding]:
    """Order of the arms by J per accepted token at batch 1, with and without CUDA graphs."""
    findings = []
    for target in FLIPPING:
        orders = []
        for some in (usual, [each for each in profiles if each.variant == "no-graphs"]):
            one = next((each for each in some if each.target == target), None)
            orders.append([] if one is None else _ranked(one, context))
        both = set(orders[0]) & set(orders[1])
        first, second = ([arm for arm in order if arm in both] for order in orders)
        known = len(both) > 1
        ours = f"with: {' < '.join(first)}; without: {' < '.join(second)}" if known else "not profiled both ways"
        findings.append(
            Finding(
                claim="CUDA graphs off flips rankings at single stream", paper="yes", target=target, ours=ours,
                agrees=first != second if known else None,
            )
        )  # fmt: skip
    return findings


def _ranked(one: Measured, context: float) -> list[str]:
    costs = {}
    for arm in one.profile.arms:
        accept = 1.0 if arm == NO_DRAFTER else one.accept(arm, "conversation")
        own = one.step(arm, 1, context)
        if own and accept:
            costs[arm] = own[1] / accept
    return sorted(costs, key=lambda arm: costs[arm])


def measured_text_types() -> Finding:
    """The same order in accept lengths that were measured: a lookup drafter with a small model on a CPU."""
    claim = "code accepts more than conversation, English news more than Romansh"
    paper, target = "yes, drafts that are models", "SmolLM2-135M on a CPU, NGRAM"
    lengths = {}
    for (arm, text_type), cells in acceptance_cells(read_cells(CPU_CELLS)).items():
        if arm != CPU_ARM:
            continue
        found = summarised([answer for cell in cells for answer in cell.answers], NGRAM_WIDTH)
        if found is not None:
            lengths[text_type] = found.mean
    pairs = (("code", "conversation"), ("news", "romansh"))
    if not all(name in lengths for pair in pairs for name in pair):
        return Finding(claim=claim, paper=paper, target=target, ours="not measured", agrees=None)
    ours = "; ".join(f"{high} {lengths[high]:.2f}, {low} {lengths[low]:.2f}" for high, low in pairs)
    agrees = all(lengths[high] > lengths[low] for high, low in pairs)
    return Finding(claim=claim, paper=paper, target=target, ours=ours, agrees=agrees)


def dvfs() -> Finding:
    """Not ours to try."""
    return Finding(
        claim="DVFS", paper="lower clocks save energy", target="all", ours="not run: the clocks are not ours to set",
        agrees=None,
    )  # fmt: skip


def balance_point() -> Finding:
    """Arithmetic intensity at which reading and computing take as long, by `bench/balance_point.py`."""
    path = RESULTS / "balance_point.json"
    claim, paper = "balance point", "163 op/byte (4.44 TB/s, 722 TFLOP/s)"
    if not path.exists():
        return Finding(claim=claim, paper=paper, target="GPU", ours="not measured", agrees=None)
    measured = json.loads(path.read_text(encoding="utf-8"))
    rates = f"{measured['bytes_per_s'] / 1e12:.2f} TB/s, {measured['flop_per_s'] / 1e12:.0f} TFLOP/s"
    ours = f"{measured['flop_per_byte']:.0f} op/byte ({rates})"
    return Finding(
        claim=claim, paper=paper, target="GPU", ours=ours, agrees=abs(measured["flop_per_byte"] / 163 - 1) <= 0.1
    )
