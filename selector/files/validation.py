"""Turns pydantic's findings into the one line a user can act on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from selector.errors import InputError

_USER_INFO = re.compile(r"//[^/@\s]*@")
"""User name and password in a URL, which no message may show."""

Model = TypeVar("Model", bound=BaseModel)


class FileModel(BaseModel):
    """Base of every model of something on disk: unknown keys and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def validated(
    model: type[Model],
    data: Mapping[str, object],
    where: str,
    error: Callable[[str, str, str], InputError],
) -> Model:
    """`model` from parsed data; the first finding becomes `error(where: field, problem, remedy)`."""
    try:
        return model.model_validate(data)
    except ValidationError as invalid:
        first, *others = _causes(invalid)
        place, problem, remedy = _explained(first, where, model)
        raise error(place, problem, f"{remedy} ({len(others)} more after it)" if others else remedy) from None


def findings(
    model: type[Model], data: Mapping[str, object], where: str, error: Callable[[str, str, str], InputError]
) -> list[InputError]:
    """Everything that is wrong with the data, as the errors that `validated` would raise one by one."""
    try:
        model.model_validate(data)
    except ValidationError as invalid:
        return [error(*_explained(details, where, model)) for details in _causes(invalid)]
    return []


def _causes(invalid: ValidationError) -> list[ErrorDetails]:
    """Pydantic's findings without those about a whole of which a part has a finding: an emptied tuple, say."""
    found = invalid.errors(include_url=False)
    return [one for one in found if not any(_is_inside(other["loc"], one["loc"]) for other in found)]


def _is_inside(part: tuple[int | str, ...], whole: tuple[int | str, ...]) -> bool:
    return len(part) > len(whole) and part[: len(whole)] == whole


def _explained(details: ErrorDetails, where: str, model: type[BaseModel]) -> tuple[str, str, str]:
    """Where, problem and remedy of one finding of pydantic."""
    field = _dotted(details["loc"])
    place = f"{where}: {field}" if field else where
    if details["type"] == "extra_forbidden":
        return place, "is not a known field", _spelling(str(details["loc"][-1]), model)
    if details["type"] == "missing":
        return place, "is missing", "add it"
    value, message = details.get("input"), _lowered(details["msg"])
    # A check across fields gets the whole table as its input; the message names what matters of it.
    across_fields = details["type"] == "value_error" and isinstance(value, Mapping)
    hidden = across_fields or _is_secret(details["loc"], model)
    return place, message if hidden else f"is {_shown(value)}: {message}", "correct the value"


def read_text(path: Path, what: str, error: Callable[[str, str, str], InputError]) -> str:
    """A UTF-8 text file, or `error` in words."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(str(path), f"there is no such {what}", "check the path") from None
    except IsADirectoryError:
        raise error(str(path), f"is a folder, not a {what}", "name a file in it") from None
    except UnicodeDecodeError as bad:
        raise error(str(path), f"is not UTF-8 text (byte {bad.start})", f"save the {what} as UTF-8") from None
    except OSError as failed:
        raise error(str(path), f"cannot be read ({failed.strerror})", "check its permissions") from None


def read_toml(path: Path, what: str, error: Callable[[str, str, str], InputError]) -> dict[str, object]:
    """A TOML file's table, not yet validated, or `error` in words."""
    return toml_table(read_text(path, what, error), str(path), error)


def toml_table(text: str, where: str, error: Callable[[str, str, str], InputError]) -> dict[str, object]:
    """TOML text as a table, not yet validated; `error(where, problem, remedy)` if it is none."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        raise error(where, f"is not TOML ({bad})", "correct that line") from None


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _shown(value: object) -> str:
    text = _USER_INFO.sub("//…@", repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _lowered(message: str) -> str:
    message = message.removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    return message[:1].lower() + message[1:]


def _spelling(key: str, model: type[BaseModel]) -> str:
    """A remedy for an unknown key: the closest key of any model reachable from `model`."""
    known = {name for part in _reachable(model) for name in part.model_fields}
    close = get_close_matches(key, sorted(known), n=1)
    return f"did you mean {close[0]!r}?" if close else "remove it"


def _is_secret(location: tuple[int | str, ...], model: type[BaseModel]) -> bool:
    """Whether a value is in a field for secrets, or in place of a table of them: no message may show it."""
    reachable = _reachable(model)
    with_secrets: list[type] = [
        part for part in reachable if any(_mentions(f.annotation, SecretStr) for f in _fields(part))
    ]
    secret = {
        name
        for part in reachable
        for name, field in part.model_fields.items()
        if any(_mentions(field.annotation, wanted) for wanted in [SecretStr, *with_secrets])
    }
    # A field, or what a table of names has in its place: the name comes last then.
    return not secret.isdisjoint([part for part in location if isinstance(part, str)][-2:])


def _reachable(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model and all that are somewhere in its fields."""
    seen = [model]
    for current in seen:  # grows while it is walked
        for field in _fields(current):
            seen += [part for part in dict.fromkeys(_models_in(field.annotation)) if part not in seen]
    return seen


def _fields(model: type[BaseModel]) -> Iterable[FieldInfo]:
    return model.model_fields.values()


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _mentions(annotation: object, wanted: type) -> bool:
    return annotation is wanted or any(_mentions(part, wanted) for part in getattr(annotation, "__args__", ()))
