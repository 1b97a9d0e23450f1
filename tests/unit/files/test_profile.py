"""Profiles: what is wrong with a file is said in one line, and what is right survives writing and reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector.errors import ProfileError
from selector.files.acceptancepriors import acceptance_model
from selector.files.profile import load_profile, parse_profile, write_profile
from tests.profiles import sparse_document, sparse_profile

Document = dict[str, Any]


@pytest.fixture
def document() -> Document:
    """A valid profile, free to be spoilt."""
    loaded: Document = sparse_document()
    return loaded


def parse(document: Document) -> None:
    parse_profile(json.dumps(document), "p.json")


def set_at(document: Document, path: str, value: object) -> None:
    """Sets `arms.none.cells.0.step_j` and the like."""
    *parents, last = path.split(".")
    place: Any = document
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[last] = value


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        ("arms.none.cells.0.step_j", -2.1, ["p.json: arms.none.cells[0].step_j", "is -2.1", "greater than 0"]),
        ("arms.none.cells.0.batch", 0, ["arms.none.cells[0].batch", "is 0", "greater than 0"]),
        ("arms.none.cells.0.stp_ms", 1.0, ["arms.none.cells[0].stp_ms", "not a known field", "mean 'step_ms'?"]),
        ("arms.none.cells", [], ["arms.none.cells", "at least 1 item"]),
        ("arms.dspark-8.acceptance.code.mean", 8.5, ["arms.dspark-8", "acceptance.code.mean 8.5", "verify width 8"]),
        ("arms.dspark-8.acceptance.latin", {"mean": 2, "provenance": "gpu"}, ["'latin', which is no text type"]),
        ("arms.dspark-8.cannot_serve", ["singing"], ["arms.dspark-8.cannot_serve[0]", "is 'singing'"]),
        ("arms.none.cells.1.provenance", "hearsay", ["arms.none.cells[1] names provenance 'hearsay'"]),
        ("arms.ngram-8.acceptance.code.request_spread_provenance", "x", ["arms.ngram-8.acceptance.code", "'x'"]),
        ("provenance.gpu.kind", "guessed", ["provenance.gpu.kind", "is 'guessed'", "'measured'"]),
        ("gpu.power_limit_w", 0, ["gpu.power_limit_w", "is 0", "greater than 0"]),
        ("target.parameters", "many", ["target.parameters", "is 'many'", "valid number"]),
        ("prefill.1.ms", 0.5, ["p.json: prefill", "must rise with the prompt", "measure those points again"]),
        ("format", "something/else", ["p.json: format", "is 'something/else'", "'drafter-selector/profile'"]),
        ("version", 2, ["p.json: version", "is 2", "reads version 1"]),
    ],
)
def test_a_bad_value_is_named_with_file_field_value_and_remedy(
    document: Document, path: str, value: object, parts: list[str]
) -> None:
    set_at(document, path, value)
    with pytest.raises(ProfileError) as caught:
        parse(document)
    line = str(caught.value)
    assert "\n" not in line
    assert "; " in line
    for part in parts:
        assert part in line
    assert caught.value.remedy


def test_a_missing_field_is_named(document: Document) -> None:
    del document["arms"]["none"]["cells"][0]["step_ms"]
    with pytest.raises(ProfileError, match=r"p\.json: arms\.none\.cells\[0\]\.step_ms: is missing; add it"):
        parse(document)


def test_a_profile_without_the_plain_arm_is_refused(document: Document) -> None:
    del document["arms"]["none"]
    with pytest.raises(ProfileError, match="arms has no 'none'"):
        parse(document)


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda text: text[:-20], "is not JSON"),
        (lambda _: "[]", "is not a JSON object"),
        (lambda text: text.replace("2.5639", "NaN"), "NaN is no JSON number"),
        (lambda text: text.replace("2.5639", "1e999"), "finite number"),
        (lambda _: "[" * 100_000, "is not JSON"),
        (lambda _: "", "is not JSON"),
    ],
    ids=["cut short", "a list", "NaN", "beyond floats", "too deep", "empty"],
)
def test_a_broken_file_is_refused(document: Document, spoil: Callable[[str], str], part: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(spoil(json.dumps(document)), "p.json")
    assert part in str(caught.value)
    assert str(caught.value).startswith("p.json")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match=r"p\.json: is not UTF-8 text"):
        load_profile(str(path))


def test_a_profile_survives_writing_and_reading(tmp_path: Path) -> None:
    profile = sparse_profile()
    path = tmp_path / "copy.json"
    write_profile(profile, path)
    assert load_profile(str(path)) == profile
    assert [file.name for file in tmp_path.iterdir()] == ["copy.json"]


def test_what_a_pass_takes_beside_its_work_is_by_how_much_longer_prompts_alone_exceed_it(document: Document) -> None:
    arm = document["arms"]["dspark-8"]
    arm["prefill"] = [{"prompt_tokens": 1000, "ms": 20, "j": 14, "provenance": "gpu"}]
    arm["prefill_pass"] = {"prompt_tokens": 128, "ms": 12, "j": 5, "provenance": "gpu"}
    arm["prefill_pass"]["longer"] = [
        {"prompt_tokens": 1000, "ms": 26, "j": 18},
        {"prompt_tokens": 2000, "ms": 42, "j": 29},
    ]
    cost = parse_profile(json.dumps(document), "p.json").prefill_cost("dspark-8")
    assert cost.cost(1500) == pytest.approx((30 + 4, 21 + 2.5))
    assert cost.cost(128) == pytest.approx((12, 5))
    for one in arm["prefill_pass"]["longer"]:
        one["j"] = 1
    idle_j = document["idle"]["served_w"] * 4e-3
    assert parse_profile(json.dumps(document), "p.json").prefill_cost("dspark-8").cost(1500)[1] == pytest.approx(
        21 + idle_j
    )
    for one in arm["prefill_pass"]["longer"]:
        one["ms"] = 13
    assert parse_profile(json.dumps(document), "p.json").prefill_cost("dspark-8").cost(1500) == pytest.approx((30, 21))


def test_an_unknown_arm_is_answered_with_the_names_there_are() -> None:
    profile = sparse_profile()
    with pytest.raises(ProfileError, match=r"no arm 'dspark'.*choose one of .*dspark-8.*none"):
        profile.cost("dspark")


def test_idle_power_is_of_one_gpu(document: Document) -> None:
    document["gpu"]["count"] = 2
    idle = parse_profile(json.dumps(document), "p.json").cost("none").idle
    assert idle.watts(0) == 80.0
    assert idle.watts(3) == pytest.approx(124.0, abs=0.01)


def test_the_first_profile_that_has_an_arm_decides_its_prior(document: Document) -> None:
    set_at(document, "arms.dspark-8.acceptance.code.mean", 1.5)
    other = parse_profile(json.dumps(document), "p.json")
    shipped = sparse_profile()
    model = acceptance_model([("dspark-8", other), ("dspark-8", shipped), ("none", shipped)])
    assert model.accept_length("dspark-8", "code") == 1.5
    assert model.accept_length("none", "code") == 1.0
