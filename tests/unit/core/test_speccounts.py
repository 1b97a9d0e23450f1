"""Verify passes and accepted drafts, as backends report them."""

from __future__ import annotations

import pytest

from selector.core.speccounts import SpecCounts, counts_of_choices, spec_counts


@pytest.mark.parametrize(
    ("report", "counts"),
    [
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": 9}, SpecCounts(verify_passes=4, accepted_drafts=9)),
        ({"spec_verify_ct": 4, "spec_accepted_drafts": 9}, SpecCounts(verify_passes=4, accepted_drafts=9)),
        ({"spec_verify_ct": 4, "spec_accept_token_num": 9}, SpecCounts(verify_passes=4, accepted_drafts=9)),
        (
            {"spec_verify_ct": 4, "spec_num_correct_drafts": 9, "spec_accepted_drafts": 8, "spec_accept_rate": 0.5},
            SpecCounts(verify_passes=4, accepted_drafts=9, accept_rate=0.5),
        ),
        ({"spec_verify_ct": 4}, None),
        ({"spec_num_correct_drafts": 9}, None),
        ({"spec_verify_ct": True, "spec_num_correct_drafts": 9}, None),
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": 2.5}, None),
        ({"spec_verify_ct": None, "spec_num_correct_drafts": None}, None),
        ({}, None),
    ],
)
def test_acceptance_by_any_of_its_names(report: dict[str, object], counts: SpecCounts | None) -> None:
    assert spec_counts(report) == counts


def choice(drafts: int, **fields: float) -> dict[str, object]:
    return {"spec_verify_ct": 10, "spec_num_correct_drafts": drafts, **fields}


def test_choices_add_up_over_those_that_report() -> None:
    both = [choice(20, spec_num_proposed_drafts=30), {}, choice(4, spec_num_proposed_drafts=40)]
    assert counts_of_choices(both) == SpecCounts(verify_passes=20, accepted_drafts=24, proposed_drafts=70)
    assert counts_of_choices([choice(20, spec_num_proposed_drafts=30), choice(4)]) == SpecCounts(
        verify_passes=20, accepted_drafts=24
    ), "drafts that one choice does not report are unknown in the sum"
    assert counts_of_choices([{}, {"spec_verify_ct": 4}]) is None


def test_a_rate_above_one_is_not_hidden_by_the_other_choices() -> None:
    summed = counts_of_choices([choice(1, spec_accept_rate=0.2), choice(1, spec_accept_rate=1.5)])
    assert summed is not None and summed.accept_rate == 1.5
