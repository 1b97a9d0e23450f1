"""What backends report of speculation for a request: verify passes and accepted drafts, by any of SGLang's namings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCounts:
    """What a backend reported about speculation for one request."""

    verify_passes: int
    accepted_drafts: int
    accept_rate: float | None = None
    """Accepted over proposed drafts as reported, which may be impossible; `None` when it was not."""
    proposed_drafts: int | None = None
    """Drafts that were verified, as reported; `None` when it was not."""


def spec_counts(report: Mapping[str, Any]) -> SpecCounts | None:
    """Verify passes and accepted drafts from `meta_info` or `spec_tokens_details`, by any of SGLang's three namings.

    `None` when the keys are absent or are no counts: unknown is not zero. Whether the counts are possible is for the
    acceptance model to say.
    """
    passes = report.get("spec_verify_ct")
    rate, proposed = report.get("spec_accept_rate"), report.get("spec_num_proposed_drafts")
    for key in ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"):
        drafts = report.get(key)
        if is_count(passes) and is_count(drafts):
            return SpecCounts(
                verify_passes=passes,
                accepted_drafts=drafts,
                accept_rate=float(rate) if isinstance(rate, (int, float)) else None,
                proposed_drafts=proposed if is_count(proposed) else None,
            )
    return None


def counts_of_choices(reports: Iterable[Mapping[str, Any]]) -> SpecCounts | None:
    """One request with several choices, as the sum of what each reports; `None` where none reports any."""
    known = [count for count in map(spec_counts, reports) if count is not None]
    negative = [count for count in known if count.verify_passes < 0 or count.accepted_drafts < 0]
    if negative:
        # A sum with the others could look possible.
        return negative[0]
    if not known:
        return None
    proposed = [count.proposed_drafts for count in known if count.proposed_drafts is not None]
    return SpecCounts(
        verify_passes=sum(count.verify_passes for count in known),
        accepted_drafts=sum(count.accepted_drafts for count in known),
        accept_rate=max((count.accept_rate for count in known if count.accept_rate is not None), default=None),
        proposed_drafts=sum(proposed) if len(proposed) == len(known) else None,
    )


def is_count(value: object) -> TypeGuard[int]:
    """A whole number; JSON's `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool)
