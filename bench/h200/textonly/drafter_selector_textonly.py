"""A plugin for SGLang (0.5.17) that starts targets from their config.json alone, which it else asks more of.

- A target that could see or hear: with `--skip-tokenizer-init` SGLang makes no tokenizer, but still an image processor,
  out of files that are not there. Left out, the server answers prompts of token ids, which is all that a sweep sends.
- The text part of a Gemma 4 as a target of its own: SGLang gives its windows the names that they go by only where the
  part lies inside a target that sees.
- A Gemma 4 whose embedding is its output head too, under DSPARK, which asks the head for its vocabulary.
- The prediction heads of a GLM Lite with dummy weights: the loader takes them for the target itself.

Put this folder on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PROCESSOR = "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor"
CONFIG = "sglang.srt.utils.hf_transformers.config.get_config"
EMBEDDING = "sglang.srt.models.gemma3_causal.Gemma3TextScaledWordEmbedding.__init__"  # Gemma 4 has it from there
WEIGHTS = "sglang.srt.models.deepseek_common.deepseek_weight_loader.DeepseekV2WeightLoaderMixin.post_load_weights"


def without_processor(original: Callable[[Any], None], manager: Any) -> None:
    """Runs `original` as for a target of text alone where the server makes no tokenizer either."""
    config = manager.model_config
    if not (manager.server_args.skip_tokenizer_init and config.is_multimodal):
        original(manager)
        return
    config.is_multimodal = False
    try:
        original(manager)
    finally:
        config.is_multimodal = True


def read(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The configuration as SGLang needs it, after mending the model that it is of: no other model is imported early."""
    config = original(*args, **kwargs)
    for family in MODELS:
        if config.model_type.startswith(family):
            mend(family)
    return with_windows(config)


def with_windows(config: Any) -> Any:
    """The configuration; that of a Gemma 4's text part names full attention and windows (`swa_`) as SGLang does."""
    if config.model_type != "gemma4_text" or hasattr(config, "swa_num_key_value_heads"):
        return config
    config.swa_head_dim = config.swa_v_head_dim = config.head_dim
    config.swa_num_key_value_heads = config.num_key_value_heads
    config.head_dim = config.v_head_dim = config.global_head_dim
    config.num_key_value_heads = config.num_global_key_value_heads
    return config


def as_head(original: Callable[..., None], embedding: Any, *args: Any, **kwargs: Any) -> None:
    """Runs `original`, then gives the embedding the size of the vocabulary by the name that an output head has it."""
    original(embedding, *args, **kwargs)
    embedding.org_vocab_size = embedding.num_embeddings


def as_heads(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    """Runs `original`, telling it that a model without layers of its own is one of prediction heads."""
    if not args and not hasattr(model.model, "start_layer") and hasattr(model.model, "decoder"):
        kwargs["is_nextn"] = True
    original(model, *args, **kwargs)


MODELS: dict[str, tuple[str, Callable[..., None]]] = {
    "gemma4": (EMBEDDING, as_head),
    "glm4_moe_lite": (WEIGHTS, as_heads),
}
"""By the beginning of the configuration's `model_type`."""

_mended: set[str] = set()


def mend(family: str) -> None:
    """Puts the hook of a family of models in place, once."""
    if family in _mended:
        return
    _mended.add(family)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(*MODELS[family], HookType.AROUND)
    HookRegistry.apply_hooks()


def install() -> None:
    """Called by SGLang, by the entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(PROCESSOR, without_processor, HookType.AROUND)
    HookRegistry.register(CONFIG, read, HookType.AROUND)
