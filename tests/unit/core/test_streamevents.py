"""Whole events from bytes, and what their fields hold."""

from __future__ import annotations

import pytest

from selector.core.streamevents import MAX_EVENT_BYTES, EventSplitter, event_data, event_name


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_every_line_ending_of_the_standard_ends_an_event(end: bytes) -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a" + end + b"data: b" + end + b"dat") == [b"data: a" + end, b"data: b" + end]
    assert splitter.rest() == b"dat"


def test_an_end_that_is_split_over_reads_is_seen() -> None:
    splitter = EventSplitter()
    assert [splitter.feed(byte) for byte in (b"data: a\r", b"\n", b"\r", b"\n")] == [[], [], [], [b"data: a\r\n\r\n"]]


def test_a_stream_that_never_ends_an_event_is_given_up_rather_than_kept() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"x" * MAX_EVENT_BYTES) == []
    assert splitter.feed(b"y") == [b"x" * MAX_EVENT_BYTES + b"y"]
    assert splitter.rest() == b""


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b"data: {}\r\n\r\n", b"{}"),
        (b"data: {}\r\r", b"{}"),
        (b"event: x\ndata: a\ndata: b\nid: 7\n\n", b"a\nb"),
        (b": comment\n\n", b""),
        (b"\n\n", b""),
        (b"data: [DONE]", b"[DONE]"),
    ],
)
def test_the_data_of_an_event(raw: bytes, data: bytes) -> None:
    assert event_data(raw) == data


def test_the_name_of_an_event() -> None:
    assert event_name(b"event: message_stop\ndata: {}\n\n") == b"message_stop"
    assert event_name(b"data: event:\n\n") == b""
