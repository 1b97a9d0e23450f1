"""A router in front of an emulated fleet, as processes of their own: what the clients are run against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from selector.loadgen.live import free_ports, running_process

PROFILE = "h200__qwen3-8b"
ARMS = ("none", "dspark-8")


def fleet_file(folder: Path, *, arms: tuple[str, ...] = ARMS, tbt_target_ms: float = 25.0, more: str = "") -> Path:
    """A fleet file of one emulated GPU an arm; `more` is added to it."""
    backends = "".join(
        f'[[backends]]\nname = "{arm}-{index}"\nurl = "http://127.0.0.1:{port}"\narm = "{arm}"\n'
        f'gpus = ["emulated:{index}"]\nprofile = "{PROFILE}"\n'
        for index, (arm, port) in enumerate(zip(arms, free_ports(len(arms)), strict=True))
    )
    slo = f'[slo]\ndefault_class = "chat"\n[slo.classes.chat]\ntbt_target_ms = {tbt_target_ms}\n'
    path = folder / "fleet.toml"
    path.write_text(f'version = 1\ntarget = "Qwen3-8B"\n{backends}{slo}{more}', encoding="utf-8")
    return path


@asynccontextmanager
async def served_fleet(folder: Path, *options: str) -> AsyncIterator[str]:
    """The router's URL; `options` go to `serve`."""
    path = str(fleet_file(folder))
    async with (
        running_process("emulate", "--fleet", path),
        running_process("serve", "--config", path, "--port", "0", *options) as lines,
    ):
        yield lines[-1].split("url=", 1)[1].split()[0]
