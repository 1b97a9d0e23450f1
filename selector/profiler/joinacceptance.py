"""Accept lengths joined to a profile: measured ones from the cells of a sweep, published ones from a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any

from selector.errors import InputError
from selector.files.profile import Acceptance, Profile
from selector.profiler.acceptance import MeasuredAcceptance, summarised
from selector.profiler.cells import AcceptanceCell, Cell
from selector.profiler.config import SweepConfig
from selector.profiler.provenance import measured_provenance, pruned
from selector.profiler.published import LOOKUP, Row, published_acceptance


def acceptance_rows(config: SweepConfig, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Accept lengths measured so far as plain JSON, in the order of the sweep file's arms."""
    found = acceptance_cells(cells)
    order = {arm.name: position for position, arm in enumerate(config.arms)}
    rows = []
    for (name, text_type), same in sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        width = config.arm(name).verify_tokens
        measured = summarised([answer for cell in same for answer in cell.answers], width)
        if measured is None:
            continue
        singles = [summarised(cell.answers, width) for cell in same]
        means = [single.mean for single in singles if single is not None]
        rows.append(
            {
                "arm": name,
                "text_type": text_type,
                "accept_length": round(measured.mean, 4),
                "repeats": len(same),
                "repeats_sd": round(stdev(means), 4) if len(means) > 1 else None,
                "request_spread": None if measured.request_spread is None else round(measured.request_spread, 4),
                "survival": None if measured.survival is None else [round(share, 4) for share in measured.survival],
                "answers": measured.requests,
                "verify_passes": measured.passes,
                "refused": sum(cell.refused for cell in same),
                "answer_tokens": same[0].answer_tokens,
                "temperature": same[0].temperature,
                "engine": same[0].origin.engine,
                "host": same[0].origin.host,
                "energy_j": None,
            }
        )
    return rows


def with_measured_acceptance(profile: Profile, cells: Iterable[Cell], verify_tokens: Mapping[str, int]) -> Profile:
    """The profile with the accept lengths that `cells` measured in place of what it had for those arms and types.

    `verify_tokens` are the widths that the cells' arms were measured with. Raises `InputError` for an arm that the
    profile lacks or verifies another width of.
    """
    provenance = dict(profile.provenance)
    arms = dict(profile.arms)
    for (name, text_type), same in acceptance_cells(cells).items():
        arm = arms.get(name)
        width = verify_tokens.get(name)
        if arm is None or width is None:
            problem = f"{name!r}, whose accept length was measured, is no arm of both profile and sweep file"
            raise InputError(f"profile of {profile.target.name}", problem, "measure its step costs, or leave it out")
        if arm.verify_tokens != width:
            problem = f"{name} verifies {arm.verify_tokens} tokens here and {width} in the measurement"
            raise InputError(f"profile of {profile.target.name}", problem, "accept lengths belong to a verify width")
        measured = summarised([answer for cell in same for answer in cell.answers], width)
        if measured is None:
            continue
        key = f"accept-{name}-{text_type}"
        provenance[key] = measured_provenance(same[0].origin, acceptance_note(same, measured))
        spread = measured.request_spread
        old = arm.acceptance.get(text_type)
        arms[name] = arm.model_copy(
            update={
                "acceptance": {
                    **arm.acceptance,
                    text_type: Acceptance(
                        mean=round(measured.mean, 4),
                        provenance=key,
                        request_spread=round(spread, 4) if spread is not None else (old.request_spread if old else 0.0),
                        request_spread_provenance=(
                            key if spread is not None else (old.request_spread_provenance if old else None)
                        ),
                        survival=(tuple(round(share, 4) for share in measured.survival) if measured.survival else None),
                        samples=measured.passes,
                    ),
                }
            }
        )
    return pruned(profile.model_copy(update={"arms": arms, "provenance": provenance}))


def acceptance_cells(cells: Iterable[Cell]) -> dict[tuple[str, str], list[AcceptanceCell]]:
    """Cells of accept lengths by arm and text type."""
    found: dict[tuple[str, str], list[AcceptanceCell]] = {}
    for cell in cells:
        if isinstance(cell, AcceptanceCell):
            found.setdefault((cell.arm, cell.text_type), []).append(cell)
    return found


def acceptance_note(cells: Sequence[AcceptanceCell], measured: MeasuredAcceptance) -> str:
    """What an accept length rests on, in words."""
    refused = sum(cell.refused for cell in cells)
    return (
        f"{measured.requests} answers of at most {cells[0].answer_tokens} tokens in {len(cells)} repeats, "
        f"temperature {cells[0].temperature:g}, {measured.passes} verify passes"
        + (f"; {refused} prompts refused by the server" if refused else "")
    )


def with_published_acceptance(profile: Profile, published: Sequence[Row], where: str) -> Profile:
    """The profile with accept lengths of a table of published ones wherever it has none that were measured.

    Only rows of the profile's target count, and those of lookup drafters, which know no target (see `published`).
    Raises `InputError` for a table without a row of the target.
    """
    own = [row for row in published if row.get("model") == profile.target.name]
    rows = [*own, *(row for row in published if row.get("algorithm") == LOOKUP)]
    if not own:
        raise InputError(where, f"has no row of model {profile.target.name!r}", "name a table that has")
    provenance = dict(profile.provenance)
    arms = dict(profile.arms)
    for name, arm in profile.arms.items():
        found = published_acceptance(name, arm.algorithm, arm.verify_tokens, rows, provenance)
        measured = {
            text_type: value
            for text_type, value in arm.acceptance.items()
            if provenance[value.provenance].kind == "measured"
        }
        arms[name] = arm.model_copy(update={"acceptance": {**arm.acceptance, **found, **measured}})
    return pruned(profile.model_copy(update={"arms": arms, "provenance": provenance}))
