"""Distributions of TBT and TTFT: all requests, then each text type and each class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from selector.page.styles import Style
from selector.simulator.page.charts import Curve, distribution
from selector.simulator.run import RequestRecord
from selector.simulator.trial import Trial

Group = Callable[[RequestRecord], str]
Pick = Callable[[RequestRecord], float | None]


def latency_panels(trials: Sequence[Trial], styles: Mapping[str, Style]) -> list[tuple[str, str]]:
    """(caption, image) of the TBT and the TTFT of each group of requests; a lone type or class is all there is."""
    panels = _pair("all requests", trials, styles, lambda record: "")
    groupings: tuple[tuple[str, Group], ...] = (
        ("text type", lambda record: record.request.text_type),
        ("class", lambda record: record.request.slo_class),
    )
    for kind, group in groupings:
        names = sorted({group(record) for trial in trials for record in trial.run.records})
        if len(names) > 1:
            for name in names:
                panels += _pair(f"{kind} {name}", trials, styles, group, name)
    return panels


def _pair(
    told: str, trials: Sequence[Trial], styles: Mapping[str, Style], group: Group, name: str = ""
) -> list[tuple[str, str]]:
    tbt: list[Curve] = []
    ttft: list[Curve] = []
    targets: set[float | None] = set()
    for trial in trials:
        records = [record for record in trial.run.records if group(record) == name]
        style = styles[trial.result.policy]
        targets |= {record.request.tbt_target_ms for record in records}
        tbt.append(curve_of(trial.result.policy, style, records, tbt_of))
        ttft.append(curve_of(trial.result.policy, style, records, ttft_of))
    target = targets.pop() if len(targets) == 1 else None
    return [
        (
            f"TBT, {told}",
            distribution(tbt, title=f"TBT, {told}", x_label="time between tokens, ms", target_ms=target),
        ),
        (f"TTFT, {told}", distribution(ttft, title=f"TTFT, {told}", x_label="time to first token, ms")),
    ]


def curve_of(name: str, style: Style, records: Sequence[RequestRecord], pick: Pick) -> Curve:
    """The distribution of what `pick` reads: at a target, the TBT's is the attainment."""
    values = sorted(value for value in map(pick, records) if value is not None)
    # A request under two tokens was served and has no TBT: it is no part of that distribution.
    never = sum(record.outcome is None for record in records)
    return Curve(name=name, style=style, values=values, total=len(values) + never)


def tbt_of(record: RequestRecord) -> float | None:
    """Its time between tokens, if it has one."""
    return record.outcome.tbt_ms if record.outcome else None


def ttft_of(record: RequestRecord) -> float | None:
    """Its time to first token, if it got one."""
    return record.outcome.ttft_ms if record.outcome else None
