"""`GET /server_info`: the launch arguments of the arm and the state of the server.

A real server lists some 550 arguments; these are the ones about the model, its limits and speculation, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from selector.core.policy import BackendSpec
from selector.emulator.engine import EmulatedEngine
from selector.emulator.info import SGLANG_VERSION, Site
from selector.files.profile import NO_DRAFTER
from selector.simulator.server import DEFAULT_CHUNK_TOKENS

_SPECULATIVE_DEFAULTS: Mapping[str, object] = {
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_draft_model_revision": None,
    "speculative_draft_load_format": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
    "speculative_dflash_block_size": None,
    "speculative_dspark_block_size": None,
    "speculative_dspark_sps_table_path": None,
    "speculative_dspark_confidence_sts_path": None,
    "speculative_dspark_align_verify_tokens_to_graph_tier": False,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "speculative_use_rejection_sampling": False,
    "speculative_token_map": None,
    "speculative_attention_mode": "prefill",
    "speculative_draft_attention_backend": None,
    "speculative_dsa_topk_backend": "sgl-kernel",
    "speculative_draft_kv_cache_dtype": None,
    "speculative_draft_window_size": None,
    "speculative_moe_runner_backend": "auto",
    "speculative_moe_a2a_backend": None,
    "speculative_enable_w4a4_mxfp4_megamoe": None,
    "speculative_draft_model_quantization": None,
    "speculative_adaptive": False,
    "speculative_adaptive_config": None,
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 10,
    "speculative_ngram_match_type": "BFS",
    "speculative_ngram_max_trie_depth": 18,
    "speculative_ngram_capacity": 10_000_000,
    "speculative_ngram_external_corpus_path": None,
    "speculative_ngram_external_sam_budget": 0,
    "speculative_ngram_external_corpus_max_tokens": 10_000_000,
    "speculative_domino_candidate_pool_size": 2_048,
    "speculative_boundary_reduction": "rs+rsv",
    "speculative_use_block_verification": False,
    "speculative_draft_sink_size": None,
}
_GRAPH_PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")


def server_info(site: Site, engine: EmulatedEngine) -> dict[str, object]:
    """The document; `internal_states` has one entry, for the one rank there is."""
    arguments = _arguments(site)
    startup: dict[str, object] = {
        "load_weight": 0.0,
        "kv_cache_allocation": 0.0,
        "scheduler_e2e": 0.0,
        "cuda_graph": dict.fromkeys(_GRAPH_PHASES, 0.0),
    }
    state: dict[str, object] = {
        **arguments,
        "world_size": site.profile.gpu.count,
        "startup_time": startup,
        "effective_max_running_requests_per_dp": site.spec.max_running_requests,
        "last_gen_throughput": engine.interval.tokens_per_s,
        "memory_usage": {
            "weight": site.weight_gb,
            "kvcache": site.kv_cache_gb,
            "startup_available": 0.0,
            "token_capacity": site.spec.max_kv_tokens,
            "token_capacity_swa": None,
            "graph": dict.fromkeys(_GRAPH_PHASES, 0.0),
        },
        "decode_cuda_graph_bs": [],
        "decode_cuda_graph_memory_gb": 0.0,
    }
    if engine.drafts and engine.mean_accept_length is not None:
        state["avg_spec_accept_length"] = round(engine.mean_accept_length, 2)
    return {
        **arguments,
        "launch_command": " ".join(_launch_flags(site)),
        "status": "ready",
        "max_total_num_tokens": site.spec.max_kv_tokens,
        "max_req_input_len": site.limits.input_tokens,
        "startup_time": {**startup, "tokenizer_e2e": 0.0},
        "internal_states": [state],
        "version": SGLANG_VERSION,
        "frontend": "python",
    }


def _graph_lists(spec: BackendSpec) -> dict[str, object]:
    """Lists of CUDA graphs that the server was given; without one SGLang makes its own."""
    lists = {"cuda_graph_bs_decode": spec.cost.graphs, "cuda_graph_bs_prefill": spec.cost.prefill.graphs}
    return {name: list(graphs) for name, graphs in lists.items() if graphs}


def _arguments(site: Site) -> dict[str, object]:
    spec, arm = site.spec, site.arm
    algorithm = None if arm.algorithm == NO_DRAFTER else arm.algorithm
    speculative = dict(_SPECULATIVE_DEFAULTS)
    if algorithm is not None:
        speculative |= {
            "speculative_algorithm": algorithm,
            "speculative_draft_model_path": arm.launch.draft_model,
            "speculative_num_steps": arm.draft_steps or 0,
            "speculative_eagle_topk": arm.topk,
            "speculative_num_draft_tokens": arm.verify_tokens,
        }
    for name, value in _flags(_filled(site, arm.launch.flags)):
        if name in speculative:
            speculative[name] = value
    return {
        "model_path": site.model_path,
        "tokenizer_path": site.model_path,
        "context_length": site.limits.context_tokens,
        **_graph_lists(spec),
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "max_running_requests": spec.max_running_requests,
        "max_queued_requests": site.max_queued_requests,
        "max_total_tokens": spec.max_kv_tokens,
        "chunked_prefill_size": DEFAULT_CHUNK_TOKENS,
        "schedule_policy": "fcfs",
        "page_size": 1,
        "disable_radix_cache": True,
        "disable_overlap_schedule": not spec.overlaps,
        "tp_size": site.profile.gpu.count,
        "pp_size": 1,
        "dp_size": 1,
        "device": "cuda",
        "host": site.host,
        "port": site.port,
        "served_model_name": site.model_name,
        "stream_interval": 1,
        "stream_response_default_include_usage": False,
        "incremental_streaming_output": False,
        "enable_metrics": True,
        **speculative,
    }


def _launch_flags(site: Site) -> list[str]:
    """The flags of a real launch of this arm."""
    served = ["--served-model-name", site.model_name, "--model-path", site.model_path]
    listening = ["--host", site.host, "--port", str(site.port)]
    return [*_filled(site, (*site.profile.common_flags, *site.arm.launch.flags)), *served, *listening]


def _filled(site: Site, flags: Iterable[str]) -> list[str]:
    draft = site.arm.launch.draft_model or ""
    return [flag.replace("{target}", site.model_path).replace("{draft}", draft) for flag in flags]


def _flags(flags: list[str]) -> Iterable[tuple[str, object]]:
    """Argument names and values of command-line flags; a flag without a value is true."""
    for index, flag in enumerate(flags):
        if flag.startswith("--"):
            following = flags[index + 1] if index + 1 < len(flags) else "--"
            yield flag[2:].replace("-", "_"), True if following.startswith("--") else _typed(following)


def _typed(value: str) -> object:
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return value
