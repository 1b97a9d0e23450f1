"""The dashboard in a real Chromium: what it shows, on a screen and on a phone; nothing can be slipped into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from selector.files.policy import load_policy_file
from selector.router.dashboard import dashboard_page
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream, streaming
from tests.integration.router.harness import CHAT, chat_stream, fleet_of, routed, sglext
from tests.integration.router.raw_client import request

CHROMIUM = os.environ.get("TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SENT = [
    *chat_stream("a", "b")[:-2],
    sglext(spec_verify_ct=3, spec_num_correct_drafts=5),
    *chat_stream("a", "b")[-2:],
]
MARKUP = "<img src=x onerror=\"document.title='slipped in'\"><script>document.title='slipped in'</script>"

EVIL_POLICY = f"""
from dataclasses import dataclass
from selector.core.types import Candidate, Decision

@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    pass

class Evil:
    def decide(self, request, fleet):
        view = fleet.backends[0]
        candidate = Candidate(backend=view.name, arm=view.arm, feasible=True, tbt_ms=5.0, note={MARKUP!r})
        return Decision(backend=view.name, reason={MARKUP!r}, candidates=(candidate,))

    def observe(self, outcome):
        pass

    def state(self):
        return {{"plan": [{{"text_type": {MARKUP!r}, "tbt_target_ms": 1, "tokens_per_s": 1.0, "arms": [{MARKUP!r}]}}],
                "arms": [{{"arm": {MARKUP!r}, "batch": 1, "tokens_per_s": 2.0}}]}}

def make_policy(params, context):
    return Evil()
"""

_HIDDEN_ASIDE = """[...document.querySelectorAll('.scroll, .scroll tbody td, .scroll tbody th')]
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent)"""


@asynccontextmanager
async def page(url: str) -> AsyncIterator[tuple[Any, list[str]]]:
    """The dashboard at `url`, once it shows something; with what the browser complained of."""
    playwright = pytest.importorskip("playwright.async_api", reason="the playwright package is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt install chromium)")
    complaints: list[str] = []
    async with playwright.async_playwright() as started:
        # No sandbox: test machines run as root in containers.
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = await browser.new_page(viewport={"width": 1280, "height": 900})
        shown.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        await shown.goto(url)
        await shown.wait_for_selector("#backends tbody tr")
        try:
            yield shown, complaints
        finally:
            await browser.close()


@asynccontextmanager
async def busy_router() -> AsyncIterator[RunningRouter]:
    async with (
        FakeUpstream(script=streaming(*SENT)) as first,
        FakeUpstream(EAGLE3_K3, script=streaming(*SENT)) as second,
        routed(first, second, arms=["none", "eagle3-k3"], policy="min_energy") as router,
    ):
        for number in range(12):
            headers = {"x-slo-class": "batch"} if number % 3 == 0 else {}
            async with request(router.url, body={**CHAT, "stream": True}, headers=headers) as answer:
                await answer.body()
        yield router


async def screenshot(shown: Any, name: str) -> None:
    """Kept for people where TEST_SCREENSHOTS names a folder."""
    folder = os.environ.get("TEST_SCREENSHOTS")
    if folder:
        await shown.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


async def test_it_shows_backends_decisions_plan_and_acceptance() -> None:
    async with busy_router() as router, page(router.url) as (shown, complaints):
        assert await shown.locator("#backends tbody tr").count() == 2
        assert "100.0 %" in await shown.locator("#tiles").inner_text()
        assert "eagle3-k3" in await shown.locator("#acceptance").inner_text()
        assert "conversation" in await shown.locator("#plan").inner_text()
        assert await shown.locator("#decisions tbody tr").count() == 8
        await shown.locator("#more").click()
        assert await shown.locator("#decisions tbody tr").count() == 12
        for name, width, height in (("desktop", 1280, 900), ("phone", 390, 844)):
            await shown.set_viewport_size({"width": width, "height": height})
            assert await shown.evaluate("document.documentElement.scrollWidth") == width
            # Nothing is out of sight at the side of a table either.
            assert await shown.evaluate(_HIDDEN_ASIDE) == []
            await screenshot(shown, name)
        assert complaints == []


async def test_a_decision_is_explained_by_keyboard_and_a_silent_router_is_told_of() -> None:
    async with busy_router() as router, page(router.url) as (shown, complaints):
        button = shown.locator("#decisions button").first
        await button.focus()
        await shown.keyboard.press("Enter")
        await shown.wait_for_selector("dialog[open]")
        text = await shown.locator("dialog").inner_text()
        assert "What was predicted, and what came" in text
        assert "b0" in text
        assert "b1" in text
        await screenshot(shown, "explained")
        await shown.keyboard.press("Escape")
        assert not await shown.locator("dialog[open]").count()
        # the browser gives the focus back, and an update of the page leaves it there
        label = await shown.evaluate("document.activeElement.getAttribute('aria-label')")
        async with request(router.url, body={**CHAT, "stream": True}) as answer:
            await answer.body()
            newest = answer.header("x-drafter-selector-rid")
        await shown.wait_for_selector(f'#decisions tr[data-key="{newest}"]')
        assert await shown.evaluate("document.activeElement.getAttribute('aria-label')") == label
        assert complaints == []
        await router.drain()
        await shown.wait_for_selector("#state:has-text('draining')")
        await shown.route("**/router/live", lambda route: route.abort())
        await shown.wait_for_selector("#silent:has-text('does not answer')")


async def test_whatever_comes_from_outside_stays_text(tmp_path: Path) -> None:
    policy = tmp_path / "evil.py"
    policy.write_text(EVIL_POLICY, encoding="utf-8")
    async with FakeUpstream(script=streaming(*SENT)) as upstream:
        fleet = fleet_of([upstream.url], ["none"])
        evil, fallback = load_policy_file(str(policy)), load_policy_file("least_loaded")
        async with RunningRouter(fleet, evil, fallback, port=0) as router:
            router.state.target = MARKUP
            body = {**CHAT, "stream": True, "rid": MARKUP, "model": MARKUP}
            async with request(router.url, body=body, headers={"x-request-id": "<script>"}) as answer:
                await answer.body()
            async with page(router.url) as (shown, complaints):
                await shown.locator("#decisions button").first.click()
                await shown.wait_for_selector("dialog[open]")
                for place in ("#about", "#decisions", "#plan", "dialog"):
                    assert MARKUP in await shown.locator(place).inner_text()
                assert await shown.locator("img").count() == 0
                assert await shown.locator("script").count() == 1
                assert await shown.title() == "drafter-selector"
                # even markup that got in could not run: the policy of the page forbids it
                await shown.evaluate("markup => document.body.insertAdjacentHTML('beforeend', markup)", MARKUP)
                await shown.wait_for_selector("img", state="attached")
                assert await shown.title() == "drafter-selector"
                assert any("Content Security Policy" in complaint for complaint in complaints)


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    text, headers = dashboard_page()
    assert b"http://" not in text.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in text
    assert b"innerHTML" not in text
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    async with FakeUpstream() as upstream, routed(upstream) as router:
        for path in ("/", "/dashboard"):
            async with request(router.url, path, method="GET") as answer:
                assert await answer.body() == text
                assert answer.header("content-security-policy") == policy
        async with request(router.url, "/router/live", method="GET") as answer:
            assert orjson.loads(await answer.body())["decisions"] == []
