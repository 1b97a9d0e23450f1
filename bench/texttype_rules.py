"""How well the text rules know the text types, and what they cost.

    python bench/texttype_rules.py PROMPTS_FOLDER > bench/results/texttype_rules.json

PROMPTS_FOLDER holds one `<text type>.jsonl` a text type, one request a line with `source` and `text_type` beside the
fields of its body. Prints one JSON document: F1 by type and their mean, the confusion matrix (rows true, columns
estimated), recall by source, calibration, and microseconds per request on one core. The rules were written with some of
these prompts in view, so the scores say how the rules fit them, not how a trained model would do on unseen sources.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import selector
from selector.core.texttype import classify, extract
from selector.core.types import TEXT_TYPES

BINS = 10
TIMED_BODIES = 30
REPEATS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One prompt and what the rules made of it."""

    source: str
    true: str
    estimated: str
    confidence: float
    """Probability of `estimated`."""


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts_folder", type=Path)
    args = parser.parse_args(argv)
    records = [json.loads(line) for line in _lines(args.prompts_folder)]
    judged = [judge(record) for record in records]
    result = {
        "prompts": len(judged),
        **scores(judged),
        "recall_by_source": recall_by_source(judged),
        "calibration_error": calibration_error(judged),
        "us_per_request_p50": timings(records),
        "host": host(),
    }
    json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
    print()


def _lines(folder: Path) -> list[str]:
    return [line for name in TEXT_TYPES for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def judge(record: Mapping[str, object]) -> Judged:
    """What the rules make of one record."""
    estimate = classify(extract(record))
    return Judged(
        source=str(record["source"]),
        true=str(record["text_type"]),
        estimated=estimate.text_type,
        confidence=max(estimate.probabilities),
    )


def scores(judged: Sequence[Judged]) -> dict[str, object]:
    """Macro-F1, F1 by type, and the confusion matrix."""
    pairs = Counter((item.true, item.estimated) for item in judged)
    true = Counter(item.true for item in judged)
    estimated = Counter(item.estimated for item in judged)
    f1 = {name: 2 * pairs[name, name] / (true[name] + estimated[name]) for name in TEXT_TYPES}
    return {
        "macro_f1": round(statistics.fmean(f1.values()), 4),
        "f1": {name: round(value, 4) for name, value in f1.items()},
        "confusion": {
            row: {column: pairs[row, column] for column in TEXT_TYPES if pairs[row, column]} for row in TEXT_TYPES
        },
    }


def recall_by_source(judged: Sequence[Judged]) -> dict[str, float]:
    """Share of each source's prompts that get its type, worst first: a rule that keys on one source shows here."""
    total = Counter(item.source for item in judged)
    right = Counter(item.source for item in judged if item.estimated == item.true)
    return {
        source: round(right[source] / total[source], 4) for source in sorted(total, key=lambda s: right[s] / total[s])
    }


def calibration_error(judged: Sequence[Judged]) -> float:
    """Expected calibration error: |confidence − share right| in ten bins of confidence, weighted by their size."""
    error = 0.0
    for position in range(BINS):
        inside = [item for item in judged if position == min(BINS - 1, int(item.confidence * BINS))]
        error += abs(sum(item.confidence - (item.estimated == item.true) for item in inside))
    return round(error / len(judged), 4)


def timings(records: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Median microseconds of `classify(extract(body))` for prompts of real text cut to a length."""
    english = _text_of(records, "long_document")
    romansh = _text_of(records, "romansh")
    return {
        "english_8000_chars": _median_us(_cuts(english, 8_000)),
        "romansh_8000_chars": _median_us(_cuts(romansh, 8_000)),
        "english_1000000_chars": _median_us(_cuts(english, 1_000_000)),
    }


def _text_of(records: Sequence[Mapping[str, object]], text_type: str) -> str:
    return "\n\n".join(str(record["prompt"]) for record in records if record["text_type"] == text_type)


def _cuts(text: str, chars: int) -> list[dict[str, object]]:
    """`TIMED_BODIES` prompts of `chars` characters, from places spread over the text."""
    stride = max(1, (len(text) - chars) // TIMED_BODIES)
    return [{"prompt": text[start * stride : start * stride + chars]} for start in range(TIMED_BODIES)]


def _median_us(bodies: Sequence[Mapping[str, object]]) -> float:
    """Processor time of this thread, so that a shared machine does not count its other work."""
    taken_ns = []
    for _ in range(REPEATS):
        for body in bodies:
            start_ns = time.thread_time_ns()
            classify(extract(body))
            taken_ns.append(time.thread_time_ns() - start_ns)
    return round(statistics.median(taken_ns) / 1_000, 1)


def host() -> dict[str, object]:
    """What the timings were taken on."""
    cpu_info = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip() for line in cpu_info.read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "drafter_selector": selector.__version__,
        "system": platform.platform(),
    }


if __name__ == "__main__":
    main()
