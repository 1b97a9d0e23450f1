"""The document around the figures and tables of a page."""

from __future__ import annotations

from collections.abc import Sequence

from selector.page.styles import STYLE_SHEET
from selector.page.svg import element, words
from selector.page.tables import Cell, table


def document(title: str, sentences: Sequence[str], sections: Sequence[tuple[str, str, str]]) -> str:
    """An HTML document of sections (id, heading, markup) with a table of contents."""
    links = [element("li", element("a", words(heading), href=f"#{name}")) for name, heading, _ in sections]
    body = [
        element("h1", words(title)),
        *(element("p", words(sentence)) for sentence in sentences),
        element("nav", element("ul", *links), aria_label="Contents"),
        *(element("section", element("h2", words(heading)), markup, id=name) for name, heading, markup in sections),
    ]
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        element("title", words(title)),
        element("style", STYLE_SHEET),
    ]
    return "<!doctype html>\n" + element("html", element("head", *head), element("body", *body), lang="en") + "\n"


def figure(caption: str, image: str) -> str:
    """An image with its caption above."""
    return element("figure", element("figcaption", words(caption)), image)


def provenance_table(facts: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> str:
    """Where the numbers are from, and what was assumed."""
    rows: list[list[Cell | str]] = [[name, Cell(text=value, prose=True)] for name, value in facts]
    listed = [element("li", words(note)) for note in notes]
    return table(("what", "value"), rows, caption="provenance") + (element("ul", *listed) if listed else "")


def grid(panels: Sequence[str], *, wide: bool = False) -> str:
    """Figures beside one another as the width allows."""
    return element("div", *panels, class_="grid wide" if wide else "grid")


def fold(heading: str, markup: str, *, opened: bool) -> str:
    """Markup behind a heading that opens and closes it."""
    return element("details", element("summary", words(heading)), markup, open="" if opened else None)
