"""The page: what was asked, what came out, and where the numbers are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.core.policy import BackendSpec
from selector.page.document import document, figure, fold, grid, provenance_table
from selector.page.front import Point
from selector.page.styles import ENERGY_COLOURS, Style, fill_legend, line_legend, line_style
from selector.page.svg import element, words
from selector.simulator.page.charts import Tightening, energy_bars, front, tightening
from selector.simulator.page.explained import Foresight, explained_html, foresight, foresight_html, sample
from selector.simulator.page.latencies import latency_panels
from selector.simulator.page.names import run_name, target_words
from selector.simulator.page.numbers import numbers_table
from selector.simulator.page.timelines import activity, timeline_figures
from selector.simulator.report import PolicyResult, TargetChoice
from selector.simulator.trial import Trial

MOST_TIMELINES = 24
"""Runs drawn over time; a page with hundreds is no page."""

_OPEN_TIMELINES = 6
"""So many of the first target's runs are unfolded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows: runs of policies, each on the same requests, for one target or several."""

    title: str
    trials: Sequence[Trial]
    backends: Sequence[BackendSpec]
    facts: Sequence[tuple[str, str]]
    """Provenance: name and value."""
    notes: Sequence[str] = ()
    """What was assumed or skipped, in sentences."""

    def html(self) -> str:
        """The whole document."""
        policies = list(dict.fromkeys(trial.result.policy for trial in self.trials))
        styles = {name: line_style(number) for number, name in enumerate(policies)}
        by_target = targets_of(self.trials)
        sections = [
            ("front", "Energy against targets met", _front(by_target, styles)),
            ("energy", "Where the energy goes", _energy(by_target)),
            ("latency", "Latency by text type and class", _latency(by_target, styles)),
            ("time", "Over time", _time(self.trials, self.backends)),
            ("numbers", "All numbers", numbers_table([trial.result for trial in self.trials])),
            ("decisions", "Decisions explained", _decisions(self.trials)),
            ("provenance", "Provenance", provenance_table(self.facts, self.notes)),
        ]
        return document(self.title, summary(by_target), sections)


def targets_of(trials: Sequence[Trial]) -> dict[TargetChoice, list[Trial]]:
    """Trials by target, in order."""
    grouped: dict[TargetChoice, list[Trial]] = {}
    for trial in trials:
        grouped.setdefault(trial.result.tbt_target_ms, []).append(trial)
    return grouped


def summary(by_target: Mapping[TargetChoice, Sequence[Trial]]) -> list[str]:
    """One sentence a target: who used least, who met most."""
    sentences = []
    for target, trials in by_target.items():
        results = [trial.result for trial in trials if trial.result.j_per_accepted_token is not None]
        if not results:
            continue
        least = min(results, key=lambda result: result.j_per_accepted_token or 0.0)
        said = f"{target_words(target).capitalize()}: {least.policy} uses the least energy, {_told(least)}"
        judged = [result for result in results if result.tbt_attainment is not None]
        if judged and least.tbt_attainment is not None:
            most = max(judged, key=lambda result: result.tbt_attainment or 0.0)
            # What rounds to the same share is not told as a difference.
            if (most.tbt_attainment or 0.0) >= least.tbt_attainment + 0.0005:
                said += f"; {most.policy} meets the most targets, {_told(most)}"
        sentences.append(said + ".")
    return sentences


def _told(result: PolicyResult) -> str:
    met = "" if result.tbt_attainment is None else f" with {result.tbt_attainment:.1%} of targets met"
    return f"{result.j_per_accepted_token:.4f} J per accepted token{met}"


def _front(by_target: Mapping[TargetChoice, Sequence[Trial]], styles: Mapping[str, Style]) -> str:
    panels = []
    for target, trials in by_target.items():
        points = _points([trial.result for trial in trials], styles)
        if points:
            judged = trials[0].result.tbt_attainment is not None
            caption = target_words(target).capitalize()
            panels.append(figure(caption, front(points, title=f"Energy, {caption}", by_attainment=judged)))
    over_targets = _over_targets([trial.result for trials in by_target.values() for trial in trials], styles)
    if any(len(policy.runs) > 1 for policy in over_targets):
        for what, attainment in (("Energy as the target tightens", False), ("Attainment as the target tightens", True)):
            panels.append(figure(what, tightening(over_targets, title=what, attainment=attainment)))
    told = (
        "Lower is less energy, further right is more targets met. The grey line joins the runs that no other run beats "
        "in both. A rejected or unfinished request counts as a missed target."
    )
    return element("p", words(told)) + line_legend(list(styles), list(styles.values())) + grid(panels)


def _over_targets(results: Sequence[PolicyResult], styles: Mapping[str, Style]) -> list[Tightening]:
    runs: dict[str, list[tuple[float, float, float]]] = {}
    for result in results:
        target, joules, attained = result.tbt_target_ms, result.j_per_accepted_token, result.tbt_attainment
        if isinstance(target, float | int) and joules is not None and attained is not None:
            runs.setdefault(result.policy, []).append((target, joules, attained))
    return [Tightening(name=name, style=styles[name], runs=sorted(own)) for name, own in runs.items()]


def _points(results: Sequence[PolicyResult], styles: Mapping[str, Style]) -> list[Point]:
    points = []
    for result in results:
        x = result.tbt_p99_ms if result.tbt_attainment is None else result.tbt_attainment
        if x is not None and result.j_per_accepted_token is not None:
            points.append(Point(name=result.policy, style=styles[result.policy], x=x, y=result.j_per_accepted_token))
    return points


def _energy(by_target: Mapping[TargetChoice, Sequence[Trial]]) -> str:
    panels = []
    for target, trials in by_target.items():
        rows = []
        for result in (trial.result for trial in trials):
            if result.accepted_tokens:
                parts = {"decode": result.decode_j, "prefill": result.prefill_j, "idle": result.idle_j}
                rows.append((result.policy, {part: joules / result.accepted_tokens for part, joules in parts.items()}))
        if rows:
            caption = target_words(target).capitalize()
            panels.append(figure(caption, energy_bars(rows, title=f"Energy by cause, {caption}")))
    told = (
        "All board energy of the fleet's GPUs over all tokens delivered. Idle is what a GPU draws while none of its "
        "servers works."
    )
    return element("p", words(told)) + fill_legend(list(ENERGY_COLOURS), list(ENERGY_COLOURS.values())) + grid(panels)


def _latency(by_target: Mapping[TargetChoice, Sequence[Trial]], styles: Mapping[str, Style]) -> str:
    told = (
        "Each curve: the share of requests at or under a time. Requests that were rejected or never finished keep a "
        "curve below 100 %. Where it crosses the dashed line is the attainment."
    )
    legend = line_legend(list(styles), list(styles.values()))
    blocks: list[str] = []
    for target, trials in by_target.items():
        panels = [figure(caption, image) for caption, image in latency_panels(trials, styles)]
        blocks.append(fold(target_words(target).capitalize(), legend + grid(panels, wide=True), opened=not blocks))
    return element("p", words(told)) + "".join(blocks)


def _time(trials: Sequence[Trial], backends: Sequence[BackendSpec]) -> str:
    several = len(targets_of(trials)) > 1
    blocks: list[str] = []
    for trial in trials[:MOST_TIMELINES]:
        if trial.timeline is None or trial.run.duration_s <= 0.0:
            continue
        name = run_name(trial.result, several=several)
        seen = activity(trial.timeline, trial.run.records, backends, trial.run.duration_s)
        panels = [figure(caption.capitalize(), image) for caption, image in timeline_figures(seen, name)]
        opened = len(blocks) < _OPEN_TIMELINES and trial.result.tbt_target_ms == trials[0].result.tbt_target_ms
        blocks.append(fold(name, grid(panels, wide=True), opened=opened))
    if len(trials) > MOST_TIMELINES:
        blocks.append(element("p", f"Only the first {MOST_TIMELINES} of {len(trials)} runs are drawn.", class_="note"))
    return "".join(blocks)


def _decisions(trials: Sequence[Trial]) -> str:
    several = len(targets_of(trials)) > 1
    rows: list[tuple[str, Foresight]] = []
    blocks: list[str] = []
    for trial in trials:
        name = run_name(trial.result, several=several)
        seen = foresight(trial.decisions, trial.run.records)
        if seen.within_predicted is not None:
            rows.append((name, seen))
        shown = [explained_html(one) for one in sample(trial.decisions, trial.run.records)]
        if shown and len(blocks) < MOST_TIMELINES:
            blocks.append(fold(name, "".join(shown), opened=False))
    told = (
        "A policy predicts the TBT of a request at its quantile (90 % unless the fleet says otherwise), so about that "
        "share of requests should stay within the prediction. Requests that come later slow down those already "
        "running. Policies that predict nothing are not in the table."
    )
    return element("p", words(told)) + (foresight_html(rows) if rows else "") + "".join(blocks)
