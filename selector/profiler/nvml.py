"""NVIDIA GPUs as energy sources, through NVML (`pynvml`, from the package nvidia-ml-py; imported on first use)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selector.errors import MeterError
from selector.profiler.energy import BoardState, ThrottleReason

_FIELD_POWER_INSTANT = 186
"""NVML_FI_DEV_POWER_INSTANT; `nvmlDeviceGetPowerUsage` is an average instead."""

_REASON_BITS = {
    0x04: ThrottleReason.POWER_CAP,
    0x08: ThrottleReason.HW_SLOWDOWN,
    0x20: ThrottleReason.SW_THERMAL,
    0x40: ThrottleReason.HW_THERMAL,
    0x80: ThrottleReason.HW_POWER_BRAKE,
}
"""NVML clocks-event reasons; idle, application clocks and sync boost are no fault and are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What a profile says about the board it was taken on."""

    name: str
    driver: str
    power_limit_w: float


class NvmlGpu:
    """One GPU. Raises `MeterError` from the constructor when it has no usable counter."""

    def __init__(self, api: Any, index: int) -> None:
        self._api = api
        self.gpu = str(index)
        self._handle = self._ask("open it", api.nvmlDeviceGetHandleByIndex, index)
        self.name = _text(self._required("name", api.nvmlDeviceGetName))
        self.power_limit_w = self._required("enforced power limit", api.nvmlDeviceGetEnforcedPowerLimit) / 1e3
        self.counter_mj()

    def counter_mj(self) -> int:
        """Total energy since the driver was loaded, millijoules."""
        return int(self._required("total energy counter", self._api.nvmlDeviceGetTotalEnergyConsumption))

    def instant_power_w(self) -> float | None:
        """Field 186 in watts; `None` on boards without it."""
        try:
            value = self._api.nvmlDeviceGetFieldValues(self._handle, [_FIELD_POWER_INSTANT])[0]
        except self._api.NVMLError:
            return None
        return None if value.nvmlReturn != 0 else value.value.uiVal / 1e3

    def state(self) -> BoardState:
        """Clocks, temperature, throttle reasons and processes; what the board does not tell is `None`."""
        api = self._api
        reasons = self._optional(api.nvmlDeviceGetCurrentClocksThrottleReasons)
        listed = self._optional(api.nvmlDeviceGetComputeRunningProcesses)
        return BoardState(
            sm_mhz=self._optional(api.nvmlDeviceGetClockInfo, api.NVML_CLOCK_SM),
            temperature_c=self._optional(api.nvmlDeviceGetTemperature, api.NVML_TEMPERATURE_GPU),
            throttle=frozenset(reason for bit, reason in _REASON_BITS.items() if (reasons or 0) & bit),
            processes=None if listed is None else frozenset(process.pid for process in listed),
        )

    def _required(self, what: str, call: Any) -> Any:
        return self._ask(f"read its {what}", call, self._handle)

    def _ask(self, what: str, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except self._api.NVMLError as failed:
            raise MeterError(f"GPU {self.gpu}: NVML cannot {what} ({_reason(self._api, failed)})") from None

    def _optional(self, call: Any, *args: Any) -> Any:
        try:
            return call(self._handle, *args)
        except self._api.NVMLError:
            return None


def gpu_count(api: Any = None) -> int:
    """How many GPUs this host has. Raises `MeterError` where NVML cannot be used."""
    api, _ = _ready(api)
    try:
        return int(api.nvmlDeviceGetCount())
    except api.NVMLError as failed:
        raise MeterError(f"NVML cannot count the GPUs ({_reason(api, failed)})") from None


def open_gpus(indices: Sequence[int], api: Any = None) -> tuple[list[NvmlGpu], GpuFacts]:
    """The GPUs of these NVML indices, and what they are. Raises `MeterError` where NVML or a GPU cannot be used.

    `api` is the module `pynvml` or a stand-in with the same functions.
    """
    api, driver = _ready(api)
    gpus = [NvmlGpu(api, index) for index in indices]
    if not gpus:
        raise MeterError("no GPU to meter")
    facts = GpuFacts(name=gpus[0].name, driver=driver, power_limit_w=sum(gpu.power_limit_w for gpu in gpus))
    return gpus, facts


def _ready(api: Any) -> tuple[Any, str]:
    """NVML, initialised, and the driver's version."""
    if api is None:
        try:
            api = importlib.import_module("pynvml")
        except ImportError:
            raise MeterError("NVML's Python package is not installed; pip install nvidia-ml-py") from None
    try:
        api.nvmlInit()
        return api, _text(api.nvmlSystemGetDriverVersion())
    except api.NVMLError as failed:
        raise MeterError(f"NVML cannot be used on this machine ({_reason(api, failed)})") from None


def _reason(api: Any, failed: Exception) -> str:
    hints = {
        "NVML_ERROR_NOT_SUPPORTED": "not supported by this GPU; the counter needs Volta or newer",
        "NVML_ERROR_NO_PERMISSION": "no permission; run as a user who may read the GPU's counters",
        "NVML_ERROR_LIBRARY_NOT_FOUND": "the driver's library is not there; is an NVIDIA driver installed?",
        "NVML_ERROR_DRIVER_NOT_LOADED": "the driver is not loaded",
    }
    code = getattr(failed, "value", None)
    for name, hint in hints.items():
        if code is not None and code == getattr(api, name, None):
            return hint
    return str(failed)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
