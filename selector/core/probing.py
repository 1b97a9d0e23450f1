"""Sends a few requests to arms that a policy left, so that it learns when they are worth using again.

An arm that is not used teaches nothing: a drafter that was bad for an hour, or that the profile undersells, would stay
unused for ever. A prober looks at each decision and may name another backend for it, within two budgets at once:

    probes            ≤ `requests_frac` of all decisions
    their extra cost  ≤ `energy_frac` of the energy of all decisions           both as predicted, whenever one is sent

Extra cost is marginal energy on the probed backend over that on the chosen one. Opening an idle backend is what costs,
and requests that are there together share it, so probes come in bursts of `BURST`. They do not end together: after
the first one should have ended, what a lone request draws is charged on for as long as probes alone keep the backend
awake.

Probed are arms that the text type has not used for a while and that would be cheapest, at the load of the chosen
backend, if their acceptance were at the upper end of what is thinkable: two standard deviations above the estimate, or
what the profile says. A request with a target probes only where it would meet it if not one draft were accepted, and
where nobody else's target breaks.

Which decision begins a burst depends on the seed and the time alone, so that traffic with a rhythm is not always met at
the same beat.
"""

from __future__ import annotations

from hashlib import blake2b

from selector.core.forecast import Look
from selector.core.policy import BackendSpec, PolicyContext
from selector.core.prediction import Prediction
from selector.core.types import FleetView, RequestView

_MOST_PLACES = 8
"""Backends of an arm that are looked at for a probe: those with most company."""
BURST = 8
"""Probes that follow each other: about as many as a drift test needs to see a large change."""
LEFT_AFTER_DECISIONS = 100
"""An arm counts as left by a text type after so many decisions on that type without it; twice as many after every burst
that made no difference, up to `MOST_DECISIONS`. A drift of the arm begins anew."""
MOST_DECISIONS = 1_600
_BEGINS_ONE_IN = 16
_GIVEN_UP_AFTER_DECISIONS = 1_000
_OPTIMISM_DEVIATIONS = 2.0


class Prober:
    """Names a backend to learn on, now and then. One per policy; deterministic."""

    def __init__(self, context: PolicyContext, *, requests_frac: float = 0.01, energy_frac: float = 0.01) -> None:
        """Shares at least 0; 0 never probes."""
        self._context = context
        self._specs: dict[str, BackendSpec] = {spec.name: spec for spec in context.backends}
        self._index = {spec.name: index for index, spec in enumerate(context.backends)}
        self._arms = tuple(arm for arm in context.by_arm() if arm in context.acceptance.learning)
        """Those with a drafter: of the others there is nothing to learn."""
        self._requests_frac, self._energy_frac = requests_frac, energy_frac
        self.decisions = 0
        self.probes = 0
        self.extra_j = 0.0
        """What the probes cost over the chosen places, as predicted."""
        self.budget_j = 0.0
        """`energy_frac` of the energy of all decisions, as predicted."""
        self._decisions_of_type: dict[str, int] = {}
        self._used: dict[tuple[str, str], int] = {}
        """(arm, text type) → the last decision on the type that went there, counted by type."""
        self._waits: dict[tuple[str, str], tuple[int, int]] = {}
        """(arm, text type) → decisions to wait for the next burst, and the restarts of the estimate by then."""
        self._burst: tuple[str, str, int] | None = None
        """Arm, text type and the decision at which the burst is given up."""
        self._burst_ends_at = 0
        """`probes` by which the burst is over: credit saved up beyond it is for other arms and later."""
        self._awake: dict[str, tuple[float, float]] = {}
        """Backend that a probe woke → watts of a lone request above idle, and until when they are charged."""
        self._silent: dict[str, tuple[int, int]] = {}
        """Arm → probes sent since it last taught anything, and how much it had taught by then."""

    def instead(self, look: Look, chosen: Prediction, now_s: float) -> Prediction | None:
        """The place to probe with the request in place of `chosen`, or `None`. Every decision has to be told."""
        request = look.request
        self._charge_awake(look.fleet, chosen, now_s)
        self.decisions += 1
        count = self._decisions_of_type[request.text_type] = self._decisions_of_type.get(request.text_type, 0) + 1
        tokens = request.expected_output_tokens
        self.budget_j += self._energy_frac * tokens * self._j_per_token(chosen, chosen.accept_length, request, chosen)
        probe = self._probe(look, chosen, count, now_s)
        self._used[(probe or chosen).arm, request.text_type] = count
        if probe is not None:
            self.probes += 1
            self.extra_j += self._extra_j(probe, chosen, tokens)
            if probe.batch == 1:
                s_per_token = probe.mean_tbt_ms / 1e3
                watts = probe.marginal_j_per_accepted_token / s_per_token
                self._awake[probe.backend] = watts, now_s + tokens * s_per_token
            sent, taught = self._silent.get(probe.arm, (0, -1))
            now_taught = self._taught(probe)
            self._silent[probe.arm] = (sent + 1 if now_taught == taught else 1, now_taught)
        return probe

    def _charge_awake(self, fleet: FleetView, chosen: Prediction, now_s: float) -> None:
        """Charges the time since the last decision of backends that only probes keep awake."""
        for name, (watts, charged_until_s) in list(self._awake.items()):
            if name == chosen.backend or fleet.backends[self._index[name]].batch == 0:
                del self._awake[name]
            elif now_s > charged_until_s:
                self.extra_j += watts * (now_s - charged_until_s)
                self._awake[name] = watts, now_s

    def _probe(self, look: Look, chosen: Prediction, count: int, now_s: float) -> Prediction | None:
        request = look.request
        credit = self._requests_frac * self.decisions - self.probes
        if credit < 1.0 or (self._burst is not None and self.probes >= self._burst_ends_at):
            self._burst = None
            return None
        spent = self.extra_j > self.budget_j
        if self._burst is None:
            if credit < BURST or spent or not self._begins(now_s):
                return None
            found = self._left(look, chosen, count)
            if found is None:
                return None
            self._burst = found.arm, request.text_type, self.decisions + _GIVEN_UP_AFTER_DECISIONS
            self._burst_ends_at = self.probes + BURST
            wait = min(2 * self._wait(found.arm, request.text_type), MOST_DECISIONS)
            self._waits[found.arm, request.text_type] = wait, self._restarts(found.arm, request.text_type)
            return found
        arm, text_type, until = self._burst
        if self.decisions > until:
            self._burst = None
        if request.text_type != text_type or spent:
            return None
        places = [each for each in look.busiest_of_arm(arm, _MOST_PLACES) if self._affordable(each, chosen, request)]
        return max(places, key=lambda each: each.batch, default=None)

    def _begins(self, now_s: float) -> bool:
        key = f"{self._context.seed} {now_s!r} {self.decisions}".encode()
        return blake2b(key, digest_size=1).digest()[0] % _BEGINS_ONE_IN == 0

    def _left(self, look: Look, chosen: Prediction, count: int) -> Prediction | None:
        """The best place of the arm that has been left for longest, of those that might be worth it."""
        request = look.request
        now_j = self._j_per_token(chosen, chosen.accept_length, request, chosen)
        best: tuple[int, float, Prediction] | None = None
        for arm in self._arms:
            used = self._used.get((arm, request.text_type), 0)
            if arm == chosen.arm or count - used < self._wait(arm, request.text_type):
                continue
            for found in look.busiest_of_arm(arm, _MOST_PLACES):
                hoped = self._hoped(found.acceptance_arm, request.text_type)
                if hoped is None or self._is_silent(found) or not self._affordable(found, chosen, request):
                    continue
                hoped_j = self._j_per_token(found, hoped, request, chosen)
                if hoped_j < now_j and (best is None or (used, hoped_j) < best[:2]):
                    best = used, hoped_j, found
        return best[2] if best else None

    def _wait(self, arm: str, text_type: str) -> int:
        wait, restarts = self._waits.get((arm, text_type), (LEFT_AFTER_DECISIONS, 0))
        return wait if restarts == self._restarts(arm, text_type) else LEFT_AFTER_DECISIONS

    def _restarts(self, arm: str, text_type: str) -> int:
        learning = self._context.acceptance.learning.get(arm)
        cell = learning.cells.get(text_type) if learning else None
        return cell.epoch if cell else 0

    def _affordable(self, found: Prediction, chosen: Prediction, request: RequestView) -> bool:
        """Feasible whatever is accepted, and within what is left of the energy budget."""
        if not found.feasible:
            return False
        target_ms = request.tbt_target_ms
        if target_ms is not None and found.tbt_ms * found.accept_length > target_ms:
            return False
        return self.extra_j + self._extra_j(found, chosen, request.expected_output_tokens) <= self.budget_j

    @staticmethod
    def _extra_j(found: Prediction, chosen: Prediction, tokens: float) -> float:
        return max(0.0, tokens * (found.marginal_j_per_accepted_token - chosen.marginal_j_per_accepted_token))

    def _hoped(self, arm: str, text_type: str) -> float | None:
        """The accept length that is thinkable; `None` where nothing can be learnt."""
        try:
            estimate = self._context.acceptance.estimate(arm, text_type)
        except KeyError:
            return None
        return max(estimate.prior_mean, estimate.mean + _OPTIMISM_DEVIATIONS * estimate.standard_deviation)

    def _j_per_token(self, found: Prediction, accept_length: float, request: RequestView, load: Prediction) -> float:
        """Decode energy per token on the arm of `found` at the batch of `load`."""
        spec = self._specs[found.backend]
        batch = min(load.batch, spec.max_running_requests)
        _, step_j = spec.cost.step.step(batch, request.prompt_tokens + 0.5 * request.expected_output_tokens)
        width = spec.cost.verify_tokens
        return step_j / (batch * min(accept_length, float(width)))

    def _taught(self, found: Prediction) -> int:
        learning = self._context.acceptance.learning.get(found.acceptance_arm)
        return learning.requests if learning else 0

    def _is_silent(self, found: Prediction) -> bool:
        """Whether two bursts of probes taught nothing: its servers do not tell what they accepted."""
        sent, taught = self._silent.get(found.arm, (0, -1))
        return sent >= 2 * BURST and self._taught(found) == taught
