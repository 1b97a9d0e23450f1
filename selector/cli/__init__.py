"""The command line: one module a command. Nothing outside this folder prints or exits.

A command module has `NAME`, `add_parser(subparsers)` and `run(args) -> int`, the exit code. An `InputError` becomes one
line on standard error and exit code 2; any other `SelectorError` one line and exit code 1.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from selector import __version__
from selector.errors import InputError, SelectorError

_COMMANDS = (
    "demo",
    "serve",
    "simulate",
    "compare",
    "sweep",
    "plan",
    "predict",
    "export",
    "check",
    "classify",
    "profile",
    "emulate",
    "meter",
)

_DESCRIPTION = """\
Chooses the speculative-decoding drafter, or none, for every request, so that time-between-tokens targets are met at the
fewest joules per accepted token.

  drafter-selector demo                                  see it work on this machine, no GPU needed
  drafter-selector predict --profile h200__qwen3-8b --arm dspark-8 --batch 8 --context-tokens 1024 --text-type code
  drafter-selector plan --profile h200__qwen3-8b --trace T.csv --tbt-target-ms 25    which fleet to run
  drafter-selector check --config fleet.toml             what is wrong with a configuration, before traffic tells
  drafter-selector serve --config fleet.toml             the router in front of SGLang servers
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 an input that cannot be used, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="drafter-selector", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"drafter-selector {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    given = list(sys.argv[1:] if argv is None else argv)
    # A command pays only for its own imports; help and mistakes need them all.
    for command in given[:1] if given and given[0] in _COMMANDS else _COMMANDS:
        importlib.import_module(f"selector.cli.{command}").add_parser(subparsers)
    args = parser.parse_args(given)
    try:
        code = int(args.run(args))
        sys.stdout.flush()  # a reader that has left is noticed here rather than while Python exits
        return code
    except SelectorError as error:
        print(f"drafter-selector {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left (`| head`); Python would complain when it flushes at exit.
        sys.stdout = None
        return 0
