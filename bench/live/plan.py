"""What a live run does: the TOML file, and the cells it asks for.

    version = 1
    fleets = ["fleets/none.toml"]       # from this file's folder, one after the other; urls say where servers listen
    trace = "azure_2023_conv.csv"       # path, or a shipped slice: azure_2023_conv, azure_2023_code
    from_s = 0
    seconds = 45                        # of the replayed clock; arrivals beyond are left out
    seed = 1
    max_prompt_tokens = 4000            # longer prompts and answers are cut to these
    min_output_tokens = 1               # shorter answers are made so long
    max_output_tokens = 400

    [[loads]]                           # one or several
    name = "16 running"
    running = 16                        # mean requests in the system, for which the rate is worked out by simulation
    # or rate = [[0, 1.0], [20, 6.0], [45, 1.0]]     times the trace's own rate, in straight lines over time
    policies = ["min_energy"]           # left out: those of the fleet or the plan
    targets_ms = [25, 6]                # left out: those of the plan

    [[texts]]                           # one or several; how many of the requests are of which type
    name = "half code, half romansh"
    mix = { code = 0.5, romansh = 0.5 }

    [accept.dspark-8]                   # accept lengths that are imposed, by arm and type; left out: the profile's
    code = 5.28

    [survival]                          # or, for arms that differ in depth alone: the chance of each draft, by type
    code = 0.8

    [arms.eagle3-plugin]                # an arm that the profile lacks: flags of its own ({here}: this folder)
    like = "eagle3-k3"
    flags = ["--speculative-adaptive"]

    targets_ms = [10]
    policies = ["static:none", "min_energy"]     # "direct" sends past the router, to the fleet's first backend
    policies_of = { two-none = ["least_loaded"] }    # of a fleet that has its own, by its file's name
    seeds_of = { two-none = [1, 2] }    # of a fleet that is measured under several draws of texts and acceptance

    [servers]                           # how the fleet is started on a GPU host
    python = "python3"
    flags = ["--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache"]
    at_once = true                      # start all at once: flags must then fix the memory (see four-on-one.toml)
    drafts = { dspark-8 = "Qwen3-8B-dspark" }    # folders under --models
    model = "Qwen3-8B"

Every combination of fleet, seed, load, text, target and policy is a cell, in that order of nesting, the policies
innermost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from selector.core.types import TEXT_TYPES
from selector.errors import InputError
from selector.files.validation import FileModel, read_toml, validated

DIRECT = "direct"
"""Stands for no router at all: requests go straight to the fleet's first backend."""


class Load(FileModel):
    """How many requests come."""

    name: str
    running: PositiveFloat | None = None
    rate: tuple[tuple[Annotated[float, Field(ge=0)], PositiveFloat], ...] | None = None
    clients: tuple[tuple[Annotated[float, Field(ge=0)], Annotated[int, Field(ge=0)]], ...] | None = None
    """Who wait for their answers: (time, how many), straight lines in between, none at the end."""
    requests: PositiveInt = 2_000
    """That clients have to send, at most."""
    policies: tuple[str, ...] = ()
    """Under it alone; empty for those of the fleet or the plan."""
    targets_ms: tuple[PositiveFloat, ...] = ()
    """Under it alone; empty for those of the plan."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Load:
        if sum(given is not None for given in (self.running, self.rate, self.clients)) != 1:
            raise ValueError("give one of running, rate and clients")
        if self.clients is not None and (not self.clients or self.clients[-1][1] != 0):
            raise ValueError("the last number of clients must be 0, or the load would not end")
        if self.rate is not None and [t for t, _ in self.rate] != sorted({t for t, _ in self.rate}):
            raise ValueError("the times of rate must increase")
        return self


class Text(FileModel):
    """Which types the requests are of."""

    name: str
    mix: dict[str, PositiveFloat] = Field(min_length=1)
    then: dict[str, PositiveFloat] = Field(default_factory=dict)
    """From the middle of the time on; empty for the same mix."""

    @model_validator(mode="after")
    def _known(self) -> Text:
        for text_type in (*self.mix, *self.then):
            if text_type not in TEXT_TYPES:
                raise ValueError(f"mix has {text_type!r}, which is no text type")
        return self


class StandIn(FileModel):
    """An arm that is served without having been profiled: what it costs is what the measurement is for."""

    like: str
    """The arm whose costs the router and the simulation go by."""
    flags: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    draft_steps: PositiveInt | None = None
    """`None` for a server that changes its depth."""
    depths: tuple[str, ...] = ()
    """Of such a server: the arms whose costs and acceptance its depths have, for router, simulation and emulation."""
    takes_tbt_target: bool = False


class Servers(FileModel):
    """How SGLang is started."""

    python: str = "python3"
    model: str
    drafts: dict[str, str] = Field(default_factory=dict)
    flags: tuple[str, ...] = ()
    at_once: bool = False
    unchecked: tuple[str, ...] = ()
    """Arms that need not take the accept lengths that are imposed: no cell uses them."""
    env: dict[str, str] = Field(default_factory=dict)
    startup_timeout_s: PositiveFloat = 400.0


class LivePlan(FileModel):
    """The file."""

    version: Literal[1]
    fleets: tuple[str, ...] = Field(min_length=1)
    trace: str
    from_s: Annotated[float, Field(ge=0)] = 0.0
    seconds: PositiveFloat = 45.0
    seed: int = 1
    max_prompt_tokens: PositiveInt = 4_000
    min_output_tokens: PositiveInt = 1
    max_output_tokens: PositiveInt = 400
    loads: tuple[Load, ...] = Field(min_length=1)
    texts: tuple[Text, ...] = Field(min_length=1)
    targets_ms: tuple[PositiveFloat, ...] = ()
    policies: tuple[str, ...] = Field(min_length=1)
    policies_of: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seeds_of: dict[str, Annotated[tuple[int, ...], Field(min_length=1)]] = Field(default_factory=dict)
    accept: dict[str, dict[str, Annotated[float, Field(ge=1)]]] = Field(default_factory=dict)
    survival: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    arms: dict[str, StandIn] = Field(default_factory=dict)
    servers: Servers

    @model_validator(mode="after")
    def _known_fleets(self) -> LivePlan:
        stems = [Path(fleet).stem for fleet in self.fleets]
        for field, names in (("policies_of", self.policies_of), ("seeds_of", self.seeds_of)):
            for name in names:
                if name not in stems:
                    raise ValueError(f"{field} names {name!r}; fleets has {', '.join(stems)}")
        if any(load.clients for load in self.loads) and any(text.then for text in self.texts):
            raise ValueError("texts that change (then) need loads whose requests come at their own times, not clients")
        return self

    @property
    def text_types(self) -> frozenset[str]:
        """Of all requests."""
        return frozenset(name for text in self.texts for name in (*text.mix, *text.then))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCell:
    """One policy under one load, text and target, with one draw of what is left to chance."""

    fleet: str
    load: Load
    text: Text
    target_ms: float | None
    policy: str
    seed: int
    named_seed: bool
    """Whether the seed tells the cell from others of the plan."""

    @property
    def key(self) -> str:
        """Tells cells apart in a file of results."""
        target = f"{self.target_ms:g} ms" if self.target_ms is not None else "no target"
        seed = [f"seed {self.seed}"] if self.named_seed else []
        return " | ".join((Path(self.fleet).stem, self.load.name, self.text.name, target, self.policy, *seed))


def load_plan(path: Path) -> LivePlan:
    """Reads and validates a plan. Raises `InputError`."""
    return validated(LivePlan, read_toml(path, "live plan", InputError), str(path), InputError)


def cells(plan: LivePlan) -> Iterator[LiveCell]:
    """Every cell of a plan, in order."""
    for fleet in plan.fleets:
        own_seeds = plan.seeds_of.get(Path(fleet).stem)
        for seed, load, text in itertools.product(own_seeds or (plan.seed,), plan.loads, plan.texts):
            policies = load.policies or plan.policies_of.get(Path(fleet).stem, plan.policies)
            targets_ms = load.targets_ms or plan.targets_ms or (None,)
            for target_ms, policy in itertools.product(targets_ms, policies):
                yield LiveCell(
                    fleet=fleet, load=load, text=text, target_ms=target_ms, policy=policy, seed=seed,
                    named_seed=own_seeds is not None,
                )  # fmt: skip
