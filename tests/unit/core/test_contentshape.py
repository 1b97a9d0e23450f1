"""Which events need no second look, once one of their shape was understood."""

from __future__ import annotations

import pytest

from selector.core.contentshape import ContentShape

LEARNT = b'data: {"delta":{"content":"some"}}\n\n'


def shape(event: bytes = LEARNT) -> ContentShape:
    learnt = ContentShape()
    learnt.learn(event)
    return learnt


def test_an_event_that_differs_in_its_text_alone_is_of_the_shape() -> None:
    assert shape().matches(LEARNT.replace(b"some", b"other words \\n \xc3\xa9"))


@pytest.mark.parametrize(
    "event",
    [
        LEARNT.replace(b"some", b""),
        LEARNT.replace(b"some", b'a","error":"b'),
        LEARNT.replace(b"some", b"a\nb"),
        LEARNT.replace(b"content", b"text"),
        LEARNT.replace(b"}}", b"},\"usage\":{}}"),
        LEARNT.replace(b"\n", b"\r\n"),
        LEARNT[:-1],
        b"",
    ],
)  # fmt: skip
def test_an_event_that_may_say_more_is_not(event: bytes) -> None:
    assert not shape().matches(event)


@pytest.mark.parametrize(
    "event",
    [
        LEARNT.replace(b"some", b'so\\"me'),
        LEARNT.replace(b"\n", b"\r\n"),
        LEARNT.replace(b"\n\n", b"\r\n\n"),
        b"event: delta\n" + LEARNT,
        b'data: {"delta":{"content":""}}\n\n',
    ],
)
def test_what_could_be_cut_differently_teaches_no_shape(event: bytes) -> None:
    assert not shape(event).matches(event)


def test_before_a_shape_is_learnt_nothing_is_of_it() -> None:
    assert not ContentShape().matches(b"a stretch without any end")
