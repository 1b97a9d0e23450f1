"""Cycles are looked for seldom, for as long as it was asked for."""

from __future__ import annotations

import gc

import pytest

from selector.simulator.collecting import collecting_seldom


def test_the_thresholds_are_as_before_afterwards_however_it_ends() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), collecting_seldom():
        assert gc.get_threshold()[0] > 10 * before[0]
        raise KeyError
    assert gc.get_threshold() == before


def test_who_has_turned_it_off_has_it_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with collecting_seldom():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
