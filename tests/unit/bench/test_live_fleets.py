"""Live plans that share servers ask for those that are held up, as they are started."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from selector.files.fleet import load_fleet

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "live"))
from plan import cells, load_plan

LIVE = Path(__file__).parents[3] / "bench" / "live"
FIRST, SECOND = "four-on-one", "four-on-second"


PAIR = "three-on-one", "two-second"
"""What the stretch `each` holds up for two GPUs."""


def servers(fleet: str, *, on_second: bool = False) -> set[tuple[object, ...]]:
    """What a server has to agree in; `on_second`, as a stretch for two GPUs moves the fleet."""
    found: set[tuple[object, ...]] = set()
    for backend in load_fleet(LIVE / "fleets" / f"{fleet}.toml").backends:
        url, gpus = str(backend.url), backend.gpus
        if on_second:
            url, gpus = url.replace(":3000", ":3100"), tuple(gpu.replace("host0:0", "host0:1") for gpu in gpus)
        limits = backend.max_running_requests, backend.max_kv_tokens, backend.max_context_tokens
        found.add((url, backend.arm, gpus, backend.profile, *limits))
    return found


@pytest.mark.parametrize(
    ("plan", "held", "on_second"),
    [
        ("two-gpus", (FIRST, SECOND), False),
        ("two-gpus", PAIR, False),
        ("three-on-one-targets", PAIR, False),
        ("asleep", PAIR, False),
        ("three-on-one", (FIRST,), False),
        ("three-on-one-targets", (FIRST,), False),
        ("router-cost", (FIRST,), False),
        ("again", (SECOND,), True),
    ],
)
def test_a_plan_asks_for_servers_that_are_held_up(plan: str, held: tuple[str, ...], on_second: bool) -> None:
    up = {server for fleet in held for server in servers(fleet)}
    for fleet in tomllib.loads((LIVE / f"{plan}.toml").read_text(encoding="utf-8"))["fleets"]:
        assert servers(Path(fleet).stem, on_second=on_second) <= up


def test_depths_on_the_second_gpu_use_the_eagle3_server_that_two_gpus_use() -> None:
    up = servers("two-second") | servers("depth-chosen", on_second=True)
    assert servers("depth-open", on_second=True) <= up
    assert len({server[0] for server in up}) == len(up) == 4


@pytest.mark.parametrize(
    "plan", sorted(set(LIVE.glob("*.toml")) - set(LIVE.glob("held-*.toml"))), ids=lambda plan: plan.stem
)
def test_every_plan_and_its_fleets_can_be_read(plan: Path) -> None:
    read = load_plan(plan)
    assert list(cells(read))
    for fleet in read.fleets:
        assert (LIVE / fleet).is_file()
