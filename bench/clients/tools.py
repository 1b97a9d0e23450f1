"""Load generators that other projects made: where they are installed, how each is called, what of its report is read.

Each lives in an environment of its own under one cache folder; `run.py --install` makes it with pip. All of them count
tokens with a tokenizer of their own, so they need its files; a folder does, without a network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "drafter-selector-clients"
KIT = Path(os.environ.get("SGLANG_CPU_HOME", Path.home() / ".cache" / "sglang-cpu"))
TOKENIZER = Path(os.environ.get("TEST_TOKENIZER", KIT / "smol"))
"""A folder with the files of any tokenizer."""
OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "no_proxy": "127.0.0.1,localhost",
    # SGLang's client imports its engine, which looks for a GPU unless it is told not to.
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
INSTALL_LIMIT_S = 1_800.0


class MissingTool(Exception):
    """A tool that cannot be had here; the message says why."""


class Failed(Exception):
    """A tool that did not get through; the message is the end of what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much each tool is to send."""

    requests: int
    prompt_tokens: int = 128
    answer_tokens: int = 32
    concurrency: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One load generator."""

    name: str
    distribution: str
    """Whose version counts."""
    requirements: Sequence[str]
    arguments: Callable[[str, str, Load, Path], Sequence[str]]
    """The command line behind the environment's Python or program: URL, model, load and a folder to write into."""
    figures: Callable[[Path], Mapping[str, Any]]
    """What its report says; `completed` and `failed` are among it."""
    environment: Mapping[str, str] = field(default_factory=lambda: OFFLINE)

    @property
    def python(self) -> Path:
        """Of its environment."""
        return CACHE / self.name / "bin" / "python"

    def version(self) -> str:
        """The installed version. Raises `MissingTool`."""
        if not self.python.exists():
            raise MissingTool(f"{self.name} is not installed in {CACHE.name}/{self.name}")
        if not (TOKENIZER / "tokenizer.json").exists():
            raise MissingTool(f"{self.name} needs a tokenizer, and TEST_TOKENIZER names no folder with one")
        code = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        ran = subprocess.run([self.python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        if ran.returncode:
            raise MissingTool(f"{self.name} is not completely installed in {CACHE.name}/{self.name}")
        return ran.stdout.strip()

    def install(self) -> None:
        """Makes its environment, unless it is there. Raises `MissingTool` with pip's last word."""
        if self.python.exists():
            return
        for command in (
            [sys.executable, "-m", "venv", CACHE / self.name],
            [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.requirements],
        ):
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                raise MissingTool(f"pip needed more than {INSTALL_LIMIT_S:g} s") from None
            if ran.returncode:
                raise MissingTool(f"pip: {(ran.stderr.strip().splitlines() or ['it failed'])[-1]}")

    def command(self, url: str, model: str, load: Load, work: Path) -> list[str]:
        """The whole command line."""
        first, *rest = self.arguments(url, model, load, work)
        program = [str(self.python), first] if first == "-m" else [str(self.python.parent / first)]
        return [*program, *rest]

    def run(self, url: str, model: str, load: Load, work: Path, *, limit_s: float = 300.0) -> dict[str, Any]:
        """One run; what it says. Raises `Failed`, and `MissingTool` when it is not installed."""
        version = self.version()
        command = self.command(url, model, load, work)
        log = work / f"{self.name}.log"
        with log.open("wb") as output:
            try:
                code = subprocess.run(
                    command,
                    cwd=work,
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **self.environment, "PYTHONPATH": ""},
                    timeout=limit_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
        if code != 0:
            raise Failed(f"{self.name} ended with {code}: {tail[-1_500:]}")
        try:
            figures = self.figures(work)
        except (OSError, KeyError, IndexError, TypeError, ValueError) as bad:
            raise Failed(f"{self.name} left no report ({type(bad).__name__}: {bad}): {tail[-1_500:]}") from bad
        shown = [word.replace(url, "URL").replace(str(work), "WORK") for word in command[1:]]
        shown = [word.replace(str(TOKENIZER), "TOKENIZER") for word in shown]
        return {"version": version, "command": " ".join([Path(command[0]).name, *shown]), **figures}


def _sglang(url: str, model: str, load: Load, work: Path) -> Sequence[str]:
    return [
        "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat", "--base-url", url, "--tokenizer", TOKENIZER,
        "--dataset-name", "random-ids", "--random-input-len", load.prompt_tokens,
        "--random-output-len", load.answer_tokens, "--random-range-ratio", 1, "--num-prompts", load.requests,
        "--max-concurrency", load.concurrency, "--disable-tqdm", "--output-file", work / "sglang.jsonl",
    ]  # fmt: skip


def _sglang_figures(work: Path) -> Mapping[str, Any]:
    report = json.loads((work / "sglang.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {
        "completed": report["completed"],
        "failed": report["num_prompts"] - report["completed"] if "num_prompts" in report else 0,
        "output_tokens": report["total_output_tokens"],
        "accept_length": report["accept_length"],
        "ttft_p50_ms": report["median_ttft_ms"],
        "tpot_p50_ms": report["median_tpot_ms"],
    }


def _guidellm(url: str, model: str, load: Load, work: Path) -> Sequence[str]:
    return [
        "guidellm", "run", "--backend", f"kind=openai_http,target={url},model={model}",
        "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
        "--data", f"kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.answer_tokens}",
        "--profile", f"kind=concurrent,streams={load.concurrency}",
        "--constraint", f"kind=max_requests,count={load.requests}",
        "--output", f"kind=json,path={work}/guidellm.json", "--disable-console-interactive",
    ]  # fmt: skip


def _guidellm_figures(work: Path) -> Mapping[str, Any]:
    (benchmark,) = json.loads((work / "guidellm.json").read_text(encoding="utf-8"))["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    return {
        "completed": totals["successful"],
        "failed": totals["errored"],
        "output_tokens": round(metrics["output_token_count"]["successful"]["total_sum"]),
        "ttft_p50_ms": metrics["time_to_first_token_ms"]["successful"]["median"],
        "tpot_p50_ms": metrics["inter_token_latency_ms"]["successful"]["median"],
    }


def _aiperf(url: str, model: str, load: Load, work: Path) -> Sequence[str]:
    return [
        "aiperf", "profile", "--model", model, "--url", url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", TOKENIZER, "--synthetic-input-tokens-mean", load.prompt_tokens,
        "--output-tokens-mean", load.answer_tokens, "--extra-inputs", "ignore_eos:true",
        "--request-count", load.requests, "--concurrency", load.concurrency,
        "--output-artifact-dir", work / "aiperf", "--ui", "none",
    ]  # fmt: skip


def _aiperf_figures(work: Path) -> Mapping[str, Any]:
    (path,) = (work / "aiperf").glob("**/profile_export_aiperf.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    return {
        "completed": round(report["request_count"]["avg"]),
        "failed": round((report.get("error_request_count") or {"avg": 0})["avg"]),
        "output_tokens": round(report["output_sequence_length"]["avg"] * report["request_count"]["avg"]),
        "ttft_p50_ms": report["time_to_first_token"]["p50"],
        "tpot_p50_ms": report["inter_token_latency"]["p50"],
    }


def _words(arguments: Callable[[str, str, Load, Path], Sequence[object]]) -> Callable[..., Sequence[str]]:
    return lambda *given: [str(word) for word in arguments(*given)]


TOOLS: Mapping[str, Tool] = {
    "sglang": Tool(
        name="sglang",
        distribution="sglang",
        requirements=("sglang>=0.5.23", "datasets"),
        arguments=_words(_sglang),
        figures=_sglang_figures,
    ),
    "guidellm": Tool(
        name="guidellm",
        distribution="guidellm",
        requirements=("guidellm>=0.8",),
        arguments=_words(_guidellm),
        figures=_guidellm_figures,
    ),
    "aiperf": Tool(
        name="aiperf",
        distribution="aiperf",
        requirements=("aiperf>=0.13",),
        arguments=_words(_aiperf),
        figures=_aiperf_figures,
        # Told to be offline, it looks for the tokenizer in the hub's cache and not in the folder.
        environment={"no_proxy": OFFLINE["no_proxy"]},
    ),
}
