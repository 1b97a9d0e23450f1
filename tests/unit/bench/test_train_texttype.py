"""The training script on a small collection made here: what it learns, and what it cannot."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selector.core.types import TEXT_TYPES
from selector.files.textmodel import load_text_model

SCRIPT = Path(__file__).parents[3] / "bench" / "train_texttype.py"
COLUMNS = ("file", "source", "text_type", "repository", "commit", "licence", "attribution")
PER_SOURCE = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The printed result and the folder of the weights."""
    folder, out = tmp_path_factory.mktemp("prompts"), tmp_path_factory.mktemp("model")
    rows = []
    for text_type in TEXT_TYPES:
        sources = ("only",) if text_type == "news" else ("first", "second", "third")
        records = [record(text_type, source, number) for source in sources for number in range(PER_SOURCE)]
        (folder / f"{text_type}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
        for source in sources:
            name = f"{text_type}-{source}"
            rows.append((f"prompts/{text_type}.jsonl", name, text_type, "someone/something", "0", "MIT", "Someone"))
    with (folder / "SOURCES.csv").open("w", newline="") as table:
        csv.writer(table).writerows((COLUMNS, *rows))
    done = subprocess.run(
        (sys.executable, str(SCRIPT), str(folder), "--out", str(out)), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), out


def record(text_type: str, source: str, number: int) -> dict[str, Any]:
    """A request of whose type nothing but an invented word tells."""
    words = f"zq{text_type.replace('_', '')} {source} item {number} "
    return {
        "id": f"{text_type}-{source}-{number}",
        "source": f"{text_type}-{source}",
        "text_type": text_type,
        "prompt": words * 3,
    }


def test_what_several_sources_share_is_learned(trained: tuple[dict[str, Any], Path]) -> None:
    result, _ = trained
    shared = {name: f1 for name, f1 in result["left_out_one_source"]["f1"].items() if name != "news"}
    alone = result["rules_alone"]["macro_f1"]
    assert sum(shared.values()) / len(shared) > alone + 0.2


def test_a_type_with_one_source_is_named_and_cannot_be_learned(trained: tuple[dict[str, Any], Path]) -> None:
    result, _ = trained
    assert result["types_with_one_source"] == ["news"]
    assert result["left_out_one_source"]["recall_by_source"]["news-only"] == 0.0


def test_every_prompt_is_judged_once(trained: tuple[dict[str, Any], Path]) -> None:
    result, _ = trained
    for name in ("left_out_one_source", "left_out_one_family", "rules_alone"):
        confusion = result[name]["confusion"]
        assert sum(sum(row.values()) for row in confusion.values()) == result["prompts"] == 28 * PER_SOURCE


def test_the_weights_are_written_with_their_sources(trained: tuple[dict[str, Any], Path]) -> None:
    _, out = trained
    model = load_text_model(out / "texttype.npz")
    assert model.gram_weights.any()
    sources = json.loads((out / "texttype.json").read_text())["provenance"]["sources"]
    assert len(sources) == 28
    assert {source["prompts"] for source in sources} == {PER_SOURCE}
