"""Keys over a reload of the configuration: new ones at once, limits that go on, and never a door left open."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.errors import FleetError
from selector.files.fleet import load_fleet_with_profiles
from selector.router.configuration import Configuration
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import FakeUpstream, answering, hanging
from tests.integration.router.harness import CHAT, fleet_of, routed
from tests.integration.router.raw_client import connection, request, request_bytes
from tests.integration.router.test_keys import ALICE, NEXT, PATH, bearer, code, sent, until
from tests.integration.router.test_reload import configured
from tests.integration.router.test_serve_command import fleet_file

KEYS = '[keys.alice]\nvalue = "{key}"\nmax_concurrent = 1\ncontrol = true\n'


def of(upstream: FakeUpstream, tables: str) -> Configuration:
    return configured(fleet_of([upstream.url], ["none"], tables_more=tables))()


async def statuses(router: RunningRouter, *keys: str) -> list[int]:
    return [await code(router, sent(way, bearer(key))) for key in keys for way in ("plain", "library")]


async def test_a_changed_file_of_keys_takes_effect_and_what_runs_stays_counted(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS.format(key=ALICE))
    tables = f'[security]\nkeys_file = "{path}"'
    async with FakeUpstream(script=hanging) as upstream, routed(upstream, tables_more=tables) as router:
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes(PATH, CHAT, bearer(ALICE)))
            exchange = await upstream.next_exchange()
            path.write_text(KEYS.format(key=NEXT))
            await router.reload(lambda: of(upstream, tables))
            assert await statuses(router, ALICE, NEXT) == [401, 401, 429, 429]
        await exchange.closed.wait()
        upstream.script = answering(200, b"{}")
        await until(lambda: router.state.keys.running("alice") == 0)
        assert await statuses(router, ALICE, NEXT) == [401, 401, 200, 200]
        async with request(router.url, "/metrics", method="GET", headers=bearer(NEXT)) as answer:
            assert b'drafter_selector_key_in_flight_requests{holder="alice"} 0.0' in await answer.body()


def test_files_of_keys_and_authorities_are_looked_at_for_changes(tmp_path: Path) -> None:
    tables = f'[security]\nkeys_file = "{tmp_path}/keys.toml"\nca_file = "{tmp_path}/ca.pem"'
    fleet = load_fleet_with_profiles(fleet_file(tmp_path, "http://127.0.0.1:9", more=tables))
    assert {tmp_path / "keys.toml", tmp_path / "ca.pem"} <= {*configured(fleet)().files}


@pytest.mark.parametrize("tables", ["", '[keys.alice]\nenv = "NOT_SET_ANYWHERE"', '[security]\nca_file = "gone.pem"'])
async def test_a_reload_that_cannot_be_used_or_would_open_the_door_is_refused(tables: str) -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, tables_more=KEYS.format(key=ALICE)) as router,
    ):
        with pytest.raises(FleetError):
            await router.reload(lambda: of(upstream, tables))
        assert await statuses(router, ALICE, NEXT) == [200, 200, 401, 401]


async def test_the_control_port_tells_of_the_configuration_in_force() -> None:
    async with (
        FakeUpstream() as old,
        FakeUpstream() as new,
        routed(old, control_port=0) as router,
    ):
        await router.reload(lambda: of(new, ""))
        async with request(router.control_url, "/router/state", method="GET") as answer:
            assert [backend["url"] for backend in (await answer.json())["backends"]] == [new.url]
        assert await code(router, request_bytes("/router/state", method="GET")) == 404
