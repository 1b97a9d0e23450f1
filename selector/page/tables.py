"""HTML tables that scroll sideways on a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selector.page.svg import element, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: its text, and whether it is the best of its column or reads as words rather than as a number."""

    text: str
    best: bool = False
    prose: bool = False


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, caption: str) -> str:
    """A table; the first column names its row."""
    prose = [isinstance(cell, Cell) and cell.prose for cell in rows[0]] if rows else [False] * len(columns)
    heads = zip(columns, prose, strict=True)
    head = element(
        "tr", *(element("th", words(name), scope="col", class_="words" if left else None) for name, left in heads)
    )
    body = [element("tr", *(_cell(cell) for cell in row)) for row in rows]
    whole = element("table", element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll", role="region", aria_label=caption, tabindex=0)


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return element("td", words(cell))
    kind = " ".join(name for name, holds in (("best", cell.best), ("words", cell.prose)) if holds)
    return element("td", words(cell.text), class_=kind or None)


def number(value: float | None, digits: int) -> str:
    """A figure, an en dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share of 1 in per cent."""
    return "–" if value is None else f"{value:.{digits}%}"
