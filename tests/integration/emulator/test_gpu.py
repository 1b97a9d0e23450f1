"""Energy is conserved: what GPUs draw is what their servers spent and what they idled, at every instant."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.emulator.engine import EmulatedEngine
from selector.emulator.generation import Order
from selector.emulator.gpu import EmulatedGpu, energy_report
from tests.emulators import ManualClock
from tests.fleets import acceptance_model, backend_spec

# Three servers on two GPUs: one alone, one that shares, one that spans both.
_GPUS_OF = (("g0",), ("g1",), ("g0", "g1"))

events = st.lists(
    st.tuples(
        st.floats(0.0, 0.4),  # gap to the event before
        st.integers(0, 2),  # server
        st.integers(1, 60),  # tokens to generate
        st.integers(1, 3_000),  # prompt tokens
        st.booleans(),  # whether an earlier request is aborted as well
    ),
    min_size=1,
    max_size=15,
)


def machines(clock: ManualClock) -> tuple[dict[str, EmulatedGpu], list[EmulatedEngine]]:
    idle = backend_spec("b", "none").cost.idle
    gpus = {name: EmulatedGpu(name, idle) for name in ("g0", "g1")}
    engines = [
        EmulatedEngine(
            backend_spec(f"b{index}", arm, max_running_requests=3),
            acceptance_model(),
            [gpus[name] for name in names],
            clock,
        )
        for index, (arm, names) in enumerate(zip(("none", "dspark-8", "eagle3-k1"), _GPUS_OF, strict=True))
    ]
    return gpus, engines


@given(events)
@settings(max_examples=60)
def test_energy_is_conserved_and_rises_steadily(
    happenings: list[tuple[float, int, int, int, bool]],
) -> None:
    clock = ManualClock()
    gpus, engines = machines(clock)
    readings: list[tuple[float, float]] = [(0.0, 0.0)]

    def read() -> None:
        now_s = clock.now_s()
        total_j = sum(gpu.energy(now_s).total_j for gpu in gpus.values())
        spent_j = sum(sum(engine.energy_j(now_s)) for engine in engines)
        idle_j = sum(gpu.energy(now_s).idle_j for gpu in gpus.values())
        assert total_j == pytest.approx(spent_j + idle_j, rel=1e-9)
        readings.append((now_s, total_j))

    submitted = []
    for number, (gap_s, server, tokens, prompt, abort) in enumerate(happenings):
        target_s = clock.now_s() + gap_s
        while clock.next_due_s is not None and clock.next_due_s <= target_s:
            clock.step()
            read()
        clock.advance_to(target_s)
        read()
        made = Order(rid=f"r{number}", prompt_tokens=prompt, answer_tokens=tokens, text_type="code", draw_key=number)
        submitted.append((engines[server], engines[server].submit(made)))
        if abort:
            engine, generation = submitted[number // 2]
            engine.abort(generation)
        read()
    while clock.step():
        read()
    assert all(after_j >= before_j - 1e-9 for (_, before_j), (_, after_j) in pairwise(readings))
    # No reading jumps: between two, no more than three servers' power over the time that passed.
    for (before_s, before_j), (after_s, after_j) in pairwise(readings):
        assert after_j - before_j <= 3 * 2_500.0 * (after_s - before_s) + 1e-6
    spent_j = sum(engine.totals.decode_j + engine.totals.prefill_j for engine in engines)
    idle_j = sum(gpu.energy(clock.now_s()).idle_j for gpu in gpus.values())
    assert readings[-1][1] == pytest.approx(spent_j + idle_j, rel=1e-9)


def test_an_idle_gpu_draws_its_idle_power_once_however_many_servers_it_has() -> None:
    clock = ManualClock()
    gpus, _ = machines(clock)
    clock.advance_to(10.0)
    # 95 W with a server resident, whether one or two.
    drawn = {name: gpu.energy(10.0).total_j for name, gpu in gpus.items()}
    assert drawn == pytest.approx({"g0": 950.0, "g1": 950.0})


def test_idle_power_is_not_counted_while_any_server_works() -> None:
    clock = ManualClock()
    gpus, engines = machines(clock)
    engines[0].submit(Order(rid="r", prompt_tokens=100, answer_tokens=100, text_type="code", draw_key=1))
    while clock.step():
        pass
    worked_s = clock.now_s()
    assert worked_s > 0.4
    assert gpus["g0"].energy(worked_s).idle_j == 0.0
    assert gpus["g1"].energy(worked_s).idle_j == pytest.approx(95.0 * worked_s)


def test_a_server_on_two_gpus_draws_half_from_each() -> None:
    clock = ManualClock()
    gpus, engines = machines(clock)
    engines[2].submit(Order(rid="r", prompt_tokens=100, answer_tokens=100, text_type="code", draw_key=1))
    while clock.step():
        pass
    now_s = clock.now_s()
    decode_j, prefill_j = engines[2].energy_j(now_s)
    assert decode_j > 10.0 and prefill_j > 1.0
    for gpu in gpus.values():
        assert gpu.energy(now_s).decode_j == pytest.approx(decode_j / 2)
        assert gpu.energy(now_s).prefill_j == pytest.approx(prefill_j / 2)


def test_the_report_has_whole_millijoules_and_emulated_timestamps() -> None:
    clock = ManualClock()
    gpus, _ = machines(clock)
    clock.advance_to(1.0)
    report = json.loads(energy_report(gpus.values(), clock))
    counters = {"energy_mj": 95_000, "decode_mj": 0, "prefill_mj": 0, "idle_mj": 95_000}
    timestamp_ns = int(clock.unix_now_s() * 1e9)
    assert report["gpus"] == [{"id": name, "timestamp_ns": timestamp_ns, **counters} for name in ("g0", "g1")]
