"""The command itself: version, help, mistakes, exit codes."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import subprocess
import sys
from importlib.metadata import entry_points
from types import ModuleType

import pytest

from selector import __version__, cli
from selector.errors import MeterError, PolicyError, UpstreamError
from tests.profiles import PROFILE

COMMANDS = cli._COMMANDS

every_command = pytest.mark.parametrize("command", COMMANDS)


def exited(*argv: str) -> object:
    """The code with which the command line leaves by itself, as it does after help and mistakes."""
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    return ended.value.code


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help is wrapped to the terminal; tests want its words on one line."""
    monkeypatch.setenv("COLUMNS", "200")


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert exited("--version") == 0
    assert capsys.readouterr().out == f"drafter-selector {__version__}\n"


def test_help_lists_every_command_with_a_word_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert exited("--help") == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    told = {line[0]: line[1] for line in lines if len(line) == 2}
    for command in COMMANDS:
        assert len(told[command]) > 10, command


@every_command
def test_every_command_s_help_works_and_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exited(command, "--help") == 0
    printed = capsys.readouterr().out
    usage, _, rest = printed.partition("\n\n")
    assert usage.startswith(f"usage: drafter-selector {command}")
    assert f"drafter-selector {command}" in rest, "an example"
    assert "--help" in rest


@every_command
def test_a_command_s_module_has_its_name(command: str) -> None:
    assert command == importlib.import_module(f"selector.cli.{command}").NAME


def test_a_command_imports_no_other_command() -> None:
    code = """
import sys
from selector.cli import main
try:
    main(["classify", "--help"])
except SystemExit:
    print(sorted(name for name in sys.modules if name.startswith("selector.cli.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    commands = {f"selector.cli.{command}" for command in COMMANDS}
    assert commands.intersection(ast.literal_eval(done.stdout.splitlines()[-1])) == {"selector.cli.classify"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["simulat"], "invalid choice: 'simulat'"),
        (["simulate", "--trace", "t", "--fleet", "f", "--polcy", "p"], "unrecognized arguments: --polcy p"),
    ],
)
def test_a_mistake_is_told_and_exits_with_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exited(*argv) == 2
    printed = capsys.readouterr()
    assert (words in printed.err, printed.out) == (True, "")


def test_the_installed_command_and_the_module_are_this_command_line() -> None:
    (installed,) = entry_points(group="console_scripts", name="drafter-selector")
    assert installed.load() is cli.main
    argv = [sys.executable, "-m", "selector", "classify", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: drafter-selector classify")


# ---- how a command's end becomes an exit code


def failing(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    """Makes the only command one that raises `raised`."""

    def run(args: argparse.Namespace) -> int:
        raise raised

    def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        subparsers.add_parser("fail").set_defaults(run=run)

    module = ModuleType("selector.cli.fail")
    module.__dict__["add_parser"] = add_parser
    monkeypatch.setitem(sys.modules, "selector.cli.fail", module)
    monkeypatch.setattr(cli, "_COMMANDS", ("fail",))


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (PolicyError("policy x", "is wrong", "mend it"), 2, "drafter-selector fail: policy x: is wrong; mend it\n"),
        (UpstreamError("b0 is gone"), 1, "drafter-selector fail: b0 is gone\n"),
        (MeterError("counter went back"), 1, "drafter-selector fail: counter went back\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_raised_on_purpose_is_one_line(
    raised: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(monkeypatch, raised)
    assert cli.main(["fail"]) == code
    assert capsys.readouterr() == ("", line)


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError("division by zero"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(unbuffered: str) -> None:
    """`drafter-selector predict … --json | head -0`: no traceback, no complaint while Python exits."""
    argv = f"predict --profile {PROFILE} --arm none --batch 8 --context-tokens 1000 --json"
    with subprocess.Popen(
        [sys.executable, "-m", "selector", *argv.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0
