"""The router turns a server's live setting: when a plan wants it, at a bounded rate, and back at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from selector.core.controller import Controller
from selector.core.types import TEXT_TYPES
from selector.files.decision_log import SettingsEvent, read_decision_log
from selector.files.policy import load_policy_file
from selector.router.running import RunningRouter
from selector.router.upstream import changed_everywhere
from selector.simulator.replay import replay
from tests.integration.router.fake_upstream import Exchange, FakeUpstream
from tests.integration.router.harness import CHAT, DONE, ROLE, delta, sglext, usage
from tests.integration.router.raw_client import request
from tests.livearms import ARM, ARM_AT_QUARTER, DSPARK_INFO, KNOB, fleet

WANTING = '''
"""Everything to b0; a request whose temperature is 1 wants a quarter of the budget there, one of 0 the whole."""
from dataclasses import dataclass
from selector.core.types import Decision

@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    pass

class Wanting:
    def decide(self, request, fleet):
        wanted = {None: {}, 0.0: {"dspark_force_budget_frac": 1.0}, 1.0: {"dspark_force_budget_frac": 0.25}}
        return Decision(backend="b0", reason="as asked", settings=wanted[request.temperature])

    def observe(self, outcome):
        pass

def make_policy(params, context):
    return Wanting()
'''


class Server(FakeUpstream):
    """A server of the arm that notes what it is told, and answers each with the next of `verdicts`."""

    def __init__(self, *verdicts: bytes) -> None:
        super().__init__(DSPARK_INFO, script=self._answer)
        self.told: list[float] = []
        self.verdicts = list(verdicts)
        self.status = 200
        self._told = asyncio.Condition()

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.target == "/set_internal_state":
            self.told.append(exchange.json["server_args"][KNOB])
            verdict = self.verdicts.pop(0) if self.verdicts else b"[true]"
            await exchange.answer(self.status, verdict)
            async with self._told:
                self._told.notify_all()
            return
        await exchange.stream_head()
        spec = sglext(spec_verify_ct=100, spec_num_correct_drafts=150, spec_accept_rate=0.2)
        for chunk in (ROLE, delta(content="a"), delta(finish_reason="stop"), spec, usage(250), DONE):
            await exchange.chunk(chunk)
        await exchange.end()

    async def was_told(self, times: int) -> None:
        async with self._told:
            await self._told.wait_for(lambda: len(self.told) >= times)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "wanting.py"
    path.write_text(WANTING, encoding="utf-8")
    return path


class Time:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@asynccontextmanager
async def serving(
    server: Server, policy: Path | str, *, clock: Callable[[], float], log: Path | None = None
) -> AsyncIterator[RunningRouter]:
    loaded = fleet(urls=(server.url,), tables="[router]\npoll_interval_s = 0.02\nsettings_every_s = 10\n")
    chosen, fallback = load_policy_file(str(policy)), load_policy_file("least_loaded")
    async with RunningRouter(loaded, chosen, fallback, port=0, decision_log=log, clock=clock) as router:
        yield router


async def ask(router: RunningRouter, temperature: float | None = None) -> None:
    body: dict[str, Any] = {**CHAT, "stream": True}
    if temperature is not None:
        body["temperature"] = temperature
    async with request(router.url, body=body) as answer:
        assert answer.status == 200 and (await answer.body()).endswith(DONE)


async def get(router: RunningRouter, path: str) -> Any:
    async with request(router.url, path, method="GET") as answer:
        data = await answer.body()
        return data.decode() if path == "/metrics" else orjson.loads(data)


async def in_force(router: RunningRouter) -> tuple[float, bool]:
    """What the router believes, and whether it takes it to be fixed."""
    backend = (await get(router, "/router/state"))["backends"][0]
    return backend["settings"][KNOB], backend["settings_fixed"]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asks again until it holds; each time is an exchange with the router."""
    async with asyncio.timeout(20):
        while not await holds():
            pass


async def settled(router: RunningRouter, expected: tuple[float, bool]) -> None:
    async def so() -> bool:
        return await in_force(router) == expected

    await until(so)


async def test_a_setting_is_turned_shown_logged_and_given_back(policy: Path, tmp_path: Path) -> None:
    clock, log = Time(), tmp_path / "decisions.jsonl"
    async with Server() as server:
        async with serving(server, policy, clock=clock, log=log) as router:
            await ask(router)
            assert server.told == []
            await ask(router, 1.0)
            await server.was_told(1)
            await settled(router, (0.25, False))
            await ask(router, 0.0)  # too soon
            await ask(router)
            clock.s += 9.0
            await ask(router, 0.0)
            assert server.told == [0.25]
            learnt = router.state.dispatcher.controller.context.acceptance
            # The request that asked for it may have seen both settings; the three after it did not.
            assert sum(learnt.estimate(ARM_AT_QUARTER, name).samples for name in TEXT_TYPES) == pytest.approx(3.0, 0.01)
            (last,) = router.state.dispatcher.books.records.latest(1)
            assert (last.last.arm, last.last.acceptance_arm) == (ARM, ARM_AT_QUARTER)
            live = await get(router, "/router/live")
            assert live["backends"][0]["settings"] == {KNOB: 0.25}
            assert ARM_AT_QUARTER in [arm["arm"] for arm in live["acceptance"]["arms"]]
            metrics = await get(router, "/metrics")
            assert f'drafter_selector_live_setting{{arm="{ARM}",backend="b0",setting="{KNOB}"}} 0.25' in metrics
            assert 'drafter_selector_settings_changes_total{backend="b0",result="in force"} 1.0' in metrics
        assert server.told == [0.25, 1.0]
    events = read_decision_log(log)
    changes = [(each.settings[KNOB], each.result, each.why) for each in events if isinstance(each, SettingsEvent)]
    assert changes == [(0.25, "in force", "as asked"), (1.0, "in force", "the router ends")]
    context = fleet().policy_context()
    again = Controller(context, load_policy_file(str(policy)).make({}, context))
    assert len(list(replay(events, again))) == 5
    assert again.tracker.settings("b0") == {KNOB: 1.0}


@pytest.mark.parametrize("refusal", [b"[false]", b'{"updated": false}', b"[true, false]"])
async def test_a_refusal_fixes_the_setting(policy: Path, refusal: bytes) -> None:
    clock = Time()
    async with Server(refusal) as server:
        async with serving(server, policy, clock=clock) as router:
            await ask(router, 1.0)
            await server.was_told(1)
            await settled(router, (1.0, True))
            clock.s += 100.0
            await ask(router, 1.0)
            metrics = await get(router, "/metrics")
            assert 'drafter_selector_settings_changes_total{backend="b0",result="refused"} 1.0' in metrics
        assert server.told == [0.25]  # nothing to give back


async def test_a_server_that_does_not_know_the_route_refuses(policy: Path) -> None:
    async with Server(b"{}") as server, serving(server, policy, clock=Time()) as router:
        server.status = 404
        await ask(router, 1.0)
        await settled(router, (1.0, True))


async def test_no_answer_is_no_refusal(policy: Path, tmp_path: Path) -> None:
    clock, log = Time(), tmp_path / "decisions.jsonl"
    async with Server(b"[true]") as server:
        async with serving(server, policy, clock=clock, log=log) as router:
            server.status = 500
            await ask(router, 1.0)
            await server.was_told(1)
            server.status = 200

            async def counted() -> bool:
                return "failed" in await get(router, "/metrics")

            await until(counted)
            assert await in_force(router) == (1.0, False)
            clock.s += 10.0
            await ask(router, 1.0)
            await settled(router, (0.25, False))
        assert server.told == [0.25, 0.25, 1.0]
    results = [each.result for each in read_decision_log(log) if isinstance(each, SettingsEvent)]
    assert results == ["failed", "in force", "in force"]


async def test_a_server_that_came_back_is_taken_to_be_as_launched_and_told_again(policy: Path) -> None:
    clock = Time()
    async with Server() as server, serving(server, policy, clock=clock) as router:
        await ask(router, 1.0)
        await settled(router, (0.25, False))
        await server.refuse_connections()

        async def gone() -> bool:
            return bool((await get(router, "/router/state"))["backends"][0]["state"] != "available")

        await until(gone)
        await server.listen()
        await settled(router, (1.0, False))
        clock.s += 10.0
        await ask(router, 1.0)
        await settled(router, (0.25, False))
        assert server.told == [0.25, 0.25]


async def test_a_fixed_choice_leaves_servers_alone() -> None:
    async with Server() as server:
        async with serving(server, f"static:{ARM}", clock=Time()) as router:
            for _ in range(5):
                await ask(router)
        assert server.told == []


def test_verdicts_of_every_shape() -> None:
    for yes in ([True], [True, True], {"updated": True}, [{"updated": True}]):
        assert changed_everywhere(yes)
    for no in ([False], [True, False], [], {}, None, {"updated": False}, "true", [1], [None]):
        assert not changed_everywhere(no)
