"""The one sequence that the router, the simulator and a log replay run around a policy.

    decide(request)  policy.decide on the tracker's view, checked; the request counts as in flight
    retract(id)      the backend failed before the first byte: the request is in flight no more and may be decided again
    restored(state)  what an earlier run learnt is taken over, before the first decision
    heard(others)    what other routers learnt is added
    end(outcome)     the request ended: the tracker, the acceptance and output-length models and the policy learn it
    settings(b, s)   live settings came into force on a backend, or its server refused them
    corrected(b, f)  the step costs of a backend are its profile's times these factors from here on

That all three share it is what makes a simulated decision the router's decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selector.core.acceptancestate import AcceptanceState, Contribution, OtherModels, restore
from selector.core.correction import LiveStepCost
from selector.core.eligibility import eligible
from selector.core.livesettings import ArmSetting, LiveSettings
from selector.core.policy import Policy, PolicyContext, ShowsState
from selector.core.tracker import FleetTracker, OutputLengthModel
from selector.core.types import Correction, Decision, Finish, FleetView, Outcome, RequestView
from selector.errors import DomainError, PolicyError


class Controller:
    """Runs a policy over a fleet. Not thread-safe: one event loop or one simulation owns it."""

    def __init__(
        self,
        context: PolicyContext,
        policy: Policy,
        *,
        fallback: Policy | None = None,
        learns_later: bool = False,
        explains: bool = True,
    ) -> None:
        """With a `fallback`, a policy that raises or breaks its contract is counted and the fallback decides.

        Without one (the simulator), the error is raised. What `learns_later` learns acceptance when somebody asks for
        it, to the same result; until then every ended request is kept. Without `explains` decisions come without their
        candidates worked out: whoever reads them asks for `explained` before anything else happens.
        """
        self.context = context
        self.tracker = FleetTracker(context.backends)
        self.lengths = OutputLengthModel()
        self.settings = LiveSettings(
            {spec.name: spec.settings for spec in context.backends}, every_s=context.settings_every_s
        )
        """Which changes of live settings may be asked for."""
        self.policy_failures = 0
        self.last_policy_failure: str | None = None
        self._others = OtherModels(context.acceptance)
        self._policy = policy
        self._fallback = fallback
        self._names = frozenset(spec.name for spec in context.backends)
        self._explains = explains
        acceptance = context.acceptance
        self._learn = acceptance.observe_later if learns_later else acceptance.observe

    def expected_output_tokens(
        self, text_type: str, max_output_tokens: int | None, probabilities: Sequence[float] | None = None
    ) -> float:
        """For building a `RequestView`."""
        return self.lengths.expected(text_type, max_output_tokens, probabilities)

    def decide(self, request: RequestView, now_s: float) -> Decision:
        """Decides, and counts the request as in flight on the chosen backend (unless it is refused)."""
        fleet = self.tracker.view(now_s)
        try:
            decision = self._decided(self._policy, request, fleet)
            self._check(decision)
        except Exception as error:  # a policy is foreign code: whatever it raises must not fail a request
            if self._fallback is None:
                raise
            self._policy_failed(error)
            decision = self._decided(self._fallback, request, fleet)
        if decision.backend is not None:
            self.tracker.dispatched(request, decision.backend, now_s)
        return decision

    def _decided(self, policy: Policy, request: RequestView, fleet: FleetView) -> Decision:
        decision = policy.decide(request, fleet)
        return decision.explained() if self._explains else decision

    def explained(self, decision: Decision) -> Decision:
        """The last decision with its candidates worked out; without any if the policy fails at that, and it counts."""
        try:
            return decision.explained()
        except Exception as error:  # foreign code, and the decision is made
            if self._fallback is None:
                raise
            self._policy_failed(error)
            return Decision(backend=decision.backend, reason=decision.reason, settings=decision.settings)

    def _policy_failed(self, error: Exception) -> None:
        self.policy_failures += 1
        self.last_policy_failure = f"{type(error).__name__}: {error}"

    def _check(self, decision: Decision) -> None:
        if decision.backend is not None and decision.backend not in self._names:
            problem = f"decided on backend {decision.backend!r}, which is not in the fleet"
            raise PolicyError("policy", problem, "return the name of a backend in the view, or None to refuse")

    def can_serve_now(self, request: RequestView, now_s: float) -> bool:
        """Whether any available backend can serve the request."""
        return bool(eligible(request, self.tracker.view(now_s), self.context))

    def retract(self, request_id: str, now_s: float) -> bool:
        """Takes back a dispatch that produced nothing; False if the request is not in flight."""
        return self.tracker.finished(request_id, now_s) is not None

    def settings_changed(self, backend: str, settings: Mapping[str, float], now_s: float) -> None:
        """Live settings came into force on a backend: costs and accept lengths are theirs from here on.

        Raises `KeyError` for an unknown backend, `DomainError` for settings that were not profiled.
        """
        setting = self.context.spec(backend).setting(settings)
        if setting is None:
            raise DomainError(f"live settings {dict(settings)} of {backend} were not profiled")
        self.settings.came_into_force(backend, setting.values)
        self._put_in_force(backend, setting, now_s)

    def started_again(self, backend: str, now_s: float) -> Mapping[str, float] | None:
        """A server may have been restarted: its live settings are taken to be as launched, and told.

        `None`, and nothing changes, where they were never asked to be anything else. Raises `KeyError`.
        """
        launched = self.settings.started_again(backend)
        if launched is not None:
            self._put_in_force(backend, self.context.spec(backend).settings[0], now_s)
        return launched

    def _put_in_force(self, backend: str, setting: ArmSetting, now_s: float) -> None:
        self._step_cost(backend).follow(setting.step)
        self.tracker.settings_changed(backend, setting.values, now_s)

    def settings_refused(self, backend: str, now_s: float) -> None:
        """The server of a backend does not change its live settings: those in force are fixed. Raises `KeyError`."""
        self.settings.were_refused(backend)
        self.tracker.settings_refused(backend, now_s)

    def corrected(self, backend: str, correction: Correction) -> None:
        """Corrects the step costs of a backend, for the policy and everything that predicts.

        Raises `KeyError` for an unknown backend, `DomainError` for factors that are none and for costs that cannot be
        corrected: those of a context that was not made by `LoadedFleet.policy_context`.
        """
        self._step_cost(backend).correct(correction)
        spec = self.context.spec(backend)
        for step in (*(setting.step for setting in spec.settings), *(depth.cost.step for depth in spec.depths)):
            if isinstance(step, LiveStepCost):
                step.correct(correction)
        self.tracker.corrected(backend, correction)

    def _step_cost(self, backend: str) -> LiveStepCost:
        cost = self.context.spec(backend).cost.step
        if not isinstance(cost, LiveStepCost):
            raise DomainError(f"the costs of {backend} cannot be corrected")
        return cost

    def policy_state(self) -> object:
        """What the policy says of itself, `None` if it says nothing; never raises."""
        if not isinstance(self._policy, ShowsState):
            return None
        try:
            return self._policy.state()
        except Exception as error:  # noqa: BLE001 - foreign code, and only looked at
            return {"error": f"{type(error).__name__}: {error}"}

    def end(self, outcome: Outcome, now_s: float) -> bool:
        """A request ended. Returns False, and learns nothing, if it had ended before."""
        spec = self.context.spec(outcome.backend)
        ended = self.tracker.finished(outcome.request_id, now_s)
        if ended is None:
            return False
        request, settings = ended
        # Of a request that saw two settings, or depths that its engine chose, nobody can say which it speaks for.
        tells = settings is not None and not spec.depths
        if tells and outcome.verify_passes is not None and outcome.accepted_drafts is not None:
            self._learn(
                spec.acceptance_arm(settings) if settings else outcome.arm,
                outcome.text_type,
                outcome.verify_passes,
                outcome.accepted_drafts,
                request=request,
                at_s=now_s,
            )
        if outcome.finish is Finish.DONE:
            self.lengths.observe(outcome.text_type, outcome.accepted_tokens)
        try:
            self._policy.observe(outcome)
        except Exception as error:
            if self._fallback is None:
                raise
            self._policy_failed(error)
        return True

    def restored(self, state: AcceptanceState) -> None:
        """Takes over what an earlier run learnt of acceptance. Raises `DomainError`, and changes nothing, if unfit."""
        restore(self.context.acceptance, state)

    def heard(self, others: Mapping[str, Contribution]) -> None:
        """Takes what the other routers learnt so far, by their names. Raises `DomainError` for what cannot be."""
        self._others.combine(others)
