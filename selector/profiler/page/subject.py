"""What a page is about: a profile, and beside it the raw cells and the trace it came from, where they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from selector.core.types import TEXT_TYPES
from selector.files.profile import NO_DRAFTER, Profile
from selector.page.styles import Style, line_style
from selector.profiler.cells import Cell
from selector.profiler.page.trace import BoardSample
from selector.profiler.roofline import Ceiling, ceiling_of


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One profile; `cells` and `samples` are empty where only the profile is known."""

    name: str
    profile: Profile
    cells: Sequence[Cell] = ()
    samples: Sequence[BoardSample] = ()
    stated_context_tokens: float | None = None
    tbt_targets_ms: Sequence[float] = (25.0, 10.0, 5.0)

    @cached_property
    def styles(self) -> Mapping[str, Style]:
        """How each arm is drawn."""
        return {name: line_style(number) for number, name in enumerate(self.profile.arms)}

    @cached_property
    def context_tokens(self) -> float:
        """Context per request at which arms are compared: the stated one, or the least of the measured ones that lies
        inside what was measured of most arms and batches."""
        if self.stated_context_tokens is not None:
            return self.stated_context_tokens
        costs = [(self.profile.cost(name).step, self.batches(name)) for name in self.profile.arms]
        contexts = sorted({cell.context_tokens for arm in self.profile.arms.values() for cell in arm.cells})
        return max(contexts, key=lambda context: sum(c.covers(batch, context) for c, some in costs for batch in some))

    @cached_property
    def text_types(self) -> tuple[str, ...]:
        """Text types of which some arm's accept length is known."""
        return tuple(name for name in TEXT_TYPES if any(name in arm.acceptance for arm in self.profile.arms.values()))

    @cached_property
    def alike(self) -> Sequence[tuple[str, ...]]:
        """The text types, those together of which every arm has the same accept length."""
        groups: dict[tuple[float | None, ...], list[str]] = {}
        for text_type in self.text_types:
            lengths = tuple(self.accept(arm, text_type) for arm in self.profile.arms)
            groups.setdefault(lengths, []).append(text_type)
        return [tuple(group) for group in groups.values()]

    def caption(self, text_types: Sequence[str]) -> str:
        """Names of text types; a star marks one of which every accept length is an assumption."""
        return ", ".join(name + ("*" if self.kinds(name) == {"assumed"} else "") for name in text_types)

    @cached_property
    def ceiling(self) -> Ceiling | None:
        """The roofline; `None` where the profile lacks the GPU's ceilings."""
        return ceiling_of(self.profile)

    def accept(self, arm: str, text_type: str) -> float | None:
        """Tokens per step of an arm: 1 without a drafter, `None` where unknown."""
        if arm == NO_DRAFTER:
            return 1.0
        known = self.profile.arms[arm].acceptance.get(text_type)
        return None if known is None else known.mean

    @property
    def note(self) -> str:
        """What a picture of costs per token has to say where no page is around it."""
        note = f"decode alone, {self.context_tokens:,.0f} tokens of context; hollow: outside the measured cells"
        assumed = any(self.kinds(text_type) == {"assumed"} for text_type in self.text_types)
        return note + ("; *: accept lengths are assumptions" if assumed else "")

    def kinds(self, text_type: str) -> set[str]:
        """Kinds of provenance that the arms' accept lengths on a text type have."""
        return {
            self.profile.provenance[arm.acceptance[text_type].provenance].kind
            for arm in self.profile.arms.values()
            if text_type in arm.acceptance
        }

    def batches(self, arm: str) -> list[int]:
        """Batches that were measured, ascending."""
        return sorted({cell.batch for cell in self.profile.arms[arm].cells})
