"""A made-up fleet for tests: four arms whose costs have the shape of measured ones, and builders of views.

The arms differ as real ones do: drafting is cheap per token when the backend is nearly empty and dear when it is full,
the more so the more tokens it verifies and the fewer the text gets accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.cost import ArmCost, ContextSlope, IdlePower, StepCost, StepPoint
from selector.core.graphpadding import padded_steps
from selector.core.policy import BackendSpec, PolicyContext
from selector.core.prediction import Prediction
from selector.core.prefillcost import PrefillCost
from selector.core.types import TEXT_TYPES, BackendView, Capability, Finish, FleetView, LoadGroup, Outcome, RequestView
from tests.profiles import PROFILE

FLEET_FILE = f"""\
version = 1
target = "Qwen3-8B"

[[backends]]
name = "plain"
arm = "none"
gpus = ["a"]
profile = "{PROFILE}"

[[backends]]
name = "block"
arm = "dspark-8"
gpus = ["b"]
profile = "{PROFILE}"

[slo]
default_class = "chat"
[slo.classes.chat]
tbt_target_ms = 25
"""
"""A fleet file: two servers on two GPUs, one without a drafter."""

VERIFY_TOKENS: Mapping[str, int] = {"none": 1, "eagle3-k1": 2, "dspark-8": 8, "dflash-16": 16}
ARMS = tuple(VERIFY_TOKENS)

_BATCHES = (1, 8, 16, 32, 64)
_STEP_MS: Mapping[str, tuple[float, ...]] = {
    "none": (5.1, 5.6, 5.7, 6.2, 7.6),
    "eagle3-k1": (6.0, 6.3, 6.6, 7.6, 9.4),
    "dspark-8": (7.1, 7.6, 9.2, 12.3, 21.5),
    "dflash-16": (6.6, 7.7, 10.6, 16.7, 32.0),
}
_STEP_J: Mapping[str, tuple[float, ...]] = {
    "none": (2.6, 2.8, 3.1, 3.7, 5.2),
    "eagle3-k1": (2.9, 3.3, 3.8, 4.8, 6.4),
    "dspark-8": (3.4, 4.9, 6.2, 8.7, 15.0),
    "dflash-16": (3.3, 5.4, 7.4, 11.6, 22.2),
}
_CONTEXT_TOKENS = 700.0
PREFILL_POINTS = ((1_000.0, 24.0, 16.0), (8_000.0, 200.0, 135.0))
_WELL_ACCEPTED: Mapping[str, float] = {"none": 1.0, "eagle3-k1": 1.85, "dspark-8": 4.5, "dflash-16": 5.5}
_BADLY_ACCEPTED: Mapping[str, float] = {"none": 1.0, "eagle3-k1": 1.5, "dspark-8": 1.6, "dflash-16": 2.0}
_REQUEST_SPREAD = 0.1

BADLY_ACCEPTED_TYPES = frozenset({"romansh", "multilingual", "news"})
"""Text types of which few drafts are accepted; of all others many are."""


def arm_cost(arm: str) -> ArmCost:
    """The made-up cost of one of `ARMS`."""
    cells = zip(_BATCHES, _STEP_MS[arm], _STEP_J[arm], strict=True)
    return ArmCost(
        arm=arm,
        verify_tokens=VERIFY_TOKENS[arm],
        step=StepCost(
            [StepPoint(batch=b, context_tokens=_CONTEXT_TOKENS, step_ms=ms, step_j=j) for b, ms, j in cells],
            ContextSlope(ms_per_token=3e-5, j_per_token=2e-5),
        ),
        prefill=PrefillCost(PREFILL_POINTS),
        idle=IdlePower(bare_w=80.0, served_w=95.0),
    )


_COSTS = {arm: arm_cost(arm) for arm in ARMS}
_GRAPHED = {
    arm: replace(
        cost,
        step=padded_steps(cost.step, (1, 4, 16, 48)),
        prefill=PrefillCost(
            PREFILL_POINTS, floor_ms=4.0, floor_j=2.5, beside_ms=3.0, beside_j=1.5, graphs=(64, 512, 1_024, 2_048)
        ),
        graphs=(1, 4, 16, 48),
    )
    for arm, cost in _COSTS.items()
}


def backend_spec(
    name: str,
    arm: str,
    *,
    max_running_requests: int = 64,
    max_kv_tokens: int = 400_000,
    max_context_tokens: int = 8_192,
    cannot_serve: Iterable[Capability] = (),
) -> BackendSpec:
    """A backend of one of `ARMS` with a GPU of its own."""
    return BackendSpec(
        name=name,
        arm=arm,
        gpus=(f"gpu-of-{name}",),
        cost=_COSTS[arm],
        max_running_requests=max_running_requests,
        max_kv_tokens=max_kv_tokens,
        max_context_tokens=max_context_tokens,
        cannot_serve=frozenset(cannot_serve),
    )


def with_graphs(spec: BackendSpec) -> BackendSpec:
    """The same on a server whose prefill and decode steps are padded to a few CUDA graphs."""
    return replace(spec, cost=_GRAPHED[spec.arm])


def specs_of(*arms: str) -> tuple[BackendSpec, ...]:
    """One backend per arm named, called b0, b1 …"""
    return tuple(backend_spec(f"b{index}", arm) for index, arm in enumerate(arms))


def acceptance_model(arms: Iterable[str] = ARMS) -> AcceptanceModel:
    """A fresh model with the made-up accept lengths."""
    priors: dict[str, dict[str, AcceptancePrior]] = {}
    for arm in arms:
        priors[arm] = {}
        for text_type in TEXT_TYPES:
            table = _BADLY_ACCEPTED if text_type in BADLY_ACCEPTED_TYPES else _WELL_ACCEPTED
            spread = _REQUEST_SPREAD if VERIFY_TOKENS[arm] > 1 else 0.0
            priors[arm][text_type] = AcceptancePrior(mean=table[arm], request_spread=spread)
    return AcceptanceModel(priors, {arm: VERIFY_TOKENS[arm] for arm in priors})


def policy_context(specs: Sequence[BackendSpec], *, seed: int = 0) -> PolicyContext:
    """A context with an acceptance model of its own, as each run of a policy gets."""
    arms = {each.arm for spec in specs for each in (spec, *spec.depths)}
    return PolicyContext(target="made-up", backends=tuple(specs), acceptance=acceptance_model(arms), seed=seed)


def request_view(
    request_id: str = "r",
    *,
    prompt_tokens: int = 500,
    expected_output_tokens: float = 250.0,
    max_output_tokens: int | None = None,
    text_type: str = "code",
    text_probabilities: tuple[float, ...] | None = None,
    tbt_target_ms: float | None = None,
    needs: Iterable[Capability] = (),
    arrival_s: float = 0.0,
    temperature: float | None = None,
    refine_key: str | None = None,
) -> RequestView:
    """A request with everything a test does not care about filled in."""
    return RequestView(
        request_id=request_id,
        arrival_s=arrival_s,
        prompt_tokens=prompt_tokens,
        expected_output_tokens=expected_output_tokens,
        max_output_tokens=max_output_tokens,
        text_type=text_type,
        text_probabilities=text_probabilities,
        tbt_target_ms=tbt_target_ms,
        needs=frozenset(needs),
        temperature=temperature,
        refine_key=refine_key,
    )


def backend_view(
    spec: BackendSpec,
    *,
    batch: int = 0,
    groups: Sequence[LoadGroup] = (),
    available: bool = True,
    context_tokens: float = 625.0,
) -> BackendView:
    """The view of a backend with `batch` requests of `context_tokens` each, of which `groups` are known."""
    return BackendView(
        name=spec.name,
        arm=spec.arm,
        gpus=spec.gpus,
        available=available,
        unavailable_reason=None if available else "down",
        batch=batch,
        waiting=max(0, batch - spec.max_running_requests),
        kv_tokens=batch * context_tokens,
        groups=tuple(groups),
        max_running_requests=spec.max_running_requests,
        max_kv_tokens=spec.max_kv_tokens,
        max_context_tokens=spec.max_context_tokens,
    )


def fleet_view(specs: Sequence[BackendSpec], batches: Sequence[int] | None = None, *, now_s: float = 0.0) -> FleetView:
    """The fleet with `batches` requests on its backends, idle without it."""
    loads = [0] * len(specs) if batches is None else batches
    views = [backend_view(spec, batch=batch) for spec, batch in zip(specs, loads, strict=True)]
    return FleetView(now_s=now_s, backends=tuple(views))


ENDED = Outcome(
    request_id="r",
    backend="b0",
    arm="none",
    text_type="code",
    finish=Finish.DONE,
    prompt_tokens=500,
    accepted_tokens=250,
    dispatched_s=0.0,
    finished_s=2.0,
)
"""A request of code that ended."""


def figures(prediction: Prediction) -> dict[str, object]:
    """All of a prediction but what it was worked out with, which each has of its own."""
    return {name: value for name, value in prediction._asdict().items() if name not in ("lengths", "load")}


def without(fleet: FleetView, *names: str) -> FleetView:
    """The same fleet with the backends of those names unavailable."""
    return replace(
        fleet,
        backends=tuple(
            replace(view, available=False, unavailable_reason="down") if view.name in names else view
            for view in fleet.backends
        ),
    )
