"""SVG and HTML elements as text, always escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def element(name: str, *children: str, **attributes: object) -> str:
    """`<name …>children</name>`; children are markup already.

    Attribute names are written with `_` for `-`, a trailing one is dropped (`class_`); an attribute that is `None` is
    left out, a number is shortened to what a screen shows.
    """
    return f"<{name}{attributes_of(attributes)}>{''.join(children)}</{name}>"


def attributes_of(attributes: dict[str, object]) -> str:
    """Attributes as they stand in a tag, with a space before each."""
    return "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )


def words(text: object) -> str:
    """Any text as markup."""
    return escape(str(text), quote=False)


def text(content: object, x: float, y: float, *, anchor: str = "start", **attributes: object) -> str:
    """A line of SVG text; `anchor` is start, middle or end."""
    return element("text", words(content), x=x, y=y, text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def path(points: Iterable[tuple[float, float]], *, closed: bool = False, **attributes: object) -> str:
    """A line through `points` (x, y in pixels), straight between them."""
    commands = " ".join(f"{'L' if index else 'M'}{_short(x)} {_short(y)}" for index, (x, y) in enumerate(points))
    return element("path", d=commands + (" Z" if closed else ""), **attributes)


def drawing(*children: str, width: float, height: float, title: str, description: str) -> str:
    """A whole SVG image that scales with its column; screen readers get `title` and `description`."""
    return element(
        "svg",
        element("title", words(title)),
        element("desc", words(description)),
        *children,
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        role="img",
        aria_label=f"{title}. {description}",
    )


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
