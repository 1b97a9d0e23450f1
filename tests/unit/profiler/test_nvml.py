"""NVML as it answers, and as it fails: no library, no driver, no permission, a GPU without the counter."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from selector.errors import MeterError
from selector.profiler.energy import ThrottleReason
from selector.profiler.nvml import gpu_count, open_gpus


class NVMLError(Exception):
    """As the package's: it carries NVML's code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """The functions of `pynvml` that are used, over boards given by the test."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.reasons = 0
        self.field_status = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if name in self.fails:
                raise NVMLError(self.fails[name])
            return getattr(self, f"answer_{name}")(*args)

        return call

    def answer_nvmlInit(self) -> None:
        return None

    def answer_nvmlDeviceGetCount(self) -> int:
        return 8

    def answer_nvmlSystemGetDriverVersion(self) -> str:
        return "580.159"

    def answer_nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def answer_nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"

    def answer_nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def answer_nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return 12_000 + handle

    def answer_nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [186]
        return [SimpleNamespace(nvmlReturn=self.field_status, value=SimpleNamespace(uiVal=431_500))]

    def answer_nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons

    def answer_nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]

    def answer_nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return 1980

    def answer_nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 41


def test_a_gpu_answers_in_watts_and_the_counters_millijoules() -> None:
    (gpu, second), facts = open_gpus([0, 1], FakeNvml())
    assert (facts.name, facts.driver, facts.power_limit_w) == ("NVIDIA H200", "580.159", 1400.0)
    assert (gpu.counter_mj(), second.counter_mj()) == (12_000, 12_001)
    assert gpu.power_limit_w == 700.0
    assert gpu.instant_power_w() == 431.5
    state = gpu.state()
    assert (state.sm_mhz, state.temperature_c, state.processes) == (1980, 41, frozenset({7, 8}))
    assert state.throttle == frozenset()


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x01 | 0x02 | 0x10, set()),
        (0x04, {ThrottleReason.POWER_CAP}),
        (0x08 | 0x40, {ThrottleReason.HW_SLOWDOWN, ThrottleReason.HW_THERMAL}),
        (0x20 | 0x80, {ThrottleReason.SW_THERMAL, ThrottleReason.HW_POWER_BRAKE}),
    ],
)
def test_throttle_reasons_are_told_apart(bits: int, reasons: set[ThrottleReason]) -> None:
    api = FakeNvml()
    api.reasons = bits
    (gpu,), _ = open_gpus([0], api)
    assert gpu.state().throttle == reasons


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("nvmlInit", 12, "driver's library is not there"),
        ("nvmlInit", 9, "driver is not loaded"),
        ("nvmlDeviceGetTotalEnergyConsumption", 3, "GPU 0: NVML cannot read its total energy counter .*Volta or newer"),
        ("nvmlDeviceGetTotalEnergyConsumption", 4, "GPU 0: .*no permission"),
        ("nvmlDeviceGetHandleByIndex", 2, "GPU 0: NVML cannot open it"),
        ("nvmlDeviceGetEnforcedPowerLimit", 3, "enforced power limit"),
    ],
)
def test_what_cannot_be_metered_is_said(call: str, code: int, message: str) -> None:
    with pytest.raises(MeterError, match=message):
        open_gpus([0], FakeNvml(**{call: code}))


def test_a_machine_without_the_package_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeterError, match="pip install nvidia-ml-py"):
        open_gpus([0])


def test_a_counter_lost_later_is_a_meter_error() -> None:
    api = FakeNvml()
    (gpu,), _ = open_gpus([0], api)
    api.fails["nvmlDeviceGetTotalEnergyConsumption"] = 15
    with pytest.raises(MeterError, match="GPU 0"):
        gpu.counter_mj()


def test_what_a_board_need_not_tell_is_none() -> None:
    api = FakeNvml(nvmlDeviceGetComputeRunningProcesses=4, nvmlDeviceGetClockInfo=3, nvmlDeviceGetTemperature=3)
    (gpu,), _ = open_gpus([0], api)
    state = gpu.state()
    assert (state.processes, state.sm_mhz, state.temperature_c) == (None, None, None)
    api.field_status = 3
    assert gpu.instant_power_w() is None


def test_no_gpu_is_no_meter() -> None:
    with pytest.raises(MeterError, match="no GPU"):
        open_gpus([], FakeNvml())


def test_the_gpus_of_a_host_are_counted() -> None:
    assert gpu_count(FakeNvml()) == 8
    with pytest.raises(MeterError, match=r"cannot count the GPUs \(no permission"):
        gpu_count(FakeNvml(nvmlDeviceGetCount=4))
    with pytest.raises(MeterError, match="the driver is not loaded"):
        gpu_count(FakeNvml(nvmlInit=9))
