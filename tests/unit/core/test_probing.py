"""Probes: within their budgets, never at the price of a target, deterministic, and useful."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from selector.core.forecast import Forecast
from selector.core.policy import PolicyContext
from selector.core.prediction import Prediction
from selector.core.probing import BURST, Prober
from selector.core.types import RequestView
from tests.fleets import fleet_view, policy_context, request_view, specs_of


class Requests:
    """Decisions that always choose the backend of the first arm."""

    def __init__(
        self,
        *arms: str,
        seed: int = 0,
        frac: float = 0.01,
        requests_frac: float | None = None,
        batches: tuple[int, ...] | None = None,
    ) -> None:
        specs = specs_of(*arms)
        self.context: PolicyContext = policy_context(specs, seed=seed)
        self.prober = Prober(
            self.context, requests_frac=frac if requests_frac is None else requests_frac, energy_frac=frac
        )
        self._forecast = Forecast(self.context)
        self._fleet = fleet_view(specs, batches or (24, *(4,) * (len(arms) - 1)))
        self._specs = specs
        self._waited_s = 0.0
        self.sent = 0
        self.last: list[Prediction] = []
        self.looked_at = 0
        """Places that the last decision looked at beside the chosen one."""

    def send(self, **view: object) -> Prediction | None:
        now_s = self._waited_s + 0.05 * self.sent
        request: RequestView = request_view(f"r{self.sent}", arrival_s=now_s, **view)  # type: ignore[arg-type] # fields
        self.sent += 1
        look = self._forecast.look(request, replace(self._fleet, now_s=now_s))
        chosen = look.at(0)
        assert chosen is not None
        probe = self.prober.instead(look, chosen, now_s)
        self.looked_at = len(look.made()) - 1
        self.last = look.all()
        return probe

    def wait(self, seconds: float) -> None:
        """Nobody asks for so long."""
        self._waited_s += seconds

    def runs(self, *batches: int) -> None:
        """So many requests run on the backends from now on."""
        self._fleet = fleet_view(self._specs, batches)

    def probes(self, decisions: int, **view: object) -> list[int]:
        """Which of so many decisions were probes, counted from 0."""
        return [number for number in range(decisions) if self.send(**view) is not None]


@pytest.mark.parametrize("frac", [0.0, 0.002, 0.01, 0.1])
def test_neither_budget_is_ever_passed(frac: float) -> None:
    requests = Requests("none", "dspark-8", "eagle3-k1", frac=frac)
    for _ in range(5_000):
        requests.send(text_type="romansh")
        assert requests.prober.probes <= frac * requests.prober.decisions
        assert requests.prober.extra_j <= requests.prober.budget_j
    assert (requests.prober.probes > 0) == (frac > 0)


def test_energy_is_bounded_where_probes_are_not() -> None:
    """Probes of an idle backend cost more than the shared one, and are many if requests alone bound them."""
    bounded, free = (
        Requests("none", "dspark-8", frac=frac, requests_frac=1.0, batches=(24, 0)) for frac in (0.0005, 1.0)
    )
    for requests in (bounded, free):
        for _ in range(2_000):
            requests.send(text_type="romansh")
            assert requests.prober.extra_j <= requests.prober.budget_j
    assert free.prober.extra_j > bounded.prober.budget_j, "without the bound it would have been passed"
    assert bounded.prober.probes < free.prober.probes


def test_what_is_left_of_the_energy_budget_is_spent_too() -> None:
    requests = Requests("none", "dspark-8", frac=0.0005, requests_frac=1.0, batches=(24, 4))
    spent_frac = []
    for _ in range(2_000):
        requests.send(text_type="code")
        spent_frac.append(requests.prober.extra_j / requests.prober.budget_j)
    assert fmean(spent_frac[500:]) > 0.85


def test_a_backend_that_probes_alone_keep_awake_is_charged_for_as_long_as_it_is() -> None:
    """A probe on an idle backend, and one that runs there from then on: it takes far longer than was expected."""
    requests = Requests("none", "dspark-8", frac=0.05, batches=(24, 0))
    while (probe := requests.send(text_type="code")) is None:
        pass
    watts = probe.marginal_j_per_accepted_token / (probe.mean_tbt_ms / 1e3)
    predicted_s = probe.mean_tbt_ms / 1e3 * request_view().expected_output_tokens
    charged_j = requests.prober.extra_j
    assert 0.0 < charged_j <= watts * predicted_s
    requests.runs(24, 1)
    requests.wait(predicted_s + 10.0)
    requests.send(text_type="romansh")
    assert requests.prober.extra_j - charged_j == pytest.approx(watts * 10.0, rel=0.05)
    charged_j = requests.prober.extra_j
    requests.runs(24, 0)
    requests.wait(100.0)
    requests.send(text_type="romansh")
    assert requests.prober.extra_j == charged_j


def test_while_the_energy_budget_is_overspent_no_place_is_looked_at() -> None:
    requests = Requests("none", "dspark-8", "eagle3-k1", frac=0.05, batches=(24, 0, 0))
    while requests.send(text_type="code") is None:
        pass
    assert requests.looked_at > 0
    requests.runs(24, 1, 0)
    requests.wait(3_600.0)
    for sent in range(1_500):  # until the burst is given up, and time for others to begin
        assert requests.send(text_type="code" if sent < 100 else "romansh") is None
        assert requests.looked_at == 0
    assert requests.prober.extra_j > requests.prober.budget_j


def test_an_arm_that_might_win_is_probed_in_bursts() -> None:
    probes = Requests("none", "dspark-8").probes(4_000, text_type="code")
    assert len(probes) >= 2 * BURST
    gaps = [later - one for one, later in pairwise(probes)]
    assert sum(gap == 1 for gap in gaps) >= len(gaps) // 2
    assert max(gaps) > 100


def test_credit_that_was_saved_up_is_not_spent_on_one_burst() -> None:
    requests = Requests("none", "dspark-8")
    assert requests.probes(3_000, text_type="code", tbt_target_ms=5.0) == []
    assert len(requests.probes(150, text_type="code")) == BURST


def test_an_arm_that_is_known_well_enough_not_to_win_is_left_alone() -> None:
    """At 61 requests dflash-16 needs half as much energy again as dspark-8 per step, for a fifth more tokens."""
    unknown, known = (Requests("dspark-8", "dflash-16", batches=(60, 4)) for _ in range(2))
    for number in range(300):
        wobble = number * 7 % 11 - 5
        known.context.acceptance.observe("dflash-16", "code", 40 + wobble, 180 - wobble)
    assert unknown.probes(2_000, text_type="code") != []
    assert known.probes(2_000, text_type="code") == []


def test_without_a_drafter_there_is_nothing_to_learn() -> None:
    assert Requests("dspark-8", "none").probes(3_000, text_type="romansh") == []


def test_an_arm_in_use_needs_no_probes() -> None:
    requests = Requests("none", "dspark-8")
    probed = 0
    for number in range(3_000):
        if number % 50 == 0:  # the policy itself uses it now and then
            requests.send(text_type="code")
            requests.prober._used["dspark-8", "code"] = requests.prober._decisions_of_type["code"]
        else:
            probed += requests.send(text_type="code") is not None
    assert probed == 0


def test_a_request_with_a_target_probes_only_where_it_is_met_without_one_draft() -> None:
    assert Requests("none", "dspark-8").probes(3_000, text_type="code", tbt_target_ms=5.0) == []
    assert Requests("none", "dspark-8").probes(3_000, text_type="code", tbt_target_ms=50.0) != []


def test_a_full_backend_is_not_probed() -> None:
    assert Requests("none", "dspark-8", batches=(24, 64)).probes(3_000, text_type="code") == []


def test_servers_that_do_not_tell_what_they_accepted_are_given_up() -> None:
    silent, telling = Requests("none", "dspark-8"), Requests("none", "dspark-8")
    told = 0
    for _ in range(20_000):
        silent.send(text_type="code")
        if telling.send(text_type="code") is not None:
            told += 1
            telling.context.acceptance.observe("dspark-8", "code", 70, 175)
    assert silent.prober.probes <= 3 * BURST < told


def test_same_seed_same_probes_other_seed_other_probes() -> None:
    first, again, other = (
        Requests("none", "dspark-8", seed=seed).probes(3_000, text_type="code") for seed in (1, 1, 2)
    )
    assert first == again != other
