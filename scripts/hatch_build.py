"""Compiles what a simulation, a router's decisions and the chunks that pass through it spend their time in, if asked:

    DRAFTER_SELECTOR_COMPILE=1 pip install .

mypyc makes C extensions of the very same typed modules: a simulation runs about twice as fast, a router saves what
docs/relay.md says. It needs a C compiler. Without the variable, and always for an editable install, the wheel is pure
Python: what is compiled would hide later edits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "DRAFTER_SELECTOR_COMPILE"

COMPILED = (
    "selector/core/acceptancearm.py",
    "selector/core/acceptancelearning.py",
    "selector/core/acceptancesums.py",
    "selector/core/assignment.py",
    "selector/core/closedplan.py",
    "selector/core/contention.py",
    "selector/core/contentshape.py",
    "selector/core/controller.py",
    "selector/core/correction.py",
    "selector/core/cost.py",
    "selector/core/demandestimate.py",
    "selector/core/dispersion.py",
    "selector/core/drift.py",
    "selector/core/eligibility.py",
    "selector/core/fleetwork.py",
    "selector/core/forecast.py",
    "selector/core/labelbias.py",
    "selector/core/leastloaded.py",
    "selector/core/openplan.py",
    "selector/core/plan.py",
    "selector/core/planscore.py",
    "selector/core/poolload.py",
    "selector/core/pools.py",
    "selector/core/prediction.py",
    "selector/core/prefillcost.py",
    "selector/core/probing.py",
    "selector/core/refinement.py",
    "selector/core/runningload.py",
    "selector/core/sessions.py",
    "selector/core/speccounts.py",
    "selector/core/stalls.py",
    "selector/core/stream.py",
    "selector/core/streamevents.py",
    "selector/core/surelengths.py",
    "selector/core/survival.py",
    "selector/core/textfeatures.py",
    "selector/core/texthash.py",
    "selector/core/textwords.py",
    "selector/core/tracker.py",
    "selector/router/answerstream.py",
    "selector/router/exchange.py",
    "selector/router/passage.py",
    "selector/router/plainanswer.py",
    "selector/router/pool.py",
    "selector/simulator/arrivals.py",
    "selector/simulator/boards.py",
    "selector/simulator/decisionlog.py",
    "selector/simulator/decoding.py",
    "selector/simulator/draws.py",
    "selector/simulator/engine.py",
    "selector/simulator/job.py",
    "selector/simulator/kvcache.py",
    "selector/simulator/prefillpass.py",
    "selector/simulator/prefixcache.py",
    "selector/simulator/promptqueue.py",
    "selector/simulator/series.py",
    "selector/simulator/server.py",
)
"""Not core/types.py, core/effects.py and the like: pydantic reads the annotations of their dataclasses, which compiled
ones do not keep.
Not core/acceptance.py: only compiled classes can inherit from a compiled one. A NamedTuple of a compiled module names
only classes that are defined above it: the import crashes otherwise. Compiled objects can be neither copied nor kept
weakly, which router/accounts.py is by the metrics; an attribute `_thread` becomes a word of C.
Not the rest of a request's way through the router: compiled too, it saved 6 µs of 374 (docs/relay.md)."""

_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

files = {files!r}
options = ["--ignore-missing-imports", "--follow-imports=silent"]
setup(name="compiled", packages=[], ext_modules=mypycify([*options, *files], group_name="selector"))
"""


class CompileHook(BuildHookInterface[Any]):
    """See the module."""

    _work: TemporaryDirectory[str] | None = None

    def _asked(self) -> bool:
        return os.environ.get(SWITCH) == "1"

    def dependencies(self) -> list[str]:
        """What compiling needs in the build environment; numpy and scipy for their types."""
        return ["mypy>=1.13", "numpy>=1.26", "scipy>=1.13", "setuptools"] if self._asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the extensions to the wheel, beside the sources they were made from."""
        if version == "editable" or not self._asked():
            return
        self._work = TemporaryDirectory()
        work = Path(self._work.name)
        shutil.copytree(Path(self.root) / "selector", work / "selector")
        (work / "setup.py").write_text(_SETUP.format(files=list(COMPILED)), encoding="utf-8")
        subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=work, check=True)
        suffixes = (".so", ".pyd")
        made = [path for path in work.rglob("*") if path.suffix in suffixes and "build" not in path.parts]
        for path in made:
            build_data["force_include"][str(path)] = path.relative_to(work).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is made: what it was made of can go."""
        if self._work is not None:
            self._work.cleanup()
