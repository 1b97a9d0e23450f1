"""The proxies that are compared: how each is installed, started in front of the stub, and what version it is.

Peers live in environments of their own under one cache folder; nothing is installed into the system.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selector.loadgen.live import free_ports

ROOT = Path(__file__).parents[2]
MODEL = "Qwen3-8B"
PROFILE = "h200__qwen3-8b"
ARMS: Mapping[str, Mapping[str, object]] = {
    "none": {"speculative_algorithm": None},
    "eagle3-k3": {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "speculative_adaptive": False,
    },
}
"""The backends that the stub plays, and what each says of itself."""
INSTALL_LIMIT_S = 900.0
_ABOUT = """
import platform, sysconfig
from selector import __version__
from selector.core import stream
kind = "plain" if stream.__file__.endswith(".py") else "compiled"
built = "shared library" if "libpython" in open("/proc/self/maps").read() else "one executable"
print(f"{__version__}, {kind}, Python {platform.python_version()} {sysconfig.get_config_var('OPT')} {built}")
"""


class MissingPeer(Exception):
    """A peer that cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """One proxy, ready to be started."""

    name: str
    version: str
    command: Sequence[str]
    path: str = "/health"
    """Answers 200 once it serves."""
    environment: Mapping[str, str] | None = None


def ours(port: int, upstreams: Sequence[str], work: Path, python: Path) -> Proxy:
    """This project's router: `min_energy` decides between two arms, every decision is logged.

    Another interpreter runs the package that it has installed, perhaps compiled, and without one this checkout. Raises
    `MissingPeer` for an interpreter that does not run.
    """
    about, environment = _router_of(python)
    tables = "".join(
        f"""
        [[backends]]
        name = "b{index}"
        url = "{url}"
        arm = "{arm}"
        gpus = ["host0:{index}"]
        profile = "{PROFILE}"
        max_running_requests = 4096
        max_kv_tokens = 4000000
        max_context_tokens = 8192
        """
        for index, (url, arm) in enumerate(zip(upstreams, ARMS, strict=True))
    )
    fleet = work / "fleet.toml"
    fleet.write_text(
        f"""
        version = 1
        target = "{MODEL}"
        {tables}
        [slo]
        default_class = "chat"
        [slo.classes.chat]
        tbt_target_ms = 40
        [policy]
        name = "min_energy"
        """,
        encoding="utf-8",
    )
    log = work / "decisions.jsonl"
    command = [str(python), "-P", "-m", "selector", "serve", "--config", str(fleet), "--port", str(port)]
    return Proxy(
        name="drafter-selector",
        version=about,
        command=[*command, "--decision-log", str(log)],
        environment=environment,
    )


def nginx(port: int, upstreams: Sequence[str], work: Path, cache: Path) -> Proxy:
    """nginx, one worker, buffering off, kept-alive connections; Debian's package, unpacked and not installed."""
    home = cache / "nginx"
    binary = home / "usr" / "sbin" / "nginx"
    if not binary.exists():
        home.mkdir(parents=True, exist_ok=True)
        _install(["apt-get", "download", "nginx"], home)
        packages = sorted(home.glob("nginx_*.deb"))
        if not packages:
            raise MissingPeer("apt-get downloaded no package")
        _install(["dpkg", "-x", str(packages[-1]), str(home)], home)
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in upstreams)
    configuration = work / "nginx.conf"
    configuration.write_text(
        f"""
        daemon off; master_process off; worker_rlimit_nofile 20000;
        error_log {work}/nginx.log crit; pid {work}/nginx.pid;
        events {{ worker_connections 10000; }}
        http {{
          access_log off;
          client_body_temp_path {work}/body; proxy_temp_path {work}/proxy;
          fastcgi_temp_path {work}/fastcgi; uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
          upstream backends {{ {servers} keepalive 4096; }}
          server {{
            listen 127.0.0.1:{port} backlog=4096;
            keepalive_requests 1000000000;
            location = /health {{ return 200; }}
            location / {{
              proxy_pass http://backends;
              proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            }}
          }}
        }}
        """,
        encoding="utf-8",
    )
    said = subprocess.run([str(binary), "-v"], capture_output=True, text=True, timeout=10, check=False).stderr
    command = [str(binary), "-c", str(configuration), "-p", str(work)]
    return Proxy(name="nginx", version=said.strip().rpartition("/")[2], command=command)


def smg(port: int, upstreams: Sequence[str], work: Path, cache: Path) -> Proxy:
    """Shepherd Model Gateway."""
    home = _environment(cache / "smg", "smg")
    command = [str(home / "bin" / "smg"), "launch", *_rust_options(port, upstreams)]
    return Proxy(name="smg", version=_version(home, "smg"), command=command)


def sglang_router(port: int, upstreams: Sequence[str], work: Path, cache: Path) -> Proxy:
    """SGLang's own router."""
    home = _environment(cache / "sglang-router", "sglang-router")
    command = [str(home / "bin" / "python"), "-m", "sglang_router.launch_router", *_rust_options(port, upstreams)]
    return Proxy(name="sglang-router", version=_version(home, "sglang-router"), command=command)


def litellm(port: int, upstreams: Sequence[str], work: Path, cache: Path) -> Proxy:
    """LiteLLM's proxy, one worker."""
    home = _environment(cache / "litellm", "litellm[proxy]")
    models = [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"}}
        for url in upstreams
    ]
    configuration = work / "litellm.yaml"
    general = {"dangerously_permit_weak_or_unset_master_key": True}  # it serves this benchmark alone
    # JSON is YAML.
    configuration.write_text(json.dumps({"model_list": models, "general_settings": general}), encoding="utf-8")
    command = [str(home / "bin" / "litellm"), "--config", str(configuration), "--host", "127.0.0.1"]
    return Proxy(
        name="litellm",
        version=_version(home, "litellm"),
        command=[*command, "--port", str(port), "--num_workers", "1"],
        path="/health/liveliness",
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    )


PEERS = {"nginx": nginx, "sglang-router": sglang_router, "smg": smg, "litellm": litellm}


def _rust_options(port: int, upstreams: Sequence[str]) -> list[str]:
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin", "--log-level", "error"]
    return [*options, "--prometheus-port", str(free_ports(1)[0]), "--worker-urls", *upstreams]


def _environment(home: Path, requirement: str) -> Path:
    """A virtual environment with one distribution in it. Raises `MissingPeer`."""
    done = home / "installed"
    if not done.exists():
        _install([sys.executable, "-m", "venv", "--clear", str(home)], home.parent)
        _install([str(home / "bin" / "pip"), "install", "--quiet", requirement], home)
        done.write_text(requirement + "\n", encoding="utf-8")
    return home


def _version(home: Path, distribution: str) -> str:
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    ran = subprocess.run(
        [str(home / "bin" / "python"), "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.stdout.strip() or "unknown"


def _router_of(python: Path) -> tuple[str, Mapping[str, str]]:
    """What an interpreter would run, in words, and the environment that it needs for that.

    Whether it was built for speed decides what the router costs, so its build is told too. `-P` keeps the folder in
    which this runs, perhaps the checkout, out of what is imported.
    """
    of_checkout = {"PYTHONPATH": str(ROOT)}
    installed: Mapping[str, str] = {"PYTHONPATH": ""}
    tried = [of_checkout] if python == Path(sys.executable) else [installed, of_checkout]
    for environment in tried:
        try:
            ran = subprocess.run(
                [str(python), "-P", "-c", _ABOUT],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as failed:
            why = failed
        else:
            return ran.stdout.strip(), environment
    raise MissingPeer(f"{python}: {why}") from why


def _install(command: Sequence[str], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        ran = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise MissingPeer(f"{command[0]} {failed}") from failed
    if ran.returncode:
        raise MissingPeer(f"{' '.join(command)} failed: {ran.stderr.strip().splitlines()[-1:]}")
