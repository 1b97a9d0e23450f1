"""The table `[faults]`: documented as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from selector.files.faults import Faults

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_documentation_shows_every_default() -> None:
    block = TEXT.partition("    [faults]\n")[2].partition("\n\n")[0]
    shown = tomllib.loads("\n".join(line.strip() for line in block.splitlines()))
    assert shown == Faults().model_dump()


def test_the_documentation_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT)) | set(re.findall(r"`tests/\w+/\w+/(test_\w+)(?:\.py)?`", TEXT))
    assert len(named) > 8
    assert named <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_summary_says_what_is_in_force() -> None:
    assert Faults(retries=7, breaker_failures=9).summary.startswith("up to 7 retries from a budget of 20% of requests;")
    assert "opens after 9 failures" in Faults(breaker_failures=9).summary
