"""Makes the data that ships in selector/data from a folder of prompts and traces.

    python bench/build_shipped_data.py DATA_FOLDER [--out selector/data]

DATA_FOLDER holds `prompts/<text type>.jsonl` (one request a line with `id`, `source`, `text_type`),
`prompts/SOURCES.csv` (source, repository, commit, licence, attribution, changes) and
`traces/` the files named in TRACES. The choice of prompts depends on their ids alone, so the same folder gives the same
files.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

from selector.core.types import TEXT_TYPES
from selector.data import CODE_TRACE, CONVERSATION_TRACE, MOONCAKE_TRACE, NOTICE, PROMPTS, SERVEGEN_TRACE
from selector.files.trace import load_trace

PROMPTS_PER_TYPE = 24
USUAL_MAX_CHARS = 2_500
MAX_CHARS = {"long_document": 13_000, "agentic": 22_000, "structured_output": 4_000}
"""Most characters of a record, for types whose requests are long by nature."""
MAX_PROMPTS_BYTES = 1_500_000
BODY_FIELDS = ("prompt", "messages", "tools", "response_format")
LEFT_OUT = {
    "swe_bench_lite": "issue texts of many contributors, whose licence the collection does not state",
    "jsonschema_glaive": "its repository has no licence file",
    "squality": "stories known to be in the public domain in the USA only",
}
"""Sources whose licence for the texts themselves is not clear."""
CREDITED_FIELD = {"gum_wikinews": "source_url", "wikipedia_rm": "doc"}
"""Field that names the article, for sources that ask for credit article by article."""

TRACES = {
    CONVERSATION_TRACE: ("azure_2023_conv.csv", 240.0),
    CODE_TRACE: ("azure_2023_code.csv", 240.0),
    MOONCAKE_TRACE: ("mooncake_conversation.jsonl", 120.0),
    SERVEGEN_TRACE: ("servegen_deepseek_r1_1h.csv", 600.0),
}
"""File, and seconds of it that ship."""

Record = Mapping[str, object]


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the files, and prints how large they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "selector" / "data")
    args = parser.parse_args(argv)
    records = [record for text_type in TEXT_TYPES for record in chosen(args.data_folder / "prompts", text_type)]
    written = {
        PROMPTS: "".join(json.dumps(shipped(record), ensure_ascii=False) + "\n" for record in records),
        NOTICE: notice(records, sources(args.data_folder / "prompts" / "SOURCES.csv")),
    }
    for name, (original, seconds) in TRACES.items():
        written[name] = first_seconds(args.data_folder / "traces" / original, seconds)
    if len(written[PROMPTS].encode()) > MAX_PROMPTS_BYTES:
        raise SystemExit(f"{PROMPTS} would be larger than {MAX_PROMPTS_BYTES:,} bytes: lower MAX_CHARS")
    for name, text in written.items():
        (args.out / name).write_bytes(text.encode())
        print(f"{args.out / name}: {len(text.encode()):,} bytes, {text.count(chr(10)):,} lines")


def chosen(folder: Path, text_type: str) -> list[Record]:
    """Prompts of one type, the sources taken in turn, each source's in the order of a hash of their ids."""
    by_source: dict[str, list[Record]] = {}
    with (folder / f"{text_type}.jsonl").open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            fits = len(json.dumps(shipped(record), ensure_ascii=False)) <= MAX_CHARS.get(text_type, USUAL_MAX_CHARS)
            if fits and record["source"] not in LEFT_OUT:
                by_source.setdefault(record["source"], []).append(record)
    ranked = (sorted(of_source, key=_rank) for _, of_source in sorted(by_source.items()))
    in_turn = [record for turn in zip_longest(*ranked) for record in turn if record is not None]
    return in_turn[:PROMPTS_PER_TYPE]


def _rank(record: Record) -> bytes:
    return blake2b(str(record["id"]).encode()).digest()


def shipped(record: Record) -> Record:
    """What is kept of a record: what it is, and the fields of its request body."""
    return {field: record[field] for field in ("id", "source", "text_type", *BODY_FIELDS) if field in record}


def first_seconds(trace: Path, seconds: float) -> str:
    """The rows within `seconds` of the first arrival, and the header of a CSV, byte for byte."""
    rows = trace.read_bytes().decode().splitlines(keepends=True)
    kept = {request.request_id for request in load_trace(trace, strict=True, to_s=seconds).requests}
    # A request is named after its line.
    return "".join(row for number, row in enumerate(rows, 1) if f"r{number}" in kept or row[0].isalpha())


def sources(table: Path) -> dict[str, Mapping[str, str]]:
    """The rows of SOURCES.csv by source."""
    with table.open(encoding="utf-8", newline="") as lines:
        return {row["source"]: row for row in csv.DictReader(lines)}


def notice(records: Iterable[Record], facts: Mapping[str, Mapping[str, str]]) -> str:
    """The notice that ships beside the data."""
    by_source: dict[str, list[Record]] = {}
    for record in records:
        by_source.setdefault(str(record["source"]), []).append(record)
    return "\n".join([*_NOTICE_HEAD, *_source_rows(by_source, facts), "", *_credits(by_source)]) + "\n"


_NOTICE_HEAD = (
    "# Notice: third-party data in this folder",
    "",
    "The code of this package is Apache-2.0; the data here keep the licences of their sources. CC-BY and CC-BY-SA",
    "sources ask for the attribution given below, and the CC-BY-SA parts stay under CC-BY-SA. Licence texts:",
    "https://spdx.org/licenses",
    "",
    f"**Traces.** `{CONVERSATION_TRACE}` and `{CODE_TRACE}`: Azure LLM inference trace 2023, Patel et al.,",
    '"Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024, Microsoft Azure;',
    "Azure/AzurePublicDataset @ b469a113cedc; CC-BY-4.0. Changed: only the rows of the first four minutes; columns and",
    "rows as published.",
    "",
    f"`{MOONCAKE_TRACE}`: Mooncake conversation trace, Qin et al., FAST 2025; kvcache-ai/Mooncake @",
    "3b5a59413395; Apache-2.0. Changed: only the rows of the first two minutes, each as published.",
    "",
    f"`{SERVEGEN_TRACE}`: drawn with ServeGen, Xiang et al., NSDI 2026, Alibaba, from its clients of",
    "DeepSeek-R1; alibaba/ServeGen @ f891d1189eb3; Apache-2.0. A sample of a fitted model, no recording; the first ten",
    "minutes of an hour (20:00) scaled to 2 requests/s.",
    "",
    f"**Prompts.** `{PROMPTS}`: sampled from the sources below. Changed in all of them: a common layout, a text type",
    "given to each source as a whole, and only the fields of the request kept. Further changes are in the last column.",
    "",
    "| source | text type | records | repository @ commit | licence | attribution | changes |",
    "|---|---|---|---|---|---|---|",
)


def _source_rows(by_source: Mapping[str, Sequence[Record]], facts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for source, records in by_source.items():
        fact = facts[source]
        repository = f"{fact['repository']} @ {fact['commit'][:12]}"
        cells = (source, str(records[0]["text_type"]), str(len(records)), repository)
        yield "| " + " | ".join((*cells, fact["licence"], fact["attribution"], fact["changes"] or "none")) + " |"


def _credits(by_source: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    yield "Articles used, where contributors are credited by article:"
    for source, field in CREDITED_FIELD.items():
        yield from ("", f"{source}:", "")
        yield from (f"- {article}" for article in sorted({str(record[field]) for record in by_source.get(source, ())}))


if __name__ == "__main__":
    main()
