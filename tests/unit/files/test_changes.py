"""Changes of files are noticed once they are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.files.changes import FileChanges


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text("one", encoding="utf-8")
    return path


def test_a_change_is_noticed_once_it_has_settled_and_until_it_is_accepted(file: Path) -> None:
    changes = FileChanges([file])
    assert not changes.settled()
    file.write_text("a longer one", encoding="utf-8")
    assert not changes.settled()  # it may be half written
    assert changes.settled()
    assert changes.settled()
    changes.accept()
    assert not changes.settled()


def test_a_file_that_is_still_growing_has_not_settled(file: Path) -> None:
    changes = FileChanges([file])
    for length in range(10, 13):
        file.write_text("x" * length, encoding="utf-8")
        assert not changes.settled()
    assert changes.settled()


def test_a_file_put_in_its_place_and_one_that_is_gone_are_changes(file: Path) -> None:
    changes = FileChanges([file])
    other = file.with_name("new")
    other.write_text("one", encoding="utf-8")
    other.replace(file)
    assert [changes.settled(), changes.settled()] == [False, True]
    changes.accept()
    file.unlink()
    assert [changes.settled(), changes.settled()] == [False, True]


def test_what_changed_before_other_files_are_watched_is_not_forgotten(file: Path) -> None:
    changes = FileChanges([file])
    profile = file.with_name("profile.json")
    profile.write_text("{}", encoding="utf-8")
    file.write_text("changed while it was read", encoding="utf-8")
    changes.watch([file, profile])
    assert [changes.settled(), changes.settled()] == [False, True]
    changes.accept()
    profile.write_text("{ }", encoding="utf-8")
    assert [changes.settled(), changes.settled()] == [False, True]
