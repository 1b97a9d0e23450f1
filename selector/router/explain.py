"""Why a request went where it did, what was predicted and what came: one document per request."""

from __future__ import annotations

from typing import Any

from selector.core.acceptance import AcceptanceModel
from selector.core.types import TEXT_TYPES, Outcome
from selector.router.records import Attempt, Record


def explanation(record: Record, acceptance: AcceptanceModel, tbt_quantile: float) -> dict[str, Any]:
    """The whole of what is known of a request. `None` stands for what is not known, or not known yet."""
    view, last = record.view, record.last
    return {
        "rid": view.request_id,
        "client_rids": record.rids,
        "request": {
            "arrival_s": view.arrival_s,
            "text_type": view.text_type,
            "text_probabilities": _likely_types(view.text_probabilities),
            "text_reasons": list(view.text_reasons),
            "prompt_tokens": view.prompt_tokens,
            "expected_output_tokens": view.expected_output_tokens,
            "max_output_tokens": view.max_output_tokens,
            "slo_class": view.slo_class,
            "tbt_target_ms": view.tbt_target_ms,
            "needs": sorted(view.needs),
        },
        "decisions": [_attempt(attempt) for attempt in record.attempts],
        "acceptance": None
        if last.acceptance_arm is None
        else {
            "arm": last.acceptance_arm,
            "text_type": view.text_type,
            "expected": last.accept_length,
            "samples": last.acceptance_samples,
            "expected_now": acceptance.of_request(last.acceptance_arm, view, 0.5)[0],
            "samples_now": acceptance.samples_behind(last.acceptance_arm, view),
        },
        "predicted": predicted(last, tbt_quantile),
        "came": None if record.outcome is None else came(record, record.outcome),
        "in_words": in_words(record),
    }


def predicted(attempt: Attempt, tbt_quantile: float) -> dict[str, Any]:
    """Of the chosen backend. The TBT is that which the request keeps with probability `tbt_quantile`."""
    chosen = attempt.chosen
    return {
        "tbt_ms": chosen and chosen.tbt_ms,
        "tbt_quantile": tbt_quantile,
        "marginal_j_per_accepted_token": chosen and chosen.marginal_j_per_accepted_token,
        "accept_length": attempt.accept_length,
    }


def came(record: Record, outcome: Outcome) -> dict[str, Any]:
    """What the request turned out to be; joules once every board of its backend was read after its end."""
    return {
        "finish": outcome.finish,
        "ttft_ms": outcome.ttft_ms,
        "tbt_ms": outcome.tbt_ms,
        "prompt_tokens": outcome.prompt_tokens,
        "accepted_tokens": outcome.accepted_tokens,
        "accept_length": outcome.accept_length,
        "joules": record.joules,
        "modelled_joules": record.modelled_j,
        "j_per_accepted_token": _per_token(record.joules, outcome),
        "modelled_j_per_accepted_token": _per_token(record.modelled_j, outcome),
    }


def in_words(record: Record) -> str:
    """One line for people."""
    last = record.last
    if last.decision.backend is None:
        return f"refused: {last.decision.reason}"
    words = f"{last.arm} on {last.decision.backend}: {last.decision.reason}"
    retracted = [attempt for attempt in record.attempts if attempt.retracted is not None]
    if retracted:
        words += "; before that " + ", ".join(f"{each.decision.backend} ({each.retracted})" for each in retracted)
    if last.fallback:
        words += "; the policy failed and the fallback decided"
    outcome, chosen = record.outcome, last.chosen
    if outcome is None:
        return words + "; under way"
    if outcome.tbt_ms is not None:
        words += f"; {outcome.tbt_ms:.1f} ms per token"
        if chosen is not None and chosen.tbt_ms is not None:
            words += f", predicted {chosen.tbt_ms:.1f}"
        if record.view.tbt_target_ms is not None:
            words += f", target {record.view.tbt_target_ms:g}"
    return words


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "t_s": attempt.t_s,
        "backend": attempt.decision.backend,
        "arm": attempt.arm,
        "reason": attempt.decision.reason,
        "fallback": attempt.fallback,
        "retracted": attempt.retracted,
        "correction": attempt.correction,
        "candidates": attempt.decision.candidates,
        "candidates_in_all": attempt.candidates,
    }


def _per_token(joules: float | None, outcome: Outcome) -> float | None:
    return None if joules is None or not outcome.accepted_tokens else joules / outcome.accepted_tokens


def _likely_types(probabilities: tuple[float, ...] | None) -> dict[str, float] | None:
    if probabilities is None:
        return None
    return {name: share for name, share in zip(TEXT_TYPES, probabilities, strict=True) if share >= 0.005}
