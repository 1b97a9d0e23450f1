"""Policy files: found by name, name with argument, or path; whatever is wrong with one is said in a line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from selector.core.acceptance import AcceptanceModel
from selector.core.policy import PolicyContext
from selector.errors import PolicyError
from selector.files import policy as policy_files
from selector.files.policy import load_policy_file

CONTEXT = PolicyContext(target="m", backends=(), acceptance=AcceptanceModel({}, {}), seed=7)

GOOD = """\
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    ARGUMENT: ClassVar[str] = "arm"
    arm: str = "none"
    share: float = 0.5

class Noted:
    def __init__(self, params, context):
        self.params, self.context = params, context

def make_policy(params, context):
    return Noted(params, context)
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a policy file and returns its path."""

    def written(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(source)
        return path

    return written


def test_a_path_is_loaded_with_its_hash(write: Write) -> None:
    path = write(GOOD)
    loaded = load_policy_file(str(path))
    assert (loaded.label, loaded.path, loaded.argument) == (str(path), path, None)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    made = loaded.make({"share": 0.25}, CONTEXT)
    assert (made.params.arm, made.params.share) == ("none", 0.25)  # type: ignore[attr-defined]  # of the test's file
    assert made.context is CONTEXT  # type: ignore[attr-defined]  # of the test's file


def test_a_bare_name_is_a_shipped_policy(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    path = write(GOOD)
    asked = []

    def shipped(name: str) -> Path:
        asked.append(name)
        return path

    monkeypatch.setattr(policy_files, "policy_path", shipped)
    assert load_policy_file("mine").path == path
    assert load_policy_file("mine:dspark-8").label == "mine:dspark-8"
    assert asked == ["mine", "mine"]


def test_the_argument_goes_to_the_parameter_that_the_file_names(write: Write) -> None:
    loaded = load_policy_file(f"{write(GOOD)}:dspark-8")
    assert loaded.argument == "dspark-8"
    for params in ({}, {"arm": "dspark-8"}):
        assert loaded.make(params, CONTEXT).params.arm == "dspark-8"  # type: ignore[attr-defined]  # of the test's file


def test_an_argument_that_contradicts_the_parameters_is_refused(write: Write) -> None:
    with pytest.raises(PolicyError, match=r"arm is 'a' in the name.*'b' in the parameters; give it once"):
        load_policy_file(f"{write(GOOD)}:a").make({"arm": "b"}, CONTEXT)


def test_an_argument_that_the_file_does_not_take_is_refused(write: Write) -> None:
    path = write(GOOD.replace('    ARGUMENT: ClassVar[str] = "arm"\n', ""))
    with pytest.raises(PolicyError, match=r"takes no argument after ':' \(got 'a'\); leave it out"):
        load_policy_file(f"{path}:a").make({}, CONTEXT)


def test_a_changed_file_is_another_policy(write: Write) -> None:
    before = load_policy_file(str(write(GOOD)))
    after = load_policy_file(str(write(GOOD.replace("0.5", "0.75"))))
    assert before.sha256 != after.sha256
    assert before.make({}, CONTEXT).params.share == 0.5  # type: ignore[attr-defined]  # of the test's file
    assert after.make({}, CONTEXT).params.share == 0.75  # type: ignore[attr-defined]  # of the test's file


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"shares": 1}, ": shares: is not one of its parameters; it takes arm, share"),
        ({"share": "much"}, ": share: is 'much': Input should be a valid number"),
        ({"arm": 3}, ": arm: is 3: Input should be a valid string"),
    ],
)
def test_bad_parameters_are_refused(write: Write, params: dict[str, object], expected: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy_file(str(write(GOOD))).make(params, CONTEXT)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def make_policy(params, context): pass", "has no dataclass Params"),
        ("class Params: pass\ndef make_policy(p, c): pass", "has no dataclass Params"),
        (GOOD.replace("make_policy", "make"), "has no function make_policy"),
        ("raise RuntimeError('two\\nlines')", "fails when loaded (RuntimeError: two lines)"),
        ("def (", "fails when loaded (SyntaxError: "),
        ("import no_such_module_at_all", "fails when loaded (ModuleNotFoundError: "),
    ],
)
def test_a_file_that_is_no_policy_is_refused(write: Write, source: str, expected: str) -> None:
    path = write(source)
    for _ in range(2):  # a failed load must leave nothing behind that a second one would find
        with pytest.raises(PolicyError) as caught:
            load_policy_file(str(path))
        assert str(caught.value).startswith(f"{path}: ")
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_factory_that_raises_is_a_fault_of_the_file(write: Write) -> None:
    path = write(GOOD.replace("return Noted(params, context)", "return context.spec('x')"))
    with pytest.raises(PolicyError, match=r"fails when made \(KeyError: 'x'\); correct .*mine\.py"):
        load_policy_file(str(path)).make({}, CONTEXT)


def test_what_a_factory_says_on_purpose_is_kept(write: Write) -> None:
    own = "from selector.errors import PolicyError; raise PolicyError('policy mine: arm', 'is no arm', 'name one')"
    path = write(GOOD.replace("return Noted(params, context)", own))
    with pytest.raises(PolicyError, match=r"^policy mine: arm: is no arm; name one$"):
        load_policy_file(str(path)).make({}, CONTEXT)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="there is no such file"):
        load_policy_file(str(tmp_path / "absent.py"))
    (tmp_path / "text.txt").write_text(GOOD)
    with pytest.raises(PolicyError, match=r"text\.txt: is not a Python file; give it the suffix \.py"):
        load_policy_file(str(tmp_path / "text.txt"))
