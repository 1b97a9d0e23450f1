"""Decode and prefill measurements find the true costs of a server that has known ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.errors import MeterError, UpstreamError
from selector.profiler.load import measure_decode
from selector.profiler.prefill import measure_idle, measure_lone_prefill, measure_prefill
from selector.profiler.rig import Shape

WINDOW_S = 5.5


@pytest.mark.parametrize("method", ["difference", "steady"])
@pytest.mark.parametrize(("batch", "prompt", "accept"), [(1, 512, 1), (64, 2048, 1), (8, 512, 3)])
async def test_a_decode_cell_has_the_true_time_and_energy(rig, fake, method, batch, prompt, accept) -> None:
    fake.costs.accept_length = accept
    shape = Shape(batch=batch, prompt_tokens=prompt, verify_tokens=1 if accept == 1 else 8)
    found = await measure_decode(rig, shape, method=method, window_s=WINDOW_S, seed=1)
    true_ms = fake.costs.step_ms(batch, found.context_tokens)
    true_j = fake.costs.step_j(batch, found.context_tokens)
    assert found.step_ms == pytest.approx(true_ms, rel=0.01)
    assert found.step_j == pytest.approx(true_j, rel=0.01)
    assert found.accept_length == pytest.approx(accept, rel=0.01)
    assert found.window_s >= WINDOW_S
    assert found.energy.counter_updates >= 50
    assert prompt < found.context_tokens < 16_384


@pytest.mark.parametrize("method", ["difference", "steady"])
async def test_windows_too_long_for_the_context_are_put_together(rig, fake, method) -> None:
    short = replace(rig, context_length=1024)
    found = await measure_decode(
        short, Shape(batch=4, prompt_tokens=512, verify_tokens=1), method=method, window_s=WINDOW_S, seed=1
    )
    assert max(prompt + tokens for _, prompt, tokens in fake.generations) <= 1024
    assert found.window_s >= WINDOW_S
    assert found.step_ms == pytest.approx(fake.costs.step_ms(4, found.context_tokens), rel=0.01)
    assert found.step_j == pytest.approx(fake.costs.step_j(4, found.context_tokens), rel=0.02)


@pytest.mark.parametrize("method", ["difference", "steady"])
async def test_without_a_meter_time_alone_is_measured(rig, fake, method) -> None:
    found = await measure_decode(
        replace(rig, meter=None),
        Shape(batch=2, prompt_tokens=128, verify_tokens=1),
        method=method,
        window_s=WINDOW_S,
        seed=1,
    )
    assert found.step_j is None
    assert found.energy is None
    assert found.step_ms == pytest.approx(fake.costs.step_ms(2, found.context_tokens), rel=0.01)


async def test_a_batch_that_does_not_run_together_is_refused(rig, fake) -> None:
    fake.max_running = 4
    with pytest.raises(UpstreamError, match="never decoded together"):
        await measure_decode(
            replace(rig, context_length=1024),
            Shape(batch=8, prompt_tokens=512, verify_tokens=1),
            method="steady",
            window_s=WINDOW_S,
            seed=1,
        )


async def test_steady_needs_the_servers_step_totals(rig, fake) -> None:
    fake.publishes = False
    with pytest.raises(UpstreamError, match="use method 'difference'"):
        await measure_decode(
            replace(rig, context_length=1024),
            Shape(batch=8, prompt_tokens=512, verify_tokens=1),
            method="steady",
            window_s=WINDOW_S,
            seed=1,
        )


async def test_an_arm_that_should_speculate_and_does_not_is_refused(rig) -> None:
    with pytest.raises(UpstreamError, match="does this server speculate"):
        await measure_decode(
            rig,
            Shape(batch=8, prompt_tokens=512, verify_tokens=4),
            method="difference",
            window_s=WINDOW_S,
            seed=1,
        )


@pytest.mark.parametrize("method", ["difference", "steady"])
async def test_a_window_that_the_meter_refuses_is_no_result(rig, fake, gpu, method) -> None:
    gpu.lie_frac = 0.5
    fake.costs.prefill_w = 400.0
    with pytest.raises(MeterError, match="above the enforced limit"):
        await measure_decode(
            rig, Shape(batch=64, prompt_tokens=512, verify_tokens=1), method=method, window_s=WINDOW_S, seed=1
        )


async def test_equal_seeds_submit_equal_prompts(rig, fake) -> None:
    shape = Shape(batch=1, prompt_tokens=16, verify_tokens=1)
    for seed in (3, 3, 4):
        await measure_decode(rig, shape, method="steady", window_s=WINDOW_S, seed=seed)
    first, again, other = fake.prompts
    assert first == again != other
    assert all(0 <= token < rig.vocab_size for token in first[0])


async def test_one_measurement_leaves_nothing_behind_for_the_next(rig) -> None:
    shape = Shape(batch=8, prompt_tokens=256, verify_tokens=1)
    first = await measure_decode(rig, shape, method="steady", window_s=WINDOW_S, seed=1)
    again = await measure_decode(rig, shape, method="steady", window_s=WINDOW_S, seed=1)
    assert again.context_tokens == pytest.approx(first.context_tokens, rel=0.05)
    assert again.step_ms == pytest.approx(first.step_ms, rel=0.01)


async def test_answers_shorter_than_asked_for_are_refused(rig, fake) -> None:
    fake.stops_early = True
    with pytest.raises(UpstreamError, match=r"asked for 16 tokens each, got \[15\]"):
        await measure_decode(
            rig, Shape(batch=2, prompt_tokens=64, verify_tokens=1), method="difference", window_s=WINDOW_S, seed=1
        )


async def test_steps_that_do_not_fill_the_window_are_refused(rig, fake) -> None:
    fake.stepping_frac = 0.8
    with pytest.raises(UpstreamError, match="something else ran in it"):
        await measure_decode(
            rig, Shape(batch=2, prompt_tokens=64, verify_tokens=1), method="steady", window_s=WINDOW_S, seed=1
        )


@pytest.mark.parametrize(("tokens", "at_once"), [(128, 32), (4096, 1), (8192, 1)])
async def test_prefill_costs_what_the_prompt_takes(rig, fake, tokens, at_once) -> None:
    cost = await measure_prefill(rig, tokens, window_s=WINDOW_S, batch_tokens=4096, seed=1)
    assert cost.prompts_at_once == at_once
    true_s = tokens / fake.costs.prompt_tokens_per_s
    assert cost.ms == pytest.approx(1e3 * true_s, rel=0.01)
    assert cost.j == pytest.approx(fake.costs.prefill_w * true_s, rel=0.01)
    assert {new for _, _, new in fake.generations} == {1}


@pytest.mark.parametrize("counts", [True, False])
async def test_a_lone_prefill_takes_what_the_server_counts_or_else_what_the_client_sees(rig, fake, counts) -> None:
    fake.counts_prefill = counts
    cost = await measure_lone_prefill(rig, 128, window_s=WINDOW_S, seed=1)
    assert {batch for batch, _, _ in fake.generations} == {1}
    true_s = 128 / fake.costs.prompt_tokens_per_s
    assert cost.ms == pytest.approx(1e3 * true_s, rel=0.01)
    assert cost.j == pytest.approx(fake.costs.prefill_w * true_s, rel=0.01)


async def test_idle_power_is_that_of_the_board(meter, clock, gpu) -> None:
    energy = await measure_idle(meter, clock, settle_s=1.0, window_s=6.0)
    assert energy.watts_mean == pytest.approx(gpu.idle_w, rel=0.001)
