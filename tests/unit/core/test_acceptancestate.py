"""What is kept and shared: nothing lost, nothing counted twice, nothing impossible taken."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.acceptancestate import (
    AcceptanceState,
    CellState,
    OtherModels,
    contribution_of,
    fingerprint,
    restore,
    state_of,
)
from selector.core.types import TEXT_TYPES
from selector.errors import DomainError
from tests.fleets import request_view


def fresh(mean: float = 3.0) -> AcceptanceModel:
    priors = {"arm": {name: AcceptancePrior(mean=mean, request_spread=0.15) for name in TEXT_TYPES}}
    return AcceptanceModel(priors, {"arm": 8, "none": 1}, half_life_requests=100.0)


def feed(model: AcceptanceModel, requests: int, mean: float = 4.0, seed: int = 0, text_type: str = "code") -> None:
    random = Random(seed)
    for number in range(requests):
        passes = max(30, round(240 / mean * (1.0 + random.gauss(0.0, 0.1))))
        view = request_view(f"r{number}", text_type=text_type, temperature=random.random(), refine_key=f"k{number % 3}")
        assert model.observe("arm", text_type, passes, 240 - passes, request=view)


def test_a_restored_model_predicts_and_learns_on_as_the_first_would() -> None:
    first, second = fresh(), fresh()
    feed(first, 300)
    restore(second, state_of(first))
    for model in (first, second):
        feed(model, 5, seed=1)
    assert state_of(second) == state_of(first)
    view = request_view(text_type="code", refine_key="k1")
    assert second.of_request("arm", view, 0.9) == first.of_request("arm", view, 0.9)
    assert second.estimate("arm", "news") == first.estimate("arm", "news")


def test_two_routers_know_together_what_one_would_have_known() -> None:
    alone, one, other = fresh(), fresh(), fresh()
    for number in range(30):
        feed(alone, 1, seed=number)
        feed((one, other)[number % 2], 1, seed=number)
    OtherModels(one).combine({"other": contribution_of(other)})
    # Only fading differs: each has heard of the other's requests at once and not one by one.
    assert one.estimate("arm", "code").samples == pytest.approx(alone.estimate("arm", "code").samples, rel=0.1)
    assert one.accept_length("arm", "code") == pytest.approx(alone.accept_length("arm", "code"), rel=0.01)


def test_hearing_the_same_again_changes_nothing() -> None:
    one, other = fresh(), fresh()
    feed(one, 20)
    feed(other, 50, mean=5.0, seed=1)
    others = OtherModels(one)
    others.combine({"other": contribution_of(other)})
    once = one.estimate("arm", "code")
    for _ in range(5):
        others.combine({"other": contribution_of(other)})
    assert one.estimate("arm", "code") == once
    assert contribution_of(one)["arm"]["code"].seen == 20, "what is told is what was seen, not what was heard"


def test_what_others_see_makes_our_own_older() -> None:
    one, other = fresh(), fresh()
    feed(one, 50)
    others = OtherModels(one)
    feed(other, 1)
    others.combine({"other": contribution_of(other)})
    before = one.learning["arm"].cells["code"].own.requests
    feed(other, 100, seed=1)
    others.combine({"other": contribution_of(other)})
    assert one.learning["arm"].cells["code"].own.requests == pytest.approx(0.5 * before, rel=0.01)


def test_a_router_that_is_gone_is_no_longer_counted() -> None:
    one, other = fresh(), fresh()
    feed(one, 10)
    feed(other, 50, mean=6.0)
    alone = one.estimate("arm", "code")
    others = OtherModels(one)
    others.combine({"other": contribution_of(other)})
    assert one.estimate("arm", "code").samples > 30
    others.combine({})
    assert one.estimate("arm", "code") == alone


def test_a_drift_that_one_saw_begins_anew_for_all() -> None:
    one, other = fresh(), fresh()
    feed(one, 200)
    feed(other, 200, seed=1)
    others = OtherModels(one)
    others.combine({"other": contribution_of(other)})
    feed(other, 30, mean=1.3, seed=2)
    assert other.drift_alarm_count == 1
    others.combine({"other": contribution_of(other)})
    assert one.accept_length("arm", "code") == pytest.approx(1.3, rel=0.15)
    # And what one had seen before is not told to the other as if it were of now.
    OtherModels(other).combine({"one": contribution_of(one)})
    assert other.accept_length("arm", "code") == pytest.approx(1.3, rel=0.15)


def test_sums_of_an_older_epoch_are_left_out() -> None:
    one, other = fresh(), fresh()
    feed(other, 200)
    feed(one, 200)
    feed(one, 30, mean=1.3, seed=2)
    OtherModels(one).combine({"other": contribution_of(other)})
    assert one.accept_length("arm", "code") == pytest.approx(1.3, rel=0.15)


GOOD = CellState(epoch=0, seen=2.0, sums=(2.0, 2.0, 100.0, 300.0, 5_000.0, 15_000.0, 45_000.0, 100.0))


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, sums=GOOD.sums[:-1]),
        replace(GOOD, sums=(-1.0, *GOOD.sums[1:])),
        replace(GOOD, sums=(float("nan"), *GOOD.sums[1:])),
        replace(GOOD, sums=(*GOOD.sums[:3], 50.0, *GOOD.sums[4:])),  # fewer tokens than passes
        replace(GOOD, sums=(*GOOD.sums[:3], 900.0, *GOOD.sums[4:])),  # above the verify width
        replace(GOOD, sums=(2.0, 2.0, 0.0, 0.0, *GOOD.sums[4:])),  # requests without a pass
        replace(GOOD, epoch=-1),
        replace(GOOD, seen=float("inf")),
    ],
)
def test_sums_that_no_requests_can_have_are_refused_whole(bad: CellState) -> None:
    model = fresh()
    cells = {"arm": {"code": GOOD, "news": bad}}
    with pytest.raises(DomainError, match="arm on news cannot be"):
        OtherModels(model).combine({"other": cells})
    with pytest.raises(DomainError, match="arm on news cannot be"):
        restore(model, AcceptanceState(cells=cells, requests={}, effects={}, keys=()))
    assert model.estimate("arm", "code").samples == 0


@pytest.mark.parametrize("cells", [{"another": {"code": GOOD}}, {"arm": {"poetry": GOOD}}, {"none": {"code": GOOD}}])
def test_arms_and_types_of_another_fleet_are_refused(cells: dict[str, dict[str, CellState]]) -> None:
    with pytest.raises(DomainError):
        OtherModels(fresh()).combine({"other": cells})


def test_a_fingerprint_tells_profiles_apart() -> None:
    assert fingerprint(fresh()) == fingerprint(fresh())
    assert fingerprint(fresh()) != fingerprint(fresh(3.1))
    taught = fresh()
    feed(taught, 10)
    assert fingerprint(taught) == fingerprint(fresh()), "it is of the profile, not of what was learnt"
