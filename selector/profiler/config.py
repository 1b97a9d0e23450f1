"""The TOML file of a sweep: which arms of which target are measured where, and how.

    version = 1
    output_name = "h200__qwen3-8b"

    [target]
    name = "Qwen3-8B"
    model = "Qwen3-8B"                # folder under --models; dummy weights need its config.json only
    weights = "dummy"

    [gpu]
    name = "H200"
    indices = [0]                     # of NVML; omit the table's indices to measure time alone, without energy
    peak_tflops = 989                 # datasheet ceilings, for the roofline check
    bandwidth_tb_s = 4.8

    [server]                          # or url = "http://127.0.0.1:30000" of one that runs the only arm
    python = "python3"
    context_length = 36864
    flags = ["--max-running-requests", "64"]
    measuring_flags = ["--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache"]

    [decode]
    method = "difference"             # or "steady": see selector/profiler/load.py
    window_s = 5.2
    repeats = 2

    [prefill]
    prompt_tokens = [128, 512, 2048, 8192]    # on a busy server, where short prompts share passes
    alone_tokens = 128                        # alone: the least that a pass takes (or several lengths)
    # among_running = 7                       # and how long so many running requests wait for it
    # drafting_among_running = false          # on the arm none alone

    [[grid]]                          # every batch × every prompt length, for every arm unless `arms` names some
    batches = [1, 8, 32, 64]
    prompt_tokens = [512, 2048]

    # [acceptance]                    # with target.weights = "real" and without --skip-tokenizer-init
    # prompts = "prompts"             # JSONL by text type, beside this file; the shipped prompts if left out
    # prompts_per_type = 96
    # repeats = 3
    # answer_tokens = 512

    [drift]                           # the first arm again at the end: the same cells tell how far the board drifted
    batches = [1, 64]
    prompt_tokens = [512]

    [[arms]]
    name = "none"
    algorithm = "none"
    verify_tokens = 1

    [[arms]]
    name = "eagle3-k3"
    algorithm = "EAGLE3"
    verify_tokens = 4
    draft_steps = 3
    draft = "Qwen3-8B-eagle3"
    imposed_accept_length = 2.0       # SGLANG_SIMULATE_ACC_LEN; the cost of a step does not depend on it
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "{draft}",
             "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
    # live_setting = { name = "dspark_force_budget_frac", launched = 1.0, others = [0.5, 0.25] }    # turned over HTTP

The fields below say what each key means and which values it takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from selector.core.types import TEXT_TYPES
from selector.errors import InputError
from selector.files.profile import NO_DRAFTER
from selector.files.validation import FileModel, read_toml, validated

Method = Literal["difference", "steady"]
NonNegative = Annotated[float, Field(ge=0)]
Tokens = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

_RUNNING_LIMIT = "--max-running-requests"


class SweepTarget(FileModel):
    """The served model."""

    name: str
    model: str
    active_parameters: PositiveFloat | None = None
    """Parameters that one token uses, for the roofline of a mixture of experts; a dense target leaves it out."""
    weights: Literal["dummy", "real"] = "dummy"


class SweepGpu(FileModel):
    """The board, and what it can do at most."""

    name: str
    indices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """NVML indices of the GPUs that one server uses; empty: time is measured, energy is not."""
    peak_tflops: PositiveFloat
    """Dense 16-bit rate by the datasheet, so that more than this is impossible, not merely good."""
    bandwidth_tb_s: PositiveFloat


class SweepServer(FileModel):
    """How SGLang is started, or where it runs already."""

    url: str | None = None
    python: str = "python3"
    port: Annotated[int, Field(ge=1, le=65_535)] = 30_000
    context_length: PositiveInt
    flags: tuple[str, ...] = ()
    """Flags of every arm, measured and served alike: costs compare only under equal ones."""
    measuring_flags: tuple[str, ...] = ()
    """Flags of every arm that only a measurement needs: dummy weights, no tokenizer, no prefix cache."""
    env: dict[str, str] = Field(default_factory=dict)
    startup_timeout_s: PositiveFloat = 600.0

    @model_validator(mode="after")
    def _one_context_length(self) -> SweepServer:
        if "--context-length" in (*self.flags, *self.measuring_flags):
            raise ValueError("flags has --context-length; set context_length instead")
        return self


class DecodeSettings(FileModel):
    """How a decode cell is measured."""

    method: Method = "difference"
    window_s: Annotated[float, Field(ge=1)] = 5.2
    repeats: PositiveInt = 3
    cooldown_s: NonNegative = 1.0
    """Pause before each cell, so that they start alike."""
    seed: int = 1


class PrefillSettings(FileModel):
    """Which prompts are prefilled on a busy server, where short ones share passes, and which alone."""

    prompt_tokens: Tokens
    """On the arm `none`."""
    drafting_prompt_tokens: tuple[PositiveInt, ...] = (512,)
    """On arms that draft: how much their own part adds is a ratio, and one length tells it."""
    alone_tokens: PositiveInt | Tokens | None = 128
    """A prompt in a pass of its own, on every arm; the shortest of several is the least that a pass takes. `None`
    leaves it out."""
    among_running: PositiveInt | None = None
    """Running requests that each such prompt interrupts, on every arm: how long they wait beyond the pass. One fewer
    than the batch of a CUDA graph, since the prompt joins them for some steps. `None` leaves it out."""
    drafting_among_running: bool = True
    """Also on arms that draft; without it they are taken to resume at once."""
    window_s: Annotated[float, Field(ge=1)] = 5.2
    batch_tokens: PositiveInt = 4096
    """Prompts shorter than this are sent several at a time, as many as fit."""

    @model_validator(mode="after")
    def _compared_with_a_pass_alone(self) -> PrefillSettings:
        if self.among_running is not None and self.alone_tokens is None:
            raise ValueError("among_running needs alone_tokens, the length of the prompt that it sends")
        return self

    @property
    def lone_prompts(self) -> tuple[int, ...]:
        """Lengths of the prompts in a pass of their own, in tokens."""
        if isinstance(self.alone_tokens, int):
            return (self.alone_tokens,)
        return self.alone_tokens or ()


class IdleSettings(FileModel):
    """How long idle power is measured, bare and with the server up."""

    window_s: Annotated[float, Field(ge=1)] = 6.0
    settle_s: NonNegative = 3.0


class AcceptanceSettings(FileModel):
    """How accept lengths are measured: real prompts of each text type to every arm that speculates."""

    prompts: str | None = None
    """JSONL file, or folder of them, beside the sweep file (see `prompts.py`); the 240 shipped prompts if left out."""
    text_types: tuple[str, ...] = TEXT_TYPES
    prompts_per_type: PositiveInt = 96
    repeats: PositiveInt = 3
    """Each with prompts of its own."""
    answer_tokens: PositiveInt = 512
    temperature: NonNegative = 0.0
    concurrency: PositiveInt = 8
    seed: int = 1

    @model_validator(mode="after")
    def _known_types(self) -> AcceptanceSettings:
        for name in self.text_types:
            if name not in TEXT_TYPES:
                raise ValueError(f"text_types has {name!r}, which is none of {', '.join(TEXT_TYPES)}")
        return self


class GridPart(FileModel):
    """Some cells: every batch × every prompt length."""

    batches: Tokens
    prompt_tokens: Tokens
    arms: tuple[str, ...] | None = None
    method: Method | None = None
    repeats: PositiveInt | None = None


class Drift(FileModel):
    """Cells of the first arm that are measured again at the end."""

    batches: Tokens
    prompt_tokens: Tokens


class SweepSetting(FileModel):
    """A knob of the engine that turns while it serves: every decode cell of the arm is measured at every value."""

    name: str
    """By which the server takes it (`server_args` of `/set_internal_state`)."""
    launched: float
    """What the server starts with."""
    others: Annotated[tuple[float, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> SweepSetting:
        if len({self.launched, *self.others}) <= len(self.others):
            raise ValueError(f"others has a value twice, or the launched one: {self.others}")
        return self


class SweepArm(FileModel):
    """One way to serve the target."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    algorithm: str
    verify_tokens: PositiveInt
    draft_steps: PositiveInt | None = None
    topk: PositiveInt | None = None
    draft: str | None = None
    """Folder of the draft model under --models; `{draft}` in the flags stands for its path."""
    url: str | None = None
    """Of a server that runs the arm already, and is left running."""
    max_context_tokens: PositiveInt | None = None
    """Positions that the draft was made for, where they are fewer than the target's: requests beyond are not its."""
    flags: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    imposed_accept_length: Annotated[float, Field(ge=1)] | None = None
    live_setting: SweepSetting | None = None
    left_out: Annotated[str, Field(min_length=1)] | None = None
    """Why the arm is measured but no part of the profile: its steps do not cost by batch and context alone, say."""

    @model_validator(mode="after")
    def _consistent(self) -> SweepArm:
        if self.imposed_accept_length is not None and self.imposed_accept_length > self.verify_tokens:
            raise ValueError(f"imposed_accept_length is above the verify width {self.verify_tokens}")
        if ("{draft}" in self.flags) != (self.draft is not None):
            raise ValueError("draft and a flag '{draft}' go together")
        if (self.name == NO_DRAFTER) != (self.algorithm == "none"):
            raise ValueError(f"the arm {NO_DRAFTER!r}, and it alone, has algorithm 'none'")
        if self.name == NO_DRAFTER and self.left_out is not None:
            raise ValueError(f"the arm {NO_DRAFTER!r} has left_out: every profile needs it")
        return self

    @property
    def speculates(self) -> bool:
        """Whether a step may give a request more than one token."""
        return self.verify_tokens > 1


class SweepConfig(FileModel):
    """The file."""

    version: Literal[1]
    output_name: str
    target: SweepTarget
    gpu: SweepGpu
    server: SweepServer
    decode: DecodeSettings = DecodeSettings()
    prefill: PrefillSettings | None = None
    idle: IdleSettings | None = IdleSettings()
    grid: tuple[GridPart, ...] = ()
    acceptance: AcceptanceSettings | None = None
    drift: Drift | None = None
    arms: tuple[SweepArm, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        if not self.grid and self.acceptance is None and self.prefill is None:
            raise ValueError("has neither a [[grid]] of step costs nor [prefill] nor [acceptance]: nothing to measure")
        if self.acceptance is not None and self.target.weights == "dummy":
            raise ValueError('[acceptance] needs target.weights = "real": dummy weights write no text')
        names = [arm.name for arm in self.arms]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two arms are named {name!r}")
        if self.server.url is not None and len(names) > 1:
            raise ValueError("server.url is one running server, which runs one arm; give each arm its url instead")
        for index, part in enumerate(self.grid):
            for name in part.arms or ():
                if name not in names:
                    raise ValueError(f"grid[{index}].arms names {name!r}, which is no arm of this file")
            for tokens in part.prompt_tokens:
                limit = self.server.context_length
                if tokens >= limit:
                    raise ValueError(f"grid[{index}].prompt_tokens has {tokens}, server.context_length is {limit}")
        self._check_running_limit()
        return self

    def _check_running_limit(self) -> None:
        batches = [batch for part in self.grid for batch in part.batches]
        largest = max([*batches, *(self.drift.batches if self.drift else ())], default=1)
        if not all(self.running(arm) for arm in self.arms) and _RUNNING_LIMIT not in self.server.flags:
            raise ValueError(f"server.flags has no {_RUNNING_LIMIT}, which SGLang sets to 48 under speculation")
        if _RUNNING_LIMIT in self.server.flags:
            limit = self.server.flags[self.server.flags.index(_RUNNING_LIMIT) + 1 :][:1]
            if not limit or not limit[0].isdigit() or int(limit[0]) < largest:
                raise ValueError(f"server.flags has {_RUNNING_LIMIT} below the largest batch, {largest}")

    def running(self, arm: SweepArm) -> str | None:
        """Where a server of the arm runs already; `None` if it is to be started."""
        return arm.url or self.server.url

    @property
    def profiled_arms(self) -> tuple[SweepArm, ...]:
        """Arms that a profile of the sweep has once they are measured."""
        return tuple([arm for arm in self.arms if arm.left_out is None])

    def arm(self, name: str) -> SweepArm:
        """The arm of that name. Raises `KeyError`."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


def load_config(path: Path) -> SweepConfig:
    """Reads and validates a sweep file. Raises `InputError`."""
    return validated(SweepConfig, read_toml(path, "sweep file", InputError), str(path), InputError)
