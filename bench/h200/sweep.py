"""Runs `drafter-selector profile` with nothing but the profiler's own dependencies: on a GPU machine without a network
the router's are not all there. Takes the same arguments.

    PYTHONPATH=SITE_WITH_SGLANG python3 bench/h200/sweep.py --config FILE --out DIR --models DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from selector.cli import profile
from selector.errors import InputError


def main() -> int:
    """The command's exit code: 0 done or stopped in time, 1 something failed, 2 an input that cannot be used."""
    parser = argparse.ArgumentParser(prog="sweep.py")
    profile.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args([profile.NAME, *sys.argv[1:]])
    try:
        return profile.run(args)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
