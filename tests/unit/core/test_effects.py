"""Effects of context and temperature: found where they are, not where they are not, bounded, and kept."""

from __future__ import annotations

from random import Random

import pytest

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.effects import MOST_FACTOR, Effects
from selector.core.types import TEXT_TYPES
from tests.fleets import request_view


def taught(
    *, per_ln_context: float = 0.0, per_temperature: float = 0.0, requests: int = 1_500, seed: int = 0
) -> AcceptanceModel:
    """A model that saw requests whose accept length depends on context and temperature as given."""
    random = Random(seed)
    model = AcceptanceModel(
        {"arm": {name: AcceptancePrior(mean=3.0, request_spread=0.15) for name in TEXT_TYPES}}, {"arm": 8}
    )
    for number in range(requests):
        text_type = ("code", "long_document")[number % 2]
        # Long documents are long: a difference between types must not pass for an effect of length.
        ln_context = random.gauss(6.0 if text_type == "code" else 9.0, 0.7)
        temperature = random.choice((0.0, 0.5, 1.0))
        mean = 4.0 if text_type == "code" else 2.5
        mean *= 1.0 + per_ln_context * (ln_context - (6.0 if text_type == "code" else 9.0))
        mean *= 1.0 + per_temperature * (temperature - 0.5)
        tokens = random.randint(60, 400)
        passes = max(tokens // 8 + 1, min(tokens, round(tokens / mean * (1.0 + random.gauss(0.0, 0.15)))))
        view = request_view(
            f"r{number}", text_type=text_type, prompt_tokens=int(2.718**ln_context), temperature=temperature
        )
        assert model.observe("arm", text_type, passes, tokens - passes, request=view)
    return model


def predicted(model: AcceptanceModel, **view: float) -> float:
    request = request_view(text_type="code", prompt_tokens=int(view.get("context", 403)))
    if "temperature" in view:
        request = request_view(text_type="code", prompt_tokens=403, temperature=view["temperature"])
    return model.of_request("arm", request, 0.5)[0]


@pytest.mark.parametrize("seed", range(4))
def test_without_an_effect_none_is_applied(seed: int) -> None:
    model = taught(seed=seed)
    effects = model.effects("arm")
    assert set(effects) == {"context", "temperature"}
    assert not any(effect.applied for effect in effects.values())
    assert predicted(model, context=100_000) == predicted(model, context=50) == model.accept_length("arm", "code")


def test_an_effect_of_context_is_found_and_applied_within_its_text_type() -> None:
    model = taught(per_ln_context=-0.15)
    effect = model.effects("arm")["context"]
    assert effect.applied
    assert effect.coefficient == pytest.approx(-0.15, abs=0.05)
    assert not model.effects("arm")["temperature"].applied
    assert predicted(model, context=1_100) < 0.92 * predicted(model, context=403)
    assert model.drift_alarm_count == 0


def test_an_effect_of_temperature_is_found() -> None:
    model = taught(per_temperature=-0.3)
    effect = model.effects("arm")["temperature"]
    assert effect.applied
    assert effect.coefficient == pytest.approx(-0.3, abs=0.08)
    assert predicted(model, temperature=1.0) < 0.8 * predicted(model, temperature=0.0)
    assert model.of_request("arm", request_view(text_type="code"), 0.5)[0] == pytest.approx(4.0, rel=0.06)


def test_a_correction_is_bounded_whatever_is_asked() -> None:
    model = taught(per_ln_context=-0.25)
    mean = model.accept_length("arm", "code")
    for context in (1, 10_000_000):
        assert mean / MOST_FACTOR - 1e-9 <= predicted(model, context=context) <= min(8.0, mean * MOST_FACTOR) + 1e-9


def test_one_temperature_for_all_teaches_nothing_of_it() -> None:
    effects = Effects()
    for number in range(500):
        effects.add("code", 100.0 + number, 0.7, 0.0, 0.04)
    assert "temperature" not in effects.known()
    assert effects.factor("code", 100.0, 2.0) == 1.0


def test_what_was_learnt_is_kept() -> None:
    model = taught(per_ln_context=-0.15)
    effects, again = model.learning["arm"].effects, Effects()
    again.restore(effects.state())
    assert again.known() == effects.known()
    assert again.factor("code", 5_000.0, 0.5) == effects.factor("code", 5_000.0, 0.5) != 1.0
