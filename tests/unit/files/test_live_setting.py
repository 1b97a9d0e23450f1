"""A profile with an arm that has a live setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from selector.errors import ProfileError
from selector.files.acceptancepriors import acceptance_model
from selector.files.provenance import provenance_keys
from tests.livearms import ARM, ARM_AT_QUARTER, QUARTER, WHOLE, document, fleet, profile
from tests.profiles import sparse_profile


def test_every_setting_has_its_costs_and_its_accept_lengths() -> None:
    spec = fleet().specs[0]
    assert [setting.values for setting in spec.settings] == [WHOLE, QUARTER]
    assert spec.settings[0].step.step(8, 700.0) == spec.cost.step.step(8, 700.0)
    assert spec.settings[1].step.step(8, 700.0)[0] == pytest.approx(6.5 + 8 * 0.08)
    assert [spec.acceptance_arm(values) for values in (WHOLE, QUARTER)] == [ARM, ARM_AT_QUARTER]
    model = acceptance_model([(ARM, profile())])
    assert (model.accept_length(ARM, "code"), model.accept_length(ARM_AT_QUARTER, "code")) == (3.0, 2.0)


def test_profiles_without_settings_stay_as_they_were() -> None:
    shipped = sparse_profile()
    assert shipped.settings("dspark-8") == ()
    assert "live_setting" not in shipped.model_dump_json(exclude_none=True)


def test_provenance_of_settings_is_checked_like_any_other() -> None:
    places = [place for place, _ in provenance_keys(profile())]
    assert f"arms.{ARM}.live_setting.others[0].cells[2]" in places
    assert f"arms.{ARM}.live_setting.others[0].acceptance.code" in places


def spoilt(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = document()
    change(data["arms"][ARM]["live_setting"])
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda knob: knob["others"][0]["acceptance"].pop("math"), "lacks math"),
        (lambda knob: knob["others"][0].update(value=1.0), "twice"),
        (lambda knob: knob.update(others=[]), "others"),
        (lambda knob: knob["others"][0]["cells"][0].update(provenance="nobody"), "nobody"),
        (lambda knob: knob["others"][0]["acceptance"]["code"].update(mean=9.0), "above the verify width"),
        (lambda knob: knob.update(unit="frac"), "unit"),
    ],
)
def test_a_bad_setting_is_refused_with_its_place(change: Callable[[dict[str, Any]], object], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        profile(spoilt(change))
