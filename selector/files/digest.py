"""SHA-256 of files, by which results name their inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from selector.errors import InputError


def file_sha256(path: Path, what: str, error: Callable[[str, str, str], InputError]) -> str:
    """SHA-256 of a file, hexadecimal; `what` names it in `error` when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise error(str(path), f"there is no such {what}", "check the path") from None
    except OSError as failed:
        raise error(str(path), f"cannot be read ({failed.strerror})", "check its permissions") from None
