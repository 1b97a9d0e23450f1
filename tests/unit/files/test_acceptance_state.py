"""The snapshot file: whole or the one before, and refused in words when it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.acceptancestate import contribution_of, fingerprint, restore, state_of
from selector.core.types import TEXT_TYPES
from selector.errors import StateError
from selector.files.acceptance_state import (
    AcceptanceFile,
    SharedContribution,
    decoded_contribution,
    encoded_contribution,
    read_acceptance,
    write_acceptance,
)
from tests.fleets import request_view

TARGET = "made-up"


def model(mean: float = 3.0) -> AcceptanceModel:
    return AcceptanceModel({"arm": {name: AcceptancePrior(mean=mean) for name in TEXT_TYPES}}, {"arm": 8, "none": 1})


def taught() -> AcceptanceModel:
    made = model()
    for number in range(50):
        view = request_view(text_type="code", temperature=0.1 * (number % 5), refine_key=f"k{number % 4}")
        made.observe("arm", "code", 50 + number % 7, 150, request=view)
    return made


def saved(path: Path, of: AcceptanceModel) -> AcceptanceFile:
    snapshot = AcceptanceFile(
        target=TARGET, fingerprint=fingerprint(of), router="r1", saved="2026-11-29T00:00:00+00:00", state=state_of(of)
    )
    write_acceptance(snapshot, path)
    return snapshot


def test_what_is_written_is_read_and_predicts_the_same(tmp_path: Path) -> None:
    path, first, second = tmp_path / "a.json", taught(), model()
    snapshot = saved(path, first)
    assert read_acceptance(path, target=TARGET, fingerprint=fingerprint(second)) == snapshot
    restore(second, read_acceptance(path, target=TARGET, fingerprint=fingerprint(second)).state)
    assert state_of(second) == state_of(first)
    view = request_view(text_type="code", refine_key="k1", temperature=0.4)
    assert second.of_request("arm", view, 0.9) == first.of_request("arm", view, 0.9)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    snapshot = saved(path, taught())
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("selector.files.acceptance_state.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_acceptance(snapshot, path)
    assert path.read_bytes() == before


def test_whoever_reads_the_old_file_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    saved(path, taught())
    before = path.read_bytes()
    with path.open("rb") as old:
        saved(path, model())
        assert old.read() == before
    assert path.read_bytes() != before


def changed(path: Path, **fields: Any) -> None:
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **fields}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target": "another"}, "is 'another', the fleet serves 'made-up'"),
        ({"version": 1}, "this release reads version 2"),
        ({"format": "drafter-selector/profile"}, "is not that of an acceptance snapshot"),
        ({"state": {}}, "cannot be used"),
        ({"router": "../x"}, "cannot be used"),
        ({"more": 1}, "cannot be used"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_the_field(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    path = tmp_path / "a.json"
    saved(path, taught())
    changed(path, **fields)
    with pytest.raises(StateError, match=r"a\.json") as refused:
        read_acceptance(path, target=TARGET, fingerprint=fingerprint(model()))
    assert words in str(refused.value)


def test_what_was_learnt_against_another_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    saved(path, taught())
    with pytest.raises(StateError, match="of other arms or another profile"):
        read_acceptance(path, target=TARGET, fingerprint=fingerprint(model(3.1)))


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(damage)
    with pytest.raises(StateError):
        read_acceptance(path, target=TARGET, fingerprint="0" * 16)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    saved(path, taught())
    whole = path.read_bytes().rstrip()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(StateError):
            read_acceptance(path, target=TARGET, fingerprint=fingerprint(model()))


def test_a_contribution_comes_back_as_it_was_told() -> None:
    told = SharedContribution(target=TARGET, fingerprint="f", router="r", cells=contribution_of(taught()))
    data = encoded_contribution(told)
    assert decoded_contribution(data, "router r", target=TARGET, fingerprint="f") == told
    for bad in (b"", b"{}", data.replace(b'"epoch":0', b'"epoch":"x"'), data.replace(b'"version":2', b'"version":1')):
        with pytest.raises(StateError, match="router r"):
            decoded_contribution(bad, "router r", target=TARGET, fingerprint="f")
    with pytest.raises(StateError, match="another profile"):
        decoded_contribution(data, "router r", target=TARGET, fingerprint="g")
