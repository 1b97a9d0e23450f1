"""What a published study of speculative decoding's energy claims, against the shipped profiles.

    python bench/paper_claims.py [--json] [--context-tokens 704]

Prints claim, the paper's figure, ours, and whether they agree, per target where that matters. Everything of ours is
computed from `profiles/*.json`: step costs as measured there, accept lengths with the provenance they have there (many
are published or assumed, and said to be). A claim that no shipped profile can speak to says what is missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.errors import DomainError
from selector.files.profile import NO_DRAFTER, Profile, load_profile
from selector.files.shipped import profile_names

RESULTS = Path(__file__).parent / "results"
MIXTURES = {
    "Qwen3-Coder-30B-A3B",
    "Qwen3-30B-A3B",
    "Qwen3.6-35B-A3B",
    "gemma-4-26B-A4B",
    "GLM-4.7-Flash",
    "JoyAI-LLM-Flash",
}
PAPER_TARGETS = 11
BLOCK_DRAFTERS = ("DFLASH", "DSPARK")
TYPES = ("code", "math", "conversation")
"""Text types with published accept lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim on one target, or on all of them."""

    claim: str
    paper: str
    target: str
    ours: str
    agrees: bool | None
    """`None` where it cannot be said."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A shipped profile and its name; `variant` tells special launches apart (`no-graphs`), empty for the usual one."""

    name: str
    profile: Profile
    variant: str

    @property
    def target(self) -> str:
        return self.profile.target.name

    @property
    def is_mixture(self) -> bool:
        return self.target in MIXTURES

    def step(self, arm: str, batch: int, context: float) -> tuple[float, float] | None:
        """(ms, J) of a step, `None` outside the measured batches."""
        cost = self.profile.cost(arm).step
        if not cost.min_batch <= batch <= cost.max_batch:
            return None
        try:
            return cost.step(batch, context)
        except DomainError:
            return None

    def drafters(self) -> Iterable[str]:
        return (name for name in self.profile.arms if name != NO_DRAFTER)

    def accept(self, arm: str, text_type: str) -> float | None:
        value = self.profile.arms[arm].acceptance.get(text_type)
        return None if value is None else value.mean

    def origin(self, arm: str, text_type: str) -> str:
        return self.profile.provenance[self.profile.arms[arm].acceptance[text_type].provenance].kind


def main() -> None:
    """Prints the table, and writes it to bench/results/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context-tokens", type=float, default=704.0, help="context of a request; default: 704")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    findings = found(shipped(), args.context_tokens)
    document = {"context_tokens": args.context_tokens, "findings": [asdict(finding) for finding in findings]}
    (RESULTS / "paper_claims.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(document))
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for column in ("claim", "paper", "target", "ours", "agrees"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        verdict = {True: "yes", False: "no", None: "-"}[finding.agrees]
        table.add_row(finding.claim, finding.paper, finding.target, finding.ours, verdict)
    Console().print(table)


def shipped() -> list[Measured]:
    """The profiles that come with the project; of several of one target and variant, the one with most cells."""
    best: dict[tuple[str, str], Measured] = {}
    for name in profile_names():
        profile = load_profile(name)
        variant = "no-graphs" if name.endswith("-no-graphs") else ""
        one = Measured(name, profile, variant)
        key = (profile.target.name, variant)
        if key not in best or _cells(one) > _cells(best[key]):
            best[key] = one
    return list(best.values())


def _cells(one: Measured) -> int:
    return sum(len(arm.cells) for arm in one.profile.arms.values())


def found(profiles: list[Measured], context: float) -> list[Finding]:
    """Every claim, in the paper's order."""
    usual = [one for one in profiles if not one.variant]
    per_target: list[Callable[[Measured, float], Finding | None]] = [
        tbt_growth, single_stream, block_drafters, verification_share, confidence_scheduling, misses_without
    ]  # fmt: skip
    findings = [finding for claim in per_target for one in usual if (finding := claim(one, context)) is not None]
    findings += [text_types(one) for one in usual]
    findings += [tighter_target(one, context) for one in usual]
    findings += [graphs_off(usual, profiles, context), meets_with(usual, context), dvfs(), balance_point()]
    return findings


def tbt_growth(one: Measured, context: float) -> Finding:
    """Step time of `none` at batch 32 over that at batch 1."""
    first, last = one.step(NO_DRAFTER, 1, context), one.step(NO_DRAFTER, 32, context)
    paper = "2.5-4.0 x (MoE)" if one.is_mixture else "9-34 % (dense)"
    if first is None or last is None:
        return Finding(
            claim="TBT growth, batch 1 to 32", paper=paper, target=one.target, ours="not measured", agrees=None
        )
    ratio = last[0] / first[0]
    agrees = 2.5 <= ratio <= 4.0 if one.is_mixture else 1.09 <= ratio <= 1.34
    ours = f"{ratio:.2f} x" if one.is_mixture else f"{ratio - 1:.0%}"
    return Finding(claim="TBT growth, batch 1 to 32", paper=paper, target=one.target, ours=ours, agrees=agrees)


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
            rows.append(f"{arm}: {savings[0]:+.0%} at 1, {savings[1]:+.0%} at {last} (a = {accept:.2f})")
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
    """DSpark's scheduled modes against its default at batch 32, at equal accept length."""
    claim = "DSpark's confidence scheduling verifies the full block and saves a few points less at serving batch"
    default = next((arm for arm in one.drafters() if arm == "dspark-8"), None)
    modes = [arm for arm in one.drafters() if arm.startswith("dspark-8-")]
    own = one.step(default, 32, context) if default else None
    rows, less = [], []
    for mode in modes:
        other = one.step(mode, 32, context)
        if own and other:
            rows.append(f"{mode}: {other[1] / own[1] - 1:+.1%} step energy at 32")
            less.append(0 < other[1] / own[1] - 1 < 0.15)
    ours = "; ".join(rows) or "no scheduled mode measured"
    return Finding(claim=claim, paper="yes", target=one.target, ours=ours, agrees=all(less) if less else None)


def misses_without(one: Measured, context: float) -> Finding | None:
    """Which batches of `none` miss 25 ms."""
    if one.target != "gemma-4-31B-it":
        return None
    cells = [(batch, one.step(NO_DRAFTER, batch, context)) for batch in (1, 2, 4, 8, 16, 32, 64)]
    known = [(batch, step[0]) for batch, step in cells if step]
    return Finding(
        claim="without speculation gemma-4-31B-it misses 25 ms at every batch",
        paper="yes",
        target=one.target,
        ours=", ".join(f"{ms:.1f} ms at {batch}" for batch, ms in known),
        agrees=all(ms > 25 for _, ms in known) if known else None,
    )


def meets_with(usual: list[Measured], context: float) -> Finding:
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
    """Order of accept lengths between text types."""
    rows, right, assumed = [], [], False
    for arm in one.drafters():
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
        ours=("; ".join(rows) or "no accept lengths") + note, agrees=all(right) if right else None,
    )  # fmt: skip


def tighter_target(one: Measured, context: float) -> Finding:
    """Least J per accepted token on conversation within 25 ms and within 5 ms, over arms and batches."""
    least: dict[float, float] = {}
    for target_ms in (25.0, 5.0):
        for arm in one.profile.arms:
            accept = 1.0 if arm == NO_DRAFTER else one.accept(arm, "conversation")
            for batch in range(1, 65):
                own = one.step(arm, batch, context)
                if own and accept and own[0] / accept <= target_ms:
                    least[target_ms] = min(least.get(target_ms, float("inf")), own[1] / batch / accept)
    claim = "a tighter target met by speculation costs energy"
    if len(least) < 2:
        return Finding(claim=claim, paper="yes", target=one.target, ours="no arm meets both targets", agrees=None)
    ours = f"{least[25.0]:.4f} J/token within 25 ms, {least[5.0]:.4f} within 5 ms"
    return Finding(claim=claim, paper="yes", target=one.target, ours=ours, agrees=least[5.0] > least[25.0])


def graphs_off(usual: list[Measured], profiles: list[Measured], context: float) -> Finding:
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


if __name__ == "__main__":
    main()
