"""What a pass accepted teaches the text type it was accepted of, and no other."""

from __future__ import annotations

import pytest

from selector.core.depthbatch import UNTOLD_TEXT, DepthBatch, DepthRequest
from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtexts import MOST_TEXTS, DepthAcceptances
from selector.errors import DomainError

SLOW = SlowRequests.at()
PRIOR = geometric_survivals(0.5, 3)


def test_each_text_type_begins_at_its_own_curve_or_that_of_all_others() -> None:
    acceptances = DepthAcceptances(PRIOR, SLOW, priors={"code": geometric_survivals(0.9, 3)})
    assert acceptances.of("code").lengths[3] > acceptances.of(UNTOLD_TEXT).lengths[3]
    assert acceptances.of("news").lengths == acceptances.of(UNTOLD_TEXT).lengths


def test_rows_teach_the_text_they_are_of() -> None:
    acceptances = DepthAcceptances(PRIOR, SLOW)
    mixed = DepthBatch([DepthRequest("code"), DepthRequest("romansh"), DepthRequest("code")])
    before = acceptances.of("news").lengths[3]
    for _ in range(60):
        assert acceptances.observe(3, [3, 0, 2], mixed)
    assert acceptances.of("romansh").lengths[3] < before < acceptances.of("code").lengths[3]
    assert acceptances.of("news").lengths[3] == before


def test_a_result_of_another_size_teaches_nothing() -> None:
    acceptances = DepthAcceptances(PRIOR, SLOW)
    before = acceptances.of(UNTOLD_TEXT).survivals()
    assert not acceptances.observe(3, [3, 3], DepthBatch.alike(3))
    assert acceptances.of(UNTOLD_TEXT).survivals() == before


def test_text_types_without_end_share_one_estimate() -> None:
    acceptances = DepthAcceptances(PRIOR, SLOW)
    kept = {id(acceptances.of(f"type {number}")) for number in range(10 * MOST_TEXTS)}
    assert len(kept) == MOST_TEXTS


def test_curves_of_unequal_length_are_refused() -> None:
    with pytest.raises(DomainError, match="code"):
        DepthAcceptances(PRIOR, SLOW, priors={"code": (0.5,)})
