"""Accept lengths from real answers: drawn prompts, counts, what they add up to, and a sweep that measures them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from selector.errors import InputError, UpstreamError
from selector.profiler.acceptance import counts_of, summarised
from selector.profiler.cells import AcceptanceCell, AnswerCounts, FailedStep, read_cells
from selector.profiler.client import ChatAnswer
from selector.profiler.config import SweepConfig
from selector.profiler.measure import Bench
from selector.profiler.prompts import Prompt, drawn, load_prompts
from selector.profiler.sweep import Sweep

WIDTH = 4


def answer(passes: int, accepted: int, histogram: tuple[int, ...] | None = None) -> AnswerCounts:
    return AnswerCounts(
        prompt="p", prompt_tokens=10, completion_tokens=passes + accepted + 1, verify_passes=passes,
        accepted_drafts=accepted, accepted_histogram=histogram,
    )  # fmt: skip


def drawn_answer(draw: random.Random, rate: float, passes: int) -> AnswerCounts:
    """Passes whose drafts are each accepted with probability `rate` until one is not."""
    histogram = [0] * WIDTH
    for _ in range(passes):
        accepted = 0
        while accepted < WIDTH - 1 and draw.random() < rate:
            accepted += 1
        histogram[accepted] += 1
    return answer(passes, sum(k * count for k, count in enumerate(histogram)), tuple(histogram))


def test_the_mean_counts_passes_not_answers() -> None:
    measured = summarised([answer(10, 20, (0, 0, 10, 0)), answer(90, 0, (90,)), answer(0, 0, ())], WIDTH)
    assert measured is not None
    assert measured.mean == pytest.approx(1.2)
    assert measured.survival == pytest.approx((0.1, 0.1, 0.0))
    assert (measured.requests, measured.passes) == (2, 100)
    assert summarised([answer(0, 0)], WIDTH) is None


def test_survival_adds_up_to_the_accept_length() -> None:
    draw = random.Random(3)
    measured = summarised([drawn_answer(draw, 0.6, 200) for _ in range(50)], WIDTH)
    assert measured is not None and measured.survival is not None
    assert measured.mean == pytest.approx(1 + sum(measured.survival))
    assert measured.survival == pytest.approx((0.6, 0.36, 0.216), abs=0.02)


def test_alike_requests_have_no_spread_however_short_their_answers() -> None:
    draw = random.Random(4)
    measured = summarised([drawn_answer(draw, 0.6, 12) for _ in range(2000)], WIDTH)
    assert measured is not None and measured.request_spread is not None
    assert measured.request_spread < 0.03


def test_the_spread_of_unlike_requests_is_found() -> None:
    draw = random.Random(5)
    means = {0.3: 1 + 0.3 + 0.09 + 0.027, 0.8: 1 + 0.8 + 0.64 + 0.512}
    measured = summarised([drawn_answer(draw, rate, 40) for rate in means for _ in range(500)], WIDTH)
    assert measured is not None
    mean = sum(means.values()) / 2
    assert measured.request_spread == pytest.approx((means[0.8] - means[0.3]) / 2 / mean, rel=0.05)


def test_without_histograms_there_is_neither_survival_nor_spread() -> None:
    measured = summarised([answer(10, 10), answer(10, 20, (0, 0, 10))], WIDTH)
    assert measured is not None
    assert (measured.survival, measured.request_spread) == (None, None)


@pytest.mark.parametrize(("passes", "accepted"), [(None, 3), (3, None), (-1, 0), (2, -1), (2, 7)])
def test_counts_that_cannot_be_are_refused(passes: int | None, accepted: int | None) -> None:
    said = ChatAnswer(
        prompt_tokens=1, completion_tokens=9, verify_passes=passes, accepted_drafts=accepted, accepted_histogram=None
    )
    with pytest.raises(UpstreamError):
        counts_of("p", said, WIDTH)


def test_repeats_share_no_prompt_and_few_prompts_are_shared_out() -> None:
    prompts = [Prompt(id=str(number), fields={}) for number in range(10)]
    draws = drawn(prompts, count=4, repeats=3, seed=1)
    assert [len(draw) for draw in draws] == [3, 3, 3]
    ids = [prompt.id for draw in draws for prompt in draw]
    assert len(set(ids)) == 9
    assert drawn(prompts, count=4, repeats=3, seed=1) == draws
    assert drawn(prompts, count=4, repeats=3, seed=2) != draws
    assert [len(draw) for draw in drawn(prompts, count=2, repeats=3, seed=1)] == [2, 2, 2]


def test_prompts_come_from_a_file_a_folder_or_the_package(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text_type": "code", "prompt": "x", "id": "c1"}\n\n')
    messages = [{"role": "user", "content": "y"}]
    line = {"text_type": "tool_call", "messages": messages, "tools": [{"type": "function"}], "source": "s"}
    (tmp_path / "b.jsonl").write_text(json.dumps(line))
    both = load_prompts(tmp_path)
    assert both["code"] == [Prompt(id="c1", fields={"messages": [{"role": "user", "content": "x"}]})]
    assert both["tool_call"][0].fields == {"messages": messages, "tools": [{"type": "function"}]}
    assert set(load_prompts(tmp_path / "a.jsonl")) == {"code"}
    assert len(load_prompts(None)) == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"a\.jsonl: line 1: is not JSON"),
        ('{"prompt": "x"}', "line 1: has no known text_type"),
        ('{"text_type": "code"}', "neither a prompt nor messages"),
        ('{"text_type": "code", "messages": []}', "neither a prompt nor messages"),
    ],
)
def test_a_bad_prompt_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        load_prompts(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"holds no \*\.jsonl"):
        load_prompts(tmp_path)


def config(**changes: Any) -> SweepConfig:
    data: dict[str, Any] = {
        "version": 1,
        "output_name": "cpu__m",
        "target": {"name": "M", "model": "m", "weights": "real"},
        "gpu": {"name": "CPU", "peak_tflops": 1, "bandwidth_tb_s": 1},
        "server": {"context_length": 2048, "flags": ["--max-running-requests", "8"]},
        "acceptance": {"text_types": ["code", "news"], "prompts_per_type": 4, "repeats": 2, "answer_tokens": 32},
        "arms": [
            {"name": "none", "algorithm": "none", "verify_tokens": 1},
            {"name": "ngram-4", "algorithm": "NGRAM", "verify_tokens": WIDTH},
        ],
    }
    return SweepConfig.model_validate(data | changes)


class Quiet:
    """An observer that does not care."""

    def planned(self, *_: object) -> None: ...
    def launching(self, *_: object) -> None: ...
    def measured(self, *_: object) -> None: ...
    def failed(self, *_: object) -> None: ...
    def stopped(self, *_: object) -> None: ...


@pytest.fixture
def run(tmp_path, clock, launcher):
    asked: list[dict[str, Any]] = []

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body)
        content = body["messages"][0]["content"]
        if "refuse" in content:
            return web.json_response({"message": "too long"}, status=400)
        if "break" in content:
            return web.Response(status=500)
        info = {"spec_verify_ct": 10, "spec_num_correct_drafts": 15, "spec_correct_drafts_histogram": [0, 5, 5, 0]}
        usage = {"prompt_tokens": 5, "completion_tokens": 26}
        return web.json_response({"choices": [{"meta_info": info}], "usage": usage})

    def prepare(arm: str, server: Any) -> None:
        routes = server.routes

        def with_chat() -> web.Application:
            app = routes()
            app.router.add_post("/v1/chat/completions", chat)
            return app

        server.routes = with_chat

    launcher.prepare = prepare

    async def run(words: dict[str, list[str]], **options: Any) -> list[Any]:
        prompts = {
            text_type: [
                Prompt(id=f"{text_type}{n}", fields={"messages": [{"role": "user", "content": text}]})
                for n, text in enumerate(texts)
            ]
            for text_type, texts in words.items()
        }
        bench = Bench(
            clock=clock, launcher=launcher, meter=None, facts=None, host=None, vocab_size=1000, prompts=prompts
        )
        await Sweep(config(), tmp_path, bench, Quiet(), **options).run()
        return read_cells(tmp_path / "cells.jsonl")

    run.asked = asked  # type: ignore[attr-defined]  # what the server was asked, for the tests to see
    return run


async def test_a_sweep_measures_each_type_of_each_speculating_arm_once(run, launcher) -> None:
    words = {"code": ["a"] * 8, "news": ["b"] * 5}
    cells = await run(words)
    assert [(c.arm, c.text_type, c.repeat, len(c.answers)) for c in cells] == [
        ("ngram-4", "code", 0, 4), ("ngram-4", "news", 0, 2), ("ngram-4", "code", 1, 4), ("ngram-4", "news", 1, 2)
    ]  # fmt: skip
    assert launcher.launched == ["ngram-4"]
    first = cells[0]
    assert isinstance(first, AcceptanceCell)
    assert (first.answers[0].verify_passes, first.answers[0].accepted_drafts) == (10, 15)
    assert first.origin.weights == "real"
    assert all(body["max_tokens"] == 32 and body["return_meta_info"] is True for body in run.asked)
    used = [a.prompt for c in cells for a in c.answers]
    assert len(set(used)) == len(used) == 12
    assert len(await run(words)) == 4
    assert launcher.launched == ["ngram-4"]


async def test_refused_prompts_are_counted_and_too_many_refuse_the_type(run) -> None:
    cells = await run({"code": ["a", "a", "a", "a", "a", "a", "a", "refuse"], "news": ["refuse"] * 4 + ["b"]})
    code = [cell for cell in cells if isinstance(cell, AcceptanceCell) and cell.text_type == "code"]
    assert sum(cell.refused for cell in code) == 1
    failed = [cell for cell in cells if isinstance(cell, FailedStep)]
    assert failed and all("prompts were refused; the first:" in cell.reason for cell in failed)
    assert all("acceptance of ngram-4 on news" in cell.step for cell in failed)


async def test_a_server_error_fails_the_step_and_the_sweep_goes_on(run) -> None:
    cells = await run({"code": ["break"] * 8, "news": ["b"] * 8})
    assert [type(cell).__name__ for cell in cells].count("FailedStep") == 2
    assert [cell.text_type for cell in cells if isinstance(cell, AcceptanceCell)] == ["news", "news"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"acceptance": None}, "nothing to measure"),
        ({"target": {"name": "M", "model": "m"}}, "dummy weights write no text"),
        ({"acceptance": {"text_types": ["verse"]}}, "'verse', which is none of code, math"),
    ],
)
def test_a_configuration_that_cannot_be_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)
