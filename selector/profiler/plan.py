"""What a sweep has to measure, in which order, and how long each step may take.

The order is that of the file, the arms one launch each; idle power first, bare and then with the first server up, an
arm's prefill after its decode cells, its accept lengths after that, the drift cells in a second launch of the first arm
at the end, and the bare board once more after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from selector.files.profile import NO_DRAFTER
from selector.profiler.cells import (
    AcceptanceCell,
    Cell,
    DecodeCell,
    IdleCell,
    InterruptionCell,
    Pass,
    PrefillCell,
)
from selector.profiler.config import Method, SweepArm, SweepConfig

_PROMPT_TOKENS_PER_S = 40_000.0
"""A guess at how fast prompts are read, for estimates of time left only."""

_ANSWER_TOKENS_PER_S = 1_000.0

_OVERHEAD_S = 1.0
_FIRST_LAUNCH_S = 160.0
_LAUNCH_S = 90.0


@dataclass(frozen=True, slots=True)
class IdleStep:
    """Power without work; `arm` is `None` for the bare board."""

    arm: str | None
    sweep_pass: Pass = "main"


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """Prefill of prompts of one length; `alone`, each in a pass of its own however short it is."""

    arm: str
    prompt_tokens: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class InterruptionStep:
    """Lone prompts of one length into a batch that runs."""

    arm: str
    running: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode cell, `repeats` times, with seeds that follow those of the repeats there are."""

    arm: str
    sweep_pass: Pass
    batch: int
    prompt_tokens: int
    method: Method
    repeats: int
    first_repeat: int = 0
    setting: float | None = None
    """Of the arm's live setting; `None` as launched."""


@dataclass(frozen=True, slots=True)
class AcceptanceStep:
    """Answers to one draw of prompts of one text type."""

    arm: str
    text_type: str
    repeat: int


Step = IdleStep | PrefillStep | InterruptionStep | DecodeStep | AcceptanceStep


@dataclass(frozen=True, slots=True)
class Launch:
    """Steps that share one server, or need none (`arm` is `None`)."""

    arm: SweepArm | None
    steps: tuple[Step, ...]


def plan(config: SweepConfig, metered: bool, only: Collection[str] | None = None) -> list[Launch]:
    """All launches of a sweep in order, or those of the arms `only` and of none. Idle steps need a meter."""
    launches = _all_launches(config, metered)
    return [launch for launch in launches if only is None or launch.arm is None or launch.arm.name in only]


def _all_launches(config: SweepConfig, metered: bool) -> list[Launch]:
    idle = config.idle is not None and metered
    started = not any(config.running(arm) for arm in config.arms)
    launches = [Launch(None, (IdleStep(None),))] if idle and started else []
    one_resident = started or len(config.arms) == 1  # else the board idles with all of them
    for position, arm in enumerate(config.arms):
        steps: list[Step] = [IdleStep(arm.name)] if idle and one_resident and position == 0 else []
        steps += _decode_steps(config, arm)
        steps += _prefill_steps(config, arm)
        if arm.speculates and config.acceptance is not None:
            steps += [
                AcceptanceStep(arm.name, text_type, repeat)
                for repeat in range(config.acceptance.repeats)
                for text_type in config.acceptance.text_types
            ]
        if not steps:
            continue
        launches.append(Launch(arm, tuple(steps)))
    if config.drift is not None:
        first = config.arms[0]
        launches.append(
            Launch(
                first,
                tuple(
                    DecodeStep(first.name, "drift", batch, tokens, config.decode.method, config.decode.repeats)
                    for tokens in config.drift.prompt_tokens
                    for batch in config.drift.batches
                ),
            )
        )
        if idle and started:
            launches.append(Launch(None, (IdleStep(None, "drift"),)))
    return launches


def _prefill_steps(config: SweepConfig, arm: SweepArm) -> Iterable[Step]:
    settings = config.prefill
    if settings is None:
        return
    for tokens in settings.lone_prompts:
        yield PrefillStep(arm.name, tokens, alone=True)
        if settings.among_running is not None and (arm.name == NO_DRAFTER or settings.drafting_among_running):
            yield InterruptionStep(arm.name, settings.among_running, tokens)
    for tokens in settings.prompt_tokens if arm.name == NO_DRAFTER else settings.drafting_prompt_tokens:
        yield PrefillStep(arm.name, tokens)


def _decode_steps(config: SweepConfig, arm: SweepArm) -> Iterable[Step]:
    for part in config.grid:
        if part.arms is not None and arm.name not in part.arms:
            continue
        for tokens in part.prompt_tokens:
            for batch in part.batches:
                # One after the other, so that what drifts does so alike at all of them.
                for setting in (None, *(arm.live_setting.others if arm.live_setting else ())):
                    yield DecodeStep(
                        arm.name,
                        "main",
                        batch,
                        tokens,
                        part.method or config.decode.method,
                        part.repeats or config.decode.repeats,
                        setting=setting,
                    )


def left_to_do(launches: Sequence[Launch], cells: Iterable[Cell]) -> list[Launch]:
    """The launches without what was measured already; a decode cell lacks the repeats it does not have yet."""
    repeats: Counter[tuple[str, Pass, int, int, Method, float | None]] = Counter()
    others: set[Step] = set()
    for cell in cells:
        if isinstance(cell, DecodeCell):
            shape = cell.arm, cell.sweep_pass, cell.batch, cell.prompt_tokens, cell.method, cell.setting
            repeats[shape] += len(cell.repeats)
        elif isinstance(cell, PrefillCell):
            others.add(PrefillStep(cell.arm, cell.prompt_tokens, cell.alone))
        elif isinstance(cell, InterruptionCell):
            others.add(InterruptionStep(cell.arm, cell.running, cell.prompt_tokens))
        elif isinstance(cell, IdleCell):
            others.add(IdleStep(cell.arm, cell.sweep_pass))
        elif isinstance(cell, AcceptanceCell):
            others.add(AcceptanceStep(cell.arm, cell.text_type, cell.repeat))
    left = []
    for launch in launches:
        steps: list[Step] = []
        for step in launch.steps:
            if isinstance(step, DecodeStep):
                there = repeats[step.arm, step.sweep_pass, step.batch, step.prompt_tokens, step.method, step.setting]
                if there < step.repeats:
                    steps.append(replace(step, repeats=step.repeats - there, first_repeat=there))
            elif step not in others:
                steps.append(step)
        if steps:
            left.append(Launch(launch.arm, tuple(steps)))
    return left


class Pace:
    """Guesses how long steps and launches take, corrected by how long they took so far."""

    def __init__(self, config: SweepConfig, cells: Iterable[Cell]) -> None:
        self._config = config
        launches = [cell.origin.launch_s for cell in cells if cell.origin.launch_s is not None]
        self._launch_s = max(launches[-3:], default=_FIRST_LAUNCH_S)
        if all(config.running(arm) for arm in config.arms):  # whatever launches took when these cells were measured
            self._launch_s = 0.0
        self._ratio = 1.0

    def launch_s(self) -> float:
        """Seconds until a server is ready and, later, gone."""
        return self._launch_s + 5.0

    def launched(self, seconds: float | None) -> None:
        """Notes how long a server took to be ready."""
        if seconds is not None:
            self._launch_s = seconds

    def step_s(self, step: Step) -> float:
        """Seconds that a step takes."""
        return self._ratio * self._guess_s(step)

    def took(self, step: Step, seconds: float) -> None:
        """Notes how long a step took."""
        self._ratio += 0.3 * (seconds / self._guess_s(step) - self._ratio)

    def left_s(self, launches: Sequence[Launch]) -> float:
        """Seconds that all these launches and their steps take."""
        servers = sum(launch.arm is not None for launch in launches)
        first = self.launch_s() if servers else 0.0
        later = max(servers - 1, 0) * min(self.launch_s(), _LAUNCH_S)
        return first + later + sum(self.step_s(step) for launch in launches for step in launch.steps)

    def _guess_s(self, step: Step) -> float:
        config = self._config
        if isinstance(step, IdleStep):
            return config.idle.settle_s + config.idle.window_s if config.idle else 0.0
        if isinstance(step, PrefillStep):
            window_s = config.prefill.window_s if config.prefill else 0.0
            return window_s + _OVERHEAD_S + 2 * step.prompt_tokens / _PROMPT_TOKENS_PER_S
        if isinstance(step, InterruptionStep):
            return 2 * (config.prefill.window_s if config.prefill else 0.0) + 2 * _OVERHEAD_S
        if isinstance(step, AcceptanceStep):
            settings = config.acceptance
            return settings.prompts_per_type * settings.answer_tokens / _ANSWER_TOKENS_PER_S if settings else 0.0
        prompts_s = step.batch * step.prompt_tokens / _PROMPT_TOKENS_PER_S
        one_s = config.decode.window_s + _OVERHEAD_S + prompts_s
        if step.method == "difference":
            # The short run too, and once per cell two pilots.
            return config.decode.cooldown_s + step.repeats * (one_s + 3 * prompts_s + 2 * _OVERHEAD_S)
        return config.decode.cooldown_s + step.repeats * one_s
