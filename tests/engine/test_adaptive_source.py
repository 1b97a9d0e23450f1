"""The plugin and the model of SGLang's rule against SGLang's own code, wherever some release's source is at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from selector.core.sglangadaptive import DEFAULT_SCHEDULES, DepthRule, Tier, tier_of
from selector.engine import plugin
from selector.engine.depthpolicy import announcing
from selector.engine.interface import unknown_reason
from selector.files.adaptiveconfig import adaptive_config_text, parse_adaptive_config
from tests.engine.sglangsource import Adaptive, load, release, sources
from tests.unit.engine.test_batchfacts import Req
from tests.unit.engine.test_plugin import depth_file

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not sources(), reason="no source of SGLang: TEST_SGLANG_SOURCE names none, the kit has none"),
]


@pytest.fixture(params=sources(), ids=release)
def adaptive(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Adaptive]:
    yield load(request.param, monkeypatch)


@pytest.fixture
def installed(adaptive: Adaptive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Adaptive]:
    """The release with the plugin applied by its own registry."""
    file = tmp_path / "depths.json"
    file.write_text(depth_file().model_dump_json(), encoding="utf-8")
    monkeypatch.setenv(plugin.VARIABLE, str(file))
    adaptive.hooks.HookRegistry.reset()
    plugin.install()
    adaptive.hooks.HookRegistry.apply_hooks()
    yield adaptive
    adaptive.hooks.HookRegistry.reset()


def controller_of(adaptive: Adaptive, worker: Any, config: Path | None) -> Any:
    """The release's controller, made as its worker makes it."""
    path = None if config is None else str(config)
    if hasattr(adaptive.runtime, "AdaptiveSpecPolicy"):  # from 0.5.23 on the worker makes the policy
        policy = adaptive.params.AdaptiveSpeculativeParams(initial_steps=worker.speculative_num_steps, cfg_path=path)
        return adaptive.runtime.AdaptiveController(worker, policy)
    return adaptive.runtime.AdaptiveController(worker, config_path=path)


class Worker:
    """What a controller needs of a worker; notes the depths it is switched to."""

    def __init__(self, adaptive: Adaptive, config: Path | None = None) -> None:
        self.speculative_num_steps = 3
        self.graphs: dict[int, list[int] | None] = {}
        self.adaptive_controller = controller_of(adaptive, self, config)
        self.adaptive_controller.register(SimpleNamespace(speculative_num_steps=3))
        self.adaptive_controller.init_states([1, 8, 32, 64])

    def build_adaptive_runtime_state(
        self,
        speculative_num_steps: int,
        speculative_num_draft_tokens: int,
        cuda_graph_bs: list[int] | None = None,
    ) -> Any:
        self.graphs[speculative_num_steps] = cuda_graph_bs
        return SimpleNamespace(speculative_num_steps=speculative_num_steps)

    def apply_runtime_state(self, state: Any) -> None:
        self.speculative_num_steps = state.speculative_num_steps

    def step(self, *targets_ms: float | None) -> int:
        batch = SimpleNamespace(reqs=[Req(target_ms) for target_ms in targets_ms])
        announcing(self, batch)
        self.adaptive_controller.activate_step_by_batch(len(targets_ms))
        self.adaptive_controller.on_verify_complete([0] * len(targets_ms), len(targets_ms))
        return self.speculative_num_steps


def test_the_interface_is_known(adaptive: Adaptive) -> None:
    assert unknown_reason(adaptive.params.AdaptiveSpeculativeParams, adaptive.worker) is None


def test_the_releases_controller_follows_the_plugin(installed: Adaptive) -> None:
    worker = Worker(installed)
    assert [worker.step(None) for _ in range(5)][-1] == 0
    assert [worker.step(100.0, 4.0) for _ in range(5)][-1] == 3
    assert [worker.step(30.0) for _ in range(5)][-1] == 0


def test_graphs_are_captured_for_every_batch_at_the_plugins_depths(installed: Adaptive) -> None:
    worker = Worker(installed)
    assert worker.graphs[1] == worker.graphs[0] == [1, 8, 32, 64]
    assert worker.graphs[7] == [1]  # SGLang's default lists it for its first tier alone


def test_without_the_plugin_the_release_chooses_by_acceptance(adaptive: Adaptive) -> None:
    worker = Worker(adaptive)
    assert [worker.step(4.0) for _ in range(60)][-1] == 1


def test_the_default_schedule_is_the_releases(adaptive: Adaptive, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id.split("-")[0]
    if name not in DEFAULT_SCHEDULES:
        pytest.skip(f"no default is kept for {name}")
    text = json.dumps(adaptive.params.DEFAULT_ADAPTIVE_CONFIG)
    assert parse_adaptive_config(text, name) == DEFAULT_SCHEDULES[name]


TIERS = (
    Tier(candidate_steps=(1, 3, 7)),
    Tier(candidate_steps=(0, 1, 3), down_hysteresis=0.0),
    Tier(candidate_steps=(0, 1), down_hysteresis=0.3, ema_alpha=0.1, update_interval=3, warmup_batches=0),
    Tier(candidate_steps=(1, 3), up_hysteresis=-0.2, down_hysteresis=0.7, ema_alpha=0.05, update_interval=40),
    Tier(candidate_steps=(1, 2, 5), ceiling_coeff=1.5),
    Tier(candidate_steps=(4,)),
)


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: str(tier.candidate_steps))
def test_the_rule_goes_where_the_releases_rule_goes(adaptive: Adaptive, tier: Tier, tmp_path: Path) -> None:
    config = tmp_path / "adaptive.json"
    config.write_text(adaptive_config_text({1: tier}, {"about": "a test"}), encoding="utf-8")
    for seed in range(5):
        draw = Random(seed)
        theirs = adaptive.params.AdaptiveSpeculativeParams(initial_steps=1, cfg_path=str(config))
        ours = DepthRule(tier, 1)
        survival = draw.random()
        for step in range(1_500):
            if step % 300 == 0:
                survival = draw.random()
            depth = theirs.get_steps_for_batch(4)
            assert depth == ours.depth
            accepted = [next((k for k in range(depth) if draw.random() >= survival), depth) for _ in range(4)]
            theirs.on_verify_complete(accepted, 4)
            ours.update(sum(accepted) / 4)


def test_tiers_are_looked_up_as_the_release_does(adaptive: Adaptive, tmp_path: Path) -> None:
    schedule = {2: Tier(candidate_steps=(5,)), 8: Tier(candidate_steps=(3,)), 33: Tier(candidate_steps=(1,))}
    config = tmp_path / "adaptive.json"
    config.write_text(adaptive_config_text(schedule, {}), encoding="utf-8")
    for graphs in ((), (1, 8, 32, 64), (16,)):
        theirs = adaptive.params.AdaptiveSpeculativeParams(initial_steps=5, cfg_path=str(config))
        theirs.set_cuda_graph_bs(list(graphs) or None)
        for batch in range(1, 80):
            assert theirs.get_steps_for_batch(batch) == tier_of(schedule, batch, graphs).candidate_steps[0]


def test_the_explanation_does_not_disturb_the_release(adaptive: Adaptive, tmp_path: Path) -> None:
    config = tmp_path / "adaptive.json"
    tier = Tier(candidate_steps=(1, 3))
    config.write_text(adaptive_config_text({1: tier}, {"notes": ["a"], "expected": {"batches": []}}), encoding="utf-8")
    assert adaptive.params.resolve_candidate_steps_from_config(str(config)) == [1, 3]
