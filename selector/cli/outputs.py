"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from selector.errors import UsageError


def write_output(path: Path, text: str) -> None:
    """Writes a file so that a crash leaves the old one or the new one. Raises `UsageError` when it cannot."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as failed:
        raise UsageError(str(path), f"cannot be written ({failed.strerror})", "choose another file") from None
