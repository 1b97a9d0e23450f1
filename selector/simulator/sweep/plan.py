"""From a sweep file to its inputs and its cells."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from selector.errors import FleetError, ProfileError, TraceError, UsageError
from selector.files.digest import sha256_of
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.policy import LoadedPolicy, load_policy_file
from selector.files.shipped import policy_names, profile_path
from selector.files.trace import Trace, default_text_mix, load_trace, parse_text_mix, spread
from selector.simulator.report import TargetChoice
from selector.simulator.sweep.cells import Cell, Inputs, PolicySource, key_of, program_inputs
from selector.simulator.sweep.config import OWN_MIX, SweepConfig, SweptPolicy, SweptTrace, load_sweep_config


def plan_sweep(path: Path) -> tuple[Inputs, list[Cell]]:
    """Reads a sweep file and all that it names. Raises `InputError` for what cannot be read.

    Cells come with the policies innermost, so that the policies of one case are done about the same time.
    """
    config, folder = load_sweep_config(path), path.parent
    traces, trace_inputs = _traces(config, folder)
    trace_parts = {swept.called: [swept.slice_s, swept.spread_arrivals_s, swept.limit] for swept in config.traces}
    fleets, fleet_inputs = _fleets(config, folder)
    policies = {policy.called: _policy(policy, folder) for policy in config.policies}
    mixes = {name: _mixes(config, trace) for (name, _), trace in traces.items()}
    cells = []
    for trace, fleet, target, rate_scale in product(mixes, fleets, config.tbt_targets_ms, config.rate_scales):
        for mix, seed, swept in product(mixes[trace], config.seeds, config.policies):
            policy = policies[swept.called]
            params = _params(swept, fleets[fleet])
            chosen: TargetChoice = None if target == "classes" else target
            files = {**trace_inputs[trace], **fleet_inputs[fleet], "policy": policy.sha256}
            inputs = {**program_inputs(), **files}
            key = key_of(
                {
                    "inputs": inputs,
                    "part": trace_parts[trace],
                    "argument": policy.argument,
                    "params": params,
                    "target": chosen,
                    "rate_scale": rate_scale,
                    "text_mix": mix,
                    "seed": seed,
                }
            )
            cells.append(
                Cell(
                    trace=trace, fleet=fleet, tbt_target_ms=chosen, rate_scale=rate_scale, text_mix=mix, seed=seed,
                    policy=swept.called, params=params, inputs=inputs, key=key,
                )
            )  # fmt: skip
    sources = {
        name: PolicySource(name=policy.label, path=policy.path, source=policy.path.read_bytes())
        for name, policy in policies.items()
    }
    return Inputs(traces=traces, fleets=fleets, policies=sources), cells


def _traces(config: SweepConfig, folder: Path) -> tuple[dict[tuple[str, int | None], Trace], dict[str, dict[str, str]]]:
    traces: dict[tuple[str, int | None], Trace] = {}
    inputs = {}
    for swept in config.traces:
        path = folder / swept.path
        for seed in config.seeds if path.is_dir() else (None,):  # a folder is a pool, which each seed draws from
            traces[swept.called, seed] = _trace(swept, path, seed or 0)
        inputs[swept.called] = {"trace": sha256_of(path, "trace", TraceError)}
    return traces, inputs


def _trace(swept: SweptTrace, path: Path, seed: int) -> Trace:
    from_s, to_s = swept.slice_s or (0.0, None)
    if swept.spread_arrivals_s is None:
        return load_trace(path, from_s=from_s, to_s=to_s, limit=swept.limit, seed=seed)
    # A limit would cut a group of shared arrivals, and what is left of it would be spread otherwise.
    trace = spread(load_trace(path, from_s=from_s, to_s=to_s, seed=seed), swept.spread_arrivals_s)
    return replace(trace, requests=trace.requests[: swept.limit])


def _fleets(config: SweepConfig, folder: Path) -> tuple[dict[str, LoadedFleet], dict[str, dict[str, str]]]:
    fleets, inputs = {}, {}
    for swept in config.fleets:
        path = folder / swept.path
        loaded = load_fleet_with_profiles(path)
        fleets[swept.called] = loaded
        inputs[swept.called] = {"fleet": sha256_of(path, "fleet file", FleetError)}
        for name in loaded.profiles:
            inputs[swept.called][f"profile {name}"] = sha256_of(profile_path(name), "profile", ProfileError)
    return fleets, inputs


def _policy(swept: SweptPolicy, folder: Path) -> LoadedPolicy:
    base, colon, argument = swept.name.partition(":")
    if base in policy_names():
        return load_policy_file(swept.name)
    path = folder / base if "/" in base or base.endswith(".py") else None
    return load_policy_file(f"{path}{colon}{argument}" if path else swept.name)


def _params(swept: SweptPolicy, loaded: LoadedFleet) -> dict[str, Any]:
    if swept.params is not None:
        return swept.params
    return loaded.fleet.policy.params if swept.name == loaded.fleet.policy.name else {}


def _mixes(config: SweepConfig, trace: Trace) -> list[dict[str, float] | None]:
    if all(request.text_type is not None for request in trace.requests):
        return [None]
    mixes: list[dict[str, float] | None] = []
    for text in config.text_mixes:
        mix = default_text_mix(trace) if text == OWN_MIX else _parsed(text)
        if mix not in mixes:
            mixes.append(mix)
    return mixes


def _parsed(text: str) -> dict[str, float]:
    try:
        return parse_text_mix(text)
    except TraceError as bad:
        raise UsageError("text_mixes", bad.problem, bad.remedy) from None
