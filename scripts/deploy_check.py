"""Holds what is in deploy/ against the tools that judge such files, and against the rest of the checkout.

    python scripts/deploy_check.py [DEPLOY_FOLDER]

One line a check: ok, skipped with the reason when its tool is missing, or failed with what the tool said. The exit code
is 1 when one failed. `scripts/check_deploy` installs the tools that come from a package index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from selector.errors import FleetError
from selector.files.fleet import LoadedFleet, parse_fleet

ROOT = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "drafter-selector-deploy" / "bin"
"""Where `scripts/check_deploy` installs."""
MOST_EXPOSURE = 20
"""Of 100, as `systemd-analyze security` counts it."""
_LIMIT_S = 120.0


class MissingTool(Exception):
    """A check could not be made; the message says why."""


class Faulty(Exception):
    """A check found something; the message is what."""


def tool(name: str) -> str:
    """The path of a program. Raises `MissingTool`."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(TOOLS), str(Path(sys.executable).parent), "/usr/sbin"])
    found = shutil.which(name, path=places)
    if found is None:
        raise MissingTool(f"{name} is not installed")
    return found


def said(command: Sequence[str | Path]) -> str:
    """What a program printed. Raises `Faulty` when it did not end well."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    output = (ran.stdout + ran.stderr).strip()
    if ran.returncode:
        raise Faulty(output or f"{command[0]} ended with {ran.returncode}")
    return output


def containerfile(deploy: Path) -> None:
    """hadolint finds nothing."""
    said([tool("hadolint"), "--failure-threshold", "style", deploy / "Containerfile"])


def container_sources(deploy: Path) -> None:
    """What the image is built from is there, and is all that the build of the package needs."""
    copied = set()
    for line in (deploy / "Containerfile").read_text(encoding="utf-8").splitlines():
        match = re.match(r"COPY (?!--from)(.+) \S+$", line)
        copied.update(match.group(1).split() if match else ())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {*wheel["packages"], *wheel["force-include"], *(hook["path"] for hook in wheel["hooks"].values())}
    ignored = (deploy / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    for title, names in (("copied and not there", {name for name in copied if not (ROOT / name).exists()}),
                         ("needed and not copied", needed - copied),
                         ("copied and ignored by Containerfile.dockerignore", copied - let_in)):  # fmt: skip
        if names:
            raise Faulty(f"Containerfile: {', '.join(sorted(names))}: {title}")


def unit(deploy: Path) -> None:
    """systemd can load the unit, every directive in it, and finds it well locked in."""
    analyze = tool("systemd-analyze")
    with tempfile.TemporaryDirectory() as folder:
        text = (deploy / "drafter-selector@.service").read_text(encoding="utf-8")
        instance = Path(folder) / "drafter-selector@30801.service"
        # systemd looks for the program, which is not installed here.
        instance.write_text(text.replace("/opt/drafter-selector/bin/drafter-selector", "/bin/true"), encoding="utf-8")
        warnings = said([analyze, "verify", instance])
        if warnings:
            raise Faulty(warnings)
        said([analyze, "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}", instance])


def manifests(deploy: Path) -> None:
    """Every Kubernetes document fits the schema of its kind, without a field that the schema does not know."""
    said([tool("kubernetes-validate"), "--strict", *sorted(deploy.glob("kubernetes/**/*.yaml"))])


def fleet_in_configmap(deploy: Path) -> None:
    """The fleet file in the ConfigMap is one, and says the ports that the other manifests expect."""
    text = (deploy / "kubernetes" / "configmap.yaml").read_text(encoding="utf-8")
    _, _, block = text.partition("  fleet.toml: |\n")
    fleet = "".join(line.removeprefix("    ") for line in block.splitlines(keepends=True))
    try:
        router = LoadedFleet(parse_fleet(fleet, "fleet.toml"), "configmap.yaml, fleet.toml").fleet.router
    except FleetError as bad:
        raise Faulty(str(bad)) from None
    for name, pattern in (
        ("deployment.yaml", r"containerPort: (\d+)"),
        ("networkpolicy.yaml", r"TCP, port: (30[89]\d+)"),
    ):
        ports = re.findall(pattern, (deploy / "kubernetes" / name).read_text(encoding="utf-8"))
        expected = [str(router.port), str(router.control_port)]
        if ports != expected:
            raise Faulty(f"{name}: port {ports}, the fleet file says {expected}")
    deployment = (deploy / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8")
    if f'prometheus.io/port: "{router.control_port}"' not in deployment:
        raise Faulty(
            f"deployment.yaml: prometheus.io/port is not {router.control_port}, where the fleet file has metrics"
        )
    grace = int(re.findall(r"terminationGracePeriodSeconds: (\d+)", deployment)[0])
    if grace < router.drain_timeout_s + 10:
        raise Faulty(f"deployment.yaml: {grace} s are too short for drain_timeout_s {router.drain_timeout_s:g}")


def nginx(deploy: Path) -> None:
    """nginx takes the configuration."""
    program = tool("nginx")
    with tempfile.TemporaryDirectory() as folder:
        main = Path(folder) / "nginx.conf"
        main.write_text(nginx_main(Path(folder), deploy / "nginx.conf"), encoding="utf-8")
        output = said([program, "-t", "-e", f"{folder}/error.log", "-p", folder, "-c", main])
        if "[warn]" in output:
            raise Faulty(output)


def nginx_main(folder: Path, included: Path) -> str:
    """A main configuration that writes under `folder` alone and holds nothing but `included`."""
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""
    daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
    events {{ worker_connections 4096; }}
    http {{ access_log off; {temporary} include {included}; }}
    """


CHECKS: Mapping[str, Callable[[Path], None]] = {
    "Containerfile, hadolint": containerfile,
    "Containerfile, what it copies": container_sources,
    "systemd unit": unit,
    "Kubernetes manifests": manifests,
    "Kubernetes, the fleet file": fleet_in_configmap,
    "nginx": nginx,
}


def main() -> int:
    """The command."""
    deploy = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "deploy"
    failed = False
    for title, check in CHECKS.items():
        try:
            check(deploy)
            print(f"ok       {title}")
        except MissingTool as missing:
            print(f"skipped  {title}: {missing}")
        except Faulty as fault:
            print(f"failed   {title}: {fault}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
