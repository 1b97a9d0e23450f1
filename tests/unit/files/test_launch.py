"""Launch commands: what a user would paste is what the profile measured and the fleet file says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from selector.files.fleet import LoadedFleet, parse_fleet
from selector.files.launch import LaunchCommand, launch_commands
from tests.profiles import PROFILE, sparse_document

SWITCHES = frozenset({"--sleep-on-idle"})
"""Flags without a value."""


def backend(name: str, arm: str, gpus: str = '["host0:0"]', profile: str = PROFILE, more: str = "") -> str:
    return f'[[backends]]\nname = "{name}"\narm = "{arm}"\ngpus = {gpus}\nprofile = "{profile}"\n{more}\n'


def commands(*backends: str, model_path: str | None = None, **draft_paths: str) -> tuple[LaunchCommand, ...]:
    text = 'version = 1\ntarget = "Qwen3-8B"\n' + "".join(backends)
    fleet = LoadedFleet(parse_fleet(text, "f.toml"), "f.toml")
    paths = {arm.replace("_", "-"): path for arm, path in draft_paths.items()}
    return launch_commands(fleet, model_path=model_path, draft_paths=paths)


def flags(command: LaunchCommand) -> dict[str, str]:
    """Flags and values of the command as a shell would hand them on, each exactly once."""
    words = shlex.split(command.shell)
    start = words.index("sglang.launch_server") + 1
    alone = [word for word in words[start:] if word in SWITCHES]
    words = [word for word in words[start:] if word not in SWITCHES]
    assert len(set(alone)) == len(alone)
    names, values = words[::2], words[1::2]
    assert all(name.startswith("--") for name in names)
    assert len(set(names)) == len(names)
    return dict(zip(names, values, strict=True)) | dict.fromkeys(alone, "")


def test_the_plain_arm() -> None:
    (command,) = commands(
        backend("b0", "none", more='url = "http://127.0.0.1:30123"\nmax_running_requests = 24\nmax_kv_tokens = 5000')
    )
    assert command.shell.startswith("CUDA_VISIBLE_DEVICES=0 python3 -m sglang.launch_server --model-path Qwen/")
    assert flags(command) == {
        "--model-path": "Qwen/Qwen3-8B",
        "--served-model-name": "Qwen3-8B",
        "--host": "127.0.0.1",
        "--port": "30123",
        "--attention-backend": "fa3",
        "--dtype": "bfloat16",
        "--max-running-requests": "24",
        "--cuda-graph-max-bs": "64",
        "--max-total-tokens": "5000",
        "--context-length": "8192",
    }
    assert (command.machine, command.notes) == ("host0", ())


def test_flags_of_the_backend_come_after_those_of_the_profile() -> None:
    (command,) = commands(backend("b0", "none", more='launch_flags = ["--dtype", "float16", "--cuda-graph-bs", "64"]'))
    assert flags(command)["--dtype"] == "float16"
    assert flags(command)["--cuda-graph-bs"] == "64"


def test_a_drafting_arm_has_its_flags_and_draft_model() -> None:
    (command,) = commands(backend("b0", "eagle3-k3"))
    assert flags(command) | {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": "deepseek-ai/eagle3_qwen3_8b_ttt7",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
        "--max-running-requests": "64",
    } == flags(command)


def test_given_paths_replace_the_profile_s_and_are_quoted() -> None:
    (command,) = commands(backend("b0", "dspark-8"), model_path="/m/Qwen 3", dspark_8="/d/it's")
    assert flags(command)["--model-path"] == "/m/Qwen 3"
    assert flags(command)["--speculative-draft-model-path"] == "/d/it's"


def test_every_backend_has_a_port_of_its_own() -> None:
    first, second = commands(backend("b0", "none"), backend("b1", "ngram-8", gpus='["host1:1"]'))
    assert [flags(command)["--port"] for command in (first, second)] == ["30000", "30001"]
    assert "--mem-fraction-static" not in flags(first) | flags(second)
    assert (second.machine, second.env) == ("host1", {"CUDA_VISIBLE_DEVICES": "1"})
    assert all("gives no url" in command.notes[0] for command in (first, second))


def test_servers_on_one_gpu_share_its_memory_and_nothing_else() -> None:
    shared = commands(
        backend("b0", "none", more='url = "http://127.0.0.1:29500"'),
        backend("b1", "dspark-8"),
        backend("b2", "eagle3-k1"),
        backend("b3", "none", gpus='["host0:1"]'),
    )
    fractions = [flags(command).get("--mem-fraction-static") for command in shared]
    assert fractions == ["0.28", "0.57", "0.85", None]
    nccl = [flags(command).get("--nccl-port") for command in shared]
    assert nccl == ["29501", "29502", "29503", None], "29500 is a server's own port"
    assert "shares a GPU with b0, b2" in shared[1].notes[0]


def test_an_idle_server_leaves_the_processors_to_others_of_its_machine() -> None:
    gpus = ['["host0:0"]', '["host0:1"]', '["host1:0"]', '["gpu-a"]', '["gpu-b"]']
    told = commands(*(backend(f"b{number}", "none", gpus=each) for number, each in enumerate(gpus)))
    # Ids without a machine do not tell who is beside whom.
    assert ["--sleep-on-idle" in flags(command) for command in told] == [True, True, False, False, False]


def test_the_api_key_is_taken_from_the_environment_not_written_out() -> None:
    (command,) = commands(backend("b0", "none", more='api_key_env = "MY_KEY"'))
    assert command.shell.endswith(' --api-key "$MY_KEY"')
    assert "MY_KEY" not in command.words


def test_gpu_ids_that_name_no_index_leave_the_choice_to_the_reader() -> None:
    (command,) = commands(backend("b0", "none", gpus='["gpu-a"]'))
    assert command.env == {}
    assert command.machine is None
    assert any("set CUDA_VISIBLE_DEVICES yourself" in note for note in command.notes)


def test_https_is_noted() -> None:
    (command,) = commands(backend("b0", "none", more='url = "https://gpu.example"'))
    assert flags(command)["--port"] == "443"
    assert any("TLS" in note for note in command.notes)


@pytest.fixture
def changed_profile(tmp_path: Path) -> str:
    """A profile of two GPUs that names no models, with an environment variable and a flag written with `=`."""
    document = sparse_document()
    document["gpu"]["count"] = 2
    document["common_flags"].append("--cuda-graph-max-bs=16")
    del document["target"]["model"]
    launch = document["arms"]["dspark-8"]["launch"]
    del launch["draft_model"]
    launch["env"] = {"SGLANG_RAGGED_VERIFY_MODE": "static", "CONFIG_OF": "{draft}"}
    path = tmp_path / "two.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_what_nobody_names_stays_a_placeholder_with_a_note(changed_profile: str) -> None:
    (command,) = commands(backend("b0", "dspark-8", gpus='["h:0", "h:3"]', profile=changed_profile))
    assert flags(command)["--model-path"] == "<model Qwen3-8B>"
    assert flags(command)["--speculative-draft-model-path"] == "<draft model of dspark-8>"
    assert [note for note in command.notes if "give --model-path" in note]
    assert [note for note in command.notes if "give --draft-path dspark-8=PATH" in note]


def test_environment_several_gpus_and_flags_given_twice(changed_profile: str) -> None:
    (command,) = commands(backend("b0", "dspark-8", gpus='["h:0", "h:3"]', profile=changed_profile), dspark_8="/d")
    assert shlex.split(command.shell)[:3] == [
        "CUDA_VISIBLE_DEVICES=0,3",
        "SGLANG_RAGGED_VERIFY_MODE=static",
        "CONFIG_OF=/d",
    ]
    assert flags(command)["--tp-size"] == "2"
    assert flags(command)["--cuda-graph-max-bs"] == "16"


def test_a_server_over_two_machines_is_left_to_the_reader(changed_profile: str) -> None:
    (command,) = commands(backend("b0", "none", gpus='["h:0", "g:0"]', profile=changed_profile))
    assert command.env == {}
    assert any("spans g, h" in note for note in command.notes)
