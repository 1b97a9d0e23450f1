"""A sweep file is read whole or refused in one line that names the field."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from selector.errors import InputError
from selector.profiler import config as module
from selector.profiler.config import load_config
from selector.profiler.server import command_line

KIT = Path(__file__).parents[3] / "bench" / "h200"
DOCUMENTATION = (inspect.getdoc(module) or "").splitlines()
EXAMPLE = "\n".join(line[4:] for line in DOCUMENTATION if line.startswith("    "))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_the_example_of_the_documentation_is_a_sweep(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, EXAMPLE))
    assert [arm.name for arm in config.arms] == ["none", "eagle3-k3"]
    assert config.arm("eagle3-k3").verify_tokens == 4
    with pytest.raises(KeyError, match="ngram"):
        config.arm("ngram-8")


@pytest.mark.parametrize("path", sorted(KIT.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_sweeps_are_valid(path: Path) -> None:
    config = load_config(path)
    assert not config.grid or config.arm("none").verify_tokens == 1  # step costs are compared with not drafting's


def test_the_command_line_holds_common_measuring_and_own_flags(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, EXAMPLE))
    argv, env = command_line(config, config.arm("eagle3-k3"), Path("/models"))
    text = " ".join(argv)
    assert text.startswith("python3 -m sglang.launch_server --model-path /models/Qwen3-8B --host 127.0.0.1 --port ")
    assert "--context-length 36864 --max-running-requests 64 --load-format dummy" in text
    assert "--speculative-draft-model-path /models/Qwen3-8B-eagle3 " in text
    shown = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert env == {**shown, "SGLANG_SIMULATE_ACC_LEN": "2.0"}
    plain, no_env = command_line(config, config.arm("none"), Path("/models"))
    assert not any("speculative" in flag for flag in plain)
    assert no_env == shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("window_s = 5.2", "windows_s = 5.2", r"decode\.windows_s: is not a known field; did you mean 'window_s'"),
        ("repeats = 2", "repeats = 0", r"decode\.repeats: is 0"),
        ("window_s = 5.2", "window_s = nan", r"decode\.window_s"),
        ('name = "eagle3-k3"', 'name = "none"', "two arms are named 'none'|algorithm 'none'"),
        ("imposed_accept_length = 2.0 ", "imposed_accept_length = 4.5 ", "above the verify width 4"),
        ('draft = "Qwen3-8B-eagle3"', "", "draft and a flag '{draft}' go together"),
        (
            'algorithm = "none"',
            'algorithm = "none"\nleft_out = "no"',
            "has left_out: every profile needs it",
        ),
        ("batches = [1, 8, 32, 64]", "batches = [1, 128]", "--max-running-requests below the largest batch, 128"),
        ('["--max-running-requests", "64"]', "[]", "has no --max-running-requests"),
        ("prompt_tokens = [512, 2048]", "prompt_tokens = [40000]", "has 40000, server.context_length is 36864"),
        ('python = "python3"', 'url = "http://127.0.0.1:1"', "one running server"),
        ("[drift]", "[[grid]]\nbatches = [1]\nprompt_tokens = [1]\narms = ['x']\n[drift]", r"grid\[1\].arms names 'x'"),
        ("version = 1", "version = 2", "version"),
        ("version = 1", "version = ", "is not TOML"),
        ('"--max-running-requests", "64"', '"--context-length", "9"', "set context_length instead"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(InputError, match=message) as refused:
        load_config(written(tmp_path, EXAMPLE.replace(old, new)))
    assert "sweep.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such sweep file"):
        load_config(tmp_path / "none.toml")
