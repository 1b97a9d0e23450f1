"""Options of a TCP connection, towards clients and backends alike."""

from __future__ import annotations

import socket
from typing import Any

_SILENT_S = 20
"""After so long without a packet the other side is asked whether it is still there."""
_ASK_EVERY_S = 5
_UNANSWERED_MS = 75_000
"""A peer that acknowledges nothing for so long, or takes nothing of what waits for it, is gone."""


def prepare(raw: Any) -> None:
    """Sets the options; nothing for a socket that is not TCP.

    Nothing is held back until it fills a segment: a token is worth more than a packet. And a peer that vanished without
    a word (its machine lost power, a firewall forgot the connection) is noticed in little more than a minute, where the
    system's own limits are up to hours.
    """
    if raw is None or raw.family == socket.AF_UNIX:
        return
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _SILENT_S),
        ("TCP_KEEPINTVL", _ASK_EVERY_S),
        ("TCP_USER_TIMEOUT", _UNANSWERED_MS),
    ):
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)
