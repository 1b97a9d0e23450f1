"""The router reads meters: what boards counted reaches requests, metrics, explanations and the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from selector.core.types import Correction
from selector.files.decision_log import CorrectionEvent, EnergyEvent, read_decision_log
from selector.router.corrections import correct
from selector.router.running import RunningRouter
from tests.contract.test_decision_log_replay import replayed
from tests.integration.router.fake_meter import FakeMeter
from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream, streaming
from tests.integration.router.harness import CHAT, chat_stream, fleet_of, routed
from tests.integration.router.raw_client import request

STREAM = {**CHAT, "stream": True}


def metered(*meters: FakeMeter, more: str = "") -> str:
    urls = ", ".join(f'"{meter.url}"' for meter in meters)
    return f"[energy]\nurls = [{urls}]\npoll_interval_s = 0.01\n{more}"


async def get(router: RunningRouter, path: str, status: int = 200) -> Any:
    async with request(router.url, path, method="GET") as answer:
        assert answer.status == status
        return await answer.json()


async def lines(router: RunningRouter) -> dict[str, float]:
    async with request(router.url, "/metrics", method="GET") as answer:
        text = (await answer.body()).decode()
    return {
        name.removeprefix("drafter_selector_"): float(value)
        for name, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    }


async def asked(router: RunningRouter, **body: object) -> str:
    async with request(router.url, body={**STREAM, **body}) as answer:
        await answer.body()
        rid = answer.header("x-drafter-selector-rid")
        assert rid is not None
        return rid


async def test_what_a_board_counted_is_shared_out_over_the_requests(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with (
        FakeMeter("host0:0", "elsewhere:3") as meter,
        FakeUpstream(script=streaming(*chat_stream("a", "b", tokens=10))) as upstream,
        routed(upstream, tables_more=metered(meter), decision_log=log) as router,
    ):
        await meter.read_afresh()
        rids = [await asked(router) for _ in range(3)]
        assert (await get(router, f"/explain?rid={rids[0]}"))["came"]["joules"] is None
        meter.draw("host0:0", 600.0, 1.0)
        meter.draw("elsewhere:3", 5000.0, 1.0)
        await meter.read_afresh()
        meter.draw("host0:0", 50.0, 0.5)
        await meter.read_afresh()
        seen = await lines(router)
        parts = [
            seen[f'gpu_energy_joules_total{{gpu="host0:0",part="{part}"}}'] for part in ("idle", "others", "requests")
        ]
        assert sum(parts) == pytest.approx(650.0)
        labels = '{arm="none",backend="b0",text_type="conversation"}'
        assert seen[f"request_energy_joules_total{labels}"] == pytest.approx(parts[2])
        assert seen[f"metered_tokens_total{labels}"] == 30
        assert seen[f"modelled_energy_joules_total{labels}"] > 0
        assert not any("elsewhere" in name for name in seen)
        assert seen[f'meter_up{{meter="{meter.url.removeprefix("http://")}"}}'] == 1
        came = [(await get(router, f"/explain?rid={rid}"))["came"] for rid in rids]
        assert sum(each["joules"] for each in came) == pytest.approx(parts[2])
        assert all(each["j_per_accepted_token"] == pytest.approx(each["joules"] / 10) for each in came)
        live = await get(router, "/router/live")
        energy = live["backends"][0]["energy"]
        assert energy["tokens"] == 30
        assert energy["j_per_accepted_token"] == pytest.approx(parts[2] / 30)
        assert live["meters"]["unmetered"] == []
    events = [event for event in read_decision_log(log) if isinstance(event, EnergyEvent)]
    assert [event.id for event in events] == rids
    assert sum(event.joules or 0.0 for event in events) == pytest.approx(parts[2])


async def test_a_request_does_not_wait_for_a_meter_that_hangs_or_fails() -> None:
    async with (
        FakeMeter("host0:0") as meter,
        FakeUpstream(script=streaming(*chat_stream("a"))) as upstream,
        routed(upstream, tables_more=metered(meter)) as router,
    ):
        await meter.read_afresh()
        meter.status = 503
        meter.body = b"{}"
        await meter.read_afresh()
        rid = await asked(router)
        assert (await get(router, f"/explain?rid={rid}"))["came"]["joules"] is None
        (state,) = (await get(router, "/router/live"))["meters"]["meters"]
        assert (state["up"], state["last_error"]) == (False, "answered 503")
        # what was drawn meanwhile is not lost
        meter.status, meter.body = 200, None
        meter.draw("host0:0", 70.0, 0.3)
        await meter.read_afresh()
        seen = await lines(router)
        total = sum(value for name, value in seen.items() if name.startswith("gpu_energy_joules_total"))
        assert total == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no json", "Invalid JSON"),
        (b'{"gpus": [{"id": "host0:0", "energy_mj": -1, "timestamp_ns": 1}]}', "gpus.0.energy_mj: Input should be"),
        (b'{"other": 1}', "gpus: Field required"),
        (b" " * 2_000_000, "more than a meter has to say"),
    ],
)
async def test_what_is_no_meter_is_said_to_be_none(body: bytes, words: str) -> None:
    async with FakeMeter("host0:0") as meter, FakeUpstream() as upstream:
        meter.body = body
        async with routed(upstream, tables_more=metered(meter)) as router:
            await meter.read_afresh()
            (state,) = (await get(router, "/router/live"))["meters"]["meters"]
            assert words in state["last_error"]


@pytest.mark.parametrize(
    ("joules", "seconds", "why"),
    [
        (-900.0, 1.0, "host0:0: the counter went backwards: the board or its driver was reset"),
        (1.0, -1.0, "host0:0: the counter went backwards: the board or its driver was reset"),
        # a board limited to 700 W, and 0.1 s that the counter's edges leave open
        (786.0, 1.0, "host0:0: 786 J in 1.00 s is more than a board limited to 700 W can draw"),
    ],
)
async def test_a_reading_that_cannot_be_is_refused_and_the_account_begins_again(
    joules: float, seconds: float, why: str
) -> None:
    async with (
        FakeMeter("host0:0") as meter,
        FakeUpstream(script=streaming(*chat_stream("a"))) as upstream,
        routed(upstream, tables_more=metered(meter)) as router,
    ):
        await meter.read_afresh()
        rid = await asked(router)
        meter.draw("host0:0", joules, seconds)
        await meter.read_afresh()
        (state,) = (await get(router, "/router/live"))["meters"]["meters"]
        assert (state["up"], state["refused"]) == (True, 1)
        assert state["last_refused"].startswith(why)
        meter.draw("host0:0", 10.0, 1.0)
        await meter.read_afresh()
        assert (await get(router, f"/explain?rid={rid}"))["came"]["joules"] is None
        seen = await lines(router)
        assert sum(
            value for name, value in seen.items() if name.startswith("gpu_energy_joules_total")
        ) == pytest.approx(10.0)
        assert [value for name, value in seen.items() if name.startswith("meter_refused_readings_total")] == [1.0]


async def test_a_board_at_its_limit_is_believed() -> None:
    async with (
        FakeMeter("host0:0") as meter,
        FakeUpstream() as upstream,
        routed(upstream, tables_more=metered(meter)) as router,
    ):
        await meter.read_afresh()
        meter.draw("host0:0", 785.0, 1.0)
        await meter.read_afresh()
        live = await get(router, "/router/live")
        (state,), (gpu,) = live["meters"]["meters"], live["gpus"]
        assert (state["refused"], gpu["idle_j"] + gpu["others_j"]) == (0, pytest.approx(785.0))


async def test_of_two_meters_that_tell_of_one_gpu_the_first_counts() -> None:
    async with (
        FakeMeter("host0:0") as first,
        FakeMeter("host0:0") as second,
        FakeUpstream() as upstream,
        routed(upstream, tables_more=metered(first, second)) as router,
    ):
        await first.read_afresh()
        await second.read_afresh()
        for meter in (first, second):
            meter.draw("host0:0", 30.0, 0.1)
            await meter.read_afresh()
        seen = await lines(router)
        assert sum(
            value for name, value in seen.items() if name.startswith("gpu_energy_joules_total")
        ) == pytest.approx(30.0)


async def test_corrections_reach_the_policy_and_the_log_and_are_replayed(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    arms = ("none", "eagle3-k3")

    async with (
        FakeUpstream(script=streaming(*chat_stream("a", tokens=30))) as first,
        FakeUpstream(EAGLE3_K3, script=streaming(*chat_stream("a", tokens=30))) as second,
        routed(first, second, arms=arms, policy="min_energy", decision_log=log) as router,
    ):
        dispatcher = router.state.dispatcher
        plain = (await get(router, f"/explain?rid={await asked(router)}"))["decisions"][0]
        chosen = plain["backend"]
        model = dispatcher.books.corrections
        # its steps take twice as long, at the same power
        model.stepped(chosen, 1e6, 2e6, dispatcher.now_s())
        assert correct(dispatcher) == 1
        assert correct(dispatcher) == 0
        slower = (await get(router, f"/explain?rid={await asked(router)}"))["decisions"][0]

        def predicted(decision: Any, name: str) -> float:
            (tbt_ms,) = [each["tbt_ms"] for each in decision["candidates"] if each["backend"] == chosen]
            return float(tbt_ms)

        assert predicted(slower, chosen) > 1.8 * predicted(plain, chosen)
        report = await get(router, "/router/corrections")
        in_force = report["backends"][chosen]["in_force"]
        assert in_force["step_time_frac"] == pytest.approx(2.0, abs=0.01)
        await asyncio.gather(*(asked(router) for _ in range(4)))
        async with request(router.url, "/router/corrections/reset", headers={"Origin": "http://evil"}) as answer:
            assert answer.status == 403
        async with request(router.url, "/router/corrections/reset") as answer:
            assert await answer.json() == {"reset": [chosen]}
        again = (await get(router, f"/explain?rid={await asked(router)}"))["decisions"][0]
        assert predicted(again, chosen) < 1.2 * predicted(plain, chosen)
        assert model.in_force(chosen) == Correction()
    events = read_decision_log(log)
    assert [event.backend for event in events if isinstance(event, CorrectionEvent)] == [chosen, chosen]
    fleet = fleet_of([first.url, second.url], arms)
    pairs = replayed(fleet, "min_energy", events)
    assert [logged for logged, _ in pairs] == [again for _, again in pairs]
    without = [event for event in events if not isinstance(event, CorrectionEvent)]
    assert any(logged != again for logged, again in replayed(fleet, "min_energy", without))
