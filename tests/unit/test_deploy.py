"""The files in deploy/ pass the checks of `scripts/check_deploy`, and each check sees a fault."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_check", ROOT / "scripts" / "deploy_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(script: ModuleType, title: str, deploy: Path) -> None:
    """Makes one check; skips when its tool is missing."""
    try:
        script.CHECKS[title](deploy)
    except script.MissingTool as missing:
        pytest.skip(str(missing))


TITLES = (
    "Containerfile, hadolint",
    "Containerfile, what it copies",
    "systemd unit",
    "Kubernetes manifests",
    "Kubernetes, the fleet file",
    "nginx",
)


@pytest.mark.parametrize("title", TITLES)
def test_what_is_shipped_passes(script: ModuleType, title: str) -> None:
    assert set(TITLES) == set(script.CHECKS)
    check(script, title, ROOT / "deploy")


@pytest.mark.parametrize(
    ("title", "file", "old", "new", "says"),
    [
        ("Containerfile, hadolint", "Containerfile", "3.13-slim", "latest", "DL3007"),
        ("Containerfile, what it copies", "Containerfile", "COPY policies ./policies\n", "", "policies: needed"),
        ("Containerfile, what it copies", "Containerfile", "COPY policies", "COPY policy policies", "policy: copied"),
        ("Containerfile, what it copies", "Containerfile.dockerignore", "!profiles", "", "profiles: copied"),
        ("systemd unit", "drafter-selector@.service", "DynamicUser=yes", "DynamicUsers=yes", "DynamicUsers"),
        ("systemd unit", "drafter-selector@.service", "Type=exec", "Type=nonsense", "nonsense"),
        ("Kubernetes manifests", "kubernetes/deployment.yaml", "replicas:", "replica:", "replica"),
        ("Kubernetes manifests", "kubernetes/optional/redis.yaml", "port: 6379", 'port: "x y"', "redis"),
        ("Kubernetes, the fleet file", "kubernetes/configmap.yaml", "version = 1", "version = 2", "version"),
        ("Kubernetes, the fleet file", "kubernetes/configmap.yaml", "port = 30800", "port = 30801", "port"),
        ("Kubernetes, the fleet file", "kubernetes/configmap.yaml", "control_port = 30900", "", "port"),
        ("Kubernetes, the fleet file", "kubernetes/networkpolicy.yaml", "port: 30900", "port: 30901", "networkpolicy"),
        ("Kubernetes, the fleet file", "kubernetes/deployment.yaml", 'port: "30900"', 'port: "30800"', "prometheus"),
        ("Kubernetes, the fleet file", "kubernetes/deployment.yaml", "Seconds: 45", "Seconds: 30", "too short"),
        ("nginx", "nginx.conf", "proxy_buffering off", "proxy_buffers off", "proxy_buffers"),
    ],
)
def test_a_fault_is_seen(
    script: ModuleType, tmp_path: Path, title: str, file: str, old: str, new: str, says: str
) -> None:
    deploy = shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    text = (deploy / file).read_text(encoding="utf-8")
    assert old in text
    (deploy / file).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(script.Faulty, match=says):
        check(script, title, deploy)


def test_a_unit_that_is_open_is_seen(script: ModuleType, tmp_path: Path) -> None:
    deploy = shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    unit = deploy / "drafter-selector@.service"
    text = unit.read_text(encoding="utf-8")
    unit.write_text(text[: text.index("DynamicUser")] + text[text.index("[Install]") :], encoding="utf-8")
    with pytest.raises(script.Faulty, match="exposure"):
        check(script, "systemd unit", deploy)


def test_a_missing_tool_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name, path: None)
    monkeypatch.setattr(sys, "argv", ["deploy_check"])
    assert script.main() == 0
    out = capsys.readouterr().out
    assert "skipped  nginx: nginx is not installed\n" in out
    assert "ok       Containerfile, what it copies\n" in out
