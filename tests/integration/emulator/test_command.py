"""The command `emulate`, as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from selector.cli import main
from selector.cli.emulate import NAME
from tests.profiles import PROFILE

ONE = ["--profile", PROFILE, "--arm", "dspark-8", "--port", "0"]

FLEET = f"""
version = 1
target = "Qwen3-8B"
[[backends]]
name = "b0"
arm = "none"
gpus = ["g"]
profile = "{PROFILE}"
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_when_told(ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "selector", NAME, *ONE, "--time-scale", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            energy, ready = process.stdout.readline(), process.stdout.readline()
            url = re.fullmatch(r"ready url=(\S+) arm=dspark-8 name=dspark-8 time_scale=50\n", ready)
            assert url is not None
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            assert b"Qwen3-8B" in opener.open(f"{url[1]}/v1/models").read()
            assert b'"gpu0"' in opener.open(energy.strip().removeprefix("energy url=")).read()
            process.send_signal(ending)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", PROFILE], "add --arm and --port"),
        ([*ONE[:2], "--arm", "dspark-9", "--port", "0"], "has no arm 'dspark-9'"),
        (["--profile", "nowhere", *ONE[2:]], "no shipped profile has this name"),
        ([*ONE, "--api-key-env", "SURELY_NOT_SET"], "the environment has no SURELY_NOT_SET"),
        (["--fleet", "{fleet}", "--arm", "none"], "--arm: is for one server"),
        (["--fleet", "{fleet}"], "backends[0].url: is missing"),
        (["--fleet", "{fleet}.nope"], "there is no such fleet file"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET)
    assert main([NAME, *(option.replace("{fleet}", str(fleet)) for option in options)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize("wrong", [["--time-scale", "0"], ["--port", "70000"], ["--max-kv-tokens", "0"]])
def test_numbers_out_of_range_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([NAME, *ONE, *wrong])
    assert ended.value.code == 2
    assert wrong[1] in capsys.readouterr().err
