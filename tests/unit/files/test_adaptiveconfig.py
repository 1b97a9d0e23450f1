"""SGLang's adaptive configuration: written as the engine reads it, read as the engine would."""

from __future__ import annotations

import json

import pytest

from selector.core.sglangadaptive import DEFAULT_SCHEDULES, Tier
from selector.errors import InputError
from selector.files.adaptiveconfig import adaptive_config_text, parse_adaptive_config


def test_what_is_written_is_read_back() -> None:
    schedule = {1: Tier(candidate_steps=(1, 3), up_hysteresis=0.4), 64: Tier(candidate_steps=(0,))}
    text = adaptive_config_text(schedule, {"why": "measured"})
    assert json.loads(text)["drafter_selector"] == {"why": "measured"}
    assert parse_adaptive_config(text, "here") == schedule


def test_the_engines_own_default_is_understood() -> None:
    text = json.dumps(
        {
            "1": {"candidate_steps": [7, 1, 3, 5], "up_hysteresis": 0.0, "down_hysteresis": -0.25, "ceiling_coeff": 0},
            "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
            "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
            "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
        }
    )
    assert parse_adaptive_config(text, "here") == DEFAULT_SCHEDULES["0.5.23"]


def test_keys_beside_the_tiers_are_defaults_or_nothing() -> None:
    text = json.dumps({"update_interval": 9, "anything": {"x": 1}, "4": {"candidate_steps": [2], "unknown": 1}})
    assert parse_adaptive_config(text, "here") == {4: Tier(candidate_steps=(2,), update_interval=9)}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSON"),
        ("[]", "tier"),
        ('{"update_interval": 5}', "tier"),
        ('{"1": [1, 3]}', "here: 1"),
        ('{"1": {}}', "candidate_steps"),
        ('{"1": {"candidate_steps": []}}', "candidate_steps"),
        ('{"1": {"candidate_steps": [-1]}}', "candidate_steps"),
        ('{"1": {"candidate_steps": [1], "update_interval": 0}}', "update_interval"),
    ],
)
def test_what_the_engine_would_refuse_is_refused(text: str, named: str) -> None:
    with pytest.raises(InputError, match="here") as refused:
        parse_adaptive_config(text, "here")
    assert named in str(refused.value)
