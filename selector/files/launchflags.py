"""What stands behind the flags that SGLang is launched with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

_PREFILL_GRAPHS = ("--cuda-graph-bs-prefill", "--piecewise-cuda-graph-tokens")
_DECODE_GRAPHS = ("--cuda-graph-bs-decode", "--cuda-graph-bs")
_NO_GRAPHS = "--disable-cuda-graph"
_STAGES = ("--pp-size", "--pipeline-parallel-size")


def graph_batches(flags: Sequence[str]) -> tuple[int, ...]:
    """Batches of the CUDA graphs that a decode step is padded to, rising; empty where flags name none.

    Then SGLang makes a list of its own, denser than what a profile measures.
    """
    return _graphs(flags, _DECODE_GRAPHS, (_NO_GRAPHS, "--disable-decode-cuda-graph", "--disable-cuda-graph-padding"))


def prefill_graphs(flags: Sequence[str]) -> tuple[int, ...]:
    """Tokens of the CUDA graphs that a pass over prompts is padded to, rising; empty where flags name none."""
    return _graphs(flags, _PREFILL_GRAPHS, (_NO_GRAPHS, "--disable-prefill-cuda-graph"))


def overlaps(flags: Sequence[str]) -> bool:
    """Whether the scheduler plans a batch while the one before runs, as SGLang does unless it is told not to.

    Every speculative algorithm of SGLang 0.5.17 does, NGRAM too, on a GPU; pipeline parallelism does not
    (`_pipeline_parallel_overlap_disable` in `arg_groups/overrides.py`).
    """
    stages = max((numbers[-1] for flag in _STAGES if (numbers := numbers_behind(flags, flag))), default=1)
    return "--disable-overlap-schedule" not in flags and stages == 1


def numbers_behind(flags: Sequence[str], flag: str) -> tuple[int, ...]:
    """The whole numbers that stand behind a launch flag, where it is first given, rising; empty where it is not."""
    after = flags[flags.index(flag) + 1 :] if flag in flags else ()
    return tuple(sorted(int(word) for word in takewhile(str.isdigit, after)))


def flag_value(flags: Sequence[str], flag: str) -> str | None:
    """What stands behind a launch flag; `None` where it is not given."""
    at = flags.index(flag) + 1 if flag in flags else len(flags)
    return flags[at] if at < len(flags) else None


def _graphs(flags: Sequence[str], names: Sequence[str], without: Sequence[str]) -> tuple[int, ...]:
    if any(flag in flags for flag in without):
        return ()
    return next((numbers_behind(flags, name) for name in names if name in flags), ())
