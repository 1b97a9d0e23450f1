"""`meter` from its arguments to what it prints, over stand-ins for NVML."""

from __future__ import annotations

import json
import sys

import pytest

from selector.cli import main


def test_without_nvml_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert main(["meter", "--once"]) == 2
    assert "pip install nvidia-ml-py" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "x", "0,0", "-1", "0,"])
def test_a_bad_list_of_gpus_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["meter", f"--gpus={text}"])
    assert "no list of GPU indices" in capsys.readouterr().err


def test_one_reading_is_one_json_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Nvml:
        NVMLError = RuntimeError
        NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

        def __getattr__(self, name: str) -> object:
            answers = {"nvmlDeviceGetCount": 2, "nvmlDeviceGetTotalEnergyConsumption": 12_000}
            return lambda *_: answers.get(name, [] if "Processes" in name or "Field" in name else 700_000)

        def nvmlDeviceGetFieldValues(self, *_: object) -> object:
            raise RuntimeError("not on this board")

    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert main(["meter", "--once", "--host-name", "h"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(gpu["id"], gpu["energy_mj"], gpu["power_w"]) for gpu in document["gpus"]] == [
        ("h:0", 12_000, None), ("h:1", 12_000, None)
    ]  # fmt: skip
