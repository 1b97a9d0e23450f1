"""The shell scripts parse, can be run, and make their environment once, from Python and pip alone.

The environment tests run the real `scripts/_env` in a made-up checkout. Its `python3` on PATH is the running Python,
except that environments come without pip and get a stand-in for it that notes how it was called.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE_PYTHON: str = getattr(sys, "_base_executable", sys.executable)
"""The Python that the environment of this run was made with."""
COMMANDS = (
    "scripts/demo",
    "scripts/test",
    "scripts/test_compiled",
    "scripts/check",
    "scripts/check_deploy",
    "scripts/bench",
    ".ci/run",
)

SCRIPT = """\
#!/bin/bash
source "$(dirname "$0")/_env"
echo "ran in $root"
"""

FAKE_PYTHON = """\
#!/bin/bash
if [ "$1 $2" != "-m venv" ]; then exec {python} "$@"; fi
echo "venv" >>{log}
{python} -m venv --without-pip "${{@:3}}"
site=$(echo "${{@: -1}}"/lib/python*/site-packages)
mkdir "$site/pip"
touch "$site/pip/__init__.py"
cp {pip} "$site/pip/__main__.py"
"""

FAKE_PIP = """\
import os, sys
with open({log!r}, "a") as log:
    log.write(f"pip in {{os.path.basename(os.getcwd())}}: {{' '.join(sys.argv[1:])}}\\n")
sys.exit(os.path.exists({broken!r}))
"""

INSTALLED = "pip in a checkout: install --quiet --disable-pip-version-check --editable .[dev]"


class Checkout:
    """A made-up checkout whose path has a space, with one script that uses the environment."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.bin = folder / "bin"
        self._log = folder / "log"
        self.pip_is_broken = folder / "pip is broken"
        (self.root / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/_env", self.root / "scripts/_env")
        self.write_pyproject("[project]\n")
        self._executable(self.root / "scripts/used", SCRIPT)
        self.bin.mkdir()
        for tool in ("bash", "cat", "cp", "dirname", "flock", "mkdir", "rm", "touch"):
            if where := shutil.which(tool):
                (self.bin / tool).symlink_to(where)
        pip = folder / "pip.py"
        pip.write_text(FAKE_PIP.format(log=str(self._log), broken=str(self.pip_is_broken)))
        quoted = {"python": shlex.quote(BASE_PYTHON), "log": shlex.quote(str(self._log)), "pip": shlex.quote(str(pip))}
        self._executable(self.bin / "python3", FAKE_PYTHON.format(**quoted))

    def write_pyproject(self, text: str) -> None:
        (self.root / "pyproject.toml").write_text(text)

    def replace_python(self, name: str, text: str) -> None:
        (self.bin / "python3").unlink()
        self._executable(self.bin / name, text)

    def start(self) -> subprocess.Popen[str]:
        environment = {"PATH": str(self.bin), "HOME": str(self.root.parent)}
        pipe = subprocess.PIPE
        return subprocess.Popen([self.root / "scripts/used"], env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self) -> tuple[int, str, str]:
        process = self.start()
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def take_log(self) -> list[str]:
        """What was called since the last look."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return lines

    @staticmethod
    def _executable(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("script", [*COMMANDS, "scripts/_env"])
def test_a_script_parses(script: str) -> None:
    done = subprocess.run(["bash", "-n", ROOT / script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", COMMANDS)
def test_a_command_can_be_executed(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_bytes().startswith(b"#!/usr/bin/env bash\n")


def test_every_script_is_listed_here() -> None:
    found = {f"scripts/{path.name}" for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix}
    assert found | {".ci/run"} == {*COMMANDS, "scripts/_env"}


def test_the_first_use_makes_the_environment_and_the_second_does_nothing(checkout: Checkout) -> None:
    status, out, err = checkout.run()
    assert (status, out) == (0, f"ran in {checkout.root}\n"), err
    assert checkout.take_log() == ["venv", INSTALLED]
    assert checkout.run() == (0, f"ran in {checkout.root}\n", "")
    assert checkout.take_log() == []


def test_another_pyproject_is_installed_into_the_same_environment(checkout: Checkout) -> None:
    checkout.run()
    checkout.take_log()
    checkout.write_pyproject("[project]\nname = 'changed'\n")
    assert checkout.run()[0] == 0
    assert checkout.take_log() == [INSTALLED]


def test_a_moved_checkout_is_installed_again(checkout: Checkout) -> None:
    checkout.run()
    checkout.take_log()
    checkout.root = checkout.root.rename(checkout.root.parent / "moved")
    assert checkout.run()[0] == 0
    assert checkout.take_log() == [INSTALLED.replace("a checkout", "moved")]


def test_a_failed_installation_is_told_and_tried_again(checkout: Checkout) -> None:
    checkout.pip_is_broken.touch()
    status, out, err = checkout.run()
    assert (status, out) == (1, "")
    assert "pip could not install the project" in err
    checkout.pip_is_broken.unlink()
    assert checkout.run()[0] == 0
    assert checkout.take_log() == ["venv", INSTALLED, INSTALLED]


def test_an_environment_that_lost_its_python_is_made_again(checkout: Checkout) -> None:
    checkout.run()
    checkout.take_log()
    for python in (checkout.root / ".venv/bin").glob("python*"):
        python.unlink()
    assert checkout.run()[0] == 0
    assert checkout.take_log() == ["venv", INSTALLED]


def test_a_folder_that_is_no_environment_is_not_cleared(checkout: Checkout) -> None:
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv/keep").touch()
    status, _, err = checkout.run()
    assert status == 1
    assert "is no virtual environment; move it away" in err
    assert (checkout.root / ".venv/keep").exists()


def test_without_a_new_enough_python_the_error_says_so(checkout: Checkout) -> None:
    checkout.replace_python("python3.12", "#!/bin/bash\nexit 127\n")  # a shim with nothing behind it
    status, out, err = checkout.run()
    assert (status, out) == (1, "")
    assert err.startswith("scripts: no Python >= 3.11 found as python3.13, python3.12, python3.11 or python3;")


def test_a_python_without_venv_is_named(checkout: Checkout) -> None:
    checkout.replace_python("python3.11", '#!/bin/bash\n[[ "$*" != *ensurepip* ]]\n')
    status, out, err = checkout.run()
    assert (status, out) == (1, "")
    assert err.startswith("scripts: python3.11 lacks the modules venv and ensurepip; install them")


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_two_first_uses_at_once_make_one_environment(checkout: Checkout) -> None:
    # Both find no environment and come to the lock, which this test holds until they have; then one makes it.
    fifo = checkout.root.parent / "waiting"
    os.mkfifo(fifo)
    real = checkout.bin / "flock"
    real.rename(checkout.bin / "real_flock")
    real.write_text(f"#!/bin/bash\necho waiting >'{fifo}'\nexec real_flock \"$@\"\n")
    real.chmod(0o755)
    with (checkout.root / "scripts/_env").open() as lock, os.fdopen(os.open(fifo, os.O_RDWR)) as waiting:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [checkout.start(), checkout.start()]
        for _ in processes:
            assert waiting.readline() == "waiting\n"
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert checkout.take_log() == ["venv", INSTALLED]
