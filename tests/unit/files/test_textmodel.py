"""Trained weights are read whole or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector import data
from selector.core.textfeatures import BUCKETS, SIGNS
from selector.core.textmodel import TextModel
from selector.core.types import TEXT_TYPES
from selector.errors import TextModelError
from selector.files.textmodel import load_text_model, save_text_model, shipped_text_model

MAX_SHIPPED_BYTES = 2_000_000


def some_model() -> TextModel:
    draws = np.random.default_rng(7)
    types = len(TEXT_TYPES)
    grams = draws.normal(size=(BUCKETS, types)).astype(np.float16).astype(np.float32)
    return TextModel(
        gram_weights=grams,
        sign_weights=draws.normal(size=(len(SIGNS), types)).astype(np.float32),
        temperatures=tuple(1.25 + 0.01 * position for position in range(types)),
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "m.npz"
    save_text_model(path, some_model(), {"script": "test"})
    return path


def test_what_was_saved_is_read(saved: Path) -> None:
    model, read = some_model(), load_text_model(saved)
    assert np.array_equal(read.gram_weights, model.gram_weights)
    assert np.array_equal(read.sign_weights, model.sign_weights)
    assert read.temperatures == model.temperatures


def test_the_same_model_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.npz"
    save_text_model(again, some_model(), {"script": "test"})
    assert again.read_bytes() == saved.read_bytes()


def change(field: str, value: object) -> Callable[[Path], None]:
    def change_facts(path: Path) -> None:
        facts = path.with_suffix(".json")
        facts.write_text(json.dumps({**json.loads(facts.read_text()), field: value}))

    return change_facts


def replace_arrays(**arrays: Any) -> Callable[[Path], None]:
    """Arrays of another kind, with a digest that fits."""

    def write(path: Path) -> None:
        np.savez(path, **arrays)
        change("sha256", sha256(path.read_bytes()).hexdigest())(path)

    return write


def text_for_arrays(path: Path) -> None:
    path.write_text("no arrays")
    change("sha256", sha256(b"no arrays").hexdigest())(path)


SIGNS_SHAPE = (len(SIGNS), len(TEXT_TYPES))
RIGHT = {
    "gram_weights": np.zeros((BUCKETS, len(TEXT_TYPES)), np.float16),
    "sign_weights": np.zeros(SIGNS_SHAPE, np.float32),
    "temperatures": np.ones(len(TEXT_TYPES)),
}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.with_suffix(".json").unlink(), "cannot be read"),
        (lambda path: path.with_suffix(".json").write_text("{"), "not JSON"),
        (lambda path: path.with_suffix(".json").write_text("[]"), "version: is not what"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "sha256"),
        (change("sha256", "0"), "sha256"),
        (change("version", 1), "version: is not what"),
        (change("text_types", ["code"]), "text_types: is not what"),
        (change("signs", []), "signs: is not what"),
        (change("features", "0"), "features: is not what"),
        (text_for_arrays, "not the arrays of a text model"),
        (replace_arrays(**{name: RIGHT[name] for name in ("gram_weights", "temperatures")}), "sign_weights"),
        (replace_arrays(**{**RIGHT, "gram_weights": np.zeros((3, 10))}), "must be finite, of shape"),
        (replace_arrays(**{**RIGHT, "sign_weights": np.full(SIGNS_SHAPE, np.nan)}), "must be finite"),
        (replace_arrays(**{**RIGHT, "temperatures": np.zeros(len(TEXT_TYPES))}), "must be a positive number"),
        (replace_arrays(**{**RIGHT, "temperatures": np.ones(3)}), "for each text type"),
        (replace_arrays(**{**RIGHT, "sign_weights": np.array([object()])}), "not the arrays"),
    ],
)
def test_damaged_files_are_refused_in_one_line(damage: Callable[[Path], None], problem: str, saved: Path) -> None:
    damage(saved)
    with pytest.raises(TextModelError, match=problem) as caught:
        load_text_model(saved)
    assert "\n" not in str(caught.value)
    assert "train again" in str(caught.value)


def test_the_right_arrays_are_read(saved: Path) -> None:
    replace_arrays(**RIGHT)(saved)
    assert load_text_model(saved).temperatures == (1.0,) * len(TEXT_TYPES)


def test_the_shipped_model_is_small_and_says_where_it_comes_from() -> None:
    model = shipped_text_model()
    assert model is shipped_text_model()
    assert np.count_nonzero(model.gram_weights) > 1_000
    path = data.path(data.TEXT_MODEL)
    facts = path.with_suffix(".json")
    assert path.stat().st_size + facts.stat().st_size < MAX_SHIPPED_BYTES
    provenance = json.loads(facts.read_text())["provenance"]
    assert {"script", "date", "versions", "training", "sources", "left_out_one_source"} <= provenance.keys()
    assert {source["text_type"] for source in provenance["sources"]} == set(TEXT_TYPES)
    for source in provenance["sources"]:
        assert source["licence"]
        assert source["repository"]
        assert source["prompts"] > 0
        assert len(source["file_sha256"]) == 64
