"""Documents that `simulate --json` printed, read again to be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selector.errors import UsageError
from selector.files.validation import read_text
from selector.simulator.compare import Comparison, SeedRun, compare
from selector.simulator.report import PolicyResult

Key = tuple[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedResults:
    """One document. `inputs` are the trace's facts and the seed, which a comparison must share."""

    where: str
    inputs: dict[str, Any]
    results: tuple[PolicyResult, ...]

    def by_key(self) -> dict[Key, PolicyResult]:
        """Results by policy and target."""
        return {(result.policy, result.tbt_target_ms): result for result in self.results}


def load_results(path: Path) -> SavedResults:
    """Reads a document. Raises `UsageError` for anything else."""
    text = read_text(path, "document", UsageError)
    remedy = "give what `simulate --json` printed"
    try:
        document = json.loads(text)
        results = tuple(PolicyResult.model_validate(result) for result in document["results"])
        inputs = {"trace": document["trace"], "seed": document["seed"]}
    except ValueError as bad:
        problem = f"result {bad.errors()[0]['loc']} is wrong" if isinstance(bad, ValidationError) else "is not JSON"
        raise UsageError(str(path), problem, remedy) from None
    except (KeyError, TypeError):
        raise UsageError(str(path), "is no document of results", remedy) from None
    if not results:
        raise UsageError(str(path), "holds no result", remedy)
    return SavedResults(where=str(path), inputs=inputs, results=results)


def paired(first: SavedResults, second: SavedResults, names: Sequence[str]) -> list[Comparison]:
    """The comparison of every policy and target that both have; of the only results of both where none match.

    Raises `UsageError` when they ran on different requests, or nothing matches.
    """
    for key, value in first.inputs.items():
        if second.inputs[key] != value:
            problem = f"has {key} {second.inputs[key]!r}, {first.where} has {value!r}"
            raise UsageError(second.where, problem, "compare runs on the same requests")
    ours, theirs = first.by_key(), second.by_key()
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    if not pairs and len(ours) == len(theirs) == 1:
        pairs = [(first.results[0], second.results[0])]
    if not pairs:
        problem = f"shares no policy and target with {first.where}"
        raise UsageError(second.where, problem, "compare documents with the same policies, or with one result each")
    return [
        compare(
            [SeedRun(result=one)],
            [SeedRun(result=other)],
            names=(f"{one.policy} in {names[0]}", f"{other.policy} in {names[1]}"),
        )
        for one, other in pairs
    ]
