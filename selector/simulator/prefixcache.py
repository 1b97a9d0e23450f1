"""The prompts that one server still has in its KV cache, and which new prompt can start from them.

A model of SGLang's RadixAttention over blocks of prompt tokens:

    match     a new prompt finds its longest run of leading blocks; what it finds need not be prefilled
    hold      blocks of a request in the batch stay; those of several requests are there once
    release   blocks nobody holds stay as long as no request needs their place, the least recently used go first

A block's id stands for its tokens and all before it, so equal ids are an equal prefix. The blocks before a block are
used whenever it is, and count as used after it: what goes first is always the end of a prefix, never its middle.

Answers are not kept, although SGLang keeps them: what of an answer comes back in the next prompt of a chat is in that
prompt's own ids, which a trace gives only then. Hits are therefore a lower bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from selector.files.trace import TraceRequest

_SESSION_BLOCK_TOKENS = 128


class PrefixCache:
    """Blocks by id. Token counts are those of the blocks, the last one of a prompt perhaps part full."""

    __slots__ = ("_held", "_tokens_of", "_unused", "shared_tokens", "unused_tokens")

    def __init__(self) -> None:
        self._held: dict[Hashable, int] = {}
        """How many requests hold a block."""
        self._unused: OrderedDict[Hashable, None] = OrderedDict()
        """Blocks that none holds, the least recently used first."""
        self._tokens_of: dict[Hashable, int] = {}
        self.shared_tokens = 0
        """Tokens that their requests count together more often than they are there."""
        self.unused_tokens = 0
        """Tokens of blocks that none holds."""

    def match(self, ids: Sequence[Hashable]) -> tuple[int, int, int]:
        """How many leading blocks of a prompt are here, their tokens, and those tokens of them that others hold."""
        tokens = held_tokens = 0
        for count, block in enumerate(ids):
            size = self._tokens_of.get(block)
            if size is None:
                return count, tokens, held_tokens
            tokens += size
            if block in self._held:
                held_tokens += size
        return len(ids), tokens, held_tokens

    def hold(self, ids: Sequence[Hashable], sizes: Sequence[int]) -> None:
        """A request has these blocks in the KV cache from now on; `sizes` are their tokens."""
        for block, size in zip(ids, sizes, strict=True):
            holders = self._held.get(block, 0)
            self._held[block] = holders + 1
            if holders:
                self.shared_tokens += self._tokens_of[block]
            elif block in self._unused:
                del self._unused[block]
                self.unused_tokens -= self._tokens_of[block]
            else:
                self._tokens_of[block] = size

    def release(self, ids: Sequence[Hashable]) -> None:
        """A request that held these blocks, a prefix in order, is gone."""
        for block in reversed(ids):
            holders = self._held[block] - 1
            if holders:
                self._held[block] = holders
                self.shared_tokens -= self._tokens_of[block]
            else:
                del self._held[block]
                self._unused[block] = None
                self.unused_tokens += self._tokens_of[block]

    def shrink(self, most_tokens: float) -> None:
        """Gives up unused blocks until those left have at most so many tokens."""
        while self._unused and self.unused_tokens > most_tokens:
            block, _ = self._unused.popitem(last=False)
            self.unused_tokens -= self._tokens_of.pop(block)


def block_sizes(prompt_tokens: int, blocks: int, block_tokens: int) -> list[int]:
    """Tokens of each block of a prompt: full ones, and what is left for the last."""
    sizes = [min(block_tokens, prompt_tokens - block * block_tokens) for block in range(blocks)]
    return [size for size in sizes if size > 0]


def prompt_blocks(request: TraceRequest, *, by_session: bool) -> tuple[tuple[Hashable, ...], int]:
    """Ids of the blocks of a request's prompt, and their size in tokens; none where the trace does not tell.

    With `by_session`, prompts of one session that have no ids are taken to begin alike, the shorter one being the
    beginning of the longer, as in a chat that is sent anew at every turn. A session key says only that there is a
    common prefix, so this is an upper bound of what is found.
    """
    if request.prefix_hashes:
        assert request.prefix_block_tokens is not None
        return request.prefix_hashes, request.prefix_block_tokens
    if by_session and request.session_key is not None:
        full = request.prompt_tokens // _SESSION_BLOCK_TOKENS
        return tuple((request.session_key, block) for block in range(full)), _SESSION_BLOCK_TOKENS
    return (), 0
