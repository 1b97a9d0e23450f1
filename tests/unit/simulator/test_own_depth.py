"""Simulated servers whose engine chooses its depth: exact between choices, and led by load, text and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from selector.core.acceptance import AcceptancePrior
from selector.core.depthbatch import UNTOLD, DepthBatch, DepthRequest
from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthengines import DepthStretch, OwnDepth, PluginDepths
from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtexts import DepthAcceptances
from selector.core.policy import BackendSpec
from selector.core.survival import accept_length_of
from selector.errors import DomainError
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.simulator.arrivals import ClosedLoop
from selector.simulator.depthpasses import DepthPasses
from selector.simulator.draws import AcceptDraws
from selector.simulator.engine import SimulatedRequest, Simulation
from selector.simulator.job import Job
from selector.simulator.oracle import oracle
from selector.simulator.run import Run
from selector.simulator.server import ServerModel
from tests.depthtables import straight_table
from tests.fleets import backend_spec, policy_context
from tests.owndepths import DEPTH_ARMS, DEPTHS, choosing, choosing_spec

SURVIVAL = {"code": 0.85, "romansh": 0.2}
OPEN = {"max_running_requests": 64, "max_kv_tokens": 400_000}


@dataclass
class Told:
    """An engine that takes the depths it is given in turn, each for so many steps, and keeps what it is told."""

    depths: Sequence[int]
    steps: int | None = 5
    asked: list[tuple[int, float, float]] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    texts: list[set[str]] = field(default_factory=list)
    fresh: list[dict[str, int]] = field(default_factory=list)
    heard: list[tuple[int, Sequence[Sequence[int]]]] = field(default_factory=list)

    def choose(self, batch: DepthBatch, context_tokens: float) -> DepthStretch:
        self.asked.append((batch.size, context_tokens, batch.tightest_ms))
        self.texts.append(set(batch.rows))
        self.fresh.append(batch.fresh)
        return DepthStretch(self.depths[(len(self.asked) - 1) % len(self.depths)], self.steps)

    def verified(self, depth: int, passes: Sequence[Sequence[int]]) -> None:
        self.heard.append((depth, passes))

    def prefilled(self, tokens: int) -> None:
        self.prompts.append(tokens)


def server(engine: Told) -> ServerModel:
    own = OwnDepth(start=lambda: engine, tiers=((1, DEPTHS),), takes_tbt_target=True)
    spec = choosing(backend_spec("b", "dspark-8"), own)
    # Who comes while the first prompt is prefilled joins it before the next step.
    return ServerModel(spec.cost, AcceptDraws(1), backend=spec, overlaps=False, **OPEN)


def job(key: int, tokens: int = 300, accept_length: float = 3.0, **more: object) -> Job:
    fields = {"accept_spread": 0.1, "arrived_s": 0.0, "prompt_tokens": 400, **more}
    return Job(key=key, draw_key=key, output_tokens=tokens, accept_length=accept_length, **fields)  # type: ignore[arg-type]  # the fields vary by test


def run(model: ServerModel, *jobs: Job) -> list[Job]:
    for each in jobs:
        model.enqueue(each, 0.0)
    model.advance(1e9)
    return model.finished


@pytest.mark.parametrize(("depth", "arm"), list(zip(DEPTHS, DEPTH_ARMS, strict=True)))
def test_an_engine_that_stays_at_a_depth_is_the_server_of_its_arm(depth: int, arm: str) -> None:
    p = 0.6
    cost = replace(backend_spec("b", arm).cost, prefill=backend_spec("b", "dspark-8").cost.prefill)
    fixed = ServerModel(cost, AcceptDraws(1), overlaps=False, **OPEN)
    own = server(Told([depth], steps=None))
    lengths = accept_length_of(p, depth + 1), accept_length_of(p, 8)
    ended = [
        run(model, *(job(key, 100 + 30 * key, length, accept_spread=0.0) for key in range(12)))
        for model, length in zip((fixed, own), lengths, strict=True)
    ]
    for one, other in zip(*ended, strict=True):
        assert (one.key, one.verify_passes) == (other.key, other.verify_passes)
        assert other.finished_s == pytest.approx(one.finished_s)
        assert other.decode_j == pytest.approx(one.decode_j)
    assert own.totals.moments == pytest.approx(fixed.totals.moments)
    assert own.depth == depth


def test_it_is_asked_when_the_batch_changes_and_when_its_answer_runs_out() -> None:
    engine = Told([1], steps=10)
    model = server(engine)
    run(model, job(0, 400), job(1, 100))
    batches = [batch for batch, _, _ in engine.asked]
    assert batches == sorted(batches, reverse=True) and set(batches) == {1, 2}
    assert len(engine.asked) == pytest.approx(model.step / 10, abs=2)
    contexts = [context for batch, context, _ in engine.asked if batch == 1]
    assert contexts == sorted(contexts) and contexts[-1] > 700


def test_an_answer_that_holds_is_not_asked_for_again_however_long() -> None:
    engine = Told([7], steps=None)
    run(server(engine), job(0, 5_000))
    assert len(engine.asked) == 1
    assert not engine.heard


def test_it_hears_of_every_pass_and_draft_once_and_of_none_before_it_was_made() -> None:
    engine = Told([7, 1, 0, 1], steps=3)
    model = server(engine)
    jobs = [job(key, 150 + 10 * key) for key in range(5)]
    run(model, *jobs)
    engine_passes = sum(len(accepted) for _, passes in engine.heard for accepted in passes)
    last = sum(each.verify_passes for each in jobs) - engine_passes
    assert 0 <= last <= 3  # the steps of the last stretch, of which nobody asks any more
    assert all(0 <= count <= depth for depth, passes in engine.heard for accepted in passes for count in accepted)
    assert all(1 <= len(passes) <= 3 for _, passes in engine.heard)
    drafts = sum(sum(accepted) for _, passes in engine.heard for accepted in passes)
    assert drafts == pytest.approx(sum(each.accepted_drafts for each in jobs), abs=8)
    for each in jobs:
        assert sum(each.tokens_by_pass(each.verify_passes)) == each.output_tokens - 1


def test_the_tightest_target_of_the_batch_counts() -> None:
    engine = Told([1], steps=None)
    model = server(engine)
    told = (UNTOLD, DepthRequest("code", 20.0), DepthRequest("romansh", 9.0))
    run(model, *(job(key, 50 + 100 * key, told=each) for key, each in enumerate(told)))
    assert [(batch, target_ms) for batch, _, target_ms in engine.asked] == [(3, 9.0), (2, 9.0), (1, 9.0)]
    alone = Told([1], steps=None)
    run(server(alone), job(0))
    assert alone.asked[0][2] == inf
    assert engine.texts == [{"", "code", "romansh"}, {"code", "romansh"}, {"romansh"}]
    assert engine.fresh == [{"": 1, "code": 1, "romansh": 1}, {}, {}]


def test_it_hears_of_every_prompt() -> None:
    engine = Told([1], steps=None)
    run(server(engine), *(job(key, prompt_tokens=300 + key) for key in range(3)))
    assert sum(engine.prompts) == 903


def test_a_change_of_depth_costs_from_the_next_step_on() -> None:
    engine = Told([7, 0], steps=4)
    model = server(engine)
    model.enqueue(job(0, 400), 0.0)
    model.advance(model.next_boundary_s() or 0.0)
    seen = []
    for _ in range(12):
        before_s, boundary_s = model.now_s, model.next_boundary_s()
        assert boundary_s is not None
        seen.append((model.depth, 1e3 * (boundary_s - before_s)))
        model.advance(boundary_s)
    assert [depth for depth, _ in seen] == [7] * 4 + [0] * 4 + [7] * 4
    step_ms = {depth: backend_spec("b", arm).cost.step.step(1, 420)[0] for depth, arm in ((0, "none"), (7, "dspark-8"))}
    assert [ms for _, ms in seen] == pytest.approx([step_ms[depth] for depth, _ in seen], rel=1e-3)


def test_who_is_removed_in_the_middle_of_a_step_leaves_the_rest_to_be_chosen_for() -> None:
    engine = Told([7, 1, 0], steps=None)
    model = server(engine)
    for key in range(3):
        model.enqueue(job(key, 3_000), 0.0)
    model.advance(1.0)
    boundary_s = model.next_boundary_s()
    assert boundary_s is not None and len(engine.asked) == 1
    assert model.remove(1, 0.5 * (model.now_s + boundary_s))
    assert len(engine.asked) == 1
    step, ends_s = model.step, model.next_boundary_s()
    assert ends_s is not None and model.next_event_s() == pytest.approx(ends_s)
    model.advance(1.001 * ends_s)
    assert [batch for batch, _, _ in engine.asked] == [3, 2]
    assert model.depth == 1 and model.step > step
    model.advance(1e9)
    assert {each.key for each in model.finished} == {0, 2}


def requests(text_type: str, count: int = 400, target_ms: float | None = None) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            trace=TraceRequest(request_id=f"r{n}", arrival_s=0.0, prompt_tokens=200, output_tokens=200),
            text_type=text_type,
            slo_class="default",
            tbt_target_ms=target_ms,
        )
        for n in range(count)
    ]


def simulated(spec: BackendSpec, load: Sequence[SimulatedRequest], clients: int) -> Run:
    context = policy_context([spec])
    truth = {
        ("b", text): AcceptancePrior(mean=accept_length_of(p, spec.cost.verify_tokens)) for text, p in SURVIVAL.items()
    }
    policy = load_policy_file("least_loaded").make({}, context)
    return Simulation(context, policy, truth, seed=4).run(ClosedLoop(load, [(0.0, clients)]))


@pytest.mark.parametrize("clients", [1, 8, 64])
@pytest.mark.parametrize("text_type", ["code", "romansh"])
def test_the_plugin_costs_what_the_best_fixed_depth_does_at_every_load_and_text(text_type: str, clients: int) -> None:
    load = requests(text_type, 60 if clients == 1 else 400)
    decode_j = {arm: simulated(backend_spec("b", arm), load, clients).decode_j for arm in DEPTH_ARMS}
    ours = simulated(choosing_spec("b", "plugin"), load, clients).decode_j
    assert ours <= 1.06 * min(decode_j.values())
    assert ours < 0.9 * max(decode_j.values())


@pytest.mark.parametrize(("target_ms", "depth"), [(None, 0), (9.0, 0), (4.5, 1)])
def test_the_targets_of_its_requests_lead_the_plugin(target_ms: float | None, depth: int) -> None:
    """By its table a drafted token costs energy and hardly any time: 5.3 ms without, 3.6 ms a token at depth 1."""
    dear = straight_table(DEPTHS, j_per_depth=6.0, ms_per_depth=0.1)

    def start() -> PluginDepths:
        acceptance = DepthAcceptances(geometric_survivals(0.6, 7), SlowRequests.at())
        return PluginDepths(DepthChoice(dear, acceptance, ChoiceOptions(trial_every_steps=0), start_depth=7))

    spec = choosing(backend_spec("b", "dspark-8"), OwnDepth(start=start, tiers=((1, DEPTHS),), takes_tbt_target=True))
    model = ServerModel(spec.cost, AcceptDraws(1), backend=spec, **OPEN)
    for key in range(8):
        told = DepthRequest(target_ms=target_ms) if key == 5 and target_ms is not None else UNTOLD
        length = accept_length_of(0.6, 8)
        model.enqueue(job(key, 2_000, length, accept_spread=0.0, told=told), 0.0)
    model.advance(3.0)
    assert (model.batch, model.depth) == (8, depth)


def test_who_was_retracted_comes_back_at_the_depth_that_is_in_force_then() -> None:
    """The KV cache holds one answer: who is retracted at depth 7 waits for the other's end, at depth 0 from then on."""
    engine = Told([7] * 40 + [0] * 1_000, steps=3)
    own = OwnDepth(start=lambda: engine, tiers=((1, DEPTHS),))
    spec = choosing(backend_spec("b", "dspark-8"), own)
    model = ServerModel(spec.cost, AcceptDraws(1), backend=spec, max_running_requests=64, max_kv_tokens=1_300)
    jobs = [job(key, 500, max_new_tokens=50) for key in range(2)]
    for each in jobs:
        model.enqueue(each, 0.0)
    while (event_s := model.next_event_s()) is not None:
        model.advance(event_s)
        assert {each._passes.depth for each in model.running if isinstance(each._passes, DepthPasses)} <= {model.depth}
    assert model.totals.retractions > 0
    assert [sum(each.tokens_by_pass(each.verify_passes)) for each in jobs] == [499, 499]


def test_a_simulation_tells_the_engine_the_targets_of_its_requests_where_it_takes_them() -> None:
    for takes in (True, False):
        engine = Told([1], steps=None)
        own = OwnDepth(start=lambda: engine, tiers=((1, DEPTHS),), takes_tbt_target=takes)  # noqa: B023  # called within this turn
        simulated(choosing(backend_spec("b", "dspark-8"), own), requests("code", 3, target_ms=12.5), 1)
        assert set().union(*engine.texts) == {"code" if takes else ""}
        assert {target_ms for _, _, target_ms in engine.asked} == {12.5 if takes else inf}


def test_outcomes_of_such_a_backend_teach_no_arm() -> None:
    spec = choosing_spec("b", "plugin")
    context = policy_context([spec])
    before = context.acceptance.snapshot()
    policy = load_policy_file("least_loaded").make({}, context)
    truth = {("b", "romansh"): AcceptancePrior(mean=1.2)}
    Simulation(context, policy, truth).run(ClosedLoop(requests("romansh", 100), [(0.0, 8)]))
    assert context.acceptance.snapshot() == before


def test_the_oracle_refuses_backends_whose_depth_it_does_not_know() -> None:
    with pytest.raises(DomainError, match="depths"):
        oracle([choosing_spec("b", "plugin")], {}, requests("code", 2))
