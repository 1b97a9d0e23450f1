"""The Grafana dashboard asks for metrics and labels that the router has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from selector.files.policy import load_policy_file
from selector.router.running import RunningRouter
from tests import livearms
from tests.integration.router.fake_meter import FakeMeter
from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream, broken, streaming
from tests.integration.router.harness import CHAT, chat_stream, routed, sglext
from tests.integration.router.raw_client import request

FILE = Path(__file__).parents[3] / "deploy" / "grafana" / "drafter-selector.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
GIVEN = {"instance"}
"""Labels that Prometheus adds."""
_METRIC = re.compile(r"\b(?:drafter_selector|process)_\w+")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_BY = re.compile(r"by \(([^)]*)\)")


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (
        variable["query"]["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"
    )


async def scraped(tmp_path: Path) -> dict[str, set[str]]:
    """Label names by metric, of a router to which everything happened that is counted."""
    spec = sglext(spec_verify_ct=3, spec_num_correct_drafts=5, spec_accept_rate=2.0)
    sent = [*chat_stream("a", "b")[:-2], spec, *chat_stream("a", "b")[-2:]]
    key = {"Authorization": "Bearer made-up-key"}
    async with (
        FakeMeter("host0:0", "host0:1") as meter,
        FakeUpstream(EAGLE3_K3, script=broken) as failing,
        FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream,
        routed(
            failing,
            upstream,
            arms=["eagle3-k3", "eagle3-k3"],
            policy="min_energy",
            tables_more=f'''
            [energy]
            urls = ["{meter.url}"]
            poll_interval_s = 0.01
            [keys.alice]
            value = "made-up-key"
            control = true
            ''',
            decision_log=tmp_path / "log.jsonl",
        ) as router,
    ):
        await meter.read_afresh()
        for _ in range(8):
            async with request(router.url, body={**CHAT, "stream": True}, headers=key) as answer:
                await answer.body()
        async with request(router.url, body=b"no json", headers=key) as answer:
            assert answer.status == 400
        meter.draw("host0:0", 100.0, 1.0)
        meter.draw("host0:1", 100.0, 1.0)
        await meter.read_afresh()
        text = await metrics(router, key)
    async with (
        FakeUpstream(livearms.DSPARK_INFO, script=streaming(*sent)) as live,
        RunningRouter(
            livearms.fleet(urls=(live.url,)), load_policy_file("min_energy"), load_policy_file("least_loaded"), port=0
        ) as router,
    ):
        async with request(router.url, body={**CHAT, "stream": True}) as answer:
            await answer.body()
        async with asyncio.timeout(20):
            while "settings_changes_total{" not in (more := await metrics(router)):
                pass
    labels = labels_of(more)
    for name, names in labels_of(text).items():
        labels.setdefault(name, set()).update(names)
    return labels


async def metrics(router: RunningRouter, headers: Mapping[str, str] | None = None) -> str:
    async with request(router.url, "/metrics", method="GET", headers=headers) as answer:
        return (await answer.body()).decode()


def labels_of(text: str) -> dict[str, set[str]]:
    """Label names by metric."""
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        labels.setdefault(family.name, set())
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
        if family.type == "counter":
            labels.setdefault(f"{family.name}_total", set())
    return labels


async def test_every_metric_and_label_it_asks_for_exists(tmp_path: Path) -> None:
    known = await scraped(tmp_path)
    asked = set()
    for expression in expressions():
        names = set(_METRIC.findall(expression))
        assert names, expression
        assert names <= known.keys(), f"{names - known.keys()} in {expression}"
        asked |= names
        for name, selector in _SELECTOR.findall(expression):
            assert set(re.findall(r"(\w+)=", selector)) <= known[name] | GIVEN, expression
        have = set.intersection(*(known[name] for name in names))
        for by in _BY.findall(expression):
            assert {label.strip() for label in by.split(",")} <= have | GIVEN, expression
    assert len(asked) > 25


async def test_what_can_be_seen_is_on_it(tmp_path: Path) -> None:
    """A new metric that nobody would look at is noticed here."""
    text = " ".join(expressions())
    shown = set(_METRIC.findall(text))
    unseen = {
        name
        for name in await scraped(tmp_path)
        if name.startswith("drafter_selector_") and not name.endswith(("_created", "_sum", "_count", "_bucket"))
        if not any(one.startswith(name) for one in shown)
    }
    assert unseen == {
        "drafter_selector_accept_length_deviation",
        "drafter_selector_draining",
        "drafter_selector_acceptance_samples",
        "drafter_selector_acceptance_samples_total",
        "drafter_selector_meter_age_seconds",
    }


async def test_the_documentation_names_every_metric_and_no_other(tmp_path: Path) -> None:
    text = (FILE.parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    told = set(re.findall(r"drafter_selector_\w+", text))
    known = {name for name in await scraped(tmp_path) if name.startswith("drafter_selector_")}
    assert told <= known
    endings = ("_created", "_sum", "_count", "_bucket")
    assert {name for name in known if not name.endswith(endings) and f"{name}_total" not in known} <= told


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
        assert one["x"] + one["w"] <= 24
