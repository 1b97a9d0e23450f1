"""Values of options that several commands take, and the figures of their tables."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

LAST_PORT = 65_535


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
    if not 0 <= value <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PortOrDistance:
    """A port, or how far it is above another one."""

    number: int
    is_distance: bool


def port_or_distance(text: str) -> PortOrDistance:
    """`N` is a port, `+N` a distance, for programs of which several run on one machine."""
    return PortOrDistance(number=port(text.removeprefix("+")), is_distance=text.startswith("+"))


def figure(value: float | None, digits: int) -> str:
    """A number for a table, `-` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _number(kind: type[int] | type[float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        wanted = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{text!r} is not a {wanted}") from None
