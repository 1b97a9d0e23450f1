"""What is read off a batch: the tightest target and the mean context, anew only when its requests change."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

import pytest

from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD
from selector.engine.batchfacts import (
    CHANGED_CONTEXT_EVERY_STEPS,
    CONTEXT_EVERY_STEPS,
    LARGE_BATCH,
    LEAST_WAIT_STEPS,
    LOOKED_AT_PER_STEP,
    BatchFacts,
)

_NUMBERS = count()


@dataclass
class Params:
    custom_params: dict[str, Any] | None = None


@dataclass
class Req:
    """As much of SGLang's as is read."""

    target_ms: object = None
    prompt: int = 100
    output_ids: list[int] = field(default_factory=list)
    text_type: object = None
    rid: str = field(default_factory=lambda: f"r{next(_NUMBERS)}")

    @property
    def origin_input_ids(self) -> list[int]:
        return [0] * self.prompt

    @property
    def sampling_params(self) -> Params:
        told = {TARGET_FIELD: self.target_ms, TEXT_FIELD: self.text_type}
        known = {key: value for key, value in told.items() if value is not None}
        return Params({**known, "theirs": 1} if known else None)


def test_the_tightest_target_counts() -> None:
    facts = BatchFacts(None)
    facts.update([Req(25.0), Req(), Req(8), Req(12.5)], 4)
    assert facts.batch.tightest_ms == 8.0


def test_requests_without_a_target_have_the_default() -> None:
    facts = BatchFacts(10.0)
    facts.update([Req(25.0), Req()], 2)
    assert facts.batch.tightest_ms == 10.0
    facts.update([Req(25.0), Req(30.0)], 2)
    assert facts.batch.tightest_ms == 25.0


def test_without_any_target_there_is_no_bound() -> None:
    facts = BatchFacts(None)
    facts.update([Req(), Req()], 2)
    assert facts.batch.tightest_ms == inf


def test_the_context_is_the_mean_over_prompts_and_answers() -> None:
    facts = BatchFacts(None)
    facts.update([Req(prompt=100, output_ids=[1] * 20), Req(prompt=300)], 2)
    assert facts.context_tokens == 210.0


def test_the_context_of_the_same_list_is_read_again_only_now_and_then() -> None:
    facts, requests = BatchFacts(None), [Req(prompt=100)]
    facts.update(requests, len(requests))
    requests[0].output_ids.extend([1] * 50)
    for _ in range(CONTEXT_EVERY_STEPS - 1):
        facts.update(requests, len(requests))
        assert facts.context_tokens == 100.0
    facts.update(requests, len(requests))
    assert facts.context_tokens == 150.0


def test_requests_that_come_and_go_at_every_step_count_in_the_context_soon() -> None:
    facts = BatchFacts(None)
    facts.update([Req(prompt=100)], 1)
    for _ in range(CHANGED_CONTEXT_EVERY_STEPS):
        facts.update([Req(prompt=700)], 1)
    assert facts.context_tokens == 700.0


def test_a_target_counts_from_the_step_its_request_joins_until_it_leaves() -> None:
    facts, slow, fast = BatchFacts(None), Req(25.0), Req(8.0)
    for requests, target_ms in (([slow], 25.0), ([slow, fast], 8.0), ([fast], 8.0), ([slow], 25.0), ([Req()], inf)):
        facts.update(requests, len(requests))
        assert facts.batch.tightest_ms == target_ms


def test_targets_of_requests_that_left_are_not_kept_for_ever() -> None:
    facts = BatchFacts(None)
    for _ in range(2_000):
        facts.update([Req(25.0)], 1)
    assert len(facts._known) < 300


def test_a_batch_that_is_not_known_has_the_default_target_and_the_context_before() -> None:
    facts = BatchFacts(10.0)
    facts.update([Req(5.0)], 1)
    facts.update(None, 3)
    assert (facts.batch.size, facts.batch.tightest_ms, facts.context_tokens) == (3, 10.0, 100.0)


def test_requests_are_grouped_by_text_type_and_target_and_keep_their_places() -> None:
    facts = BatchFacts(None)
    requests = [Req(10.0, text_type="code"), Req(text_type="romansh"), Req(10.0, text_type="code"), Req(text_type="x")]
    facts.update(requests, 4)
    assert set(facts.batch.groups) == {("code", 10.0, 2), ("romansh", inf, 1), ("", inf, 1)}
    assert facts.batch.rows == {"code": [0, 2], "romansh": [1], "": [3]}
    facts.update(requests[:1], 1)
    assert facts.batch.rows == {"code": [0]}


def test_requests_that_joined_since_the_last_look_are_fresh() -> None:
    facts = BatchFacts(None)
    old, new = Req(text_type="code"), Req(text_type="romansh")
    facts.update([old], 1)
    assert facts.batch.fresh == {"code": 1}
    facts.update([old, new], 2)
    assert facts.batch.fresh == {"romansh": 1}


@pytest.mark.parametrize(("size", "wait"), [(LARGE_BATCH, LEAST_WAIT_STEPS), (64, 64 // LOOKED_AT_PER_STEP)])
def test_a_large_batch_is_looked_at_every_few_steps(size: int, wait: int) -> None:
    facts = BatchFacts(None)
    requests = [Req(10.0) for _ in range(size)]
    facts.update(requests, size)
    looked = []
    for _ in range(2 * wait):
        requests = [*requests[1:], Req(5.0)]
        facts.update(requests, size)
        looked.append(facts.read_now)
    assert sum(looked) == 2 and looked[wait - 1]
    assert facts.batch.tightest_ms == 5.0
    facts.read([Req(3.0)] * size, size)
    assert facts.read_now and facts.batch.tightest_ms == 3.0
