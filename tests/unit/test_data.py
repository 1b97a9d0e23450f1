"""The shipped prompts and traces are whole, credited, and what the text model is meant to get right."""

from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from selector import data
from selector.core.texttype import classify, extract
from selector.core.types import TEXT_TYPES
from selector.files.textmodel import shipped_text_model

PROMPTS: list[dict[str, Any]] = [json.loads(line) for line in data.read_text(data.PROMPTS).splitlines()]
AZURE_TRACES = (data.CONVERSATION_TRACE, data.CODE_TRACE)
TRACES = (*AZURE_TRACES, data.MOONCAKE_TRACE, data.SERVEGEN_TRACE)


def test_every_prompt_is_a_request_body_beside_its_labels() -> None:
    for record in PROMPTS:
        assert record.keys() >= {"id", "source", "text_type"}
        body = record.keys() - {"id", "source", "text_type"}
        assert body <= {"prompt", "messages", "tools", "response_format"}
        assert ("prompt" in body) != ("messages" in body)
        assert not extract(record).is_empty
    assert len({record["id"] for record in PROMPTS}) == len(PROMPTS)


def test_every_text_type_has_prompts_of_several_sources() -> None:
    by_type = Counter(record["text_type"] for record in PROMPTS)
    assert set(by_type) == set(TEXT_TYPES)
    assert set(by_type.values()) == {24}
    sources = Counter(text_type for text_type, _ in {(record["text_type"], record["source"]) for record in PROMPTS})
    assert sources["structured_output"] == 1  # the other source has no clear licence
    assert min(count for text_type, count in sources.items() if text_type != "structured_output") >= 2


def test_the_files_stay_small() -> None:
    assert data.path(data.PROMPTS).stat().st_size < 1_500_000
    assert all(data.path(name).stat().st_size < 100_000 for name in (*TRACES, data.NOTICE))


def test_the_notice_credits_every_source() -> None:
    notice = data.read_text(data.NOTICE)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in notice.splitlines() if line.startswith("|")
    ]
    credited = {(row[0], row[1], row[2]): row[3:] for row in rows[2:]}
    shipped = Counter((record["source"], record["text_type"]) for record in PROMPTS)
    assert set(credited) == {(source, text_type, str(count)) for (source, text_type), count in shipped.items()}
    assert all(all(cells) for cells in credited.values())
    for licence in (cells[1] for cells in credited.values()):
        assert "NC" not in licence
        assert licence.startswith(("Apache-2.0", "MIT", "CC-BY-4.0", "CC-BY-2.5", "CC-BY-SA-", "public domain"))
    assert all(name in notice for name in TRACES)


@pytest.mark.parametrize("name", AZURE_TRACES)
def test_azure_slices_have_the_published_columns_in_order_of_arrival(name: str) -> None:
    rows = list(csv.DictReader(data.read_text(name).splitlines()))
    assert list(rows[0]) == ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
    assert all(int(row["ContextTokens"]) > 0 and int(row["GeneratedTokens"]) > 0 for row in rows)
    arrivals = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    assert arrivals == sorted(arrivals)
    assert timedelta(minutes=3) < arrivals[-1] - arrivals[0] < timedelta(minutes=4)
    assert len(rows) > 500


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'nothing\.txt'"):
        data.path("nothing.txt")


def f1_by_type(labelled: list[tuple[str, str]]) -> dict[str, float]:
    """F1 by text type, from pairs of true and estimated type."""
    pairs, true, found = Counter(labelled), Counter(t for t, _ in labelled), Counter(e for _, e in labelled)
    return {name: 2 * pairs[name, name] / (true[name] + found[name]) for name in TEXT_TYPES}


def f1_of(records: list[dict[str, Any]]) -> dict[str, float]:
    model = shipped_text_model()
    return f1_by_type([(record["text_type"], classify(extract(record), model).text_type) for record in records])


def test_the_text_model_knows_the_shipped_prompts() -> None:
    f1 = f1_of(PROMPTS)
    assert sum(f1.values()) / len(f1) >= 0.9
    assert min(f1.values()) >= 0.8


def test_the_text_model_knows_prompts_that_it_was_never_trained_on() -> None:
    unseen = Path(__file__).parents[1] / "data" / "texttype_unseen.jsonl"
    records = [json.loads(line) for line in unseen.read_text(encoding="utf-8").splitlines()]
    assert len(records) > 120
    f1 = f1_of(records)
    assert sum(f1.values()) / len(f1) >= 0.9
    assert min(f1.values()) >= 0.75
