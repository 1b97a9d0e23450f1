"""Data that ships with the package: a few prompts of every text type, and the first minutes of four traces.

    prompts.jsonl                      one request a line: `id`, `source`, `text_type`, then the fields of its body,
                                       which are `prompt` or `messages`, with `tools` and `response_format` where the
                                       source has them
    azure_2023_conv_slice.csv          arrivals and token counts of a chat service, columns as published
    azure_2023_code_slice.csv          the same of a coding service
    mooncake_conversation_slice.jsonl  the same of a chat service with long prompts, and which of them share a prefix
    servegen_deepseek_r1_slice.csv     a workload drawn from clients that ServeGen fitted to a reasoning model's users
    NOTICE.md                          source, licence, attribution and changes of each part
    texttype.npz, texttype.json        the trained weights of the text types, and where they come from

bench/build_shipped_data.py makes all but the weights, which bench/train_texttype.py makes.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PROMPTS = "prompts.jsonl"
CONVERSATION_TRACE = "azure_2023_conv_slice.csv"
CODE_TRACE = "azure_2023_code_slice.csv"
MOONCAKE_TRACE = "mooncake_conversation_slice.jsonl"
SERVEGEN_TRACE = "servegen_deepseek_r1_slice.csv"
NOTICE = "NOTICE.md"
TEXT_MODEL = "texttype.npz"


def path(name: str) -> Path:
    """Where the file of that name is. Raises `FileNotFoundError` when there is none, or the package is zipped."""
    found = files(__name__).joinpath(name)
    if not (isinstance(found, Path) and found.is_file()):
        raise FileNotFoundError(f"selector.data has no file {name!r}; reinstall the package")
    return found


def read_text(name: str) -> str:
    """The text of the file of that name, line ends as they are in the file. Raises `FileNotFoundError`."""
    return path(name).read_bytes().decode("utf-8")
