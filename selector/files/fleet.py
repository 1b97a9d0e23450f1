"""One TOML file for fleet, SLO classes and policy, read by `simulate --fleet`, `serve --config` and `check --config`.

    version = 1
    target = "Qwen3-8B"

    [[backends]]
    name = "b0"
    url = "http://127.0.0.1:30000"    # not needed by simulate
    arm = "dspark-8"
    gpus = ["host0:0"]                # the same id in two backends = a shared GPU
    profile = "h200__qwen3-8b"        # name or path
    max_running_requests = 64
    max_kv_tokens = 400000
    max_context_tokens = 8192

    [slo]
    default_class = "chat"
    [slo.classes.chat]
    tbt_target_ms = 25                # a class without it has no target

    [policy]
    name = "min_energy"               # or path
    fallback = "least_loaded"
    [policy.params]

    [acceptance]                      # how acceptance is learnt; see `Acceptance` below

    [router]                          # only serve reads these; see `Router`, `Faults`, `Energy` and `Tracing`
    [faults]
    [energy]
    urls = ["http://host0:9400"]      # `drafter-selector meter` on each GPU host
    [tracing]
    [security]                        # these two in `security`
    [keys.alice]

Unknown keys are refused: a misspelt limit must not silently be no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from selector.core.correction import live
from selector.core.policy import BackendSpec, PolicyContext
from selector.errors import FleetError, InputError, ProfileError
from selector.files.acceptancepriors import acceptance_model
from selector.files.faults import Faults
from selector.files.owndepth import with_own_depth
from selector.files.profile import Arm, Profile, load_profile
from selector.files.security import Keys, Security
from selector.files.validation import FileModel, read_text, toml_table, validated


def _http_url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    parts = urlsplit(value)
    try:
        # A name that IDNA cannot encode makes every look-up of it fail in an odd way.
        usable = bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:  # a port that is no number up to 65535, a label that is empty or too long
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ValueError("must be http://HOST:PORT, with nothing after it but a path")
    if "@" in parts.netloc:
        # It would be shown wherever the address is; `api_key_env` is for secrets.
        raise ValueError("must hold no user name or password")
    return value.rstrip("/")


Url = Annotated[str, AfterValidator(_http_url)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Backend(FileModel):
    """One SGLang server: it runs one arm on given GPUs."""

    name: Name
    url: Url | None = None
    arm: str
    gpus: tuple[str, ...] = Field(min_length=1)
    profile: str
    max_running_requests: PositiveInt = 64
    max_kv_tokens: PositiveInt = 400_000
    max_context_tokens: PositiveInt = 8_192
    launch_flags: tuple[str, ...] = ()
    """SGLang flags that it is launched with beyond the profile's, such as its lists of CUDA graphs: what is padded to
    those is priced so."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's API key."""


class SloClass(FileModel):
    """A service class."""

    tbt_target_ms: PositiveFloat | None = None


class Slo(FileModel):
    """Which classes there are, and which one a request without a class belongs to."""

    default_class: str = "default"
    classes: dict[str, SloClass] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _default_exists(self) -> Slo:
        if self.classes and self.default_class not in self.classes:
            raise ValueError(f"default_class {self.default_class!r} is not one of {', '.join(sorted(self.classes))}")
        return self

    def tbt_target_ms(self, slo_class: str) -> float | None:
        """The target of a class; `None` for one without a target. Raises `KeyError` for an unknown class."""
        if not self.classes and slo_class == self.default_class:
            return None
        return self.classes[slo_class].tbt_target_ms


class PolicyChoice(FileModel):
    """Which policy decides, and which one steps in when it raises."""

    name: str = "min_energy"
    fallback: str = "least_loaded"
    params: dict[str, Any] = Field(default_factory=dict)


class Router(FileModel):
    """How `serve` listens and watches. Times in seconds."""

    host: str = "127.0.0.1"
    port: Port = 30_800
    control_host: str = "127.0.0.1"
    control_port: Port | None = None
    """Where metrics, dashboard, `/router/…` and `/abort_request` are; absent: on `port`, with all the rest."""
    poll_interval_s: PositiveFloat = 0.5
    """How often `/v1/loads` of every backend is read."""
    poll_timeout_s: PositiveFloat = 2.0
    connect_timeout_s: PositiveFloat = 2.0
    first_byte_timeout_s: PositiveFloat = 120.0
    """How long a backend may take to the first byte of an answer."""
    stream_idle_timeout_s: PositiveFloat = 120.0
    """How long a stream may pause before it counts as dead."""
    identity_interval_s: PositiveFloat = 30.0
    """How often `/server_info` is read when nothing hints at a restart: it tells whether the arm is still the one."""
    reload_check_s: NonNegativeFloat = 2.0
    """How often the files of the configuration are looked at for changes; 0: only SIGHUP reloads them."""
    unhealthy_after_failures: PositiveInt = 2
    drain_timeout_s: PositiveFloat = 30.0
    """How long SIGTERM waits for running requests."""
    max_body_bytes: PositiveInt = 16 * 1024 * 1024
    trust_text_type_header: bool = False
    """Whether `x-text-type` from a client overrides the classifier."""
    settings_every_s: PositiveFloat = 10.0
    """Live settings of a backend are changed at most this often; `simulate` keeps to it too."""
    decision_log: str | None = None
    """JSONL file of decisions and outcomes; `None` keeps none."""


def _refinement(value: str) -> str:
    if value in ("session", "system_prompt") or (value.startswith("header:") and len(value) > len("header:")):
        return value.lower()
    raise ValueError('must be "session", "system_prompt" or "header:NAME"')


def _redis_url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must start with redis://, rediss:// or unix://")
    return value


class Acceptance(FileModel):
    """How the acceptance of arms is learnt, kept and shared."""

    half_life_requests: Annotated[float, Field(ge=10)] = 500.0
    """Requests of one arm and text type after which older ones count half."""
    refine: Annotated[str, AfterValidator(_refinement)] | None = None
    """What beyond the text type tells requests apart: `session` (a shared prefix), `system_prompt` or `header:NAME`."""
    refine_keys: Annotated[int, Field(ge=1, le=1_000_000)] = 4_096
    """Keys that are remembered; the least recently used are forgotten."""
    snapshot: str | None = None
    """File that keeps over a restart what `serve` learnt; each router needs its own. `None` keeps nothing."""
    snapshot_every_s: PositiveFloat = 30.0
    redis_url: Annotated[str, AfterValidator(_redis_url)] | None = None
    """A Redis or Valkey over which routers of one fleet share what they learn (extra `redis`)."""
    redis_password_env: str | None = None
    """Name of the environment variable that holds its password."""
    share_every_s: PositiveFloat = 5.0
    share_timeout_s: PositiveFloat = 1.0


class Energy(FileModel):
    """Where the energy that the boards draw can be read, and what is done with it. Times in seconds."""

    urls: tuple[Url, ...] = ()
    """One `drafter-selector meter` per GPU host, or an emulated server or fleet; `/energy` is asked of each."""
    poll_interval_s: PositiveFloat = 1.0
    poll_timeout_s: PositiveFloat = 2.0
    correct: bool = False
    """Whether the costs that policies predict with follow what is observed, within a factor of 2."""
    correct_every_s: PositiveFloat = 10.0


class Tracing(FileModel):
    """OpenTelemetry traces (extra `otel`). Where they go is said by the standard `OTEL_` environment variables."""

    enabled: bool = False
    service_name: str = "drafter-selector"


class Fleet(FileModel):
    """The file."""

    version: int
    target: str
    backends: tuple[Backend, ...] = Field(min_length=1)
    slo: Slo = Slo()
    policy: PolicyChoice = PolicyChoice()
    acceptance: Acceptance = Acceptance()
    router: Router = Router()
    faults: Faults = Faults()
    energy: Energy = Energy()
    tracing: Tracing = Tracing()
    security: Security = Security()
    keys: Keys = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Fleet:
        if self.version != 1:
            raise ValueError(f"version is {self.version}; this release reads version 1")
        names = [backend.name for backend in self.backends]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two backends are named {name!r}")
        for backend in self.backends:
            if len(set(backend.gpus)) != len(backend.gpus):
                raise ValueError(f"backend {backend.name!r} lists a GPU twice")
        return self


def load_fleet(path: Path) -> Fleet:
    """Reads and validates a fleet file. Raises `FleetError`."""
    return parse_fleet(read_text(path, "fleet file", FleetError), str(path))


def parse_fleet(text: str, where: str) -> Fleet:
    """A fleet from TOML text; `where` names it in errors. Raises `FleetError`."""
    return validated(Fleet, toml_table(text, where, FleetError), where, FleetError)


def backend_spec(fleet: Fleet, index: int, where: str, profiles: dict[str, Profile]) -> BackendSpec:
    """Backend number `index` with its costs; reads its profile unless `profiles` has it, and keeps it there.

    Raises `FleetError` when the profile cannot be read or does not fit the backend.
    """
    backend, place = fleet.backends[index], f"{where}: backends[{index}]"
    if backend.profile not in profiles:
        try:
            profiles[backend.profile] = load_profile(backend.profile)
        except ProfileError as bad:
            raise FleetError(f"{place}.profile", str(bad), "name a profile that can be read") from None
    profile = profiles[backend.profile]
    if profile.target.name != fleet.target:
        raise FleetError(
            f"{place}.profile",
            f"{backend.profile!r} profiles {profile.target.name!r}, the fleet serves {fleet.target!r}",
            "choose a profile of the fleet's target",
        )
    if backend.arm not in profile.arms:
        raise FleetError(
            f"{place}.arm",
            f"{backend.arm!r} is not in profile {backend.profile!r}",
            f"choose one of {', '.join(sorted(profile.arms))}",
        )
    if len(backend.gpus) != profile.gpu.count:
        raise FleetError(
            f"{place}.gpus",
            f"has {len(backend.gpus)} GPU(s), profile {backend.profile!r} was taken with {profile.gpu.count}",
            "list as many GPUs as the profile's, or profile this size",
        )
    arm = profile.arms[backend.arm]
    spec = BackendSpec(
        name=backend.name,
        arm=backend.arm,
        gpus=backend.gpus,
        cost=profile.cost(backend.arm, backend.launch_flags),
        max_running_requests=backend.max_running_requests,
        max_kv_tokens=backend.max_kv_tokens,
        max_context_tokens=min(backend.max_context_tokens, arm.max_context_tokens or backend.max_context_tokens),
        cannot_serve=frozenset(arm.cannot_serve),
        overlaps=profile.overlaps(backend.arm, backend.launch_flags),
        settings=profile.settings(backend.arm, backend.launch_flags),
    )
    try:
        return with_own_depth(spec, profile, backend.launch_flags) if arm.depths else spec
    except InputError as bad:
        remedy = "correct what the arm is launched with, or export it again"
        raise FleetError(f"{place}.arm", str(bad), remedy) from None


class LoadedFleet:
    """A fleet with its profiles: what the simulator, the router and `check` start from.

    Raises `FleetError` when a profile cannot be read or a backend and its profile disagree.
    """

    def __init__(self, fleet: Fleet, where: str, profiles: dict[str, Profile] | None = None) -> None:
        self.fleet = fleet
        self.where = where
        self.profiles: dict[str, Profile] = dict(profiles or {})
        self.specs: tuple[BackendSpec, ...] = tuple(
            backend_spec(fleet, index, where, self.profiles) for index in range(len(fleet.backends))
        )

    def policy_context(self, seed: int = 0) -> PolicyContext:
        """A fresh context for one run of one policy: its own acceptance model and (correctable) costs."""
        pairs = [
            (arm, self.profiles[backend.profile])
            for backend in self.fleet.backends
            for arm in (backend.arm, *(self.profiles[backend.profile].arm(backend.arm).depths or ()))
        ]
        options = self.fleet.acceptance
        return PolicyContext(
            target=self.fleet.target,
            backends=tuple(map(live, self.specs)),
            acceptance=acceptance_model(
                pairs, half_life_requests=options.half_life_requests, refine_keys=options.refine_keys
            ),
            seed=seed,
            settings_every_s=self.fleet.router.settings_every_s,
        )

    def with_arm_everywhere(self, arm: str) -> LoadedFleet:
        """The same GPUs with every backend running `arm`: the fixed choice to compare with."""
        backends = tuple(backend.model_copy(update={"arm": arm}) for backend in self.fleet.backends)
        return LoadedFleet(self.fleet.model_copy(update={"backends": backends}), self.where, self.profiles)

    def arms(self) -> Iterator[tuple[str, Profile, Arm]]:
        """Every arm that a backend runs, once for each profile: where it stands, in words, its profile and itself."""
        for profile_name, arm_name in dict.fromkeys((each.profile, each.arm) for each in self.fleet.backends):
            profile = self.profiles[profile_name]
            yield f"profile {profile_name!r}: arms.{arm_name}", profile, profile.arms[arm_name]


def load_fleet_with_profiles(path: Path) -> LoadedFleet:
    """Reads a fleet file and every profile it names. Raises `FleetError`."""
    return LoadedFleet(load_fleet(path), str(path))
