"""The plugin in a real SGLang on a CPU: adaptive EAGLE3 with a draft model of random weights, behind the router.

Needs the kit of `test_serve_real_engine` with its tiny model (`tiny` in `SGLANG_CPU_HOME`). Random drafts are hardly
ever right, so what is tested is who decides: with the depth file of the unit tests, requests without a target are
served at depth 0, and a target that only depth 3 meets brings depth 3. Nothing here says anything about speed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from selector.core.types import TEXT_TYPES
from selector.engine import plugin
from tests.profiles import MADE_UP, made_up_document
from tests.unit.engine.test_plugin import depth_file

KIT = os.environ.get("TEST_SGLANG_KIT")
HOME = Path(os.environ.get("SGLANG_CPU_HOME") or Path.home() / ".cache" / "sglang-cpu")
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(500),
    pytest.mark.skipif(KIT is None, reason="TEST_SGLANG_KIT names no folder with a kit that starts SGLang on a CPU"),
    pytest.mark.skipif(
        not (HOME / "venv").is_dir() or not (HOME / "tiny").is_dir(),
        reason=f"no SGLang with a tiny model is installed in {HOME}: run the kit's install.sh",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The router in front of the server, and the server's log."""

    routed: str
    log: Path

    def depths(self) -> list[int]:
        """Those that the engine was switched to, in order."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [int(depth) for depth in re.findall(r"Switch adaptive runtime state: steps \d+ -> (\d+)", text)]

    def post(self, path: str, body: Mapping[str, Any], target_ms: float | None = None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if target_ms is not None:
            headers["x-tbt-target-ms"] = f"{target_ms:g}"
        request = urllib.request.Request(self.routed + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            read = json.load(answer)
        assert isinstance(read, dict)
        return read


_START = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
import serve
own = serve.environment
more = sys.argv.pop(1)
serve.environment = lambda venv: own(venv) | {"PYTHONPATH": own(venv)["PYTHONPATH"] + os.pathsep + more}
sys.exit(serve.main(sys.argv[1:]))
"""
"""The kit's own start, which has a PYTHONPATH of its own, with more on it."""


def _kit(python_path: str, *arguments: object, **environment: str) -> str:
    assert KIT is not None
    command = [sys.executable, "-c", _START, KIT, python_path, *map(str, arguments)]
    env = {**os.environ, **environment}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=400, env=env).stdout


def _draft_model(folder: Path) -> Path:
    """An EAGLE3 head for the tiny model: its configuration; the weights are random."""
    shutil.copytree(HOME / "tiny", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"draft_vocab_size": config["vocab_size"], "target_hidden_size": config["hidden_size"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _entry_point(folder: Path) -> Path:
    """What an installed package says of itself, in a folder that can be put on PYTHONPATH."""
    about = folder / "drafter_selector_under_test-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: drafter-selector-under-test\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\ndrafter_selector_depth = selector.engine.plugin:install\n"
    )
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("plugin")
    depths = folder / "depths.json"
    # A flat prior that what is seen outweighs at once: the choice is by what the engine accepts.
    depths.write_text(depth_file(survivals=[0.01, 0.001, 0.0001]).model_dump_json(), encoding="utf-8")
    python_path = os.pathsep.join([str(ROOT), str(_entry_point(folder / "site"))])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(_draft_model(folder / "draft"))]
    flags += ["--speculative-draft-load-format", "dummy", "--speculative-num-steps", "3"]
    flags += ["--speculative-eagle-topk", "1", "--speculative-adaptive", "--disable-cuda-graph"]
    log = folder / "sglang.log"
    places = (HOME / "venv", HOME / "tiny", port, "--log", log)
    line = _kit(python_path, *places, *flags, **{plugin.VARIABLE: str(depths)})
    started = re.match(r"ready url=(\S+) pid=(\d+) ", line)
    assert started, line
    url, pid = started.groups()
    try:
        (folder / "tiny.json").write_text(json.dumps(_profile()), encoding="utf-8")
        (folder / "fleet.toml").write_text(_fleet(url, folder / "tiny.json"), encoding="utf-8")
        router = subprocess.Popen(
            [sys.executable, "-m", "selector", "serve", "--config", str(folder / "fleet.toml")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert router.stdout is not None
        try:
            ready = re.match(r"ready url=(\S+) .*b0 \(eagle3-plugin\): available$", router.stdout.readline().rstrip())
            assert ready
            yield Served(routed=ready.group(1), log=log)
            router.terminate()
            assert router.wait(30) == 0
        finally:
            router.kill()
            router.wait()
            router.stdout.close()
    finally:
        _kit(python_path, "stop", pid)


def _fleet(url: str, profile: Path) -> str:
    return f"""
        version = 1
        target = "smol"
        [[backends]]
        name = "b0"
        url = "{url}"
        arm = "eagle3-plugin"
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
    acceptance = {text_type: {"mean": 1.0, "provenance": MADE_UP} for text_type in TEXT_TYPES}
    arms = {
        "none": {"algorithm": "none", "verify_tokens": 1, "cells": cells},
        "eagle3-plugin": {
            "algorithm": "EAGLE3",
            "verify_tokens": 8,
            "topk": 1,
            "takes_tbt_target": True,
            "launch": {"flags": ["--speculative-adaptive"]},
            "cells": cells,
            "acceptance": acceptance,
        },
    }
    return made_up_document(arms, target="smol")


def test_the_plugin_is_in_place(served: Served) -> None:
    assert "drafter-selector chooses among depths [0, 1, 3] of (0, 1, 3, 5, 7)" in served.log.read_text(
        encoding="utf-8", errors="replace"
    )


def test_targets_that_the_router_passes_on_decide_the_depth(served: Served) -> None:
    chat = {"model": "smol", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 24, "ignore_eos": True}
    generate = {"text": "Count.", "sampling_params": {"max_new_tokens": 24, "ignore_eos": True, "temperature": 0}}
    served.post("/v1/chat/completions", chat)
    assert served.depths()[-1:] == [0]
    served.post("/v1/chat/completions", chat, target_ms=6)
    assert served.depths()[-1] == 3
    served.post("/generate", generate, target_ms=12)
    assert served.depths()[-1] == 1
    answer = served.post("/generate", generate)
    assert served.depths()[-1] == 0
    assert answer["meta_info"]["completion_tokens"] == 24


def test_nothing_failed_on_the_way(served: Served) -> None:
    log = served.log.read_text(encoding="utf-8", errors="replace")
    assert "own choice of depth" not in log
    assert "Failed to apply hooks" not in log
