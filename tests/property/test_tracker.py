"""Whatever happens in whatever order, the tracker neither loses nor invents a request."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from selector.core.tracker import FleetTracker, LoadSignal
from selector.core.types import TEXT_TYPES, BackendView, RequestView
from tests.fleets import request_view, specs_of

NAMES = ("b0", "b1", "b2")

backends = st.sampled_from(NAMES)
requests = st.builds(
    request_view,
    prompt_tokens=st.integers(1, 100_000),
    expected_output_tokens=st.floats(1.0, 10_000.0),
    text_type=st.sampled_from(TEXT_TYPES[:3]),
    tbt_target_ms=st.sampled_from((None, 10.0, 20.0)),
)
signals = st.builds(
    LoadSignal,
    running=st.integers(0, 50),
    waiting=st.integers(0, 20),
    kv_tokens=st.none() | st.floats(0.0, 1e6),
)


class Tracker(RuleBasedStateMachine):
    """The tracker beside the plainest account of the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = FleetTracker(specs_of("none", "dspark-8", "dflash-16"))
        self.running: dict[str, tuple[str, RequestView]] = {}
        self.surpluses: dict[str, list[int]] = {name: [0, 0] for name in NAMES}
        self.number = 0

    def views(self) -> dict[str, BackendView]:
        return {view.name: view for view in self.tracker.view(0.0).backends}

    def of(self, backend: str) -> list[RequestView]:
        return [request for home, request in self.running.values() if home == backend]

    @rule(backend=backends, like=requests)
    def dispatch(self, backend: str, like: RequestView) -> None:
        self.number += 1
        request = request_view(
            f"r{self.number}",
            prompt_tokens=like.prompt_tokens,
            expected_output_tokens=like.expected_output_tokens,
            text_type=like.text_type,
            tbt_target_ms=like.tbt_target_ms,
        )
        self.tracker.dispatched(request, backend, 0.0)
        self.running[request.request_id] = backend, request

    @precondition(lambda self: self.running)
    @rule(choice=st.integers(0))
    def finish(self, choice: int) -> None:
        request_id = sorted(self.running)[choice % len(self.running)]
        del self.running[request_id]
        assert self.tracker.finished(request_id, 0.0)
        before = self.views()
        assert not self.tracker.finished(request_id, 0.0)
        assert self.views() == before

    @rule(backend=backends, signal=signals)
    def poll(self, backend: str, signal: LoadSignal) -> None:
        self.tracker.polled(backend, signal, 0.0)
        surplus = signal.running + signal.waiting - len(self.of(backend))
        self.surpluses[backend] = [self.surpluses[backend][1], max(0, surplus)]

    @rule(backend=backends, available=st.booleans())
    def change_health(self, backend: str, available: bool) -> None:
        self.tracker.health_changed(backend, available, "test", 0.0)

    @invariant()
    def every_request_counts_once_where_it_is(self) -> None:
        assert self.tracker.in_flight() == len(self.running)
        for name, view in self.views().items():
            own = self.of(name)
            assert self.tracker.in_flight(name) == len(own)
            assert view.batch == len(own) + min(self.surpluses[name])
            counts = Counter((request.text_type, request.tbt_target_ms) for request in own)
            assert {(g.text_type, g.tbt_target_ms): g.requests for g in view.groups} == counts

    @invariant()
    def the_cache_holds_what_its_requests_hold(self) -> None:
        for name, view in self.views().items():
            assert view.kv_tokens >= 0.0
            own = sum(request.prompt_tokens + 0.5 * request.expected_output_tokens for request in self.of(name))
            if not min(self.surpluses[name]):
                assert abs(view.kv_tokens - own) <= 1e-6 * max(own, 1.0)

    def teardown(self) -> None:
        for request_id in list(self.running):
            assert self.tracker.finished(request_id, 0.0)
        for name in NAMES:
            self.tracker.polled(name, LoadSignal(running=0, waiting=0), 0.0)
        assert self.tracker.in_flight() == 0
        for view in self.views().values():
            assert (view.batch, view.kv_tokens, view.groups) == (0, 0.0, ())


TestTracker = Tracker.TestCase
TestTracker.settings = settings(max_examples=40, stateful_step_count=30)


@given(order=st.permutations(range(6)), polls=st.lists(signals, min_size=2, max_size=2))
def test_the_order_in_which_requests_end_does_not_matter(order: list[int], polls: list[LoadSignal]) -> None:
    tracker = FleetTracker(specs_of("none"))
    for number in range(6):
        tracker.dispatched(request_view(f"r{number}", prompt_tokens=10**number), "b0", 0.0)
    for signal in polls:
        tracker.polled("b0", signal, 0.0)
    for number in order[:5]:
        tracker.finished(f"r{number}", 0.0)
    (view,) = tracker.view(0.0).backends
    assert tracker.in_flight() == 1
    foreign = min(max(0, signal.running + signal.waiting - 6) for signal in polls)
    assert view.batch == 1 + foreign
    assert abs(view.kv_tokens - (1 + foreign) * (10 ** order[5] + 125.0)) <= 1e-6 * (1 + foreign) * 1e5
