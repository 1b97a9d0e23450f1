"""What reading a request and estimating its text type costs on one core; prints JSON.

    python bench/texttype_cost.py > bench/results/texttype_cost.json

Times `extract` and `classify` together, as the router calls them, on the shipped prompts joined and cut to a length, in
processor time of the thread, so that a shared machine does not count its other work. Every body is timed by itself;
`p50` and `p99` are over bodies and repeats, `best` is the median over bodies of each body's shortest time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy

import selector
from selector import data
from selector.core.texttype import TextModel, classify, extract
from selector.files.textmodel import shipped_text_model

BODIES = 40
REPEATS = 40
LENGTHS_CHARS = (200, 2_000, 8_000, 1_000_000)
TEXT_TYPES = ("long_document", "romansh", "code")
"""One of plain English, one that is not ASCII, one full of signs."""
SYSTEM_CHARS = 2_000


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    args = parser.parse_args(argv)
    model = shipped_text_model()
    texts = {text_type: _text_of(text_type) for text_type in TEXT_TYPES}
    timed = {
        f"{text_type}_{chars}_chars": timing([_chat(cut) for cut in _cuts(text, chars)], model, args.repeats)
        for text_type, text in texts.items()
        for chars in LENGTHS_CHARS
    }
    english = texts["long_document"]
    with_system = [_chat(cut, english[:SYSTEM_CHARS]) for cut in _cuts(english, 8_000)]
    timed["long_document_8000_chars_with_system_prompt"] = timing(with_system, model, args.repeats)
    json.dump({"us_per_request": timed, "host": host()}, sys.stdout, indent=2)
    print()


def _text_of(text_type: str) -> str:
    """All shipped prompts of a type, repeated to at least the greatest length."""
    records = map(json.loads, data.read_text(data.PROMPTS).splitlines())
    text = "\n\n".join(str(record["prompt"]) for record in records if record["text_type"] == text_type)
    return text * (1 + (max(LENGTHS_CHARS) + BODIES * 1_000) // len(text))


def _cuts(text: str, chars: int) -> list[str]:
    """`BODIES` pieces of `chars` characters, from places spread over the text."""
    stride = (len(text) - chars) // BODIES
    return [text[place * stride : place * stride + chars] for place in range(BODIES)]


def _chat(content: str, system: str | None = None) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages if system is None else [{"role": "system", "content": system}, *messages]}


def timing(bodies: Sequence[dict[str, object]], model: TextModel, repeats: int) -> dict[str, float]:
    """Microseconds per request."""
    taken_us: list[list[float]] = [[] for _ in bodies]
    for _ in range(repeats):
        for body, taken in zip(bodies, taken_us, strict=True):
            start_ns = time.thread_time_ns()
            classify(extract(body), model)
            taken.append((time.thread_time_ns() - start_ns) / 1_000)
    everything = sorted(us for taken in taken_us for us in taken)
    return {
        "p50": round(statistics.median(everything), 1),
        "p99": round(everything[int(0.99 * (len(everything) - 1))], 1),
        "best": round(statistics.median(map(min, taken_us)), 1),
    }


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
        "numpy": numpy.__version__,
        "drafter_selector": selector.__version__,
        "system": platform.platform(),
    }


if __name__ == "__main__":
    main()
