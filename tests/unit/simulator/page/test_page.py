"""The page: whole without a network, the same numbers as the result, nothing in it taken for markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec
from selector.core.types import TEXT_TYPES, Candidate, Decision, FleetView, Outcome, RequestView
from selector.files.policy import load_policy_file
from selector.files.trace import TraceRequest
from selector.page.styles import line_style
from selector.simulator.engine import Simulation
from selector.simulator.page.document import Page
from selector.simulator.page.explained import foresight, sample
from selector.simulator.page.latencies import curve_of, tbt_of, ttft_of
from selector.simulator.page.timelines import activity
from selector.simulator.report import TargetChoice, summarise
from selector.simulator.run import SimulatedRequest
from selector.simulator.timeline import Timeline
from selector.simulator.trial import Trial
from selector.simulator.witness import Witness
from tests.fleets import acceptance_model, backend_spec, policy_context

SPECS = (backend_spec("b0", "none"), backend_spec("b1", "dspark-8"))
VOID = {"meta", "br", "img", "link", "input", "hr"}


def requests_of(count: int, target_ms: float | None) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            trace=TraceRequest(request_id=f"r{n}", arrival_s=0.1 * n, prompt_tokens=200 + n, output_tokens=1 + n % 60),
            text_type=("code", "romansh")[n % 2],
            slo_class=("chat", "batch")[n % 3 == 0],
            tbt_target_ms=target_ms,
        )
        for n in range(count)
    ]


class Picky:
    """Refuses every seventh request and predicts 3 ms for the rest."""

    def __init__(self) -> None:
        self.seen = 0

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        self.seen += 1
        if self.seen % 7 == 0:
            return Decision(backend=None, reason="<b>full</b>")
        chosen = Candidate(backend="b1", arm="dspark-8", feasible=True, tbt_ms=3.0, marginal_j_per_accepted_token=0.5)
        other = Candidate(backend="b0", arm="none", feasible=False, note="too slow & dear")
        return Decision(backend="b1", reason="it drafts", candidates=(other, chosen))

    def observe(self, outcome: Outcome) -> None:
        pass


def trial(name: str, target: TargetChoice = 6.0, count: int = 120, specs: Sequence[BackendSpec] = SPECS) -> Trial:
    context = policy_context(specs)
    truth = acceptance_model({spec.arm for spec in specs})
    accepts = {
        (spec.name, text): AcceptancePrior(
            mean=truth.accept_length(spec.arm, text), request_spread=truth.request_spread(spec.arm, text)
        )
        for spec in specs
        for text in TEXT_TYPES
    }
    policy = Picky() if name == "picky" else load_policy_file(name).make({}, context)
    witness, timeline = Witness(policy, stride=1), Timeline()
    requests = requests_of(count, target if isinstance(target, float) else None)
    run = Simulation(context, witness, accepts, recorder=timeline).run(requests)
    result = summarise(run, policy=name, policy_sha256="0" * 64, wall_s=1.0, tbt_target_ms=target)
    return Trial(result=result, run=run, timeline=timeline, decisions=witness.kept)


def page(trials: Sequence[Trial], specs: Sequence[BackendSpec] = SPECS) -> str:
    facts = [("command", "simulate <x> & more")]
    return Page(title="A <title>", trials=trials, backends=specs, facts=facts, notes=["a < b"]).html()


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return [trial(name, target) for target in (6.0, 3.0) for name in ("picky", "least_loaded", "min_energy")]


@pytest.fixture(scope="module")
def html(trials: list[Trial]) -> str:
    return page(trials)


class Outline(HTMLParser):
    """Checks that elements nest, and collects what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(html: str) -> None:
    outline = Outline(html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in outline.tags}
    for _, attributes in outline.tags:
        assert not {"src", "srcset", "xlink:href", "onload", "onclick"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in html and "@import" not in html
    assert ("html", {"lang": "en"}) in outline.tags
    assert any(tag == "meta" and attrs.get("name") == "viewport" for tag, attrs in outline.tags)


def test_links_of_the_contents_lead_somewhere(html: str) -> None:
    outline = Outline(html)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    links = [(attributes["href"] or "")[1:] for tag, attributes in outline.tags if tag == "a"]
    assert len(ids) == len(set(ids)) and links and set(links) <= set(ids)


def test_every_image_says_in_words_what_it_shows(html: str) -> None:
    images = [attributes for tag, attributes in Outline(html).tags if tag == "svg"]
    for attributes in images:
        assert attributes.get("aria-hidden") == "true" or (attributes["role"] == "img" and attributes["aria-label"])
    assert sum(attributes.get("role") == "img" for attributes in images) > 20


def test_what_users_wrote_is_text_and_never_markup(html: str) -> None:
    words = "".join(Outline(html).words)
    for text in ("A <title>", "simulate <x> & more", "a < b", "<b>full</b>", "too slow & dear"):
        assert text in words


def test_no_coordinate_is_missing(html: str) -> None:
    assert not re.search(r'="[^"]*\b(nan|inf|None)\b[^"]*"', html)


def test_the_table_has_the_numbers_of_every_run(html: str, trials: list[Trial]) -> None:
    words = "".join(Outline(html).words)
    for each in trials:
        assert f"{each.result.j_per_accepted_token:.4f}" in words
        assert f"{each.result.tbt_attainment:.1%}" in words
        assert f"{each.result.energy_j / 1e3:,.1f}" in words


def test_the_summary_names_the_least_energy_and_who_meets_more(html: str, trials: list[Trial]) -> None:
    least = min(trials[:3], key=lambda each: each.result.j_per_accepted_token or 0.0).result
    assert f"Target 6 ms: {least.policy} uses the least energy, {least.j_per_accepted_token:.4f} J" in html


def test_several_targets_are_drawn_as_lines(html: str, trials: list[Trial]) -> None:
    assert "Energy as the target tightens" in html and "Attainment as the target tightens" in html
    for each in trials:
        result = each.result
        told = f"{result.policy}, target {result.tbt_target_ms:g} ms: {result.j_per_accepted_token:.4f} J/token, "
        assert html.count(f"{told}{result.tbt_attainment:.1%} attained") == 2


def test_one_target_none_and_classes_make_pages_too() -> None:
    for target in (6.0, "none", None):
        text = page([trial("least_loaded", target, 20), trial("min_energy", target, 20)])
        Outline(text)
        assert ("TBT p99, ms</text>" in text) == (not isinstance(target, float))
        assert "as the target tightens" not in text


def test_a_run_in_which_nothing_was_served_makes_a_page() -> None:
    class Closed(Picky):
        def decide(self, request: RequestView, fleet: FleetView) -> Decision:
            return Decision(backend=None, reason="closed")

    context = policy_context(SPECS)
    witness, timeline = Witness(Closed(), stride=1), Timeline()
    run = Simulation(context, witness, {}, recorder=timeline).run(requests_of(5, 6.0))
    result = summarise(run, policy="closed", policy_sha256="0", wall_s=1.0, tbt_target_ms=6.0)
    text = page([Trial(result=result, run=run, timeline=timeline, decisions=witness.kept)])
    Outline(text)
    assert not re.search(r'="[^"]*\b(nan|inf|None)\b[^"]*"', text)


def test_many_backends_get_a_row_per_arm() -> None:
    specs = [backend_spec(f"b{n}", ("none", "dspark-8")[n % 2]) for n in range(30)]
    text = page([trial("least_loaded", 6.0, 40, specs)], specs)
    images = [attributes for tag, attributes in Outline(text).tags if tag == "svg" and "role" in attributes]
    assert "mean of 15 × dspark-8" in text
    assert not any("b17" in (attributes["aria-label"] or "") for attributes in images)


# ---- what the sections are made of


def test_activity_adds_up_to_the_run(trials: list[Trial]) -> None:
    for each in trials:
        assert each.timeline is not None
        run = each.run
        seen = activity(each.timeline, run.records, SPECS, run.duration_s)
        width = run.duration_s / len(seen.running)
        energy_j = sum(float(watts.sum()) for watts in seen.power_w.values()) * width
        assert energy_j == pytest.approx(run.decode_j + run.prefill_j + run.idle_j, rel=1e-6)
        assert float(seen.power_w["idle"].sum()) * width == pytest.approx(run.idle_j, rel=1e-6)
        sent = {arm: float(rate.sum()) * width for arm, rate in seen.sent_per_s.items()}
        assert sent == pytest.approx({spec.arm: run.decisions_by_arm[spec.arm] for spec in SPECS})
        # Little's law over the whole run: requests × time in the batch.
        in_batch_s = sum(
            record.outcome.finished_s - record.outcome.dispatched_s - (record.outcome.ttft_ms or 0.0) / 1e3
            for record in run.records
            if record.outcome
        )
        assert float(seen.running.sum()) * width == pytest.approx(in_batch_s, rel=0.05)


def test_a_tbt_curve_crosses_the_target_at_the_attainment(trials: list[Trial]) -> None:
    for each in trials:
        target = each.result.tbt_target_ms
        assert isinstance(target, float)
        curve = curve_of(each.result.policy, line_style(0), each.run.records, tbt_of)
        assert sum(value <= target for value in curve.values) / curve.total == each.result.tbt_attainment
    picky = curve_of("picky", line_style(0), trials[0].run.records, ttft_of)
    assert (len(picky.values), picky.total) == (120 - 120 // 7, 120)


def test_foresight_counts_what_stayed_within_the_prediction(trials: list[Trial]) -> None:
    picky = trials[0]
    served = [record.outcome for record in picky.run.records if record.outcome and record.outcome.tbt_ms is not None]
    within = sum((outcome.tbt_ms or 0.0) <= 3.0 for outcome in served) / len(served)
    seen = foresight(picky.decisions, picky.run.records)
    assert 0.0 < within < 1.0
    assert (seen.within_predicted, seen.predicted_tbt_ms) == (pytest.approx(within), 3.0)
    assert foresight(trials[1].decisions, []).within_predicted is None


def test_the_sample_has_the_worst_miss_the_worst_forecast_and_a_refusal(trials: list[Trial]) -> None:
    tight = trials[3]
    shown = sample(tight.decisions, tight.run.records)
    worst = max((record.outcome.tbt_ms or 0.0 for record in tight.run.records if record.outcome), default=0.0)
    assert shown[0].why.startswith("furthest over its target")
    assert shown[0].record.outcome is not None and shown[0].record.outcome.tbt_ms == worst
    assert any(one.why == "refused" and one.record.outcome is None for one in shown)
    assert 4 <= len(shown) <= 7
    assert len({one.record.request.trace.request_id for one in shown}) == len(shown)
    assert sample({}, tight.run.records) == []


def test_a_witness_changes_nothing_and_keeps_every_so_many() -> None:
    class Counting(Picky):
        observed = 0

        def observe(self, outcome: Outcome) -> None:
            self.observed += 1

    policy = Counting()
    witness = Witness(policy, stride=10)
    run = Simulation(policy_context(SPECS), witness, {}).run(requests_of(50, 6.0))
    plain = Simulation(policy_context(SPECS), Picky(), {}).run(requests_of(50, 6.0))
    assert run == plain
    assert list(witness.kept) == ["r0", "r10", "r20", "r30", "r40"]
    assert policy.observed == sum(record.outcome is not None for record in run.records)
