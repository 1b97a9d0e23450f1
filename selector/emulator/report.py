"""What SGLang tells about one request: finish reason, usage, metadata, speculation counts.

Key names, key order and the quirks are those of recorded answers of SGLang 0.5.23: `cached_tokens_details` is null
without cached tokens, a request that was aborted while it waited has hardly any metadata and no prompt tokens in its
usage, `spec_accept_length` counts the token that the prefill gave.
"""

from __future__ import annotations

from functools import cached_property

from selector.emulator.asks import Ask
from selector.emulator.engine import EmulatedEngine
from selector.emulator.generation import Generation
from selector.emulator.words import END_TOKEN_ID, Words

_WEIGHT_VERSION = "default"


def usage_of(*, prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    """The usage object of the OpenAI routes."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


class Report:
    """The facts of one request, as far as it has come."""

    def __init__(self, ask: Ask, generation: Generation, engine: EmulatedEngine) -> None:
        self.ask = ask
        self.generation = generation
        self.created = int(engine.clock.unix_s(generation.job.arrived_s))
        self._engine = engine
        self._words = Words(ask.draw_key, ask.answer_tokens)
        self._text_tokens = ask.answer_tokens - ask.ends_itself

    # ---- text

    def text(self, start: int, end: int) -> bytes:
        """Text of the tokens `start` … `end` − 1; the end token has none."""
        return self._words.text(start, min(end, self._text_tokens))

    def token_ids(self, end: int) -> bytes:
        """Ids of the first `end` tokens, separated by commas."""
        ids = self._words.ids(min(end, self._text_tokens))
        if end <= self._text_tokens:
            return ids
        return ids + b",%d" % END_TOKEN_ID if ids else b"%d" % END_TOKEN_ID

    # ---- how it ended

    @property
    def never_began(self) -> bool:
        """Whether it was aborted before its first token."""
        return self.generation.aborted and self.generation.delivered == 0

    @property
    def finish_type(self) -> str:
        """`length`, `stop` or `abort`."""
        if self.generation.aborted:
            return "abort"
        return "stop" if self.ask.ends_itself else "length"

    @property
    def matched_stop(self) -> int | None:
        """The token that ended it, if one did."""
        return END_TOKEN_ID if self.finish_type == "stop" else None

    def finish_reason(self) -> dict[str, object]:
        """The finish reason of `/generate`."""
        if self.never_began:
            return {"type": "abort", "message": "Abort in waiting queue"}
        if self.generation.aborted:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        if self.ask.ends_itself:
            return {"type": "stop", "matched": END_TOKEN_ID}
        return {"type": "length", "length": self.generation.delivered}

    # ---- counts

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens, as the usage counts them."""
        return 0 if self.never_began else self.ask.prompt_tokens

    def usage(self) -> dict[str, object]:
        """The usage of an OpenAI answer."""
        return usage_of(prompt_tokens=self.prompt_tokens, completion_tokens=self.generation.delivered)

    def usage_json(self, completion_tokens: int) -> bytes:
        """The usage of one event that has `completion_tokens` so far, as JSON."""
        return (
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
            b'"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null}'
        ) % (self.prompt_tokens, self.prompt_tokens + completion_tokens, completion_tokens)

    def weight_versions(self) -> list[dict[str, object]]:
        """Which weights generated which tokens."""
        return [{"version": _WEIGHT_VERSION, "start": 0, "end": self.generation.delivered}]

    def metadata(self) -> dict[str, object]:
        """The `metadata` of a whole OpenAI answer."""
        return {"weight_version": _WEIGHT_VERSION, "weight_versions": self.weight_versions()}

    @cached_property
    def _speculation(self) -> dict[str, object] | None:
        histogram = self.generation.job.passes_by_accepted_drafts() if self._engine.drafts else []
        passes = sum(histogram)
        if passes == 0:
            return None
        correct = sum(drafts * count for drafts, count in enumerate(histogram))
        proposed = passes * (self._engine.spec.cost.verify_tokens - 1)
        return {
            "spec_accept_rate": correct / proposed,
            "spec_accept_length": self.generation.delivered / passes,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": passes,
            "spec_correct_drafts_histogram": histogram,
        }

    def sglext(self) -> dict[str, object] | None:
        """SGLang's extension of an OpenAI answer, if it was asked for and there is something to say."""
        speculation = self._speculation if self.ask.spec_details else None
        if speculation is None:
            return None
        details = {
            "spec_accept_rate": speculation["spec_accept_rate"],
            "spec_accept_length": speculation["spec_accept_length"],
            "spec_cap_length": 0.0,
            "spec_block_accept_length": 0.0,
            "spec_num_correct_drafts": speculation["spec_num_correct_drafts"],
            "spec_num_proposed_drafts": speculation["spec_num_proposed_drafts"],
            "spec_verify_ct": speculation["spec_verify_ct"],
            "spec_correct_drafts_histogram": speculation["spec_correct_drafts_histogram"],
            "spec_cap_lens_histogram": [],
        }
        return {"spec_tokens_details": details}

    # ---- metadata

    def opening(self) -> dict[str, object]:
        """The metadata that is known once the request has its first token, as it follows the finish reason."""
        job = self.generation.job
        unix_s = self._engine.clock.unix_s
        assert job.prefill_started_s is not None and job.first_token_s is not None
        return {
            "prompt_tokens": self.ask.prompt_tokens,
            "weight_version": _WEIGHT_VERSION,
            "num_retractions": job.retractions,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": unix_s(job.prefill_started_s),
            "prefill_finished_time": unix_s(job.first_token_s),
            "queue_time": job.prefill_started_s - job.arrived_s,
            "reasoning_tokens": 0,
        }

    def first_sent_unix_s(self) -> float:
        """When the first event of a stream left the server."""
        first_token_s = self.generation.job.first_token_s
        assert first_token_s is not None
        return self._engine.clock.unix_s(first_token_s)

    def meta_info(self) -> dict[str, object]:
        """The metadata of a request that has ended."""
        generation = self.generation
        job = generation.job
        unix_s = self._engine.clock.unix_s
        assert generation.ended_s is not None
        latency_s = generation.ended_s - job.arrived_s
        ended_unix_s = unix_s(generation.ended_s)
        if job.first_token_s is None:
            return {
                "id": self.ask.rid,
                "finish_reason": self.finish_reason(),
                "weight_version": _WEIGHT_VERSION,
                "e2e_latency": latency_s,
                "weight_versions": self.weight_versions(),
                "completion_tokens": generation.delivered,
                "response_sent_to_client_ts": ended_unix_s,
            }
        meta = {
            "id": self.ask.rid,
            "finish_reason": self.finish_reason(),
            **self.opening(),
            "completion_tokens": generation.delivered,
            "cached_tokens": 0,
            "weight_versions": self.weight_versions(),
            "cached_tokens_details": None,
            "dp_rank": None,
            "e2e_latency": latency_s,
            **(self._speculation or {}),
            "request_received_ts": unix_s(job.arrived_s),
            "first_token_latency": job.first_token_s - job.arrived_s,
            "api_server_dispatch_finish_ts": unix_s(job.arrived_s),
        }
        if self.ask.stream:
            meta["response_sent_to_client_ts"] = self.first_sent_unix_s()
        meta["request_finished_ts"] = ended_unix_s
        decoding_s = generation.ended_s - job.first_token_s
        if generation.delivered > 1 and decoding_s > 0:
            meta["decode_throughput"] = (generation.delivered - 1) / decoding_s
        if not self.ask.stream:
            meta["response_sent_to_client_ts"] = ended_unix_s
        return meta
