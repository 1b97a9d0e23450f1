"""Trains the text model that ships, and says how well it knows sources it was not trained on; prints JSON.

    python bench/train_texttype.py PROMPTS_FOLDER [--out selector/data] > bench/results/texttype.json

PROMPTS_FOLDER holds one `<text type>.jsonl` a text type, one request a line with `id`, `source` and `text_type` beside
the fields of its body, and SOURCES.csv (source, repository, commit, licence, attribution). Every figure is of prompts
whose source was left out of the training: once source by source, once family by family (sources that share documents,
tasks or wording, such as the eight languages of one news set). Temperatures are fitted on the other sources too. The
word lists and rules under the learned weights were written with prompts of these sources in view; the figures
`rules_alone` show how far they go by themselves, and no figure here says how they do on other sources.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import itertools
import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy
from _texttype_training import (
    GRAM_GAIN,
    ITERATIONS,
    MIN_SOURCES,
    PENALTY,
    TEMPERATURE_PENALTY,
    Floats,
    best_temperatures,
    featured,
    fit,
    model_of,
    probabilities_of,
    scores_of,
)
from _texttype_variants import body_of, spelled_out, variant
from numpy.typing import NDArray

import selector
from selector.core.requesttext import extract
from selector.core.textfeatures import BUCKET_BITS, BUCKETS
from selector.core.texthash import GRAM_BYTES
from selector.core.textwords import cut
from selector.core.types import TEXT_TYPES
from selector.data import TEXT_MODEL
from selector.files.textmodel import save_text_model

MAX_PER_SOURCE = 60
"""Most prompts of a source that are trained on, so that large sources do not set the tone."""
VARIANTS = 1
FAMILIES = ("ntrex", "tau_bench", "arena_hard", "vicuna", "wmt24pp", "bfcl", "mb")
"""Beginnings of the names of sources that are one family."""
BINS = 10
TOP_GRAMS = 12

Types = NDArray[np.intp]
Names = NDArray[np.str_]
Group = Callable[[str], str]


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, writes the arrays where asked, prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts_folder", type=Path)
    parser.add_argument("--out", type=Path, help="write the model of all sources into this folder")
    args = parser.parse_args(argv)
    records = [json.loads(line) for line in _lines(args.prompts_folder)]
    result, learned, temperatures, trained_on = evaluate(records)
    if args.out:
        provenance = {
            "script": "bench/train_texttype.py",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "versions": result["versions"],
            "training": result["training"],
            "left_out_one_source": {
                key: result["left_out_one_source"][key] for key in ("macro_f1", "f1", "calibration")
            },
            "sources": _sources(args.prompts_folder / "SOURCES.csv", trained_on),
        }
        save_text_model(args.out / TEXT_MODEL, model_of(learned, temperatures), provenance)
    json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
    print()


def evaluate(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], Floats, Floats, Mapping[str, int]]:
    """The figures, the weights and temperatures learned from all records, and how many of each source were used."""
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_source.setdefault(record["source"], []).append(record)
    bodies, labels = training_set(by_source)
    training = featured(bodies)
    train_types = np.array([TEXT_TYPES.index(text_type) for _, text_type in labels])
    train_sources = np.array([source for source, _ in labels])
    types = np.array([TEXT_TYPES.index(record["text_type"]) for record in records])
    sources = np.array([record["source"] for record in records])
    as_collected = featured([body_of(record) for record in records])
    in_other_form = featured([variant(r, by_source[r["source"]], Random(f"other form of {r['id']}")) for r in records])

    def left_out(group: Group) -> tuple[Floats, Floats]:
        train_groups, groups = (np.array([group(source) for source in each]) for each in (train_sources, sources))
        collected, other = np.empty_like(as_collected.offset), np.empty_like(as_collected.offset)
        for name in np.unique(groups):
            kept, tested = train_groups != name, groups == name
            learned = fit(training.rows(kept), train_types[kept], train_sources[kept])
            collected[tested] = scores_of(as_collected.rows(tested), learned)
            other[tested] = scores_of(in_other_form.rows(tested), learned)
        return collected, other

    learned = fit(training, train_types, train_sources)
    by_one, by_one_other = left_out(lambda source: source)
    by_family, by_family_other = left_out(family)
    balance = balanced(types, sources)
    temperatures = best_temperatures(np.concatenate((by_one, by_one_other)), np.tile(types, 2), np.tile(balance, 2))
    result = {
        "command": "bench/train_texttype.py PROMPTS_FOLDER --out selector/data",
        "prompts": len(records),
        "sources": len(by_source),
        "types_with_one_source": sorted(
            text_type
            for position, text_type in enumerate(TEXT_TYPES)
            if len(np.unique(sources[types == position])) == 1
        ),
        "left_out_one_source": figures(by_one, by_one_other, types, sources),
        "left_out_one_source_other_forms": figures(by_one_other, by_one, types, sources),
        "left_out_one_family": figures(by_family, by_family_other, types, sources),
        "rules_alone": figures(as_collected.offset, in_other_form.offset, types, sources),
        "rules_alone_other_forms": figures(in_other_form.offset, as_collected.offset, types, sources),
        "top_grams": top_grams(learned, bodies, train_types),
        "training": {
            "requests": len(bodies),
            "prompts_per_source_at_most": MAX_PER_SOURCE,
            "variants_per_prompt": VARIANTS,
            "penalty": PENALTY,
            "gram_gain": GRAM_GAIN,
            "iterations_at_most": ITERATIONS,
            "sources_per_gram_at_least": MIN_SOURCES,
            "temperature_penalty": TEMPERATURE_PENALTY,
            "temperatures": _by_type(temperatures),
        },
        "versions": {
            "drafter_selector": selector.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }
    used = {source: min(MAX_PER_SOURCE, len(of_source)) for source, of_source in by_source.items()}
    return result, learned, temperatures, used


def training_set(
    by_source: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Bodies to train on with (source, text type) of each: each chosen prompt, spelled out, and its variants."""
    bodies, labels = [], []
    for source, records in by_source.items():
        chosen = Random(source).sample(records, min(MAX_PER_SOURCE, len(records)))
        for record in chosen:
            draw = Random(str(record["id"]))
            has_fields = "tools" in record or "response_format" in record
            bodies.append(spelled_out(record, draw) if has_fields else body_of(record))
            bodies += [variant(record, records, draw) for _ in range(VARIANTS)]
            labels += [(source, record["text_type"])] * (1 + VARIANTS)
    return bodies, labels


def family(source: str) -> str:
    """The family of a source."""
    return next((name for name in FAMILIES if source.startswith(name)), source)


def balanced(types: Types, sources: Names) -> Floats:
    """Weights by which every type counts the same, and every source of a type."""
    weights = np.empty(len(types), np.float32)
    for text_type in np.unique(types):
        of_type = np.unique(sources[types == text_type])
        for source in of_type:
            mine = sources == source
            weights[mine] = 1.0 / len(of_type) / np.count_nonzero(mine)
    return weights


def figures(scores: Floats, also: Floats, types: Types, sources: Names) -> dict[str, Any]:
    """F1, confusion, recall and calibration of scores; `also` are scores of other forms, for the temperatures alone."""
    probabilities = np.empty_like(scores)
    weights = balanced(types, sources)
    for source in np.unique(sources):
        kept, tested = sources != source, sources == source
        temperatures = best_temperatures(
            np.concatenate((scores[kept], also[kept])), np.tile(types[kept], 2), np.tile(weights[kept], 2)
        )
        probabilities[tested] = probabilities_of(scores[tested], temperatures)
    estimated = probabilities.argmax(axis=1)
    confusion = confusion_of(types, estimated, np.ones_like(weights))
    recall = {
        str(source): round(float((estimated == types)[sources == source].mean()), 4) for source in np.unique(sources)
    }
    f1, f1_balanced = f1_of(confusion), f1_of(confusion_of(types, estimated, weights))
    return {
        "macro_f1": round(float(f1.mean()), 4),
        "f1": _by_type(f1),
        "macro_f1_sources_alike": round(float(f1_balanced.mean()), 4),
        "f1_sources_alike": _by_type(f1_balanced),
        "confusion": {
            row: {column: int(confusion[i, j]) for j, column in enumerate(TEXT_TYPES) if confusion[i, j]}
            for i, row in enumerate(TEXT_TYPES)
        },
        "worst_source": min(recall, key=lambda source: recall[source]),
        "recall_by_source": dict(sorted(recall.items(), key=lambda item: item[1])),
        "calibration": calibration(probabilities, types, np.ones_like(weights)),
        "calibration_sources_alike": calibration(probabilities, types, weights),
    }


def confusion_of(types: Types, estimated: Types, weights: Floats) -> NDArray[np.float64]:
    """Rows true, columns estimated."""
    confusion = np.zeros((len(TEXT_TYPES), len(TEXT_TYPES)))
    np.add.at(confusion, (types, estimated), weights)
    return confusion


def f1_of(confusion: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 by type."""
    found: NDArray[np.float64] = 2 * confusion.diagonal() / (confusion.sum(axis=0) + confusion.sum(axis=1))
    return found


def calibration(probabilities: Floats, types: Types, weights: Floats) -> dict[str, Any]:
    """Expected calibration errors in ten bins: of the estimated type, and of each type's own probability.

    `by_estimated_type` looks at the requests taken for a type; `by_type` at that type's probability in all requests.
    """
    estimated = probabilities.argmax(axis=1)
    confidence, right = probabilities.max(axis=1), estimated == types
    taken = {
        name: expected_error(*(each[estimated == position] for each in (confidence, right, weights)))
        for position, name in enumerate(TEXT_TYPES)
    }
    own = {
        name: expected_error(probabilities[:, position], types == position, weights)
        for position, name in enumerate(TEXT_TYPES)
    }
    return {"overall": expected_error(confidence, right, weights), "by_type": own, "by_estimated_type": taken}


def expected_error(confidence: Floats, right: NDArray[np.bool_], weights: Floats) -> float:
    """|confidence − share right| in bins of confidence, counted by their weights."""
    bins = np.minimum(BINS - 1, (confidence * BINS).astype(int))
    difference = np.bincount(bins, weights=weights * (confidence - right), minlength=BINS)
    return round(float(np.abs(difference).sum() / max(1e-9, weights.sum())), 4)


def top_grams(learned: Floats, bodies: Sequence[Mapping[str, Any]], types: Types) -> dict[str, list[str]]:
    """The grams that speak most for each type: what to read for habits of a source.

    Several grams share a bucket; shown is the one that occurs most in the type's own bodies.
    """
    strongest = np.argsort(-learned[:BUCKETS], axis=0)[:TOP_GRAMS].T
    shown = {}
    for text_type, wanted in enumerate(strongest.tolist()):
        seen: dict[int, Counter[bytes]] = {bucket: Counter() for bucket in wanted}
        for body in itertools.compress(bodies, types == text_type):
            text = cut(extract(body).text).bytes
            buckets = text.grams() >> np.uint32(32 - BUCKET_BITS)
            for start in np.flatnonzero(np.isin(buckets, wanted)).tolist():
                seen[int(buckets[start])][text.folded[start : start + GRAM_BYTES]] += 1
        commonest = [seen[bucket].most_common(1) for bucket in wanted]
        shown[TEXT_TYPES[text_type]] = [found[0][0].decode("utf-8", "replace") for found in commonest if found]
    return shown


def _by_type(values: NDArray[np.floating[Any]]) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in zip(TEXT_TYPES, values, strict=True)}


def _lines(folder: Path) -> list[str]:
    return [line for name in TEXT_TYPES for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def _sources(table: Path, used: Mapping[str, int]) -> list[dict[str, Any]]:
    """What was trained on, with licence and attribution, and the digest of each file it came from."""
    kept = ("source", "text_type", "repository", "commit", "licence", "attribution")
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in table.parent.glob("*.jsonl")}
    with table.open(encoding="utf-8", newline="") as lines:
        return [
            {
                **{field: row[field] for field in kept},
                "prompts": used[row["source"]],
                "file_sha256": digests[Path(row["file"]).name],
            }
            for row in csv.DictReader(lines)
            if row["source"] in used
        ]


if __name__ == "__main__":
    main()
