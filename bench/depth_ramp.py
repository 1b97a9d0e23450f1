"""Depths chosen in the engine against fixed ones: one server whose batch goes from 1 to 64 and back; prints JSON.

A step-by-step simulation of decoding alone, by the measured step costs of a profile: every request of the batch draws
how many of its drafts are accepted, by the survival of its text type and its own spread around it; one that has its
tokens is replaced at once. The engines differ only in who chooses the depth of a step:

    depth K      always K
    default      the schedule that an SGLang release has without a configuration file, by SGLang's own rule
    exported     the schedule of `drafter-selector export sglang-adaptive`, by SGLang's own rule
    plugin       `core.depthchoice`, told what a pass accepted one step late, as SGLang's overlapped scheduler does

Depths that the profile does not have are left out of every engine. Depth 0 costs what the arm `none` does and a pass of
the draft (`selector/files/depthcosts.py`), as the one depth of a server what `none` does.

    scripts/bench depth_ramp --out bench/results/depth_ramp.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean

from selector import __version__
from selector.core.adaptiveschedule import planned_schedule
from selector.core.depthbatch import DepthBatch, DepthRequest
from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthengines import DepthEngine, DepthStretch, PluginDepths, ScheduledDepths
from selector.core.depthsurvival import SlowRequests, accept_lengths, survivals_with_mean
from selector.core.depthtable import DepthTable
from selector.core.depthtexts import DepthAcceptances
from selector.core.scheduleaim import Aim
from selector.core.sglangadaptive import DEFAULT_SCHEDULES
from selector.files.depthcosts import DepthCosts, depth_costs, survivals_of_text
from selector.files.profile import Profile, load_profile
from selector.files.schedulereport import schedule_of

LEVELS = (1, 2, 4, 8, 16, 32, 64, 32, 16, 8, 4, 2, 1)
GRAPH_BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPT_TOKENS = 800
OUTPUT_TOKENS = (60, 400)
TEXTS: Mapping[str, tuple[Mapping[str, float], ...]] = {
    "code": ({"code": 1.0},),
    "conversation": ({"conversation": 1.0},),
    "romansh": ({"romansh": 1.0},),
    "half code, half romansh": ({"code": 0.5, "romansh": 0.5},),
    "code and romansh in turn": ({"code": 1.0}, {"romansh": 1.0}),
}
"""Mixes of text types; of several, each level takes the next."""


class Fixed:
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, batch: DepthBatch, context_tokens: float) -> DepthStretch:
        return DepthStretch(self._depth, None)

    def verified(self, depth: int, passes: Sequence[Sequence[int]]) -> None:
        return None

    def prefilled(self, tokens: int) -> None:
        return None


Spread = tuple[tuple[float, ...], ...]
"""Survival curves of which each is as likely."""
_REQUEST_KINDS = 25


@dataclass(slots=True)
class Request:
    """One request that is decoded."""

    text_type: str
    draw: Random
    survivals: tuple[float, ...]
    tokens_left: int
    tokens: int = 0
    began_ms: float = 0.0
    context_tokens: int = PROMPT_TOKENS


@dataclass(slots=True)
class Part:
    """What one level of the ramp took."""

    batch: int
    energy_j: float = 0.0
    tokens: int = 0
    tbt_ms: list[float] = field(default_factory=list)
    steps_at: dict[int, int] = field(default_factory=dict)


def run(
    engine: DepthEngine,
    table: DepthTable,
    curves: Mapping[str, Spread],
    mixes: Sequence[Mapping[str, float]],
    target_ms: float | None,
    level_s: float,
    seed: int,
) -> list[Part]:
    """The levels one after the other on one engine."""
    parts, running, now_ms = [], list[Request](), 0.0
    for number, batch in enumerate(LEVELS):
        mix = mixes[number % len(mixes)]
        part, sent = Part(batch), 0
        end_ms = now_ms + 1e3 * level_s
        del running[batch:]
        if len(mixes) > 1:
            running.clear()  # other text comes
        while now_ms < end_ms:
            while len(running) < batch:
                running.append(_request(Random(f"{seed}:{number}:{sent}"), mix, curves, now_ms))
                sent += 1
            context = fmean(request.context_tokens for request in running)
            told = [DepthRequest(request.text_type, inf if target_ms is None else target_ms) for request in running]
            fresh = [place for place, request in enumerate(running) if not request.tokens]
            depth = engine.choose(DepthBatch(told, fresh), context).depth
            ms, j = table.step(depth, batch, context)
            now_ms += ms
            part.energy_j += j
            part.steps_at[depth] = part.steps_at.get(depth, 0) + 1
            accepted = [_accepted(request, depth) for request in running]
            for request, drafts in zip(running, accepted, strict=True):
                taken = min(drafts + 1, request.tokens_left)
                request.tokens += taken
                request.tokens_left -= taken
                request.context_tokens += taken
                part.tokens += taken
            for request in running:
                if not request.tokens_left:
                    part.tbt_ms.append((now_ms - request.began_ms) / request.tokens)
            running = [request for request in running if request.tokens_left]
            engine.verified(depth, [accepted])
        parts.append(part)
    return parts


def _request(draw: Random, mix: Mapping[str, float], curves: Mapping[str, Spread], now_ms: float) -> Request:
    """A request with chances of its own: the n-th of a level is the same whichever engine serves it."""
    name = draw.choices(list(mix), list(mix.values()))[0]
    return Request(name, draw, draw.choice(curves[name]), draw.randint(*OUTPUT_TOKENS), began_ms=now_ms)


def _accepted(request: Request, depth: int) -> int:
    chance = request.draw.random()
    for k in range(depth):
        if chance >= request.survivals[k]:
            return k
    return depth


def spread(survivals: tuple[float, ...], spread_frac: float) -> Spread:
    """Curves of requests that differ: inverse accept lengths are normal around the mean's, as in the simulator."""
    deepest = len(survivals)
    mean = accept_lengths(survivals)[-1]
    deviates = [NormalDist().inv_cdf((place + 0.5) / _REQUEST_KINDS) for place in range(_REQUEST_KINDS)]
    lengths = [mean / max(1.0 + spread_frac * z, 1e-3) for z in deviates]
    inside = [min(max(length, 1.0 + 1e-6), deepest + 1.0 - 1e-6) for length in lengths]
    return tuple(survivals_with_mean(survivals, length, deepest) for length in inside)


def summary(parts: Sequence[Part], target_ms: float | None) -> dict[str, object]:
    """The ramp as a whole, and each batch of it over both ways."""
    by_batch = {}
    for batch in sorted({part.batch for part in parts}):
        those = [part for part in parts if part.batch == batch]
        steps: dict[int, int] = {}
        for part in those:
            for depth, count in part.steps_at.items():
                steps[depth] = steps.get(depth, 0) + count
        by_batch[str(batch)] = {
            "j_per_accepted_token": sum(part.energy_j for part in those) / sum(part.tokens for part in those),
            "tbt_attainment": _within([tbt for part in those for tbt in part.tbt_ms], target_ms),
            "steps_at_depth": {str(depth): count for depth, count in sorted(steps.items())},
        }
    return {
        "j_per_accepted_token": sum(part.energy_j for part in parts) / sum(part.tokens for part in parts),
        "tbt_attainment": _within([tbt for part in parts for tbt in part.tbt_ms], target_ms),
        "by_batch": by_batch,
    }


def _within(tbt_ms: Sequence[float], target_ms: float | None) -> float | None:
    if target_ms is None or not tbt_ms:
        return None
    return sum(each <= target_ms for each in tbt_ms) / len(tbt_ms)


def engines(
    profile: Profile, costs: DepthCosts, mixes: Sequence[Mapping[str, float]], target_ms: float | None, release: str
) -> dict[str, DepthEngine]:
    """By name. Exported schedule and plugin start from the accept lengths of conversation, whatever comes."""
    table = costs.table
    survivals, spread_frac = survivals_of_text(profile, costs, "conversation")
    slow = SlowRequests.at(spread_frac=spread_frac, output_tokens=fmean(OUTPUT_TOKENS))
    aim = Aim(
        table=table,
        survivals=survivals,
        slow=slow,
        context_tokens=PROMPT_TOKENS + fmean(OUTPUT_TOKENS) / 2,
        target_ms=target_ms,
        band_frac=0.4,
    )
    exported = schedule_of(planned_schedule(aim, GRAPH_BATCHES, Random(1)))
    plugin = DepthChoice(table, DepthAcceptances(survivals, slow), ChoiceOptions(), start_depth=table.depths[-1])
    return {
        **{f"depth {depth}": Fixed(depth) for depth in table.depths},
        f"default {release}": ScheduledDepths(DEFAULT_SCHEDULES[release], table, GRAPH_BATCHES, start_depth=3),
        "exported": ScheduledDepths(exported, table, GRAPH_BATCHES, start_depth=3),
        "plugin": PluginDepths(plugin),
    }


def main() -> int:
    """Runs every text and target and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200__qwen3-8b")
    parser.add_argument("--targets-ms", default="none,6", help="TBT targets, `none` for no target")
    parser.add_argument("--level-s", type=float, default=10.0, help="simulated seconds of each level")
    parser.add_argument("--release", choices=sorted(DEFAULT_SCHEDULES), default=max(DEFAULT_SCHEDULES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file to write; default: standard output")
    args = parser.parse_args()
    began_s = time.monotonic()
    profile = load_profile(args.profile)
    costs = depth_costs(profile, args.profile)
    one_depth = depth_costs(profile, args.profile, draft_rests=True).table  # depth 0 is a server without a draft
    rows = []
    for word in args.targets_ms.split(","):
        target_ms = None if word == "none" else float(word)
        for text, mixes in TEXTS.items():
            curves = {name: spread(*survivals_of_text(profile, costs, name)) for mix in mixes for name in mix}
            found = {}
            for name, engine in engines(profile, costs, mixes, target_ms, args.release).items():
                table = one_depth if isinstance(engine, Fixed) else costs.table
                parts = run(engine, table, curves, mixes, target_ms, args.level_s, args.seed)
                found[name] = summary(parts, target_ms)
                if isinstance(engine, PluginDepths):
                    found[name] |= {"changes": engine.choice.changes, "trials": engine.choice.trials}
            rows.append({"text": text, "tbt_target_ms": target_ms, "engines": found})
            print(f"{text}, {word} ms: done after {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    document = {
        "what": "simulated: decode steps by the profile's measured costs; no engine ran",
        "profile": args.profile,
        "levels": LEVELS,
        "level_s": args.level_s,
        "depths_from": {str(depth): arm for depth, arm in costs.arms.items()},
        "notes": costs.notes,
        "version": __version__,
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
        "rows": rows,
    }
    text = json.dumps(document, indent=1) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
