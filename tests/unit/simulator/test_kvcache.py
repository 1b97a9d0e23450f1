"""The part of the KV cache that is kept for what running requests may generate."""

from __future__ import annotations

import pytest

from selector.simulator.decoding import Decoding
from selector.simulator.job import Job, Totals
from selector.simulator.kvcache import MOST_RESERVED_TOKENS, KvCache, most_new_tokens
from tests.fleets import arm_cost


def job(most_new_tokens: int) -> Job:
    made = Job(
        key=0, draw_key=0, prompt_tokens=100, output_tokens=10, accept_length=1.0, accept_spread=0.0, arrived_s=0.0
    )
    made._context, made._most_new_tokens = 100, most_new_tokens
    return made


@pytest.mark.parametrize(("step", "ratio"), [(0, 0.7), (300, 0.399), (600, 0.098), (601, 0.098), (100_000, 0.098)])
def test_the_new_token_ratio_falls_over_six_hundred_steps_and_no_further(step: int, ratio: float) -> None:
    decoding = Decoding(arm_cost("none").step, Totals())
    decoding.step = step
    assert KvCache(10_000, decoding, 1).kept_for([job(1_000)]) == pytest.approx(ratio * 1_000)


@pytest.mark.parametrize(
    ("most", "generated", "left"),
    [(50, 20, 30), (50, 50, 0), (50, 70, 0), (9_000, 0, MOST_RESERVED_TOKENS), (9_000, 8_000, 1_000)],
)
def test_a_request_may_generate_what_is_left_of_its_bound_at_most_so_many(most: int, generated: int, left: int) -> None:
    assert most_new_tokens(job(most), generated) == left
