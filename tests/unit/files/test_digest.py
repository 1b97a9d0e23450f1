"""Digests of files and folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from selector.errors import TraceError
from selector.files.digest import sha256_of


def test_a_file_s_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"trace")
    assert sha256_of(tmp_path / "a", "trace", TraceError) == hashlib.sha256(b"trace").hexdigest()


def test_a_folder_s_digest_changes_with_every_name_and_content(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "deep" / "b").write_text("2")
    seen = {sha256_of(folder, "trace", TraceError)}
    assert seen == {sha256_of(folder, "trace", TraceError)}
    (folder / "deep" / "b").write_text("3")
    seen.add(sha256_of(folder, "trace", TraceError))
    (folder / "a").rename(folder / "c")
    seen.add(sha256_of(folder, "trace", TraceError))
    (folder / "d").touch()
    seen.add(sha256_of(folder, "trace", TraceError))
    assert len(seen) == 4


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nope: there is no such trace; check the path"):
        sha256_of(tmp_path / "nope", "trace", TraceError)
