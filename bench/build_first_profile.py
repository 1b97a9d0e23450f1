"""Builds the first profile, profiles/h200__qwen3-8b.json, from one measurement campaign and published acceptance.

    python bench/build_first_profile.py \\
        --measured profiles/raw/h200_qwen3_8b_first.csv \\
        --acceptance profiles/raw/acceptance_published.csv \\
        --model-config profiles/raw/qwen3_8b_config.json

Those three files are the defaults. Nothing is measured here: step costs are copied, accept lengths are taken over or
converted to the arm's verify width, and what nobody measured is derived or assumed, each under its own provenance.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from selector.core.types import Capability
from selector.files.profile import (
    Arm,
    Gpu,
    Idle,
    Launch,
    PrefillPoint,
    Profile,
    Provenance,
    Slope,
    StepCell,
    Target,
    write_profile,
)
from selector.profiler.published import published_acceptance

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT / "profiles" / "raw"

Row = Mapping[str, str]

# Measured on the same board and day as the cells.
POWER_LIMIT_W = 700.0
READING_TOLERANCE_FRAC = 0.02
"""A mean power further above the board's limit than this cannot be: the cell is left out."""
BANDWIDTH_BYTES_PER_S = 4.25e12
J_PER_BYTE = 153e-12
MATMUL_FLOP_PER_S = 671e12
MATMUL_W = 692.0
BARE_IDLE_W = 80.0
IDLE_W_WITH_THREE_SERVERS = 124.0

BYTES_PER_VALUE = 2  # BF16
PREFILL_TOKENS = (128, 32_768)
DRAFT = ("--speculative-draft-model-path", "{draft}")
COMMON_FLAGS = "--attention-backend fa3 --dtype bfloat16 --max-running-requests 64 --cuda-graph-max-bs 64"
MEASURING_FLAGS = (
    "--load-format dummy --skip-tokenizer-init --sampling-backend pytorch --grammar-backend none --disable-radix-cache "
    "--mem-fraction-static 0.75 --context-length 8192"
)
"""Flags of the campaign that a deployment does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """One arm of the profile: which rows of the campaign it is, and how SGLang runs it."""

    drafter: str
    """The campaign's name of the drafter."""
    algorithm: str
    verify_tokens: int
    draft_steps: int | None = None
    topk: int | None = None
    flags: tuple[str, ...] = ()
    draft_model: str | None = None
    cannot_serve: tuple[Capability, ...] = ()
    acceptance_note: str | None = None


def _flags(algorithm: str, *more: str) -> tuple[str, ...]:
    return ("--speculative-algorithm", algorithm, *more)


def _eagle3_flags(steps: int) -> tuple[str, ...]:
    counts = f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
    return _flags("EAGLE3", *DRAFT, *counts.split())


ARMS: dict[str, ArmPlan] = {
    "none": ArmPlan(drafter="none", algorithm="none", verify_tokens=1),
    "eagle3-k1": ArmPlan(
        drafter="eagle3",
        algorithm="EAGLE3",
        verify_tokens=2,
        draft_steps=1,
        topk=1,
        flags=_eagle3_flags(steps=1),
        draft_model="deepseek-ai/eagle3_qwen3_8b_ttt7",
        cannot_serve=(Capability.PENALTIES,),
    ),
    "eagle3-k3": ArmPlan(
        drafter="eagle3",
        algorithm="EAGLE3",
        verify_tokens=4,
        draft_steps=3,
        topk=1,
        flags=_eagle3_flags(steps=3),
        draft_model="deepseek-ai/eagle3_qwen3_8b_ttt7",
        cannot_serve=(Capability.PENALTIES,),
    ),
    "dspark-8": ArmPlan(
        drafter="dspark",
        algorithm="DSPARK",
        verify_tokens=8,
        topk=1,
        flags=_flags("DSPARK", *DRAFT),
        draft_model="deepseek-ai/dspark_qwen3_8b_block7",
        cannot_serve=(Capability.PENALTIES, Capability.HIDDEN_STATES),
    ),
    "dflash-16": ArmPlan(
        drafter="dflash",
        algorithm="DFLASH",
        verify_tokens=16,
        topk=1,
        flags=_flags("DFLASH", *DRAFT),
        draft_model="z-lab/Qwen3-8B-DFlash-b16",
        cannot_serve=(Capability.PENALTIES, Capability.HIDDEN_STATES),
        acceptance_note="published for a draft trained with blocks of 7; the launch line names one with blocks of 16",
    ),
    "ngram-8": ArmPlan(
        drafter="ngram",
        algorithm="NGRAM",
        verify_tokens=8,
        topk=1,
        flags=_flags("NGRAM", "--speculative-num-draft-tokens", "8", "--speculative-ngram-max-bfs-breadth", "1"),
        cannot_serve=(Capability.PENALTIES,),
    ),
}


def main() -> None:
    """Reads the three inputs and writes the profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=RAW / "h200_qwen3_8b_first.csv", help="step costs, CSV")
    parser.add_argument("--acceptance", type=Path, default=RAW / "acceptance_published.csv", help="accept lengths, CSV")
    parser.add_argument("--model-config", type=Path, default=RAW / "qwen3_8b_config.json", help="the target's config")
    parser.add_argument("--out", type=Path, default=ROOT / "profiles" / "h200__qwen3-8b.json", help="the profile")
    args = parser.parse_args()
    profile = built(_rows(args.measured), _rows(args.acceptance), json.loads(args.model_config.read_text("utf-8")))
    write_profile(profile, args.out)
    print(f"{args.out}: {sum(len(arm.cells) for arm in profile.arms.values())} cells of {len(profile.arms)} arms")


def built(measured: list[Row], published: list[Row], config: Mapping[str, int]) -> Profile:
    """The profile."""
    provenance: dict[str, Provenance] = {}
    target = _target(config, provenance)
    arms = {}
    for name, plan in ARMS.items():
        arms[name] = Arm(
            algorithm=plan.algorithm,
            verify_tokens=plan.verify_tokens,
            draft_steps=plan.draft_steps,
            topk=plan.topk,
            cannot_serve=plan.cannot_serve,
            launch=Launch(flags=plan.flags, draft_model=plan.draft_model),
            context_slope=_kv_read(target, provenance),
            cells=_cells(name, plan, measured, provenance),
            acceptance=published_acceptance(
                name, plan.algorithm, plan.verify_tokens, published, provenance, plan.acceptance_note
            ),
        )
    return Profile(
        format="drafter-selector/profile",
        version=1,
        target=target,
        gpu=_gpu(provenance),
        idle=_idle(provenance),
        prefill=_prefill(target, provenance),
        common_flags=tuple(COMMON_FLAGS.split()),
        arms=arms,
        provenance=provenance,
    )


def _cells(
    name: str, plan: ArmPlan, measured: Iterable[Row], provenance: dict[str, Provenance]
) -> tuple[StepCell, ...]:
    key = f"step-{name}"
    cells, refused = [], []
    engine = ""
    for row in measured:
        if row["drafter"] != plan.drafter or int(row["verify_tokens"]) != plan.verify_tokens:
            continue
        engine, watts = row["engine"].partition(",")[0], float(row["watts"])
        if watts > POWER_LIMIT_W * (1 + READING_TOLERANCE_FRAC):
            refused.append(
                f"batch {row['batch']} at accept length {float(row['accept_length']):g} is left out: its window of "
                f"{row['window_s']} s gave {watts} W on a board limited to {POWER_LIMIT_W:g} W"
            )
            continue
        cells.append(
            StepCell(
                batch=int(row["batch"]),
                context_tokens=float(row["mean_context_tokens"]),
                step_ms=float(row["step_ms"]),
                step_j=float(row["step_j"]),
                provenance=key,
                imposed_accept_length=float(row["accept_length"]),
                window_s=float(row["window_s"]),
                watts=watts,
                sm_mhz=float(row["sm_mhz_after"]),
            )
        )
    cells.sort(key=lambda cell: (cell.batch, cell.context_tokens))
    provenance[key] = Provenance(
        kind="measured",
        source="profiles/raw/h200_qwen3_8b_first.csv",
        gpu="NVIDIA H200, 700 W",
        driver="580.159",
        engine=engine,
        weights="dummy",
        note="; ".join(
            [
                "one run per cell, no repeats: take each as ±5 %",
                "closed batches of random tokens, NVML total-energy counter, difference of two runs so that prefill "
                "and start-up cancel; accept length imposed with SGLANG_SIMULATE_ACC_LEN",
                f"CUDA graphs on; launched with the common flags, the arm's own and {MEASURING_FLAGS}",
                *refused,
            ]
        ),
    )
    return tuple(cells)


def _target(config: Mapping[str, int], provenance: dict[str, Provenance]) -> Target:
    hidden, layers, head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    heads, kv_heads, mlp = config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]
    attention = 2 * hidden * heads * head + 2 * hidden * kv_heads * head  # q, o and k, v
    norms = 2 * hidden + 2 * head  # before attention and MLP; of q and k
    non_embedding = layers * (attention + 3 * hidden * mlp + norms) + hidden
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    provenance["target"] = Provenance(
        kind="derived",
        source="profiles/raw/qwen3_8b_config.json",
        note="parameters summed from the shapes: per layer q, k, v, o, three MLP matrices and norms; KV bytes per "
        "token = 2 × layers × KV heads × head size × 2 bytes",
    )
    return Target(
        name="Qwen3-8B",
        model="Qwen/Qwen3-8B",
        parameters=non_embedding + embeddings,
        non_embedding_parameters=non_embedding,
        kv_bytes_per_token=2 * layers * kv_heads * head * BYTES_PER_VALUE,
        provenance="target",
    )


def _kv_read(target: Target, provenance: dict[str, Provenance]) -> Slope:
    provenance["kv-read"] = Provenance(
        kind="derived",
        source="KV bytes per token / 4.25 TB/s, and × 153 pJ/byte, both measured with a device copy on this board",
        gpu="NVIDIA H200, 700 W",
        driver="580.159",
        note="the target's keys and values only: a drafter with its own cache reads more",
    )
    return Slope(
        ms_per_token=_rounded(1e3 * target.kv_bytes_per_token / BANDWIDTH_BYTES_PER_S),
        j_per_token=_rounded(target.kv_bytes_per_token * J_PER_BYTE),
        provenance="kv-read",
    )


def _prefill(target: Target, provenance: dict[str, Provenance]) -> tuple[PrefillPoint, ...]:
    provenance["prefill"] = Provenance(
        kind="derived",
        source="2 × non-embedding parameters FLOP per token at 671 TFLOP/s and 692 W, measured with a BF16 matrix "
        "product on this board",
        gpu="NVIDIA H200, 700 W",
        driver="580.159",
        note="linear in the prompt: attention, the LM head of the last token, launch overhead and the draft's own "
        "prefill are neglected, so short and very long prompts cost more than this",
    )
    points = []
    for tokens in PREFILL_TOKENS:
        seconds = 2 * target.non_embedding_parameters * tokens / MATMUL_FLOP_PER_S
        points.append(
            PrefillPoint(
                prompt_tokens=tokens, ms=_rounded(1e3 * seconds), j=_rounded(MATMUL_W * seconds), provenance="prefill"
            )
        )
    return tuple(points)


def _gpu(provenance: dict[str, Provenance]) -> Gpu:
    provenance["gpu"] = Provenance(
        kind="measured", source="NVML: name and enforced power limit", gpu="NVIDIA H200, 700 W", driver="580.159"
    )
    return Gpu(name="H200", power_limit_w=POWER_LIMIT_W, provenance="gpu")


def _idle(provenance: dict[str, Provenance]) -> Idle:
    provenance["idle"] = Provenance(
        kind="measured",
        source=f"NVML power: {BARE_IDLE_W:g} W without a server, {IDLE_W_WITH_THREE_SERVERS:g} W with three "
        "(none, dspark-8, eagle3-k1)",
        gpu="NVIDIA H200, 700 W",
        driver="580.159",
        engine="sglang 0.5.17",
        note="taken for one server too: a later sweep measured 121 W with one",
    )
    return Idle(
        bare_w=BARE_IDLE_W,
        served_w=IDLE_W_WITH_THREE_SERVERS,
        provenance="idle",
    )


def _rounded(value: float) -> float:
    """Five significant digits: more would claim a precision that the inputs lack."""
    return float(f"{value:.5g}")


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
