"""How large a target is, from its `config.json`: what a decode step has to read and to compute at least.

    attention  GQA      d · (2 h + 2 h_kv) · d_head            KV per token and layer: 2 · h_kv · d_head values
               MLA      low-rank queries, keys and values      KV per token and layer: kv_lora_rank + rope_dim values
               GDN      linear attention (Gated DeltaNet): a fixed state, nothing per token
    MLP        dense 3 · d · d_ff; a mixture of experts uses k of n experts for a token, and the shared ones

Norms, biases and convolutions are left out (under 0.1 %).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selector.errors import InputError
from selector.files.validation import read_text

_BYTES_PER_VALUE = 2.0
"""BF16 weights and cache."""

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of one target."""

    parameters: float
    """All of them, the embedding tables included."""
    non_embedding_parameters: float
    """Without the embedding table; the output head counts, since every token passes it."""
    active_parameters: float
    """Of those, what one token uses."""
    kv_bytes_per_token: float
    """Of all layers, those with a sliding window included."""
    sliding_kv_bytes_per_token: float = 0.0
    """Of the layers that keep no more than the last `sliding_window` tokens."""
    sliding_window: int = 0

    @property
    def is_sparse(self) -> bool:
        """Whether a token uses only a part of the model: a mixture of experts."""
        return self.active_parameters < self.non_embedding_parameters

    def kv_bytes(self, context_tokens: float) -> float:
        """What a request of that context has in the KV cache, and a decode step reads for it."""
        beyond = max(0.0, context_tokens - self.sliding_window)
        return self.kv_bytes_per_token * context_tokens - self.sliding_kv_bytes_per_token * beyond


def model_size(path: Path) -> ModelSize:
    """Sizes by `path`, a model's `config.json`. Raises `InputError` for a file that lacks what is needed."""
    text = read_text(path, "model configuration", InputError)
    try:
        config = json.loads(text)
        return sized(config.get("text_config") or config)
    except (KeyError, TypeError, ValueError, AttributeError) as bad:
        problem = f"does not tell the model's sizes ({bad!r})"
        raise InputError(str(path), problem, "give --base, a profile of the same target") from None


def sized(config: Config) -> ModelSize:
    """Sizes by a parsed configuration (its `text_config`, where it has one). Raises `KeyError` for what is missing."""
    hidden, layers, vocab = int(config["hidden_size"]), int(config["num_hidden_layers"]), int(config["vocab_size"])
    total = active = kv_values = sliding_values = 0.0
    for layer in range(layers):
        attention, values = _attention(config, hidden, layer)
        mlp, mlp_active = _mlp(config, hidden, layer)
        total += attention + mlp
        active += attention + mlp_active
        kv_values += values
        if _layer_type(config, layer) == "sliding_attention":
            sliding_values += values
    table = float(vocab * hidden)
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelSize(
        parameters=total + table * (1 if tied else 2),
        non_embedding_parameters=total + table,
        active_parameters=active + table,
        kv_bytes_per_token=_BYTES_PER_VALUE * kv_values,
        sliding_kv_bytes_per_token=_BYTES_PER_VALUE * sliding_values,
        sliding_window=int(config.get("sliding_window") or 0) if sliding_values else 0,
    )


def _attention(config: Config, hidden: int, layer: int) -> tuple[float, float]:
    """Parameters of a layer's attention and values that it caches for a token."""
    kind = _layer_type(config, layer)
    if kind == "linear_attention":
        key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        value = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        # q, k, v and the output gate z, the two per-head gates, and the output projection.
        return hidden * (2.0 * key + 2.0 * value + 2.0 * config["linear_num_value_heads"]) + value * hidden, 0.0
    heads = int(config["num_attention_heads"])
    if config.get("kv_lora_rank"):
        return _latent_attention(config, hidden, heads)
    sliding = kind == "sliding_attention"
    kv_heads = int(config["num_key_value_heads"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    if not sliding and config.get("num_global_key_value_heads"):
        kv_heads = int(config["num_global_key_value_heads"])
        head_dim = int(config.get("global_head_dim") or head_dim)
    gated = 2.0 if config.get("attn_output_gate") else 1.0
    parameters = hidden * head_dim * (heads * (1.0 + gated) + 2.0 * kv_heads)
    return parameters, 2.0 * kv_heads * head_dim


def _latent_attention(config: Config, hidden: int, heads: int) -> tuple[float, float]:
    latent, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    nope, value = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    query_rank = config.get("q_lora_rank")
    query_out = heads * (nope + rope)
    queries = hidden * query_rank + query_rank * query_out if query_rank else hidden * query_out
    keys_values = hidden * (latent + rope) + latent * heads * (nope + value)
    return float(queries + keys_values + heads * value * hidden), float(latent + rope)


def _mlp(config: Config, hidden: int, layer: int) -> tuple[float, float]:
    """Parameters of a layer's MLP, and those that one token uses."""
    experts = config.get("num_experts") or config.get("n_routed_experts")
    if not experts or layer < int(config.get("first_k_dense_replace") or 0):
        dense = 3.0 * hidden * config["intermediate_size"]
        return dense, dense
    used = config.get("num_experts_per_tok") or config.get("top_k_experts")
    if not used:
        raise KeyError("num_experts_per_tok")
    one = 3.0 * hidden * config["moe_intermediate_size"]
    shared = 3.0 * hidden * int(config.get("shared_expert_intermediate_size") or 0)
    shared += one * int(config.get("n_shared_experts") or 0)
    if config.get("enable_moe_block"):  # Gemma 4: a dense MLP beside the experts
        shared += 3.0 * hidden * config["intermediate_size"]
    router = float(hidden * experts)
    return experts * one + shared + router, used * one + shared + router


def _layer_type(config: Config, layer: int) -> str:
    types = config.get("layer_types")
    if types:
        return str(types[layer])
    interval = config.get("full_attention_interval")
    if interval and (layer + 1) % int(interval):
        return "linear_attention"
    return "full_attention"
