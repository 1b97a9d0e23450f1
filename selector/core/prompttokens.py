"""How long a prompt is in tokens, without a tokenizer.

The router needs a length before the server has tokenized anything, the load generators need a text of a wanted length,
and both must agree. So the estimate is a fixed, documented count, and its inverse is here with it.
"""

from __future__ import annotations

from selector.core.requesttext import RequestText
from selector.errors import DomainError

BYTES_PER_TOKEN = 4
"""UTF-8 bytes per prompt token: about what byte-pair tokenizers reach on English; other scripts take more bytes a
character, so the same rule gives them more tokens a character."""
CHAT_MESSAGE_TOKENS = 5
"""What a chat template adds to each message (ChatML: start mark, role, line break, end mark, line break)."""
CHAT_REPLY_TOKENS = 3
"""What a chat template adds once, to open the answer (ChatML: start mark, role, line break)."""


def estimate_prompt_tokens(text: RequestText) -> int:
    """Prompt length in tokens, at least 1; of all prompts together when the body is a batch.

    Exact for token ids. Otherwise UTF-8 bytes / 4, rounded up, so that an ASCII `prompt` of 4 n characters counts
    exactly n; tools count with their JSON. A chat adds 5 a message and 3 once. Pictures and sound count nothing.
    """
    if text.token_ids is not None:
        return max(1, text.token_ids)
    content_tokens = -(-(text.total_bytes + text.tools_bytes) // BYTES_PER_TOKEN)
    overhead_tokens = text.messages * CHAT_MESSAGE_TOKENS + CHAT_REPLY_TOKENS if text.messages else 0
    return max(1, content_tokens + overhead_tokens)


def ascii_chars_for_prompt_tokens(tokens: int, chat: bool) -> int:
    """How many ASCII characters make a prompt that `estimate_prompt_tokens` counts as `tokens`: its inverse.

    `chat` means one user message, otherwise a plain `prompt`. At least 1 character: a chat of fewer tokens than its
    template adds plus one (9) cannot be built, and comes out at 9. Raises `DomainError` below 1 token.
    """
    if tokens < 1:
        raise DomainError(f"a prompt of {tokens} tokens cannot be built; ask for at least 1")
    overhead_tokens = CHAT_MESSAGE_TOKENS + CHAT_REPLY_TOKENS if chat else 0
    return max(1, (tokens - overhead_tokens) * BYTES_PER_TOKEN)
