"""What a step must at least take, by the bytes it reads and the operations it does.

    floor   t ≥ max(bytes / bandwidth, FLOP / rate)     bytes = 2 · parameters + b · KV bytes of c tokens
            E ≥ bare idle power · t                     FLOP  = 2 · parameters · b · verify tokens

A step reads the weights and the batch's keys and values once, and multiplies every verified token with every weight
that one token uses. The draft model, attention's own arithmetic, and experts beyond one token's are left out and the
datasheet's ceilings are used, so the floors are true lower bounds: a measurement below one (achieved fraction > 1) is
wrong, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from selector.errors import InputError
from selector.files.arm import RAGGED_VERIFY
from selector.files.profile import Arm, Profile, StepCell, Target
from selector.profiler.modelsize import ModelSize

_BYTES_PER_PARAMETER = 2.0
_ADAPTIVE = "--speculative-adaptive"
_STATIC = "static"
_IMPOSSIBLE = "remove that line from cells.jsonl and measure it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What the GPU can do at most and the target must do at least."""

    flop_per_s: float
    bytes_per_s: float
    size: ModelSize

    def step_bytes(self, batch: float, context_tokens: float) -> float:
        """Least bytes that a decode step reads."""
        return _BYTES_PER_PARAMETER * self.size.active_parameters + batch * self.size.kv_bytes(context_tokens)

    def step_flop(self, batch: float, verify_tokens: int) -> float:
        """Least operations of a decode step."""
        return 2.0 * self.size.active_parameters * batch * verify_tokens

    def step_floor_ms(self, batch: float, context_tokens: float, verify_tokens: int) -> float:
        """Least time of a decode step."""
        read_s = self.step_bytes(batch, context_tokens) / self.bytes_per_s
        return 1e3 * max(read_s, self.step_flop(batch, verify_tokens) / self.flop_per_s)

    def prefill_floor_ms(self, prompt_tokens: int) -> float:
        """Least time per prompt: its arithmetic, since many prompts can share one reading of the weights."""
        return 1e3 * self.step_flop(prompt_tokens, 1) / self.flop_per_s


def ceiling_of(profile: Profile) -> Ceiling | None:
    """The roofline that a profile states; `None` where it lacks the GPU's ceilings."""
    gpu = profile.gpu
    if gpu.peak_tflops is None or gpu.bandwidth_tb_s is None:
        return None
    return Ceiling(
        flop_per_s=gpu.peak_tflops * 1e12, bytes_per_s=gpu.bandwidth_tb_s * 1e12, size=size_of(profile.target)
    )


def size_of(target: Target) -> ModelSize:
    """A target's sizes as its profile states them."""
    return ModelSize(
        parameters=target.parameters,
        non_embedding_parameters=target.non_embedding_parameters,
        active_parameters=target.active_parameters or target.non_embedding_parameters,
        kv_bytes_per_token=target.kv_bytes_per_token,
        sliding_kv_bytes_per_token=target.sliding_kv_bytes_per_token or 0.0,
        sliding_window=target.sliding_window or 0,
    )


def least_verified(arm: Arm) -> int:
    """Fewest tokens that a step of the arm may verify per request: 1 where the engine itself chooses how many."""
    chooses = _ADAPTIVE in arm.launch.flags or arm.launch.env.get(RAGGED_VERIFY, _STATIC) != _STATIC
    return 1 if chooses else arm.verify_tokens


def refuse_impossible(ceiling: Ceiling, profile: Profile) -> None:
    """Raises `InputError` for a step or a prefill of `profile` that is faster than the roofline, or cheaper than idling
    as long."""
    for name, arm in profile.arms.items():
        _refuse_steps(name, arm.cells, least_verified(arm), ceiling, profile.idle.bare_w)
        for other in arm.other_settings:
            # How much is verified at other settings is the engine's affair: a token a request at least.
            _refuse_steps(f"{name}@{other.value:g}", other.cells, 1, ceiling, profile.idle.bare_w)
    for point in (*profile.prefill, *(point for arm in profile.arms.values() for point in arm.prefill or ())):
        place = f"cells.jsonl: prefill of {point.prompt_tokens} tokens"
        _refuse_below(
            f"{place}: ms", point.ms, ceiling.prefill_floor_ms(point.prompt_tokens), "ms that the roofline allows"
        )


def _refuse_steps(name: str, cells: Iterable[StepCell], verified: int, ceiling: Ceiling, idle_w: float) -> None:
    for cell in cells:
        place = f"cells.jsonl: {name} batch {cell.batch} context {cell.context_tokens:g}"
        floor_ms = ceiling.step_floor_ms(cell.batch, cell.context_tokens, verified)
        _refuse_below(f"{place}: step_ms", cell.step_ms, floor_ms, "ms that the roofline allows")
        _refuse_below(f"{place}: step_j", cell.step_j, idle_w * cell.step_ms / 1e3, "J that an idle board takes")


def _refuse_below(where: str, measured: float, least: float, of: str) -> None:
    if measured < least:
        raise InputError(where, f"is {measured:.3f}, below the {least:.3f} {of}", _IMPOSSIBLE)
