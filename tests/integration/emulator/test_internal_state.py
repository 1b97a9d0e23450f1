"""`POST /set_internal_state` of an emulated server, as SGLang answers it."""

from __future__ import annotations

from typing import Any

import pytest

from selector.emulator.app import EmulatorApp
from selector.emulator.asks import Limits
from selector.emulator.engine import EmulatedEngine
from selector.emulator.gpu import EmulatedGpu, energy_report
from selector.emulator.info import Site
from selector.files.acceptancepriors import acceptance_model
from tests.emulators import Client, ManualClock
from tests.livearms import ARM, KNOB, QUARTER, fleet, profile

PATH = "/set_internal_state"
ASK = {"text": "x" * 400, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
HEADERS = {"x-emulated-text-type": "code", "x-emulated-draw-key": "7"}


class Server:
    """One emulated server of an arm of the made-up profile."""

    def __init__(self, arm: str = ARM) -> None:
        self.clock = ManualClock()
        spec = fleet(arm).specs[0]
        gpu = EmulatedGpu("gpu0", spec.cost.idle)
        self.engine = EmulatedEngine(spec, acceptance_model([(arm, profile())]), [gpu], self.clock, seed=1)
        site = Site(
            profile=profile(),
            arm=profile().arm(arm),
            spec=spec,
            limits=Limits(context_tokens=4_096, kv_tokens=spec.max_kv_tokens),
            host="127.0.0.1",
            port=30_000,
            max_queued_requests=None,
        )
        self.client = Client(EmulatorApp(site, self.engine, lambda: energy_report([gpu], self.clock)), self.clock)

    async def told(self, **values: Any) -> Any:
        answer = await self.client.call(PATH, {"server_args": values})
        assert answer.status == 200
        return answer.json()

    async def generated(self) -> dict[str, Any]:
        answer = await self.client.call("/generate", ASK, headers=HEADERS)
        assert answer.status == 200
        info: dict[str, Any] = answer.json()["meta_info"]
        return info


async def test_a_budget_changes_what_a_step_costs_and_what_it_yields() -> None:
    whole, quarter = Server(), Server()
    assert await quarter.told(**QUARTER) == [True]
    spent = []
    for server in (whole, quarter):
        info = await server.generated()
        assert info["completion_tokens"] == 400
        totals = server.engine.totals
        spent.append((info["spec_verify_ct"], totals.decode_ms / totals.steps))
    (passes, step_ms), (more_passes, cheaper_ms) = spent
    assert more_passes == pytest.approx(1.5 * passes, rel=0.15)  # accept lengths of 3 and 2
    assert step_ms == pytest.approx(7.4, rel=0.01) and cheaper_ms == pytest.approx(6.58, rel=0.01)
    assert await quarter.told(**{KNOB: 1.0}) == [True]
    assert (await quarter.generated())["spec_verify_ct"] == passes


@pytest.mark.parametrize(
    "values",
    [{KNOB: 0.0}, {KNOB: 1.5}, {KNOB: 0.3}, {"schedule_policy": 1}, {KNOB: 0.25, "schedule_policy": 1}],
)
async def test_what_cannot_be_is_refused_and_nothing_changes(values: dict[str, float]) -> None:
    server = Server()
    passes = (await Server().generated())["spec_verify_ct"]
    assert await server.told(**values) == [False]
    assert (await server.generated())["spec_verify_ct"] == passes


async def test_a_server_without_the_drafter_refuses() -> None:
    assert await Server("none").told(**QUARTER) == [False]


@pytest.mark.parametrize("asked", [None, {KNOB: None}, {KNOB: "1"}])
async def test_a_body_that_is_none_is_a_400(asked: object) -> None:
    answer = await Server().client.call(PATH, {"server_args": asked})
    assert answer.status == 400
