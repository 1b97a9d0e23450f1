"""What the boards counted is shared out without loss, whatever happens in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.energyshare import EnergyShare, Interval, Settled
from selector.core.fleetwork import FleetWork
from selector.core.types import RequestView
from tests.emulators import fleet_of

# b0 and b1 share a GPU, b1 spans two, b2 has one of its own.
GPUS = (("g0",), ("g0", "g1"), ("g2",))
ALL_GPUS = ("g0", "g1", "g2")


SPECS = tuple(replace(fleet_of("none").specs[0], name=f"b{index}", gpus=gpus) for index, gpus in enumerate(GPUS))

_steps = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 2), st.integers(1, 4000)),
    st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("others"), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("read"), st.integers(0, 2), st.integers(0, 2000)),
    st.tuples(st.just("begin"), st.integers(0, 2), st.just(0)),
)


@dataclass
class Play:
    """One history, played."""

    most_waiting: int = 4096
    intervals: list[Interval] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.work = FleetWork(SPECS)
        self.share = EnergyShare(SPECS, self.work, most_waiting=self.most_waiting)
        self.flying: list[tuple[str, str, RequestView]] = []
        self.begun: set[str] = set()
        self.count = 0

    def start(self, index: int, prompt_tokens: int) -> str:
        backend, self.count = f"b{index}", self.count + 1
        view = RequestView(
            request_id=f"r{self.count}", arrival_s=self.now_s, prompt_tokens=prompt_tokens, expected_output_tokens=100
        )
        prefill_j = self.work.started(backend, view, self.now_s)
        self.share.started(view.request_id, backend, prefill_j, self.now_s)
        self.flying.append((view.request_id, backend, view))
        return view.request_id

    def end(self, index: int) -> None:
        if self.flying:
            request_id, backend, view = self.flying.pop(index % len(self.flying))
            self.work.ended(backend, view, self.now_s)
            self.share.ended(request_id, backend, self.now_s)

    def others(self, index: int, requests: int) -> None:
        self.work.others(f"b{index}", requests, self.now_s)
        self.share.others_changed(f"b{index}", self.now_s)

    def begin(self, gpu: str) -> None:
        self.begun.add(gpu)
        self.settled += self.share.begin(gpu, self.now_s)

    def read(self, gpu: str, joules: float, seconds: float | None = None) -> None:
        since = self.share._boards[gpu].since_s or 0.0
        interval = self.share.reading(gpu, joules, self.now_s - since if seconds is None else seconds, self.now_s)
        self.intervals.append(interval)
        self.settled += interval.settled

    def unsettled_j(self) -> float:
        return sum(request.joules for lane in self.share._lanes.values() for request in lane.requests.values())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 3.0), _steps), max_size=60), st.sampled_from([2, 4096]))
def test_idle_others_and_requests_sum_to_what_the_boards_counted(
    history: list[tuple[float, tuple[str, int, int]]], most_waiting: int
) -> None:
    play = Play(most_waiting)
    for passed_s, (kind, number, amount) in history:
        play.now_s += passed_s
        if kind == "start":
            play.start(number, amount)
        elif kind == "end":
            play.end(number)
        elif kind == "others":
            play.others(number, amount)
        elif kind == "begin":
            play.begin(ALL_GPUS[number])
        elif ALL_GPUS[number] in play.begun:
            play.read(ALL_GPUS[number], float(amount))
    counted = math.fsum(interval.joules for interval in play.intervals)
    parts = math.fsum(part for each in play.intervals for part in (each.idle_j, each.others_j, each.requests_j))
    assert math.isclose(parts, counted, rel_tol=1e-9, abs_tol=1e-6)
    for interval in play.intervals:
        assert min(interval.idle_j, interval.others_j) >= 0.0
        assert interval.requests_j >= -1e-9 * interval.joules
    assert play.share.waiting <= most_waiting
    # what requests were given is what the intervals gave out (those that were not wholly metered keep theirs unnamed)
    if all(each.joules is not None for each in play.settled) and most_waiting > 2:
        given_out = math.fsum(each.joules or 0.0 for each in play.settled) + play.unsettled_j()
        assert math.isclose(
            given_out, math.fsum(each.requests_j for each in play.intervals), rel_tol=1e-9, abs_tol=1e-6
        )


def test_requests_of_one_batch_share_alike_and_prompts_pay_for_their_prefill() -> None:
    play = Play()
    play.begin("g2")
    short, long = play.start(2, 100), play.start(2, 100)
    play.now_s = 1.0
    play.end(0)
    play.end(0)
    play.read("g2", 500.0)
    joules = {each.request_id: each.joules for each in play.settled}
    assert joules == {short: pytest.approx(250.0), long: pytest.approx(250.0)}

    play = Play()
    play.begin("g2")
    short, long = play.start(2, 100), play.start(2, 4000)
    play.now_s = 1.0
    play.end(0)
    play.end(0)
    play.read("g2", 500.0)
    drawn = {each.request_id: each.joules or 0.0 for each in play.settled}
    assert drawn[long] > 1.5 * drawn[short] > 0.0
    assert sum(drawn.values()) == pytest.approx(500.0)


def test_idling_is_nobodys() -> None:
    play = Play()
    play.begin("g2")
    play.now_s = 9.0
    play.start(2, 1)
    play.now_s = 10.0
    play.end(0)
    play.read("g2", 95.0 * 9.0 + 300.0)  # 95 W idle
    (interval,) = play.intervals
    assert math.isclose(interval.idle_j, 855.0)
    assert math.isclose(play.settled[0].joules or 0.0, 300.0)
    play.now_s = 12.0
    play.read("g2", 200.0)
    assert play.intervals[-1].idle_j == 200.0


def test_a_request_on_two_boards_waits_for_both_and_a_neighbour_pays_its_part() -> None:
    play = Play()
    play.begin("g0")
    play.begin("g1")
    alone, spanning = play.start(0, 100), play.start(1, 100)
    play.now_s = 1.0
    play.end(0)
    play.end(0)
    play.read("g0", 300.0)
    assert [each.request_id for each in play.settled] == [alone]
    play.read("g1", 200.0)
    joules = {each.request_id: each.joules or 0.0 for each in play.settled}
    # on g0 it weighs half of what the other does, on g1 it is alone
    assert math.isclose(joules[alone], 200.0)
    assert math.isclose(joules[spanning], 300.0)


def test_what_was_not_metered_whole_has_no_joules() -> None:
    play = Play()
    early = play.start(2, 100)
    play.now_s = 1.0
    play.begin("g2")
    play.now_s = 2.0
    later = play.start(2, 100)
    play.now_s = 3.0
    play.end(0)
    play.end(0)
    play.read("g2", 700.0)
    joules = {each.request_id: each.joules for each in play.settled}
    assert joules[early] is None
    assert joules[later] is not None
    assert 0.0 < joules[later] < 350.0


def test_the_modelled_joules_follow_the_clock_of_the_board() -> None:
    modelled = []
    for seconds in (2.0, 1.0):
        play = Play()
        play.begin("g2")
        play.start(2, 1)
        play.now_s = 2.0
        play.end(0)
        play.read("g2", 700.0, seconds)
        modelled.append(play.settled[0].modelled_j)
    assert math.isclose(modelled[0], 2 * modelled[1])
    # alone, one step of 5.1 ms draws 2.55 J: 500 W
    assert math.isclose(modelled[0], 1000.0, rel_tol=0.02)


def test_steps_are_those_of_the_load_that_there_was() -> None:
    play = Play()
    play.start(2, 0)
    play.now_s = 1.0
    play.end(0)
    steps = play.work.steps_between("b2", 0.0, 1.0)
    step_ms, _ = SPECS[2].cost.step.step(1, 50)
    assert steps is not None
    assert math.isclose(steps, 1e3 / step_ms)
    assert math.isclose(play.work.steps_between("b2", 0.25, 0.75) or 0.0, steps / 2)
    assert play.work.steps_between("b2", 0.5, 2.0) is None
    # two servers of one GPU take turns
    play = Play()
    play.start(0, 0)
    play.start(1, 0)
    play.now_s = 1.0
    play.end(0)
    shared = play.work.steps_between("b0", 0.0, 1.0)
    assert shared is not None
    assert math.isclose(shared, steps / 2)


def test_a_meter_that_never_answers_costs_no_memory() -> None:
    play = Play(most_waiting=5)
    play.begin("g2")
    for number in range(50):
        play.now_s = float(number)
        play.start(2, 100)
        play.end(0)
    assert play.share.waiting == 5
    play.now_s = 60.0
    play.read("g2", 9_000.0)
    assert len(play.settled) == 5
    # what was given up is not given to others
    assert play.intervals[0].others_j > 5 * sum(each.joules or 0.0 for each in play.settled)


def test_what_lies_too_far_back_is_not_told() -> None:
    play = Play()
    for number in range(5_000):
        play.now_s = float(number)
        play.start(2, 1)
        play.end(0)
    assert play.work.steps_between("b2", 10.0, 20.0) is None
    assert play.work.steps_between("b2", 4_900.0, 4_999.0) is not None
    assert len(play.work._lanes["b2"].times) < 2_048
