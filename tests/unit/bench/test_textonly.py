"""The plugin that lets SGLang start a target which sees from its config.json alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "h200" / "textonly"))
import drafter_selector_textonly
from drafter_selector_textonly import as_head, as_heads, read, with_windows, without_processor


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


def _text_part(**more: int) -> SimpleNamespace:
    sizes = {"head_dim": 256, "num_key_value_heads": 8, "global_head_dim": 512, "num_global_key_value_heads": 1}
    return SimpleNamespace(model_type="gemma4_text", **sizes, **more)


def test_windows_of_a_text_part_get_the_names_of_the_engine() -> None:
    config = with_windows(_text_part())
    assert (config.swa_head_dim, config.swa_v_head_dim, config.swa_num_key_value_heads) == (256, 256, 8)
    assert (config.head_dim, config.v_head_dim, config.num_key_value_heads) == (512, 512, 1)


def test_a_configuration_that_has_them_stays_as_it_is() -> None:
    assert with_windows(_text_part(swa_num_key_value_heads=4)).head_dim == 256
    other = SimpleNamespace(model_type="qwen3", head_dim=128)
    assert vars(with_windows(other)) == {"model_type": "qwen3", "head_dim": 128}


@pytest.mark.parametrize(
    ("model_type", "mended"),
    [("gemma4", ["gemma4"]), ("gemma4_text", ["gemma4"]), ("glm4_moe_lite", ["glm4_moe_lite"]), ("qwen3", [])],
)
def test_only_the_model_that_is_read_is_mended(
    monkeypatch: pytest.MonkeyPatch, model_type: str, mended: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(drafter_selector_textonly, "mend", seen.append)
    config = SimpleNamespace(model_type=model_type, swa_num_key_value_heads=4)
    assert read(lambda path, **kwargs: config, "a model", trust_remote_code=True) is config
    assert seen == mended


def test_an_embedding_that_is_the_output_head_knows_its_vocabulary() -> None:
    def original(embedding: SimpleNamespace, words: int, width: int) -> None:
        embedding.num_embeddings, embedding.embedding_dim = words, width

    embedding = SimpleNamespace()
    as_head(original, embedding, 262144, width=3840)
    assert vars(embedding) == {"num_embeddings": 262144, "embedding_dim": 3840, "org_vocab_size": 262144}


@pytest.mark.parametrize(
    ("layers", "given", "asked"),
    [
        ({"decoder": 1}, {}, {"is_nextn": True}),
        ({"decoder": 1}, {"is_nextn": False, "weight_names": None}, {"is_nextn": True, "weight_names": None}),
        ({"start_layer": 0}, {}, {}),
        ({"start_layer": 0}, {"is_nextn": False}, {"is_nextn": False}),
    ],
)
def test_prediction_heads_are_loaded_as_such(
    layers: dict[str, int], given: dict[str, object], asked: dict[str, object]
) -> None:
    seen: list[dict[str, object]] = []
    as_heads(lambda model, **kwargs: seen.append(kwargs), SimpleNamespace(model=SimpleNamespace(**layers)), **given)
    assert seen == [asked]
