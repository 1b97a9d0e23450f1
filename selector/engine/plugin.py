"""What SGLang loads: puts the choice of depth in place where a depth file is given and the release is known.

    DRAFTER_SELECTOR_DEPTHS=depths.json python3 -m sglang.launch_server --speculative-adaptive …

Without the variable nothing is done, whatever runs in the environment where the package is installed. With it, a file
that cannot be read or an interface that is not known is logged as a warning, and SGLang chooses as it always does.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from selector.engine.depthpolicy import announcing, steered
from selector.engine.interface import PARAMS, WORKER, unknown_reason
from selector.errors import InputError
from selector.files.depthfile import VARIABLE, load_depth_file

_LOG = logging.getLogger("drafter_selector")


def install() -> None:
    """The entry point of the group `sglang.srt.plugins`. Raises nothing: a server must start without the plugin too."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        file = load_depth_file(Path(path))
    except InputError as bad:
        _keep_own(str(bad))
        return
    try:
        params, worker, registry, kinds = _engine()
    except (ImportError, AttributeError) as missing:
        _keep_own(f"this SGLang has other parts ({missing})")
        return
    reason = unknown_reason(params, worker)
    if reason is not None:
        _keep_own(f"this SGLang's interface is not known: {reason}")
        return
    registry.register(PARAMS, steered(params, file), kinds.REPLACE)
    registry.register(f"{WORKER}.forward_batch_generation", announcing, kinds.BEFORE)


def _engine() -> tuple[type[Any], type[Any], Any, Any]:
    """SGLang's two classes, its registry of hooks and their kinds. Raises `ImportError` or `AttributeError`."""
    hooks = "sglang.srt.plugins.hook_registry"
    return (
        resolve_name(PARAMS),
        resolve_name(WORKER),
        resolve_name(f"{hooks}.HookRegistry"),
        resolve_name(f"{hooks}.HookType"),
    )


def _keep_own(why: str) -> None:
    _LOG.warning("drafter-selector: %s; SGLang's own choice of depth stays", why)
