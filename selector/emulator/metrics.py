"""`GET /metrics`: SGLang's gauges and counters of load, tokens and speculation, in Prometheus text.

Its histograms are left out: nothing reads them from an emulated server.
"""

from __future__ import annotations

from collections.abc import Iterator

from selector.emulator.engine import EmulatedEngine
from selector.emulator.info import Site

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def metrics(site: Site, engine: EmulatedEngine) -> bytes:
    """All lines. A counter by `is_streaming` has a line for each kind of request there has been."""
    return "".join(f"{line}\n" for line in [*_gauges(site, engine), *_counters(site, engine)]).encode()


def _gauges(site: Site, engine: EmulatedEngine) -> Iterator[str]:
    labels = f'engine_type="unified",model_name="{site.model_name}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    accept_length = engine.interval.accept_length if engine.drafts else 0.0
    draft_tokens = engine.depth + 1 if engine.drafts else 0
    for name, value, meaning in (
        ("num_running_reqs", engine.running, "The number of running requests."),
        ("num_queue_reqs", engine.waiting, "The number of requests in the waiting queue."),
        ("gen_throughput", engine.interval.tokens_per_s, "The generation throughput (token/s)."),
        ("cache_hit_rate", 0.0, "The prefix cache hit rate."),
        ("token_usage", engine.kv_tokens / site.spec.max_kv_tokens, "The token usage."),
        ("spec_accept_length", accept_length, "Mean tokens per forward of speculative decoding, bonus token included."),
        ("spec_accept_rate", engine.accept_rate(accept_length), "Accepted drafts / proposed drafts."),
        ("spec_cap_length", 0.0, "Mean scheduled verify window, 0 when no cap is scheduled."),
        ("spec_block_accept_length", 0.0, "Mean uncapped accept length, 0 when no cap is scheduled."),
        ("spec_num_steps", engine.depth if site.arm.depths else site.arm.draft_steps or 0, "Draft steps in force."),
        ("spec_num_draft_tokens", draft_tokens, "Draft tokens in force."),
    ):
        yield from _family(name, "gauge", meaning)
        yield f"sglang:{name}{{{labels}}} {float(value)}"


def _counters(site: Site, engine: EmulatedEngine) -> Iterator[str]:
    labels = f'engine_type="unified",model_name="{site.model_name}"'
    counts = sorted(engine.counts.items())
    for name, meaning, values in (
        ("prompt_tokens_total", "Number of prefill tokens processed.", [c.prompt_tokens for _, c in counts]),
        ("generation_tokens_total", "Number of generation tokens processed.", [c.generated_tokens for _, c in counts]),
        ("num_requests_total", "Number of requests processed.", [c.requests for _, c in counts]),
    ):
        yield from _family(name, "counter", meaning)
        for (stream, _), value in zip(counts, values, strict=True):
            kind = f'engine_type="unified",is_streaming="{str(stream).lower()}",model_name="{site.model_name}"'
            yield f"sglang:{name}{{{kind}}} {float(value)}"
    if engine.drafts:
        yield from _family("spec_verify_calls_total", "counter", "Number of speculative verification calls.")
        yield f"sglang:spec_verify_calls_total{{{labels}}} {float(engine.totals.moments[1])}"
    if engine.aborted_requests:
        yield from _family("num_aborted_requests_total", "counter", "Number of requests aborted.")
        yield f"sglang:num_aborted_requests_total{{{labels}}} {float(engine.aborted_requests)}"


def _family(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP sglang:{name} {meaning}"
    yield f"# TYPE sglang:{name} {kind}"
