"""The trained text model on disk: arrays in one file, where they come from in another.

texttype.npz    gram_weights (float16), sign_weights (float32), temperatures; read without pickle
texttype.json   version, sha256 of the arrays, text types and signs in the order of the arrays, and provenance:
                script, date, versions, sources with licences, and how well the model did on sources left out
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from selector import data
from selector.core.textfeatures import SIGNS, fingerprint
from selector.core.textmodel import TextModel
from selector.core.types import TEXT_TYPES
from selector.errors import DomainError, TextModelError

VERSION = 2
_REMEDY = "train again with bench/train_texttype.py, or reinstall the package"


@cache
def shipped_text_model() -> TextModel:
    """The model that comes with the package; read once. Raises `TextModelError`."""
    try:
        path = data.path(data.TEXT_MODEL)
    except FileNotFoundError as error:
        raise TextModelError("the shipped text model", str(error), _REMEDY) from None
    return load_text_model(path)


def load_text_model(path: Path) -> TextModel:
    """The model of `NAME.npz`, checked against `NAME.json` beside it. Raises `TextModelError`."""
    facts = _facts(path.with_suffix(".json"))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TextModelError(str(path), f"cannot be read ({error.strerror})", _REMEDY) from None
    if sha256(content).hexdigest() != facts["sha256"]:
        raise TextModelError(str(path), "its sha256 is not the one in the .json beside it", _REMEDY)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return TextModel(
                gram_weights=np.ascontiguousarray(arrays["gram_weights"], np.float32),
                sign_weights=np.ascontiguousarray(arrays["sign_weights"], np.float32),
                temperatures=tuple(map(float, arrays["temperatures"])),
            )
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile, DomainError) as error:
        raise TextModelError(str(path), f"not the arrays of a text model ({error})", _REMEDY) from None


def save_text_model(path: Path, model: TextModel, provenance: Mapping[str, Any]) -> None:
    """Writes `NAME.npz` and `NAME.json`. The same model gives the same bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        gram_weights=model.gram_weights.astype(np.float16),
        sign_weights=model.sign_weights,
        temperatures=np.array(model.temperatures, np.float64),
    )
    content = buffer.getvalue()
    facts = {
        "version": VERSION,
        "sha256": sha256(content).hexdigest(),
        "features": fingerprint(),
        "text_types": TEXT_TYPES,
        "signs": SIGNS,
        "provenance": provenance,
    }
    path.write_bytes(content)
    path.with_suffix(".json").write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        facts = orjson.loads(path.read_bytes())
    except OSError as error:
        raise TextModelError(str(path), f"cannot be read ({error.strerror})", _REMEDY) from None
    except orjson.JSONDecodeError as error:
        raise TextModelError(str(path), f"not JSON ({error.msg})", _REMEDY) from None
    expected = {
        "version": VERSION,
        "text_types": list(TEXT_TYPES),
        "signs": list(SIGNS),
        "features": fingerprint(),
    }
    for field, value in expected.items():
        if not isinstance(facts, dict) or facts.get(field) != value:
            raise TextModelError(f"{path}: {field}", "is not what this version of the package reads", _REMEDY)
    return {"sha256": "", **facts}
