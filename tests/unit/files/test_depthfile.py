"""The plugin's file: read back as written, refused where a choice could not be made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selector.core.depthchoice import ChoiceOptions
from selector.core.prefillshare import HALF_LIFE_MS
from selector.errors import InputError
from selector.files.depthfile import load_depth_file, options_of, parse_depth_file


def document(**changes: object) -> dict[str, Any]:
    row = [[[0.0, 5.0, 0.001, 2.0, 0.0005]]]
    return {
        "format": "drafter-selector/depths",
        "version": 1,
        "profile": "p",
        "target": "t",
        "algorithm": "EAGLE3",
        "depths": [{"depth": depth, "arm": f"k{depth}", "rows": row} for depth in (0, 1, 3)],
        "survivals": [0.8, 0.6, 0.5],
        "survivals_from": "made up",
        **changes,
    }


def test_a_choice_is_made_from_what_stands_in_it() -> None:
    options = ChoiceOptions(margin_frac=0.02, headroom_frac=0.1, dwell_steps=7)
    prefill = {"arm": "k3", "points": [[100, 10], [200, 20]], "floor_ms": 12.0, "resume_ms": 1.0}
    more = {"survivals_of": {"code": [0.9, 0.8, 0.7]}, "prefill": prefill}
    text = json.dumps(document(options=options_of(options).model_dump(), tbt_target_ms=12.5, **more))
    file = parse_depth_file(text, "here")
    assert parse_depth_file(file.model_dump_json(), "here") == file
    choice = file.choice(start_depth=3)
    assert choice._options == options
    assert choice.acceptance.of("").survivals() == pytest.approx([0.8, 0.6, 0.5])
    assert choice.acceptance.of("code").survivals() == pytest.approx([0.9, 0.8, 0.7])
    choice.prefill.prefilled(150)
    choice.prefill.stepped(16.0)
    assert choice.prefill.frac == pytest.approx(16.0 / (16.0 + 16.0 + HALF_LIFE_MS), rel=0.01)
    assert file.table().step(1, 1, 1_000.0) == (6.0, 2.5)


def test_passes_are_padded_to_the_graphs_that_stand_in_it() -> None:
    prefill = {"arm": "k3", "points": [[100, 10]], "graphs": [256], "beside_ms": 4.0}
    share = parse_depth_file(json.dumps(document(prefill=prefill)), "here").prefill_share()
    share.prefilled(200)
    share.stepped(10.0)
    assert share.frac == pytest.approx(29.6 / (29.6 + 10.0 + HALF_LIFE_MS), rel=0.01)


def test_it_starts_at_the_deepest_depth_that_is_no_deeper_than_asked_for() -> None:
    file = parse_depth_file(json.dumps(document()), "here")
    assert file.choice(start_depth=2).depth == 1
    assert file.choice(start_depth=7).depth == 3
    assert file.choice(start_depth=0, candidates=(1, 3, 5)).depth == 1


def test_the_file_of_the_live_benchmark_is_one() -> None:
    path = Path(__file__).parents[3] / "bench" / "live" / "exported" / "depths.json"
    assert load_depth_file(path).choice(start_depth=3).depth == 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": "else"}, "drafter-selector/depths"),
        ({"version": 2}, "version 1"),
        ({"extra": 1}, "extra"),
        ({"survivals": [0.5, 0.6, 0.1]}, "cannot learn"),
        ({"survivals_of": {"code": [0.5]}}, "code has 1 positions"),
        ({"prefill": {"arm": "k3", "points": [[200, 20], [100, 10]]}}, "must rise"),
        ({"survivals": [0.5]}, "positions"),
        ({"depths": []}, "depths"),
        ({"depths": [{"depth": 1, "arm": "a", "rows": [[[5.0, 1, 0, 1, 0]]]}]}, "do not rise from 0"),
        ({"quantile": 1.0}, "quantile"),
        ({"options": {"margin_frac": 1.0}}, "margin_frac"),
        ({"options": {"most_trial_steps": 1}}, "most_trial_steps=1"),
    ],
)
def test_what_no_choice_can_be_made_from_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match="here") as refused:
        parse_depth_file(json.dumps(document(**changes)), "here")
    assert named in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_what_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="export it again"):
        parse_depth_file(text, "here")
