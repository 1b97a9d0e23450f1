"""Claims about what a step costs: growth, savings, what verifying and drafting take, confidence scheduling."""

from __future__ import annotations

from _claims_data import LENDER, Finding, Measured

from selector.files.profile import NO_DRAFTER

TBT_GROWTH = "TBT growth, batch 1 to 32"
GROWTH_OF_MIXTURES = "2.5-4.0 x (MoE)"
BLOCK_DRAFTERS = ("DFLASH", "DSPARK")
TYPES = ("code", "math", "conversation")
"""Text types with published accept lengths."""


def tbt_growth(one: Measured, context: float) -> Finding:
    """Step time of `none` at batch 32 over that at batch 1."""
    first, last = one.step(NO_DRAFTER, 1, context), one.step(NO_DRAFTER, 32, context)
    paper = GROWTH_OF_MIXTURES if one.is_mixture else "9-34 % (dense)"
    if first is None or last is None:
        return Finding(claim=TBT_GROWTH, paper=paper, target=one.target, ours="not measured", agrees=None)
    ratio = last[0] / first[0]
    agrees = 2.5 <= ratio <= 4.0 if one.is_mixture else 1.09 <= ratio <= 1.34
    ours = f"{ratio:.2f} x" if one.is_mixture else f"{ratio - 1:.0%}"
    return Finding(claim=TBT_GROWTH, paper=paper, target=one.target, ours=ours, agrees=agrees)


def single_stream(one: Measured, context: float) -> Finding:
    """Largest cut of TBT at batch 1 over drafters and published text types."""
    plain = one.step(NO_DRAFTER, 1, context)
    cuts: list[tuple[float, str]] = []
    for arm in one.drafters():
        own = one.step(arm, 1, context)
        for text_type in TYPES:
            accept = one.accept(arm, text_type)
            if own and plain and accept:
                cuts.append((plain[0] * accept / own[0], f"{arm} on {text_type} ({one.origin(arm, text_type)} accept)"))
    claim = "speculation cuts single-stream TBT"
    if not cuts:
        return Finding(claim=claim, paper="1.3-4.3 x", target=one.target, ours="no accept lengths", agrees=None)
    best = [
        max(cut for cut in cuts if cut[1].startswith(f"{arm} ")) for arm in dict.fromkeys(c[1].split()[0] for c in cuts)
    ]
    low, high = min(best), max(best)
    return Finding(
        claim=claim,
        paper="1.3-4.3 x",
        target=one.target,
        ours=f"{low[0]:.1f} x ({low[1]}) to {high[0]:.1f} x ({high[1]})",
        agrees=1.3 <= high[0] <= 4.3,
    )


def block_drafters(one: Measured, context: float) -> Finding:
    """J per accepted token of block drafters over `none`, conversation, at batch 1 and at the largest batch."""
    claim = "block drafters' saving turns into loss at large batch"
    rows, turns = [], []
    for arm in one.drafters():
        accept = one.accept(arm, "conversation")
        if one.profile.arms[arm].algorithm not in BLOCK_DRAFTERS or accept is None:
            continue
        last = one.profile.cost(arm).step.max_batch
        savings = []
        for batch in (1, last):
            own, plain = one.step(arm, batch, context), one.step(NO_DRAFTER, batch, context)
            if own and plain:
                savings.append(1 - own[1] / accept / plain[1])
        if len(savings) == 2:
            lent = f", {LENDER}'s" if one.is_lent(arm, "conversation") else ""
            rows.append(f"{arm}: {savings[0]:+.0%} at 1, {savings[1]:+.0%} at {last} (a = {accept:.2f}{lent})")
            turns.append(savings[0] > 0 > savings[1])
    ours = "; ".join(rows) or "no block drafter with accept lengths"
    return Finding(claim=claim, paper="yes", target=one.target, ours=ours, agrees=any(turns) if turns else None)


def verification_share(one: Measured, context: float) -> Finding | None:
    """Share of a drafting step's energy above that of a plain step of as many rows, at batch 8: what drafting adds.

    Verifying w tokens for each of b requests multiplies b · w rows by the weights, as a plain step of batch b · w does
    (it reads more KV cache, so this understates drafting a little).
    """
    if one.is_mixture:
        return None
    shares = []
    for arm in one.drafters():
        width = one.profile.arms[arm].verify_tokens
        own = one.step(arm, 8, context)
        verifying = one.step(NO_DRAFTER, 8 * width, context / width)
        if own and verifying:
            shares.append((1 - verifying[1] / own[1], arm))
    claim = "verification, not drafting, is most of the energy (dense)"
    if not shares:
        return Finding(claim=claim, paper="yes", target=one.target, ours="no arm of that width measured", agrees=None)
    ours = "drafting and overhead: " + ", ".join(f"{arm} {share:.0%}" for share, arm in shares)
    return Finding(
        claim=claim, paper="yes", target=one.target, ours=ours, agrees=all(share < 0.5 for share, _ in shares)
    )


def confidence_scheduling(one: Measured, context: float) -> Finding:
    """DSpark's scheduled modes against its default at batch 32, at equal accept length.

    No verdict on a mode that was measured on another day: boards differ by as much as the claim says.
    """
    claim = "DSpark's confidence scheduling verifies the full block and saves a few points less at serving batch"
    default = next((arm for arm in one.drafters() if arm == "dspark-8"), None)
    modes = [arm for arm in one.drafters() if arm.startswith("dspark-8-")]
    own = one.step(default, 32, context) if default else None
    rows, less = [], []
    for mode in modes:
        other = one.step(mode, 32, context)
        if own and other:
            apart = one.measured_on(mode) != one.measured_on(default)
            words = f"{mode}: {other[1] / own[1] - 1:+.1%} step energy at 32"
            rows.append(f"{words}, measured on another day than {default}" if apart else words)
            if not apart:
                less.append(0 < other[1] / own[1] - 1 < 0.15)
    ours = "; ".join(rows) or "no scheduled mode measured"
    return Finding(claim=claim, paper="yes", target=one.target, ours=ours, agrees=all(less) if less else None)


def tighter_target(one: Measured, context: float) -> Finding:
    """Least J per accepted token on conversation within 25 ms and within 5 ms, over arms and batches."""
    least: dict[float, float] = {}
    lent: dict[float, bool] = {}
    for target_ms in (25.0, 5.0):
        for arm in one.profile.arms:
            accept = 1.0 if arm == NO_DRAFTER else one.accept(arm, "conversation")
            for batch in range(1, 65):
                own = one.step(arm, batch, context)
                if own and accept and own[0] / accept <= target_ms:
                    j = own[1] / batch / accept
                    if j < least.get(target_ms, float("inf")):
                        least[target_ms], lent[target_ms] = j, one.is_lent(arm, "conversation")
    claim = "a tighter target met by speculation costs energy"
    if len(least) < 2:
        return Finding(claim=claim, paper="yes", target=one.target, ours="no arm meets both targets", agrees=None)
    ours = f"{least[25.0]:.4f} J/token within 25 ms, {least[5.0]:.4f} within 5 ms"
    ours += f" ({LENDER}'s accept)" if any(lent.values()) else ""
    return Finding(claim=claim, paper="yes", target=one.target, ours=ours, agrees=least[5.0] > least[25.0])
