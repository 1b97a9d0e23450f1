"""SHA-256 of files, by which results name their inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from selector.errors import InputError


def sha256_of(path: Path, what: str, error: Callable[[str, str, str], InputError]) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files, hexadecimal.

    `what` names it in `error` when it cannot be read.
    """
    try:
        if not path.is_dir():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        whole = hashlib.sha256()
        for part in sorted(each for each in path.rglob("*") if each.is_file()):
            with part.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{part.relative_to(path).as_posix()}\0{digest}\n".encode())
        return whole.hexdigest()
    except FileNotFoundError:
        raise error(str(path), f"there is no such {what}", "check the path") from None
    except OSError as failed:
        raise error(str(path), f"cannot be read ({failed.strerror})", "check its permissions") from None
