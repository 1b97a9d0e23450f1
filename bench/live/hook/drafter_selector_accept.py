"""A plugin for SGLang that imposes accept lengths per request, where SGLang can only impose one for the whole server.

With dummy weights no draft is ever right, so `SGLANG_SIMULATE_ACC_LEN` makes the engine take a given number of drafts
per step, the same for every request of the batch. This plugin makes that number depend on the request: the part of its
`rid` after the last `-` is a text type, and

    DRAFTER_SELECTOR_ACCEPT='{"code": 5.28, "conversation": 3.5, "*": 2.0}'

gives each type's mean accept length on this server, the bonus token included; `*` is for all others. A step takes the
whole number below or above the mean, each request by its own chance, so that the mean is met. On a server that changes
its draft depth no one mean is right: there

    DRAFTER_SELECTOR_SURVIVAL='{"code": 0.8, "*": 0.3}'

gives the chance of each draft to be accepted, draft after draft until one is not.

Put this folder on PYTHONPATH (SGLang finds the plugin by its entry point) and set `SGLANG_SIMULATE_ACC_LEN` to a value
above 0, which switches the engine's simulation on. Written against 0.5.17, tried with 0.5.23. SGLang goes on without a
plugin that fails, so who uses this asks the running server for a few tokens of each type first (`servers.py` does).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

VARIABLE = "DRAFTER_SELECTOR_ACCEPT"
SURVIVAL_VARIABLE = "DRAFTER_SELECTOR_SURVIVAL"
_EAGLE = "sglang.srt.speculative.spec_utils.generate_simulated_accept_index"
_DFLASH = "sglang.srt.speculative.dflash_worker_v2.apply_dflash_simulated_acceptance"
_DSPARK = "sglang.srt.speculative.dspark_components.dspark_verify.TargetVerifyExecutor._simulated_correct_len"
_WORKERS = {
    "EAGLE": "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2",
    "EAGLE3": "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2",
    "NEXTN": "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2",
    "STANDALONE": "sglang.srt.speculative.standalone_worker_v2.StandaloneWorkerV2",
    "DFLASH": "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2",
    "DSPARK": "sglang.srt.speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2",
}


def value_of(rid: str, lengths: dict[str, float]) -> float:
    """Accept length or survival rate of the request of that id. Raises `KeyError` for a type without one."""
    text_type = rid.rpartition("-")[2]
    return lengths[text_type] if text_type in lengths else lengths["*"]


class BatchLengths:
    """The mean accept lengths, or survival rates, of the batch that is being verified, row by row, on its device."""

    def __init__(self, values: dict[str, float], *, survival: bool = False) -> None:
        """`survival`: the values are the chance of each draft, not the mean length."""
        self._values = values
        self._survival = survival
        self._rids: tuple[str, ...] = ()
        self._row: Any = None

    def begin(self, rids: Sequence[str]) -> None:
        """Notes whose tokens are verified next."""
        now = tuple(rids)
        if now != self._rids:
            self._rids, self._row = now, None

    def draw(self, rows: int, widest: int, device: Any) -> Any:
        """Tokens that each row takes in this step, 1 to `widest`, as an int32 tensor. Raises `RuntimeError`."""
        import torch

        if rows < len(self._rids):
            raise RuntimeError(f"{rows} rows are verified, {len(self._rids)} requests were announced")
        if self._row is None or self._row.shape[0] != rows:
            values = [value_of(rid, self._values) for rid in self._rids]
            # Rows that fill a CUDA graph up: what they take is thrown away.
            values += [0.5 if self._survival else 1.0] * (rows - len(values))
            self._row = torch.tensor(values, dtype=torch.float32, pin_memory=str(device) != "cpu").to(
                device, non_blocking=True
            )
        if self._survival:
            # P(at least k leading drafts survive) = p^k = P(u < p^k), so their number is ⌊ln u / ln p⌋.
            drafts = torch.floor(torch.log(torch.rand(rows, device=device)) / torch.log(self._row))
            return (drafts.clamp_(0, widest - 1) + 1).to(torch.int32)
        means = self._row.clamp(1.0, float(widest))
        floor = torch.floor(means)
        upper = torch.rand(rows, device=device) < means - floor
        return (floor + upper).to(torch.int32).clamp_(1, widest)


def eagle_index(batch: BatchLengths) -> Callable[..., Any]:
    """In place of `generate_simulated_accept_index`: the same contract, row by row."""

    def generate(accept_index: Any, predict: Any, num_correct_drafts: Any, bs: int, spec_steps: int, **_: Any) -> Any:
        import torch

        taken = batch.draw(bs, spec_steps + 1, accept_index.device)
        column = torch.arange(spec_steps + 1, device=accept_index.device, dtype=torch.int32)
        index = accept_index[:, :1].to(torch.int32) + column
        num_correct_drafts.copy_(taken - 1)
        predict.fill_(100)
        return torch.where(column < taken[:, None], index, torch.full_like(index, -1))

    return generate


def dflash_acceptance(batch: BatchLengths) -> Callable[..., None]:
    """In place of `apply_dflash_simulated_acceptance`."""

    def apply(candidates: Any, accept_len: Any, commit_lens: Any, bonus: Any, out_tokens: Any, **_: Any) -> None:
        taken = batch.draw(candidates.shape[0], candidates.shape[1], candidates.device)
        accept_len.copy_(taken - 1)
        commit_lens.copy_(taken)
        bonus.fill_(100)
        out_tokens.fill_(100)

    return apply


def dspark_length(batch: BatchLengths) -> Callable[..., Any]:
    """In place of `TargetVerifyExecutor._simulated_correct_len`."""

    def correct_len(self: Any, *, bs: int, dtype: Any, device: Any) -> Any:
        return (batch.draw(bs, self.gamma + 1, device) - 1).to(dtype)

    return correct_len


def announcing(batch: BatchLengths) -> Callable[..., Any]:
    """Around a worker's `forward_batch_generation`: tells whose tokens it is about to verify."""

    def forward(original: Callable[..., Any], worker: Any, forwarded: Any, *args: Any, **kwargs: Any) -> Any:
        batch.begin([request.rid for request in forwarded.reqs])
        return original(worker, forwarded, *args, **kwargs)

    return forward


def install() -> None:
    """Registers the replacements for the algorithm of the server's command line; nothing without the variable."""
    import sys

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    survival = os.environ.get(SURVIVAL_VARIABLE)
    text = survival or os.environ.get(VARIABLE)
    algorithm = os.environ.get(f"{VARIABLE}_ALGORITHM") or _flag(sys.argv, "--speculative-algorithm")
    if not text or algorithm is None:
        return
    values = {name: float(value) for name, value in json.loads(text).items()}
    batch = BatchLengths(values, survival=bool(survival))
    if algorithm not in _WORKERS:
        raise RuntimeError(f"{VARIABLE} is set, and accept lengths of {algorithm} cannot be imposed per request")
    HookRegistry.register(f"{_WORKERS[algorithm]}.forward_batch_generation", announcing(batch), HookType.AROUND)
    if algorithm == "DFLASH":
        HookRegistry.register(_DFLASH, dflash_acceptance(batch), HookType.REPLACE)
    elif algorithm == "DSPARK":
        HookRegistry.register(_DSPARK, dspark_length(batch), HookType.REPLACE)
    else:
        HookRegistry.register(_EAGLE, eagle_index(batch), HookType.REPLACE)


def _flag(words: Sequence[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words[:-1] else None
