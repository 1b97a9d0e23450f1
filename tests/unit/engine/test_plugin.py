"""The plugin among fakes of SGLang's parts: what it registers, what it chooses, and when it leaves SGLang its own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selector.core.depthbatch import DepthBatch
from selector.core.enginefields import TARGET_FIELD
from selector.engine import plugin
from selector.engine.depthpolicy import announcing, steered
from selector.engine.interface import PARAMS, WORKER, unknown_reason
from selector.files.depthfile import FORMAT, DepthFile, parse_depth_file
from tests.unit.engine import fakesglang
from tests.unit.engine.test_batchfacts import Req


def depth_file(**changes: object) -> DepthFile:
    """Not drafting is slow and cheap, depth 3 fast and dear, depth 1 between them."""
    costs = {0: (20.0, 2.0), 1: (10.0, 6.0), 3: (5.0, 20.0)}
    data = {
        "format": FORMAT,
        "version": 1,
        "profile": "made-up",
        "target": "made-up",
        "algorithm": "EAGLE3",
        "depths": [
            {"depth": depth, "arm": f"k{depth}", "rows": [[[0.0, ms, 0.0, j, 0.0]]] * 8}
            for depth, (ms, j) in costs.items()
        ],
        "survivals": [0.5, 0.25, 0.125],
        "survivals_from": "made up",
        "options": {"dwell_steps": 0, "trial_every_steps": 0, "most_trial_steps": 0},
        **changes,
    }
    return parse_depth_file(json.dumps(data), "made-up.json")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "depths.json"
    file.write_text(depth_file().model_dump_json(), encoding="utf-8")
    return file


def batch_of(*targets_ms: float | None) -> Any:
    return type("Batch", (), {"reqs": [Req(target_ms) for target_ms in targets_ms]})()


class Engine:
    """The fake worker with the policy of a plugin, its hook called before each forward."""

    def __init__(self, file: DepthFile, params: type = fakesglang.AdaptiveSpeculativeParams) -> None:
        self.policy: Any = steered(params, file)(initial_steps=3, cfg_path=None)
        self.worker = fakesglang.EAGLEWorkerV2(self.policy)

    def step(self, batch: Any) -> int:
        announcing(self.worker, batch)
        self.worker.forward_batch_generation(batch)
        return self.worker.depths[-1]

    def settled(self, batch: Any) -> int:
        return [self.step(batch) for _ in range(5)][-1]


def test_without_the_variable_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = fakesglang.put_in_place(monkeypatch)
    monkeypatch.delenv(plugin.VARIABLE, raising=False)
    plugin.install()
    assert registered == {}


def test_with_it_the_choice_and_the_look_at_the_batch_are_registered(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    registered = fakesglang.put_in_place(monkeypatch)
    monkeypatch.setenv(plugin.VARIABLE, str(path))
    plugin.install()
    assert set(registered) == {PARAMS, f"{WORKER}.forward_batch_generation"}
    replacement, kind = registered[PARAMS]
    assert kind is fakesglang.HookType.REPLACE
    assert issubclass(replacement, fakesglang.AdaptiveSpeculativeParams)
    assert registered[f"{WORKER}.forward_batch_generation"] == (announcing, fakesglang.HookType.BEFORE)


def test_the_depth_follows_the_tightest_target_of_the_batch() -> None:
    engine = Engine(depth_file())
    assert engine.settled(batch_of(None, None)) == 0
    assert engine.settled(batch_of(100.0, 9.0)) == 1
    assert engine.settled(batch_of(None, 4.0, 100.0)) == 3
    assert engine.settled(batch_of(30.0)) == 0


def test_requests_without_a_target_have_that_of_the_file() -> None:
    assert Engine(depth_file(tbt_target_ms=9.0)).settled(batch_of(None)) == 1


def test_only_depths_that_the_engine_has_are_chosen() -> None:
    class Shallow(fakesglang.AdaptiveSpeculativeParams):
        candidate_steps = (0, 1)

    assert Engine(depth_file(), Shallow).settled(batch_of(1.0)) == 1


def test_graphs_are_captured_at_every_batch_for_the_depths_that_may_be_chosen() -> None:
    policy = Engine(depth_file()).policy
    assert policy.cuda_graph_bs_for_step(3) is None
    policy.set_cuda_graph_bs([8, 1, 2])
    assert policy.cuda_graph_bs_for_step(3) == [1, 2, 8]
    assert policy.cuda_graph_bs_for_step(7) == [1]
    assert policy.graphs == [8, 1, 2]


def test_it_learns_from_the_depth_that_a_pass_ran_at() -> None:
    engine = Engine(depth_file())
    slow, fast = batch_of(9.0), batch_of(4.0)
    first = engine.settled(slow)
    for _ in range(5):
        engine.worker.on_verify_complete_cpu([0], 1)
    before = engine.policy.drafter_selector.choice.acceptance.of("").survivals()
    # Two are under way at once: the result of the first comes after the second has begun at another depth.
    engine.step(slow)
    engine.step(fast)
    assert (first, engine.worker.depths[-1]) == (1, 3)
    engine.worker.on_verify_complete_cpu([1], 1)
    engine.worker.on_verify_complete_cpu([3], 1)
    steering = engine.policy.drafter_selector
    assert steering.unmatched == 0
    assert steering.choice.acceptance.of("").survivals() > before


def test_prompts_take_from_the_targets_of_those_who_decode() -> None:
    """10 ms a step at depth 1, so 6.7 ms a token: within 9 ms, until half of the time goes to prompts."""
    engine = Engine(depth_file(prefill={"arm": "k3", "points": [[100, 10]]}))
    decoding = batch_of(9.0)
    assert engine.settled(decoding) == 1
    prompts = batch_of(None)
    prompts.forward_mode = SimpleNamespace(is_extend=lambda: True)
    prompts.extend_num_tokens = 100
    for _ in range(1_000):
        announcing(engine.worker, prompts)
        depth = engine.step(decoding)
    assert depth == 3


def test_of_a_large_batch_every_fourth_pass_teaches_and_so_does_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"dwell_steps": 0, "trial_every_steps": 10, "most_trial_steps": 10, "trial_requests": 8}
    # Depth 1 would pay if its draft were right, which it never is.
    depths = [
        {"depth": depth, "arm": f"k{depth}", "rows": [[[0.0, 10.0, 0.0, j, 0.0]]] * 8}
        for depth, j in ((0, 2.0), (1, 3.0))
    ]
    engine = Engine(depth_file(depths=depths, survivals=[0.01], options=options))
    choice = engine.policy.drafter_selector.choice
    observe, heard = choice.acceptance.observe, list[int]()

    def noted(depth: int, accepted: list[int], batch: DepthBatch) -> bool:
        heard.append(depth)
        return bool(observe(depth, accepted, batch))

    monkeypatch.setattr(type(choice.acceptance), "observe", lambda self, *arguments: noted(*arguments))
    taught, tried = [], []
    batch = batch_of(*[30.0] * 16)
    for _ in range(100):
        before = len(heard)
        depth = engine.step(batch)
        engine.worker.on_verify_complete_cpu([0] * 16, 16)
        taught.append(len(heard) > before)
        tried.append(choice.trying)
        assert depth == 0 or choice.trying
    assert sum(tried) >= 5
    assert all(learnt for learnt, trial in zip(taught, tried, strict=True) if trial)
    assert 20 <= sum(taught) <= 45


def test_a_result_of_another_size_teaches_nothing_and_the_next_one_does_again() -> None:
    engine = Engine(depth_file())
    steering = engine.policy.drafter_selector
    before = steering.choice.acceptance.of("").survivals()
    engine.step(batch_of(9.0))
    engine.worker.on_verify_complete_cpu([1, 1], 2)
    engine.worker.on_verify_complete_cpu([1], 1)
    assert steering.unmatched == 2
    assert steering.choice.acceptance.of("").survivals() == before
    engine.step(batch_of(9.0))
    engine.worker.on_verify_complete_cpu([1], 1)
    assert steering.choice.acceptance.of("").survivals() != before


def test_steps_whose_results_never_come_do_not_pile_up() -> None:
    engine = Engine(depth_file())
    for _ in range(100):
        engine.step(batch_of(9.0))
    assert len(engine.policy.drafter_selector._under_way) < 10


def test_a_worker_without_the_policy_is_left_alone() -> None:
    announcing(object(), batch_of(1.0))
    announcing(fakesglang.EAGLEWorkerV2(fakesglang.AdaptiveSpeculativeParams(3)), batch_of(1.0))


def test_a_request_unlike_any_known_gives_the_choice_back_to_sglang(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(depth_file())
    with caplog.at_level(logging.WARNING, logger="drafter_selector"):
        assert engine.step(type("Batch", (), {"reqs": [object()]})()) == 5
        assert engine.step(batch_of(4.0)) == 5
        engine.worker.on_verify_complete_cpu([2], 1)
    assert engine.policy.told == [([2], 1)]
    assert [record for record in caplog.messages if "own choice of depth goes on" in record] == caplog.messages[-1:]


def test_an_engine_without_any_depth_of_the_file_keeps_its_own(caplog: pytest.LogCaptureFixture) -> None:
    class Deep(fakesglang.AdaptiveSpeculativeParams):
        candidate_steps = (5, 7)

    assert Engine(depth_file(), Deep).step(batch_of(1.0)) == 5
    assert "cannot choose" in caplog.text


class Renamed(fakesglang.AdaptiveSpeculativeParams):
    def get_steps_for_batch(self, batch_size: int, forward_mode: object = None) -> int:
        return 5


class WithoutLearning(fakesglang.EAGLEWorkerV2):
    on_verify_complete_cpu = None  # type: ignore[assignment]  # another release's worker


class OtherForward(fakesglang.EAGLEWorkerV2):
    def forward_batch_generation(self, work: Any) -> None:  # type: ignore[override]  # another release's worker
        return None


@pytest.mark.parametrize(
    ("params", "worker", "named"),
    [
        (Renamed, fakesglang.EAGLEWorkerV2, "get_steps_for_batch"),
        (fakesglang.AdaptiveSpeculativeParams, WithoutLearning, "on_verify_complete_cpu"),
        (fakesglang.AdaptiveSpeculativeParams, OtherForward, "forward_batch_generation"),
    ],
)
def test_an_interface_that_is_not_known_keeps_its_own_choice_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: Path,
    params: type,
    worker: type,
    named: str,
) -> None:
    reason = unknown_reason(params, worker)
    assert reason is not None and named in reason
    registered = fakesglang.put_in_place(monkeypatch, params=params, worker=worker)
    monkeypatch.setenv(plugin.VARIABLE, str(path))
    plugin.install()
    assert registered == {}
    assert named in caplog.text and "SGLang's own choice of depth stays" in caplog.text


def test_a_file_that_cannot_be_read_keeps_its_own_choice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    registered = fakesglang.put_in_place(monkeypatch)
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path / "none.json"))
    plugin.install()
    assert registered == {}
    assert "none.json" in caplog.text


def test_an_sglang_without_these_parts_keeps_its_own_choice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: Path
) -> None:
    fakesglang.put_in_place(monkeypatch)
    monkeypatch.delattr(sys.modules["sglang.srt.speculative.eagle_worker_v2"], "EAGLEWorkerV2")
    monkeypatch.setenv(plugin.VARIABLE, str(path))
    plugin.install()
    assert "has other parts" in caplog.text


def test_the_field_of_the_target_is_the_one_the_router_writes() -> None:
    assert TARGET_FIELD in Req(5.0).sampling_params.custom_params  # type: ignore[operator]  # it has some


def test_the_plugin_needs_nothing_that_sglang_does_not_bring() -> None:
    code = "\n".join(
        [
            "import sys",
            "import selector.engine.plugin",
            "heavy = {'numpy', 'scipy', 'aiohttp', 'orjson', 'torch', 'sglang', 'rich', 'fastapi'} & set(sys.modules)",
            "assert not heavy, heavy",
        ]
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
