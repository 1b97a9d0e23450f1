"""What a server says about itself besides `/server_info`: its load and its model.

Always live: a real server publishes its load every 15 decode steps, so its `/v1/loads` is up to that much older.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import UTC, datetime

from selector.core.policy import BackendSpec
from selector.emulator.asks import Limits
from selector.emulator.engine import EmulatedEngine
from selector.files.profile import Arm, Profile

SGLANG_VERSION = "0.5.23"
"""The release whose answers are emulated."""

_BYTES_PER_WEIGHT = 2
"""Weights are taken to be bfloat16."""
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is fixed about one emulated server."""

    profile: Profile
    arm: Arm
    spec: BackendSpec
    limits: Limits
    host: str
    port: int
    max_queued_requests: int | None

    @property
    def model_name(self) -> str:
        """The name that the model is served under."""
        return self.profile.target.name

    @property
    def model_path(self) -> str:
        """Where its weights would come from."""
        return self.profile.target.model or self.profile.target.name

    @property
    def weight_gb(self) -> float:
        """Memory of the target's weights on one GPU."""
        return round(self.profile.target.parameters * _BYTES_PER_WEIGHT / self.profile.gpu.count / _GIB, 3)

    @property
    def kv_cache_gb(self) -> float:
        """Memory of the KV cache on one GPU."""
        tokens_bytes = self.spec.max_kv_tokens * self.profile.target.kv_bytes_per_token
        return round(tokens_bytes / self.profile.gpu.count / _GIB, 3)


def loads(site: Site, engine: EmulatedEngine, include: Set[str] | None) -> dict[str, object]:
    """`GET /v1/loads`; `include` holds the sections asked for, `None` all. `speculative` and `decode_moments` are there
    once something was decoded."""
    engine.clock.run_due()
    unix_s = engine.clock.unix_now_s()
    used_tokens, totals = engine.kv_tokens, engine.totals
    total_tokens = used_tokens + engine.queued_tokens
    load: dict[str, object] = {
        "timestamp": unix_s,
        "dp_rank": 0,
        "num_running_reqs": engine.running,
        "num_waiting_reqs": engine.waiting,
        "num_waiting_uncached_tokens": engine.queued_tokens,
        "num_used_tokens": used_tokens,
        "num_total_tokens": total_tokens,
        "num_active_tokens": total_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": site.spec.max_kv_tokens,
        "max_running_requests": site.spec.max_running_requests,
        "token_usage": round(used_tokens / site.spec.max_kv_tokens, 4),
        "gen_throughput": round(engine.interval.tokens_per_s, 2),
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": totals.prefill_tokens,
        "total_prefill_busy_us": round(totals.prefill_s * 1e6),
        "decode_moments": list(totals.moments) if totals.moments[0] else None,
    }
    sections = {
        "memory": {
            "weight_gb": site.weight_gb,
            "kv_cache_gb": site.kv_cache_gb,
            "graph_gb": 0.0,
            "token_capacity": site.spec.max_kv_tokens,
        },
        "spec": _speculative(engine),
        "disagg": {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {
            "waiting": engine.waiting,
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        },
    }
    keys = {"spec": "speculative", "disagg": "disaggregation"}
    for name, section in sections.items():
        if section is not None and (include is None or name in include or "all" in include):
            load[keys.get(name, name)] = section
    return {
        "timestamp": datetime.fromtimestamp(unix_s, UTC).isoformat(),
        "version": SGLANG_VERSION,
        "accelerator": site.profile.gpu.name,
        "num_accelerators": site.profile.gpu.count,
        "loads": [load],
    }


def _speculative(engine: EmulatedEngine) -> dict[str, object] | None:
    mean = engine.mean_accept_length
    if not engine.drafts or mean is None:
        return None
    return {"accept_length": mean, "accept_rate": engine.accept_rate(engine.interval.accept_length)}


def models(site: Site, engine: EmulatedEngine) -> dict[str, object]:
    """`GET /v1/models`."""
    return {"object": "list", "data": [model_card(site, engine)]}


def model_card(site: Site, engine: EmulatedEngine) -> dict[str, object]:
    """`GET /v1/models/<name>`."""
    return {
        "id": site.model_name,
        "object": "model",
        "created": int(engine.clock.unix_now_s()),
        "owned_by": "sglang",
        "root": site.model_name,
        "parent": None,
        "max_model_len": site.limits.context_tokens,
    }


def model_info(site: Site) -> dict[str, object]:
    """`GET /model_info`, without the parts that describe a model's inside."""
    return {
        "model_path": site.model_path,
        "served_model_name": site.model_name,
        "tokenizer_path": site.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": None,
        "architectures": None,
    }
