"""Books and metrics are told some requests at once, and whoever reads them finds everything that happened."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from selector.core.types import Candidate, Decision, Finish, Outcome
from selector.files.faults import Faults
from selector.router.accounts import Accounts
from selector.router.books import Books
from selector.router.metrics import RouterMetrics
from selector.router.outliers import Outliers
from tests.fleets import policy_context, request_view, specs_of

PREDICTED = Candidate(backend="b0", arm="none", feasible=True, tbt_ms=10.0, accept_length=1.0, acceptance_samples=0.0)


def accounts(metrics: RouterMetrics, *, metered: bool = False) -> Accounts:
    specs = specs_of("none", "dspark-8")
    outliers = Outliers([spec.name for spec in specs], Faults())
    return Accounts(
        Books(specs, policy_context(specs).acceptance, metrics, metered=metered, outliers=outliers), metrics
    )


def one_request(kept: Accounts, name: str, candidates: Sequence[Candidate] = (PREDICTED,)) -> None:
    view = request_view(name)
    decision = Decision(backend="b0", reason="planned", candidates=tuple(candidates))
    kept.decided(
        view,
        (name,),
        decision,
        candidates[0] if candidates else None,
        1.0,
        arm="none",
        acceptance_arm="none",
        correction=kept.correction("b0"),
        fallback=False,
    )
    outcome = Outcome(
        request_id=name,
        backend="b0",
        arm="none",
        text_type=view.text_type,
        finish=Finish.DONE,
        prompt_tokens=10,
        accepted_tokens=5,
        dispatched_s=1.0,
        finished_s=2.0,
        ttft_ms=20.0,
        tbt_ms=11.0,
    )
    kept.ended(view, outcome, 2.0)


def counted(text: bytes, name: str) -> float:
    """The sum of a metric's values; 0 for one without."""
    lines = [line for line in text.decode().splitlines() if line.startswith(f"drafter_selector_{name}")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_scrape_finds_every_request_that_came_and_no_request_twice() -> None:
    metrics = RouterMetrics()
    kept = accounts(metrics)
    for number in range(30):
        one_request(kept, f"r{number}")
    for _ in range(2):
        text = metrics.render()
        assert counted(text, "decisions_total") == 30
        assert counted(text, "outcomes_total") == 30
        assert counted(text, "tbt_prediction_ratio_count") == 30


def test_the_books_are_complete_when_somebody_opens_them() -> None:
    kept = accounts(RouterMetrics())
    one_request(kept, "a")
    record = kept.books.records.find("a")
    assert record is not None
    assert record.outcome is not None
    assert record.last.chosen == PREDICTED


def test_what_is_kept_back_is_bounded() -> None:
    kept = accounts(RouterMetrics())
    for number in range(500):
        one_request(kept, f"r{number}")
        assert len(kept._untold) <= 2 * 24


def test_a_decision_without_an_estimate_is_told_at_once() -> None:
    """The books ask the acceptance model, which may have learnt more by later."""
    kept = accounts(RouterMetrics())
    one_request(kept, "a", candidates=())
    assert len(kept._untold) == 2, "its end alone"


def test_nothing_waits_where_energy_is_metered() -> None:
    kept = accounts(RouterMetrics(), metered=True)
    one_request(kept, "a")
    assert not kept._untold


def test_metrics_hold_on_to_nobody() -> None:
    metrics = RouterMetrics()
    kept = accounts(metrics)
    one_request(kept, "a")
    del kept
    gc.collect()
    assert counted(metrics.render(), "decisions_total") == 0
