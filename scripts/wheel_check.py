"""Loads every shipped policy and profile from an installed wheel and runs the installed command.

Run it with the Python of an environment that holds the wheel, isolated (`python -I`) and from outside the checkout. The
checkout this file stands in says what the wheel must carry. Exits with 0, or with 1 and one line for each fault.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

KINDS = (
    ("policy", CHECKOUT / "policies", "*.py", "policy_names", "selector.files.policy", "load_policy_file"),
    ("profile", CHECKOUT / "profiles", "*.json", "profile_names", "selector.files.profile", "load_profile"),
)


def lookup(module: str, name: str) -> Callable[..., object]:
    """The callable `name` of `module`; raises `ImportError` when the installed package lacks it."""
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ImportError(f"{module} has no {name}()")
    return function  # type: ignore[no-any-return]  # any callable will do; the caller checks what it returns


def carried(kind: str, folder: Path, pattern: str, names_function: str, module: str, load_function: str) -> list[str]:
    """Faults of one kind of shipped file: none carried, one left out of the wheel, or one that does not load."""
    names = lookup("selector.files.shipped", names_function)()
    if not isinstance(names, tuple) or not names:
        return [f"{names_function}() answers {names!r}, so the wheel carries no {kind}"]
    wanted = {path.stem for path in folder.glob(pattern) if path.name[0] not in "._"}
    faults = [f"{kind} {name} is in {folder} but not in the wheel" for name in sorted(wanted - set(names))]
    load = lookup(module, load_function)
    for name in names:
        try:
            load(name)
        except Exception as error:  # noqa: BLE001  # whatever stops one file from loading is the finding; go on
            faults.append(f"{kind} {name} does not load: {type(error).__name__}: {error}")
    print(f"wheel_check: {len(names)} of kind {kind}: {', '.join(names)}")
    return faults


def command(version: str) -> list[str]:
    """Faults of the installed command: absent, failing, or telling another version."""
    program = Path(sysconfig.get_path("scripts")) / "drafter-selector"
    if not program.is_file():
        return [f"{program} was not installed"]
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or version not in done.stdout:
        said = (done.stdout + done.stderr).strip()
        return [f"drafter-selector --version exits with {done.returncode} and says {said!r}, not {version}"]
    print(f"wheel_check: {done.stdout.strip()}")
    return []


def main() -> int:
    try:
        package = importlib.import_module("selector")
        if Path(str(package.__file__)).is_relative_to(CHECKOUT):
            faults = [f"selector comes from the checkout ({package.__file__}), not from a wheel; run with python -I"]
        else:
            faults = [fault for kind in KINDS for fault in carried(*kind)] + command(package.__version__)
    except ImportError as error:
        faults = [f"the wheel is incomplete: {error}"]
    for fault in faults:
        print(f"wheel_check: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
