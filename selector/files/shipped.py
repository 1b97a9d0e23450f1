"""Finds the policies and profiles that come with the project, by name.

They are data, not import packages. A checkout keeps them in the folders `policies/` and `profiles/` next to the
package; a wheel carries the same folders inside it, as `selector/_shipped/policies` and `selector/_shipped/profiles`.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from selector.errors import InputError, PolicyError, ProfileError

PACKAGE_DIR = Path(__file__).resolve().parent.parent
PROJECT_NAME = "drafter-selector"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of shipped file."""

    noun: str
    folder: str
    """Name of the folder, which is also the plural of `noun`."""
    suffix: str
    error: type[InputError]


_POLICY = _Kind(noun="policy", folder="policies", suffix=".py", error=PolicyError)
_PROFILE = _Kind(noun="profile", folder="profiles", suffix=".json", error=ProfileError)


def policies_dir() -> Path:
    """The folder of the shipped policies, absolute."""
    return _shipped_dir(_POLICY)


def profiles_dir() -> Path:
    """The folder of the shipped profiles, absolute."""
    return _shipped_dir(_PROFILE)


def policy_names() -> tuple[str, ...]:
    """Names of the shipped policies, sorted."""
    return _names(_POLICY)


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return _names(_PROFILE)


def policy_path(name_or_path: str) -> Path:
    """The file of a policy: `pack` is a shipped one, `pack.py` and `mine/pack` are paths from the current folder.

    Raises `PolicyError` when there is no such file.
    """
    return _resolve(_POLICY, name_or_path)


def profile_path(name_or_path: str) -> Path:
    """The file of a profile: `h200__m` is a shipped one, `h200__m.json` and `mine/m` are paths from the current folder.

    Raises `ProfileError` when there is no such file.
    """
    return _resolve(_PROFILE, name_or_path)


def _shipped_dir(kind: _Kind) -> Path:
    checkout = PACKAGE_DIR.parent
    if _is_checkout(checkout):
        return checkout / kind.folder
    return PACKAGE_DIR / "_shipped" / kind.folder


def _is_checkout(folder: Path) -> bool:
    """Whether `folder` is a checkout of this project, not a folder of installed packages."""
    try:
        with (folder / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file).get("project")
    except (OSError, ValueError):  # absent or not TOML: another project's, so not ours
        return False
    return isinstance(project, dict) and project.get("name") == PROJECT_NAME


def _names(kind: _Kind) -> tuple[str, ...]:
    # `_x` is a draft or code that several files share, `.x` what editors and file systems leave behind.
    files = (path for path in _shipped_dir(kind).glob(f"*{kind.suffix}") if path.is_file())
    return tuple(sorted(path.stem for path in files if path.name[0] not in "_."))


def _resolve(kind: _Kind, name_or_path: str) -> Path:
    # Model names have dots (`h200__qwen2.5-7b`), so only the kind's own suffix makes a path of a bare name.
    is_path = "/" in name_or_path or name_or_path.endswith(kind.suffix)
    names = _names(kind)
    if name_or_path in names:
        return _shipped_dir(kind) / f"{name_or_path}{kind.suffix}"
    if is_path and Path(name_or_path).is_file():
        return Path(name_or_path)
    if not is_path:
        problem = f"no shipped {kind.noun} has this name"
    elif Path(name_or_path).exists():
        problem = "is no file"
    else:
        problem = f"there is no such file, seen from {Path.cwd()}"
    raise kind.error(f"{kind.noun} {name_or_path!r}", problem, _remedy(kind, name_or_path, names))


def _remedy(kind: _Kind, name_or_path: str, names: tuple[str, ...]) -> str:
    meant = difflib.get_close_matches(Path(name_or_path).name.removesuffix(kind.suffix), names, n=1)
    guess = f"did you mean {meant[0]}? " if meant else ""
    listed = ", ".join(names) or "none"
    return f"{guess}give the path of a {kind.suffix} file or one of the shipped {kind.folder}: {listed}"
