"""Whether the server behind a URL is the one the fleet file says: its `/server_info` against the arm of the profile.

A server that runs another arm is priced and accepted wrongly without any sign of it, so the router quarantines it; and
one that came back with another model than it had. Smaller limits, another name of the model from the start (names are
free to choose) or another release are differences that a person should see.

Field names are those of SGLang 0.5.17 to 0.5.23. A field that a server leaves out proves nothing and is not compared,
but for the algorithm: a server that names none does not speculate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from selector.core.policy import BackendSpec
from selector.files.arm import VERIFY_BUDGET
from selector.files.launchflags import graph_batches, prefill_graphs
from selector.files.profile import NO_DRAFTER, Arm, Profile
from selector.router.loads import ServerFacts

ServerInfo = Mapping[str, object]

_SAME_ALGORITHM = {"NEXTN": "EAGLE"}
"""Names that SGLang replaces by another when it starts."""
_COST_TABLE = "speculative_dspark_sps_table_path"
_NAME_FIELDS = ("served_model_name", "model_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One field of `/server_info` that is not what was expected."""

    field: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.field} is {self.found!r}, expected {self.expected!r}"


def arm_mismatches(info: ServerInfo, arm: Arm) -> tuple[Mismatch, ...]:
    """Fields by which the server runs another arm than `arm`; empty when it runs this one."""
    expected = None if arm.algorithm == NO_DRAFTER else _canonical(arm.algorithm)
    reported = info.get("speculative_algorithm")
    found = _canonical(reported) if isinstance(reported, str) else None
    if found != expected:
        return (Mismatch(field="speculative_algorithm", expected=expected, found=found),)
    if expected is None:
        return ()
    adaptive = "--speculative-adaptive" in arm.launch.flags
    wanted: dict[str, object] = {"speculative_adaptive": adaptive, "speculative_eagle_topk": arm.topk}
    if not adaptive:  # an adaptive server moves between depths
        wanted |= {
            "speculative_num_steps": arm.draft_steps,
            "speculative_num_draft_tokens": arm.verify_tokens,
        }
    return tuple(
        Mismatch(field=field, expected=value, found=info[field])
        for field, value in wanted.items()
        if value is not None and info.get(field) is not None and info[field] != value
    )


def deployment_mismatches(info: ServerInfo, spec: BackendSpec, profile: Profile) -> tuple[Mismatch, ...]:
    """Differences of the same arm: model name, limits below the fleet file's, tensor parallel size, release, verify
    budgets that it would take and ignore, or CUDA graphs that it pads to and nobody reckons with."""
    found = []
    names = {_last_part(str(info[key])) for key in _NAME_FIELDS if info.get(key) is not None}
    if names and profile.target.name.lower() not in {name.lower() for name in names}:
        found.append(Mismatch(field="served_model_name", expected=profile.target.name, found=sorted(names)))
    limits = {
        "max_running_requests": spec.max_running_requests,
        "max_total_num_tokens": spec.max_kv_tokens,
        "context_length": spec.max_context_tokens,
    }
    for field, least in limits.items():
        value = info.get(field)
        if isinstance(value, int) and value < least:
            found.append(Mismatch(field=field, expected=f"at least {least}", found=value))
    if isinstance(info.get("tp_size"), int) and info["tp_size"] != profile.gpu.count:
        found.append(Mismatch(field="tp_size", expected=profile.gpu.count, found=info["tp_size"]))
    knob = profile.arm(spec.arm).live_setting
    if knob is not None and knob.name == VERIFY_BUDGET and info.get(_COST_TABLE, "") is None:
        expected = "a cost table, without which verify budgets are ignored"
        found.append(Mismatch(field=_COST_TABLE, expected=expected, found=None))
    found += _graph_mismatches(info, spec, profile)
    release = profiled_release(profile)
    if release and info.get("version") is not None and info["version"] != release:
        found.append(Mismatch(field="version", expected=f"{release}, as profiled", found=info["version"]))
    return tuple(found)


def _graph_mismatches(info: ServerInfo, spec: BackendSpec, profile: Profile) -> Iterable[Mismatch]:
    """Lists of graphs that the server was given by hand (`None` stands for SGLang's own), and is not priced by."""
    by_profile = profile.launched_with(spec.arm)
    priced = {
        "cuda_graph_bs_prefill": (spec.cost.prefill.graphs, prefill_graphs(by_profile)),
        "cuda_graph_bs_decode": (spec.cost.graphs, graph_batches(by_profile)),
    }
    for field, (reckoned, launched) in priced.items():
        given = info.get(field)
        if isinstance(given, Sequence) and tuple(sorted(given)) not in (reckoned, launched):
            expected = list(reckoned) or "no list, or the one in the backend's launch_flags"
            yield Mismatch(field=field, expected=expected, found=given)


def model_change(before: ServerFacts | None, now: ServerFacts, target: str) -> str | None:
    """How the model differs from the one that the same backend served `before`; `None` if it does not.

    A server that calls its model by the target's name serves the target, under whatever path.
    """
    if before is None or target.lower() in {_last_part(name).lower() for name in _names(now)}:
        return None
    pairs = (
        ("served_model_name", before.served_model_name, now.served_model_name),
        ("model_path", before.model_path, now.model_path),
    )
    changed = [
        Mismatch(field=field, expected=was, found=found)
        for field, was, found in pairs
        if was is not None and found is not None and found != was
    ]
    return f"another model: {', '.join(map(str, changed))}" if changed else None


def profiled_release(profile: Profile) -> str | None:
    """The SGLang release whose steps were measured, when all cells come from one."""
    engines = {profile.provenance[cell.provenance].engine for arm in profile.arms.values() for cell in arm.cells}
    if len(engines) != 1:
        return None
    name, _, release = (engines.pop() or "").partition(" ")
    return release if name == "sglang" and release else None


def _names(facts: ServerFacts) -> list[str]:
    return [name for name in (facts.served_model_name, facts.model_path) if name is not None]


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _canonical(algorithm: str) -> str:
    name = algorithm.upper()
    return _SAME_ALGORITHM.get(name, name)
