"""What a published study of speculative decoding's energy claims, against the shipped profiles.

    python bench/paper_claims.py [--json] [--context-tokens 704]

Prints claim, the paper's figure, ours, and whether they agree, per target where that matters. Everything of ours is
computed from `profiles/*.json`: step costs as measured there, accept lengths with the provenance they have there (many
are published or assumed, and said to be). A claim that no shipped profile can speak to says what is missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from _claims_cost import (
    GROWTH_OF_MIXTURES,
    TBT_GROWTH,
    block_drafters,
    confidence_scheduling,
    single_stream,
    tbt_growth,
    tighter_target,
    verification_share,
)
from _claims_data import RESULTS, Finding, Measured, shipped
from _claims_fleet import (
    balance_point,
    dvfs,
    graphs_off,
    measured_text_types,
    meets_with,
    misses_without,
    rankings,
    text_types,
)
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


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


def found(profiles: Sequence[Measured], context: float) -> list[Finding]:
    """Every claim, in the paper's order; one that no profile speaks to says so."""
    usual = [one for one in profiles if not one.variant]
    per_target: list[Callable[[Measured, float], Finding | None]] = [
        tbt_growth, single_stream, block_drafters, verification_share, confidence_scheduling, tighter_target
    ]  # fmt: skip
    findings = [finding for claim in per_target for one in usual if (finding := claim(one, context)) is not None]
    if not any(one.is_mixture for one in usual):
        findings.append(
            Finding(
                claim=TBT_GROWTH, paper=GROWTH_OF_MIXTURES, target="mixtures of experts", ours="none is profiled",
                agrees=None,
            )
        )  # fmt: skip
    return [
        *findings,
        *(text_types(one) for one in usual),
        measured_text_types(),
        graphs_off(usual, profiles, context),
        *rankings(usual, profiles, context),
        misses_without(usual, context),
        meets_with(usual, context),
        dvfs(),
        balance_point(),
    ]


if __name__ == "__main__":
    main()
