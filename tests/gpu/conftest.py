"""A real GPU, or the reason why there is none."""

from __future__ import annotations

import pytest

from selector.errors import MeterError
from selector.profiler.nvml import GpuFacts, NvmlGpu, open_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def board() -> tuple[NvmlGpu, GpuFacts]:
    try:
        (gpu,), facts = open_gpus([0])
    except MeterError as failed:
        pytest.skip(f"no NVIDIA GPU to meter: {failed}")
    return gpu, facts
