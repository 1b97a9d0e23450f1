"""A plugin for SGLang that starts a target which could see and hear from its config.json alone.

With `--skip-tokenizer-init` SGLang makes no tokenizer, but still an image processor for such a target, out of files
that a folder with nothing but a config.json has not (0.5.17: "Can't load image processor"). This plugin leaves it out:
the server then answers prompts of token ids, which is all that a sweep sends. Put this folder on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor"


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


def install() -> None:
    """Called by SGLang, by the entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, without_processor, HookType.AROUND)
