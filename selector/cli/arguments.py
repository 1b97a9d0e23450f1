"""Values of options that several commands take, and the figures of their tables."""

from __future__ import annotations

import argparse
from typing import Literal


def positive(text: str) -> float:
    """A finite number above 0."""
    value = _number(float, text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def target_choice(text: str) -> float | Literal["none"]:
    """A TBT target in ms, or `none` for no target at all."""
    return "none" if text == "none" else positive(text)


def count(text: str) -> int:
    """A whole number, 1 or more."""
    value = int(_number(int, text))
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def port(text: str) -> int:
    """A TCP port; 0 stands for any free one."""
    value = int(_number(int, text))
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return value


def figure(value: float | None, digits: int) -> str:
    """A number for a table, `-` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _number(kind: type[int] | type[float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        wanted = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{text!r} is not a {wanted}") from None
