"""Writes the sweep file of a target on one H200, for the drafters that its model folder has configurations of.

    python bench/h200/plan.py Qwen3-14B --models models > qwen3-14b.toml
    python bench/h200/plan.py Qwen3-8B --models models --grid full --arms none,dspark-8 --repeats 3 > more.toml

Grids: `first` is batch 1, 8, 32, 64 x 512 and 2048 tokens and 8 x 8192; `reduced` is batch 1, 8, 32, 64 x 512 and
8 x 2048, without `none` again at the end; `full` is batch 1, 2, 4, 8, 16, 32, 64 x 512, 2048, 8192, and 32768 up to 8.
`single` is batch 1 and 32 x 512, to compare steps alone. With `reduced` only `none` is interrupted by prompts, with
`single` no arm is. Batches that an arm has no memory for are left out.
`--no-graphs` switches CUDA graphs off, for a profile of its own. The sweep resumes: a larger plan over the same
OUT measures only what is missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

MOST = 64
"""Requests that a server runs at once, where they have room."""
MEASURING = (
    "--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache", "--skip-server-warmup",
    "--sampling-backend", "pytorch", "--grammar-backend", "none", "--random-seed", "1", "--log-level", "warning",
)  # fmt: skip
PREFILL_GRAPHS = ("--cuda-graph-bs-prefill", "128", "512")
"""For lone prompts, which a server prefills with a graph; a busy one is given 4,096 tokens at a time."""
ALL_PREFILLS = (128, 512, 2048, 8192, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is measured of every arm."""

    decode: tuple[tuple[Sequence[int], Sequence[int]], ...]
    """Batches, and the prompt lengths in tokens that they are measured at."""
    prefilled: tuple[int, ...] = ALL_PREFILLS
    """Lengths of the prompts that the arm `none` is given, in tokens."""
    interrupted: tuple[str, ...] = ("among_running = 7",)
    """Settings that say whose running requests are interrupted by prompts."""
    repeats_none: bool = True
    """Whether the sweep ends with `none` again, another launch."""


GRIDS = {
    "first": Grid(decode=(([1, 8, 32, 64], [512, 2048]), ([8], [8192]))),
    "reduced": Grid(
        decode=(([1, 8, 32, 64], [512]), ([8], [2048])),
        prefilled=ALL_PREFILLS[:4],
        interrupted=("among_running = 7", "drafting_among_running = false"),
        repeats_none=False,
    ),
    "single": Grid(decode=(([1, 32], [512]),), prefilled=(512, 2048), interrupted=(), repeats_none=False),
    "full": Grid(decode=(([1, 2, 4, 8, 16, 32, 64], [512, 2048, 8192]), ([1, 2, 4, 8], [32768]))),
}
MTP_TARGETS = ("Qwen3.6-27B", "Qwen3.6-35B-A3B", "GLM-4.7-Flash", "JoyAI-LLM-Flash")
"""Targets with multi-token-prediction heads of their own."""
STANDALONE_DRAFTS = {
    "Qwen3-8B": "Qwen3-4B",
    "Qwen3-14B": "Qwen3-4B",
    "Qwen3-30B-A3B": "Qwen3-4B",
    "Qwen3-Coder-30B-A3B": "Qwen3-4B",
    "gemma-4-31B-it": "gemma-4-12B-it",
}
"""Smaller models of the same vocabulary that can draft as they are."""
WITHOUT_EAGLE3 = ("Qwen3.6",)
"""Targets whose class in SGLang 0.5.17 lacks the hook that hands its hidden states to an EAGLE3 draft."""
LONGER_CONTEXT = ("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
"""Lets a draft that was made for fewer positions than the server allows start; its arm gets a context limit."""
CONTEXT_LENGTH = 36864
ADAPTIVE_WIDTH = 8
"""Widest verification of SGLang's default adaptive candidates: 7 steps and the bonus token."""
MOST_RUNNING = {"gemma-4-31B-it": 32}
"""Of targets whose KV pool of sliding windows has no place for more beside the weights: all their arms run fewer."""
MOST_RUNNING_OF = {("Qwen3.6-27B", "dspark-17"): 16}
"""Of arms that need more: a GDN hybrid keeps a state, here of 151 MB, for every token that a request verifies."""
SMALL_WINDOWS = ("SGLANG_SWA_EVICTION_INTERVAL", "16")
"""Where windows are short of memory: SGLang keeps so many steps more of each than it needs, 128 by default."""
FULL_ATTENTION_3 = ("Qwen3", "Llama")
"""Targets whose attention runs on the backend that SGLang takes on Hopper; named, so that all arms have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """One arm as the sweep file has it."""

    name: str
    algorithm: str
    verify_tokens: int
    accept: float
    draft: str | None = None
    steps: int | None = None
    max_context: int | None = None
    most_running: int | None = None
    """Fewer than the target's other arms, if any."""
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    left_out: str | None = None
    """Why it is measured but no part of a profile."""


def drafters(target: str, models: Path) -> list[Drafter]:
    """Every arm that the target has a configuration for, the cheapest to learn from first."""
    found = [Drafter(name="none", algorithm="none", verify_tokens=1, accept=1.0)]
    dspark, dflash, eagle3 = (f"{target}-{kind}" for kind in ("dspark", "dflash", "eagle3"))
    if (models / dspark).is_dir():
        gamma = int(_config(models / dspark).get("block_size", 7))
        found.append(_block("dspark", "DSPARK", gamma + 1, dspark))
    if (models / eagle3).is_dir() and not target.startswith(WITHOUT_EAGLE3):
        found += [_eagle("eagle3", "EAGLE3", steps, eagle3) for steps in (1, 3, 5)]
    if (models / dflash).is_dir():
        block = int(_config(models / dflash).get("block_size", 16))
        found.append(_block("dflash", "DFLASH", block, dflash))
        found.append(_block("dflash", "DFLASH", 8, dflash, "--speculative-dflash-block-size", "8"))
    found.append(
        Drafter(
            name="ngram-8", algorithm="NGRAM", verify_tokens=8, accept=2.0,
            flags=("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8",
                   "--speculative-ngram-max-bfs-breadth", "1"),
        )
    )  # fmt: skip
    if target in MTP_TARGETS:
        found += [_eagle("mtp", "NEXTN", steps, None) for steps in (1, 3)]
    small, vocabulary = STANDALONE_DRAFTS.get(target), _vocabulary(models / target)
    if small is not None and vocabulary is not None and _vocabulary(models / small) == vocabulary:
        found.append(_eagle("standalone", "STANDALONE", 3, small))
    if any(arm.algorithm == "EAGLE3" for arm in found):
        found.append(_adaptive(eagle3))
    if (models / dspark).is_dir():
        for mode in ("cap-accept", "compact"):
            default = _block("dspark", "DSPARK", int(_config(models / dspark).get("block_size", 7)) + 1, dspark)
            env = (("SGLANG_RAGGED_VERIFY_MODE", mode),)
            found.append(
                Drafter(
                    name=f"{default.name}-{mode}", algorithm="DSPARK", verify_tokens=default.verify_tokens,
                    accept=default.accept, draft=dspark, flags=default.flags, env=env,
                )
            )  # fmt: skip
    return [_limited(_within_memory(arm, target), models) for arm in found]


def _within_memory(arm: Drafter, target: str) -> Drafter:
    """The arm as it starts beside the target's weights."""
    if target in MOST_RUNNING:
        arm = replace(arm, env=(*arm.env, SMALL_WINDOWS))
    most = MOST_RUNNING_OF.get((target, arm.name))
    return arm if most is None else replace(arm, most_running=most, flags=(*arm.flags, *_running(most)))


def _running(most: int) -> tuple[str, str]:
    return "--max-running-requests", str(most)


def _memory(most: int) -> tuple[str, ...]:
    """What bounds a server's memory, alike for all arms of a target."""
    return "--mem-fraction-static", "0.80", *_running(most), "--chunked-prefill-size", "8192"


def _limited(arm: Drafter, models: Path) -> Drafter:
    """The arm with its draft's own limit, where the server's context is longer."""
    positions = 0 if arm.draft is None else int(str(_text(models / arm.draft).get("max_position_embeddings") or 0))
    if not 0 < positions < CONTEXT_LENGTH:
        return arm
    return replace(arm, max_context=positions, env=(*arm.env, LONGER_CONTEXT))


def _adaptive(draft: str) -> Drafter:
    """SGLang's own choice of steps by batch and by what was accepted lately, among 0, 1, 3 and 7 by default.

    It starts at the deepest: 0.5.17 makes its buffers for that depth, and fails to capture a deeper one.
    """
    deepest = _eagle("eagle3", "EAGLE3", ADAPTIVE_WIDTH - 1, draft)
    flags = (*deepest.flags, "--speculative-adaptive")
    return replace(
        deepest, name="eagle3-adaptive", verify_tokens=ADAPTIVE_WIDTH, accept=2.0, steps=None, flags=flags,
        left_out="its depth follows the accept length, so that its steps cost what they do at the imposed one alone",
    )  # fmt: skip


def _block(name: str, algorithm: str, width: int, draft: str, *more: str) -> Drafter:
    flags = ("--speculative-algorithm", algorithm, "--speculative-draft-model-path", "{draft}", *more)
    return Drafter(
        name=f"{name}-{width}", algorithm=algorithm, verify_tokens=width, accept=4.0, draft=draft, flags=flags
    )


def _eagle(name: str, algorithm: str, steps: int, draft: str | None) -> Drafter:
    path = () if draft is None else ("--speculative-draft-model-path", "{draft}")
    flags = (
        "--speculative-algorithm", algorithm, *path, "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1),
    )  # fmt: skip
    accept = {1: 1.7, 3: 3.0, 5: 3.5, 7: 3.7}[steps]
    return Drafter(
        name=f"{name}-k{steps}", algorithm=algorithm, verify_tokens=steps + 1, accept=accept, draft=draft, steps=steps,
        flags=flags,
    )  # fmt: skip


def _vocabulary(folder: Path) -> object:
    return _text(folder).get("vocab_size") if (folder / "config.json").is_file() else None


def _text(folder: Path) -> dict[str, object]:
    """The part of a configuration that is about text: all of it, or what it nests."""
    config = _config(folder)
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _config(folder: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def toml(target: str, arms: Sequence[Drafter], args: argparse.Namespace) -> str:
    """The sweep file."""
    most = MOST_RUNNING.get(target, MOST)
    grid = GRIDS[args.grid]
    batches = sorted({batch for some, _ in grid.decode for batch in some if batch <= most})
    # Graphs of the measured batches are for measuring, as nothing is padded; a server captures a dense list by itself.
    graphs = () if args.no_graphs else ("--cuda-graph-bs-decode", *map(str, batches))
    without = ("--disable-cuda-graph",) if args.no_graphs else ()
    prefill = () if args.no_graphs else PREFILL_GRAPHS
    prefill_lines = "\n".join((f"prompt_tokens = {list(grid.prefilled)}", *grid.interrupted))
    attention = ("--attention-backend", "fa3") if target.startswith(FULL_ATTENTION_3) and "3.6" not in target else ()
    name = f"h200__{target.lower()}{'-no-graphs' if args.no_graphs else ''}"
    lines = [
        "version = 1",
        f'output_name = "{name}"',
        f'\n[target]\nname = "{target}"\nmodel = "{target}"\nweights = "dummy"',
        '\n[gpu]\nname = "H200"\nindices = [0]\npeak_tflops = 989\nbandwidth_tb_s = 4.8',
        f"\n[server]\ncontext_length = {CONTEXT_LENGTH}\nflags = {_list((*_memory(most), *attention, *without))}",
        f"measuring_flags = {_list((*MEASURING, *graphs, *prefill))}\nstartup_timeout_s = 400",
        f'\n[decode]\nmethod = "steady"\nwindow_s = 5.3\nrepeats = {args.repeats}\ncooldown_s = 0.5',
        f"\n[prefill]\n{prefill_lines}",
    ]
    for own_most in dict.fromkeys(arm.most_running for arm in arms):
        names = [arm.name for arm in arms if arm.most_running == own_most]
        for some, tokens in grid.decode:
            fitting = [batch for batch in some if batch <= (own_most or most)]
            lines.append(f"\n[[grid]]\nbatches = {fitting}\nprompt_tokens = {tokens}")
            if len(names) < len(arms):
                lines.append(f"arms = {_list(names)}")
    if grid.repeats_none:
        lines.append(f"\n[drift]\nbatches = [1, {most}]\nprompt_tokens = [512]")
    for arm in arms:
        lines.append(
            f'\n[[arms]]\nname = "{arm.name}"\nalgorithm = "{arm.algorithm}"\nverify_tokens = {arm.verify_tokens}'
        )
        if arm.steps is not None:
            lines.append(f"draft_steps = {arm.steps}\ntopk = 1")
        if arm.draft is not None:
            lines.append(f'draft = "{arm.draft}"')
        if arm.max_context is not None:
            lines.append(f"max_context_tokens = {arm.max_context}")
        if arm.verify_tokens > 1:
            lines.append(f"imposed_accept_length = {arm.accept}\nflags = {_list(arm.flags)}")
        if arm.left_out is not None:
            lines.append(f'left_out = "{arm.left_out}"')
        if arm.env:
            lines.append("env = { " + ", ".join(f'{key} = "{value}"' for key, value in arm.env) + " }")
    return "\n".join(lines) + "\n"


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def chosen(arms: Sequence[Drafter], wanted: Sequence[str]) -> list[Drafter]:
    """The arms that a name or pattern fits, in the order of the first that does."""
    by_pattern = [[arm for arm in arms if fnmatchcase(arm.name, pattern)] for pattern in wanted]
    return list({arm.name: arm for some in by_pattern for arm in some}.values())


def main() -> None:
    """Prints the sweep file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="name of the target's folder")
    parser.add_argument("--models", type=Path, required=True, help="folder of target and draft folders")
    parser.add_argument("--grid", choices=sorted(GRIDS), default="reduced")
    parser.add_argument(
        "--arms", help="only these, separated by commas, * for anything (no matter if nothing fits); default: every arm"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-graphs", action="store_true", help="without CUDA graphs")
    args = parser.parse_args()
    if not (args.models / args.target / "config.json").is_file():
        parser.error(f"{args.models} has no {args.target}/config.json")
    arms = drafters(args.target, args.models)
    if args.arms:
        wanted = args.arms.split(",")
        missing = {name for name in wanted if "*" not in name} - {arm.name for arm in arms}
        if missing:
            parser.error(f"no arm {', '.join(sorted(missing))}; there are {', '.join(arm.name for arm in arms)}")
        arms = chosen(arms, wanted)
    print(toml(args.target, arms, args), end="")


if __name__ == "__main__":
    main()
