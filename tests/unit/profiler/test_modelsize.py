"""Sizes by config.json, checked against what is published for the model and against layers counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selector.errors import InputError
from selector.profiler.modelsize import model_size, sized

QWEN3_8B = Path(__file__).parents[3] / "profiles" / "raw" / "qwen3_8b_config.json"

DENSE: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 3, "intermediate_size": 16,
}  # fmt: skip
ATTENTION = 8 * 3 * (2 * 4 + 2 * 2)
MLP = 3 * 8 * 16


def test_qwen3_8b_has_the_published_sizes() -> None:
    size = model_size(QWEN3_8B)
    assert size.parameters == pytest.approx(8.19e9, rel=1e-3)
    assert size.kv_bytes_per_token == 2 * 2 * 36 * 8 * 128
    assert size.active_parameters == size.non_embedding_parameters == size.parameters - 151_936 * 4096


def test_a_dense_model_is_its_layers_and_tables() -> None:
    size = sized(DENSE)
    assert size.parameters == 2 * (ATTENTION + MLP) + 2 * 800
    assert sized({**DENSE, "tie_word_embeddings": True}).parameters == size.parameters - 800
    assert size.kv_bytes_per_token == 2 * 2 * 2 * (2 * 3)
    assert size.kv_bytes(10) == 10 * size.kv_bytes_per_token


def test_a_token_uses_its_experts_and_the_shared_ones() -> None:
    experts = {"num_experts": 10, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "n_shared_experts": 1}
    size = sized({**DENSE, **experts, "first_k_dense_replace": 1})
    one, router = 3 * 8 * 4, 8 * 10
    assert size.parameters == 2 * ATTENTION + MLP + 11 * one + router + 1600
    assert size.active_parameters == 2 * ATTENTION + MLP + 3 * one + router + 800


def test_latent_attention_caches_the_latent_alone() -> None:
    latent = {
        "kv_lora_rank": 5, "q_lora_rank": 6, "qk_rope_head_dim": 2, "qk_nope_head_dim": 3, "v_head_dim": 4,
        "num_hidden_layers": 1,
    }  # fmt: skip
    size = sized({**DENSE, **latent})
    attention = 8 * 6 + 6 * 4 * 5 + 8 * 7 + 5 * 4 * 7 + 4 * 4 * 8
    assert size.parameters == attention + MLP + 1600
    assert size.kv_bytes_per_token == 2 * 7


def test_linear_layers_cache_nothing_and_sliding_ones_no_more_than_their_window() -> None:
    linear = {
        "full_attention_interval": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 2,
        "linear_num_value_heads": 2, "linear_value_head_dim": 2,
    }  # fmt: skip
    assert sized({**DENSE, **linear}).kv_bytes_per_token == sized(DENSE).kv_bytes_per_token / 2
    slides = {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4,
        "num_global_key_value_heads": 1, "global_head_dim": 6,
    }  # fmt: skip
    size = sized({**DENSE, **slides})
    assert size.kv_bytes_per_token == 2 * (2 * 2 * 3 + 2 * 1 * 6)
    assert size.kv_bytes(4) == 4 * size.kv_bytes_per_token
    assert size.kv_bytes(10) == 2 * (4 * 12 + 10 * 12)


@pytest.mark.parametrize("change", [{"hidden_size": None}, {"num_experts": 4}, {"vocab_size": "many"}])
def test_a_configuration_that_does_not_tell_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DENSE, **change}))
    with pytest.raises(InputError, match=r"config\.json: does not tell the model's sizes .*give --base"):
        model_size(path)
