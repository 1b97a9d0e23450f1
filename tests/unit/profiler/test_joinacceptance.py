"""Accept lengths join a profile with their provenance: measured ones above published ones, those above old ones."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from selector.errors import InputError
from selector.files.profile import Profile
from selector.profiler.cells import AcceptanceCell, AnswerCounts, Origin
from selector.profiler.config import SweepConfig
from selector.profiler.joinacceptance import acceptance_rows, with_measured_acceptance, with_published_acceptance
from tests.profiles import sparse_profile

PUBLISHED = Path(__file__).parents[3] / "profiles" / "raw" / "acceptance_published.csv"
ORIGIN = Origin(host="h", weights="real", date="2026-01-01T00:00:00+00:00", engine="sglang 0.5.23", argv=("serve", "m"))


def cell(arm: str, text_type: str, repeat: int, accepted: int, **changes: Any) -> AcceptanceCell:
    answers = tuple(
        AnswerCounts(
            prompt=f"{repeat}-{number}", prompt_tokens=5, completion_tokens=10 + accepted, verify_passes=10,
            accepted_drafts=accepted, accepted_histogram=(10 - accepted, accepted),
        )
        for number in range(3)
    )  # fmt: skip
    data = {"answer_tokens": 64, "temperature": 0.0, "answers": answers, "origin": ORIGIN} | changes
    return AcceptanceCell(arm=arm, text_type=text_type, repeat=repeat, **data)


@pytest.fixture(scope="module")
def shipped() -> Profile:
    return sparse_profile()


def test_measured_accept_lengths_replace_what_was_there(shipped: Profile) -> None:
    cells = [cell("eagle3-k1", "code", 0, 6), cell("eagle3-k1", "code", 1, 8, refused=2)]
    joined = with_measured_acceptance(shipped, cells, {"eagle3-k1": 2})
    value = joined.arms["eagle3-k1"].acceptance["code"]
    assert value.mean == pytest.approx(1.7)
    assert value.survival == (0.7,)
    assert value.samples == 60
    origin = joined.provenance[value.provenance]
    assert (origin.kind, origin.source, origin.weights) == ("measured", "serve m", "real")
    assert origin.note is not None
    assert "6 answers of at most 64 tokens in 2 repeats" in origin.note and "2 prompts refused" in origin.note
    assert joined.arms["eagle3-k1"].acceptance["math"] == shipped.arms["eagle3-k1"].acceptance["math"]
    assert joined.arms["dspark-8"] == shipped.arms["dspark-8"]
    Profile.model_validate(joined.model_dump())


def test_an_accept_length_of_another_width_or_arm_is_refused(shipped: Profile) -> None:
    cells = [cell("eagle3-k1", "code", 0, 6)]
    with pytest.raises(InputError, match="verifies 2 tokens here and 4 in the measurement"):
        with_measured_acceptance(shipped, cells, {"eagle3-k1": 4})
    for widths in ({"other": 2}, {}):
        with pytest.raises(InputError, match="no arm of both profile and sweep file"):
            with_measured_acceptance(shipped, [cell("other", "code", 0, 6)], widths)


def test_published_ones_fill_what_is_not_measured(shipped: Profile) -> None:
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    bare = shipped.model_copy(
        update={"arms": {name: arm.model_copy(update={"acceptance": {}}) for name, arm in shipped.arms.items()}}
    )
    measured = with_measured_acceptance(bare, [cell("eagle3-k1", "code", 0, 6)], {"eagle3-k1": 2})
    filled = with_published_acceptance(measured, rows, "t.csv")
    assert filled.arms["eagle3-k1"].acceptance["code"].mean == pytest.approx(1.6)
    for name, arm in shipped.arms.items():
        for text_type, value in arm.acceptance.items():
            if (name, text_type) != ("eagle3-k1", "code"):
                assert filled.arms[name].acceptance[text_type].mean == value.mean
    Profile.model_validate(filled.model_dump())
    others = [row for row in rows if row["model"] != shipped.target.name]
    with pytest.raises(InputError, match=r"t\.csv: has no row of model 'Qwen3-8B'"):
        with_published_acceptance(bare, others, "t.csv")
    no_eagle = [row for row in rows if row["algorithm"] != "EAGLE3"]
    assert with_published_acceptance(bare, no_eagle, "t.csv").arms["eagle3-k1"].acceptance == {}


def test_rows_show_what_was_measured_so_far() -> None:
    config = SweepConfig.model_validate(
        {
            "version": 1, "output_name": "x", "target": {"name": "M", "model": "m", "weights": "real"},
            "gpu": {"name": "CPU", "peak_tflops": 1, "bandwidth_tb_s": 1},
            "server": {"context_length": 64, "flags": ["--max-running-requests", "8"]},
            "acceptance": {},
            "arms": [{"name": "b", "algorithm": "X", "verify_tokens": 2}, {"name": "a", "algorithm": "X",
                      "verify_tokens": 2}],
        }
    )  # fmt: skip
    cells = [cell("a", "news", 0, 6), cell("a", "news", 1, 8), cell("b", "code", 0, 5)]
    rows = acceptance_rows(config, cells)
    assert [(row["arm"], row["text_type"], row["accept_length"]) for row in rows] == [
        ("b", "code", 1.5), ("a", "news", 1.7)
    ]  # fmt: skip
    assert rows[1]["repeats_sd"] == pytest.approx(0.1414, abs=1e-4)
    assert (rows[0]["repeats_sd"], rows[0]["energy_j"], rows[1]["verify_passes"]) == (None, None, 60)
