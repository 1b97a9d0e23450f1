"""The plugin that lets SGLang start a target which sees from its config.json alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "h200" / "textonly"))
from drafter_selector_textonly import without_processor


def _manager(*, multimodal: bool, skipped: bool) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(is_multimodal=multimodal),
        server_args=SimpleNamespace(skip_tokenizer_init=skipped),
        seen=[],
    )


def _original(manager: SimpleNamespace) -> None:
    manager.seen.append(manager.model_config.is_multimodal)


@pytest.mark.parametrize(
    ("multimodal", "skipped", "seen"), [(True, True, False), (True, False, True), (False, True, False)]
)
def test_a_processor_is_made_only_where_a_tokenizer_is(multimodal: bool, skipped: bool, seen: bool) -> None:
    manager = _manager(multimodal=multimodal, skipped=skipped)
    without_processor(_original, manager)
    assert manager.seen == [seen]
    assert manager.model_config.is_multimodal is multimodal


def test_what_the_target_is_stays_true_when_the_start_fails() -> None:
    manager = _manager(multimodal=True, skipped=True)

    def failing(manager: SimpleNamespace) -> None:
        raise RuntimeError("no port")

    with pytest.raises(RuntimeError, match="no port"):
        without_processor(failing, manager)
    assert manager.model_config.is_multimodal
