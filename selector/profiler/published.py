"""Accept lengths for a profile from published tables: taken over, converted to the arm's verify width, or assumed.

`published` rows have at least the columns source_id, source_url, model, drafter, algorithm, draft_tokens (the bonus
position included), dataset, text_type, temperature and accept_length (the bonus token included).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from selector.core.acceptance import accept_length_of, survival_rate_of
from selector.files.profile import Acceptance, Provenance

Row = Mapping[str, str]

SOURCE_ID = "dspark_paper_t1"
"""The one source that has all three drafters on all nine data sets; only rows of one source may be compared."""
LOOKUP = "PLD"
REQUEST_SPREAD = 0.15
SURVIVAL_FRAC = {"multilingual": 0.8, "romansh": 0.5}
"""Assumed survival rate of a text type over that of conversation."""
ASSUMED_LIKE = {
    "news": "conversation",
    "long_document": "conversation",
    "structured_output": "code",
    "tool_call": "code",
    "agentic": "code",
}
"""Text types without a published number, and the published one that they are taken to resemble."""
LIKENESS = {
    "conversation": "free English prose, taken to accept like conversation of the same arm",
    "code": "regular syntax with many forced tokens, taken to accept like code of the same arm",
}


def published_acceptance(
    arm: str,
    algorithm: str,
    verify_tokens: int,
    published: Sequence[Row],
    provenance: dict[str, Provenance],
    note: str | None = None,
) -> dict[str, Acceptance]:
    """Accept length of an arm for every text type; adds what it cites to `provenance`.

    Empty without a drafter, and for an algorithm of which the table has no row.
    """
    if verify_tokens == 1:
        return {}
    provenance["assumed-spread"] = Provenance(
        kind="assumed",
        source=f"requests of one text type differ in their mean accept length by {REQUEST_SPREAD:.0%} (relative "
        "standard deviation): data sets of one type differ by up to that much in the published table",
        note="no published number; measure it",
    )
    if algorithm == "NGRAM":
        return _of_lookup(verify_tokens, published, provenance)
    rows = [row for row in published if row["source_id"] == SOURCE_ID and row["algorithm"] == algorithm]
    if not rows:
        return {}
    width = int(rows[0]["draft_tokens"])
    cited = _cite(f"accept-{arm}", rows, width, verify_tokens, provenance, note)
    survival: dict[str, float] = {}
    table: dict[str, Acceptance] = {}
    for text_type in _text_types(rows):
        mean = fmean(float(row["accept_length"]) for row in rows if row["text_type"] == text_type)
        survival[text_type] = survival_rate_of(mean, width)
        origin = None if width == verify_tokens else (round(mean, 4), width)
        table[text_type] = _entry(survival[text_type], verify_tokens, cited, origin)
    for text_type, like in ASSUMED_LIKE.items():
        table[text_type] = _entry(survival[like], verify_tokens, _assume_like(like, provenance))
    for text_type, frac in SURVIVAL_FRAC.items():
        rate = frac * survival["conversation"]
        table[text_type] = _entry(rate, verify_tokens, _assume_frac(text_type, frac, provenance))
    return table


def _of_lookup(
    verify_tokens: int, published: Iterable[Row], provenance: dict[str, Provenance]
) -> dict[str, Acceptance]:
    rows = [row for row in published if row["algorithm"] == LOOKUP]
    if not rows:
        return {}
    provenance["assumed-ngram"] = Provenance(
        kind="assumed",
        source=f"mean of prompt lookup decoding on {', '.join(row['model'] for row in rows)}: {rows[0]['source_url']}",
        note="other targets, drafted width not stated, all tasks mixed; taken for every text type, since a lookup "
        "knows no language. Text that repeats its prompt accepts far more, free text less; measure it",
    )
    rate = survival_rate_of(fmean(float(row["accept_length"]) for row in rows), verify_tokens)
    types = ("math", "code", "conversation", *ASSUMED_LIKE, *SURVIVAL_FRAC)
    return {text_type: _entry(rate, verify_tokens, "assumed-ngram") for text_type in types}


def _entry(survival_rate: float, verify_tokens: int, key: str, origin: tuple[float, int] | None = None) -> Acceptance:
    return Acceptance(
        mean=round(accept_length_of(survival_rate, verify_tokens), 4),
        provenance=key,
        request_spread=REQUEST_SPREAD,
        request_spread_provenance="assumed-spread",
        published_mean=origin and origin[0],
        published_verify_tokens=origin and origin[1],
    )


def _cite(
    key: str, rows: Sequence[Row], width: int, verify_tokens: int, provenance: dict[str, Provenance], note: str | None
) -> str:
    first = rows[0]
    sets = [
        f"{text_type}: {'/'.join(row['dataset'] for row in rows if row['text_type'] == text_type)}"
        for text_type in _text_types(rows)
    ]
    notes = [
        f"{first['drafter']} on {first['model']}, temperature {first['temperature']}, without thinking",
        f"mean over the data sets of a text type ({', '.join(sets)})",
    ]
    if width != verify_tokens:
        notes.append(
            f"published for {width} verified tokens, converted to {verify_tokens} by one survival rate p, "
            "(1 − p^w) / (1 − p) = a"
        )
    if note:
        notes.append(note)
    provenance[key] = Provenance(
        kind="published" if width == verify_tokens else "derived", source=first["source_url"], note="; ".join(notes)
    )
    return key


def _assume_like(like: str, provenance: dict[str, Provenance]) -> str:
    key = f"assumed-like-{like}"
    types = ", ".join(text_type for text_type, other in ASSUMED_LIKE.items() if other == like)
    provenance[key] = Provenance(
        kind="assumed", source=f"{types}: {LIKENESS[like]}", note="no published number; measure it"
    )
    return key


def _assume_frac(text_type: str, frac: float, provenance: dict[str, Provenance]) -> str:
    key = f"assumed-{text_type}"
    provenance[key] = Provenance(
        kind="assumed",
        source=f"{text_type}: survival rate {frac:g} times that of conversation of the same arm, since drafts are "
        "trained on little or none of it",
        note="no published number; measure it",
    )
    return key


def _text_types(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["text_type"] for row in rows))
