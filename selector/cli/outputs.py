"""Files that commands write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from selector.errors import UsageError


def write_output(path: Path, content: str | bytes) -> None:
    """Writes a file so that a crash leaves the old one or the new one. Raises `UsageError` when it cannot."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as failed:
        raise UsageError(str(path), f"cannot be written ({failed.strerror})", "choose another file") from None


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that must not exist yet; what fails half way leaves none. Raises `UsageError` when it cannot be made."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise UsageError(str(path), "exists", "choose another file, or remove it") from None
    except OSError as failed:
        raise UsageError(str(path), f"cannot be written ({failed.strerror})", "choose another file") from None
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
