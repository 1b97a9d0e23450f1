"""Errors that cross from a worker process to the one that asked."""

from __future__ import annotations

import pickle

import pytest

from selector.errors import InputError, PolicyError, TraceError


@pytest.mark.parametrize("kind", [InputError, PolicyError, TraceError])
def test_an_input_error_is_the_same_in_another_process(kind: type[InputError]) -> None:
    raised = kind("sweep.toml: policies[0]", "is 'x'", "choose one that is there")
    again = pickle.loads(pickle.dumps(raised))  # our own
    assert type(again) is kind
    assert str(again) == str(raised) == "sweep.toml: policies[0]: is 'x'; choose one that is there"
    assert (again.where, again.problem, again.remedy) == (raised.where, raised.problem, raised.remedy)
