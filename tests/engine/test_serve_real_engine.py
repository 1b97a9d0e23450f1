"""`serve` in front of a real SGLang server on a CPU, with NGRAM speculation.

Needs a kit that installs and starts one: `TEST_SGLANG_KIT` is its folder (with serve.py), and `SGLANG_CPU_HOME`, by
default ~/.cache/sglang-cpu, holds what the kit has installed: `venv` and the model folder `smol`. Nothing here says
anything about speed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from selector.core.types import TEXT_TYPES
from selector.profiler.client import SglangClient, open_session
from tests.profiles import MADE_UP, made_up_document

KIT = os.environ.get("TEST_SGLANG_KIT")
HOME = Path(os.environ.get("SGLANG_CPU_HOME") or Path.home() / ".cache" / "sglang-cpu")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(KIT is None, reason="TEST_SGLANG_KIT names no folder with a kit that starts SGLang on a CPU"),
    pytest.mark.skipif(
        not (HOME / "venv").is_dir(), reason=f"no SGLang is installed in {HOME}: run the kit's install.sh"
    ),
]

PROMPT = "Count from one to twelve in words, then do it again."
CHAT: Mapping[str, Any] = {
    "model": "smol",
    "messages": [{"role": "user", "content": PROMPT}],
    "temperature": 0,
    "max_tokens": 24,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The same server, directly and through the router."""

    direct: str
    routed: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("engine")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6"]
    flags += ["--speculative-ngram-capacity", "100000"]  # the default table takes 2 GB
    line = _kit(HOME / "venv", HOME / "smol", port, "--log", folder / "sglang.log", *flags)
    started = re.match(r"ready url=(\S+) pid=(\d+) ", line)
    assert started, line
    url, pid = started.groups()
    try:
        config = folder / "fleet.toml"
        (folder / "smol.json").write_text(json.dumps(_profile()), encoding="utf-8")
        config.write_text(_fleet(url, folder / "smol.json"), encoding="utf-8")
        router = subprocess.Popen(
            [sys.executable, "-m", "selector", "serve", "--config", str(config)], stdout=subprocess.PIPE, text=True
        )
        assert router.stdout is not None
        try:
            ready = re.match(r"ready url=(\S+) .*b0 \(ngram-6\): available$", router.stdout.readline().rstrip())
            assert ready
            yield Served(direct=url, routed=ready.group(1))
            router.terminate()
            assert router.wait(30) == 0
        finally:
            router.kill()
            router.wait()
            router.stdout.close()
    finally:
        _kit("stop", pid)


def _kit(*arguments: object) -> str:
    assert KIT is not None
    command = [sys.executable, str(Path(KIT) / "serve.py"), *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout


def _fleet(url: str, profile: Path) -> str:
    return f"""
        version = 1
        target = "smol"
        [[backends]]
        name = "b0"
        url = "{url}"
        arm = "ngram-6"
        gpus = ["cpu:0"]
        profile = "{profile}"
        max_running_requests = 8
        max_kv_tokens = 8192
        max_context_tokens = 2048
        [policy]
        name = "least_loaded"
        [router]
        port = 0
        poll_timeout_s = 20
    """


def _profile() -> dict[str, Any]:
    cells = [{"batch": 1, "context_tokens": 100, "step_ms": 100.0, "step_j": 1.0, "provenance": MADE_UP}]
    acceptance = {text_type: {"mean": 2.0, "provenance": MADE_UP} for text_type in TEXT_TYPES}
    slope = {"ms_per_token": 0.0, "j_per_token": 0.0, "provenance": MADE_UP}
    arm = {"cells": cells, "context_slope": slope}
    arms = {
        "none": {"algorithm": "none", "verify_tokens": 1, **arm},
        "ngram-6": {"algorithm": "NGRAM", "verify_tokens": 6, "acceptance": acceptance, **arm},
    }
    return made_up_document(arms, target="smol")


def fetch(url: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def events(body: bytes) -> list[dict[str, Any]]:
    raw = body.decode().split("\n\n")
    assert raw[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in raw[:-2]]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


def last_outcome(served: Served) -> dict[str, Any]:
    shown = json.loads(fetch(served.routed, "/router/decisions?n=1")[1])["events"]
    outcome: dict[str, Any] = shown[-1]["outcome"]
    return outcome


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_chat_reads_the_same_and_teaches_acceptance(served: Served, usage: bool) -> None:
    body = {**CHAT, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": usage}}
    direct = events(fetch(served.direct, "/v1/chat/completions", body)[1])
    routed = events(fetch(served.routed, "/v1/chat/completions", body)[1])
    assert text_of(routed).encode() == text_of(direct).encode()
    assert [chunk["usage"]["completion_tokens"] for chunk in routed if chunk.get("usage")] == ([24] if usage else [])
    assert [list(chunk) for chunk in routed[:2]] == [list(chunk) for chunk in direct[:2]]
    assert not any("sglext" in chunk for chunk in routed)
    outcome = last_outcome(served)
    assert (outcome["finish"], outcome["accepted_tokens"], outcome["arm"]) == ("done", 24, "ngram-6")
    assert outcome["verify_passes"] > 0
    assert outcome["accepted_drafts"] >= 0
    assert outcome["tbt_ms"] > 0
    assert outcome["ttft_ms"] > 0


def test_a_whole_chat_reads_the_same_and_teaches_acceptance(served: Served) -> None:
    direct = json.loads(fetch(served.direct, "/v1/chat/completions", CHAT)[1])
    routed = json.loads(fetch(served.routed, "/v1/chat/completions", CHAT)[1])
    assert routed["choices"] == direct["choices"]
    assert list(routed) == list(direct)
    assert last_outcome(served)["verify_passes"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_native_generation_reads_the_same_and_teaches_acceptance(served: Served, stream: bool) -> None:
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    body = {"text": PROMPT, "stream": stream, "sampling_params": params}
    answers = []
    for url in (served.direct, served.routed):
        raw = fetch(url, "/generate", body)[1]
        answers.append(events(raw)[-1] if stream else json.loads(raw))
    assert answers[1]["text"] == answers[0]["text"]
    assert answers[1]["output_ids"] == answers[0]["output_ids"]
    outcome = last_outcome(served)
    assert outcome["verify_passes"] == answers[1]["meta_info"]["spec_verify_ct"] > 0
    assert outcome["tbt_ms"] > 0


def test_the_openai_client_works_unchanged(served: Served) -> None:
    texts = []
    for url in (served.direct, served.routed):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=120) as client:
            assert [model.id for model in client.models.list()] == ["smol"]
            with client.chat.completions.create(
                model="smol",
                messages=[{"role": "user", "content": PROMPT}],
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            ) as stream:
                chunks = list(stream)
        assert chunks[-1].usage is not None
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/chat/completions", {"temperature": -1}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"stream": True, "top_p": 2}),
        ("/generate", {"text": "hi", "sampling_params": {"temperature": -1}}),
        ("/nothing", {}),
    ],
)
def test_errors_are_the_server_s_own(served: Served, path: str, change: Mapping[str, Any]) -> None:
    body = {**CHAT, **change}
    assert fetch(served.routed, path, body) == fetch(served.direct, path, body)


def test_leaving_a_stream_stops_the_server_from_generating(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.routed}/v1", api_key="unused", timeout=120) as client:
        stream = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in zip(range(3), stream, strict=False):
            pass
        stream.close()
    deadline_s = time.monotonic() + 60  # all 1500 tokens would take minutes
    while json.loads(fetch(served.direct, "/v1/loads")[1])["loads"][0]["num_running_reqs"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)  # another process: there is nothing to wait on
    assert last_outcome(served)["finish"] == "cancelled"


async def test_the_engine_knows_the_call_that_spares_it_long_garbage_collections(served: Served) -> None:
    async with open_session() as session:
        assert await SglangClient(session, served.direct, time.monotonic).freeze_gc()
        assert not await SglangClient(session, served.routed, time.monotonic).freeze_gc()
    assert fetch(served.direct, "/v1/chat/completions", CHAT)[0] == 200
