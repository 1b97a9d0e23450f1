"""Loads a policy file by name or path: `static`, `static:eagle3-k3`, `./my_policy.py`.

A policy file is code and runs with the rights of the process; its sha256 goes into every log and report, so that a
result can be traced to the exact file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from selector.core.policy import Policy, PolicyContext
from selector.errors import PolicyError, SelectorError
from selector.files.shipped import policy_path


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy file, ready to make policies."""

    label: str
    """As the user named it, argument included: `static:eagle3-k3`."""
    path: Path
    sha256: str
    argument: str | None
    params_type: type
    factory: Callable[[Any, PolicyContext], Policy]

    def make(self, params: Mapping[str, object], context: PolicyContext) -> Policy:
        """A policy for one run. Raises `PolicyError` for parameters the file does not take."""
        values = dict(params)
        if self.argument is not None:
            argument_field = self._argument_field()
            if argument_field in values and values[argument_field] != self.argument:
                given = values[argument_field]
                problem = f"{argument_field} is {self.argument!r} in the name, {given!r} in the parameters"
                raise PolicyError(f"policy {self.label}", problem, "give it once")
            values[argument_field] = self.argument
        known = [field.name for field in fields(self.params_type)]
        for key in values:
            if key not in known:
                raise PolicyError(
                    f"policy {self.label}: {key}",
                    "is not one of its parameters",
                    f"it takes {', '.join(known) if known else 'none'}",
                )
        try:
            checked: object = TypeAdapter(self.params_type).validate_python(values)
        except ValidationError as invalid:
            first = invalid.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise PolicyError(
                f"policy {self.label}: {place}", f"is {first.get('input')!r}: {first['msg']}", "correct the value"
            ) from None
        try:
            return self.factory(checked, context)
        except SelectorError:
            raise
        except Exception as bad:  # the file is the user's code, as in `_executed`
            raise PolicyError(
                f"policy {self.label}", f"fails when made ({_told(bad)})", f"correct {self.path}"
            ) from bad

    def _argument_field(self) -> str:
        name = getattr(self.params_type, "ARGUMENT", None)
        if not isinstance(name, str):
            raise PolicyError(
                f"policy {self.label}", f"takes no argument after ':' (got {self.argument!r})", "leave it out"
            )
        return name


def load_policy_file(name: str) -> LoadedPolicy:
    """A policy by `name`, `name:argument` or path. Raises `PolicyError`.

    The argument goes to the parameter that the file's `Params.ARGUMENT` names.
    """
    path = policy_path(name.partition(":")[0])
    try:
        source = path.read_bytes()
    except OSError as failed:
        raise PolicyError(str(path), f"cannot be read ({failed.strerror})", "check path and permissions") from None
    return policy_from_source(name, path, source)


def policy_from_source(name: str, path: Path, source: bytes) -> LoadedPolicy:
    """A policy from the content of its file, wherever that is; `path` names it in errors. Raises `PolicyError`."""
    _, separator, argument = name.partition(":")
    digest = hashlib.sha256(source).hexdigest()
    module = _executed(path, source, digest)
    params_type = getattr(module, "Params", None)
    factory = getattr(module, "make_policy", None)
    if not isinstance(params_type, type) or not is_dataclass(params_type):
        raise PolicyError(str(path), "has no dataclass Params", "see selector/core/policy.py for the contract")
    if not callable(factory):
        raise PolicyError(str(path), "has no function make_policy", "see selector/core/policy.py for the contract")
    return LoadedPolicy(
        label=name,
        path=path,
        sha256=digest,
        argument=argument if separator else None,
        params_type=params_type,
        factory=factory,
    )


def _executed(path: Path, source: bytes, digest: str) -> ModuleType:
    """Runs the file as a module of its own; two versions of one file never share a name."""
    name = f"_policy_{path.stem}_{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise PolicyError(str(path), "is not a Python file", "give it the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as bad:  # the file is the user's code: whatever it raises is a fault of that file
        del sys.modules[name]
        raise PolicyError(str(path), f"fails when loaded ({_told(bad)})", "correct the file") from bad
    return module


def _told(bad: Exception) -> str:
    """An exception in one line, whatever its message."""
    return " ".join(f"{type(bad).__name__}: {bad}".split())
