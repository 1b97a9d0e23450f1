"""Other forms in which a collected prompt could have come: what trains the text model beside the prompt as collected.

A source has one form (its instruction, its layout, with or without a system prompt), and a model would learn the form
for the type. Each variant takes one such habit away or adds one to every type alike: a system prompt, earlier turns, a
wrapper, a cut, a missing first line, tools and schemas written into the text instead of a field.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Body = dict[str, Any]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible.",
    "You are ChatGPT, a large language model. Knowledge cutoff: 2023-10. Current date: 2025-03-04.",
    "Answer briefly and to the point.",
    "You are an expert. Think step by step and explain your answer.",
    "You are a friendly support agent of a web shop. Be polite, answer only what is asked, and never invent facts.",
    "You are a senior software engineer who reviews code and answers questions of colleagues.",
    "You are a patient teacher. Give hints before you give the solution.",
    "Respond in Markdown. Use headings and lists where they help the reader.",
    "You are an editor at a newspaper. Keep to the facts and to the style of the house.",
    "Du bist ein hilfreicher Assistent. Antworte in der Sprache der Frage.",
    "You are a translator and a language expert. Keep names and numbers as they are.",
    "You are an AI assistant that follows instructions extremely well. Help as much as you can. Do not mention these "
    "instructions. If you do not know the answer, say so instead of guessing, and ask when the request is unclear.",
    "The assistant is knowledgeable, careful and concise. It answers simple questions directly and gives thorough "
    "answers to complex ones. It helps with writing, analysis, mathematics, coding and all sorts of other tasks.",
)
WRAPPERS = (
    ("### Instruction:\n", "\n\n### Response:\n"),
    ("[INST] ", " [/INST]"),
    ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    ("Human: ", "\n\nAssistant:"),
    ("USER: ", " ASSISTANT:"),
    ("Question: ", "\nAnswer:"),
    ("Q: ", "\nA:"),
    ("Below is an instruction that describes a task. Write a response that completes it.\n\n", ""),
    ("Please help me with this.\n\n", ""),
    ("", "\n\nThink step by step."),
    ("", "\n\nThanks!"),
    ("Hi! ", ""),
)
REPLIES = (
    "Sure! Here is what I came up with. Let me know if you want me to change anything.",
    "Of course. Could you tell me a little more about what you need?",
    "I am happy to help with that. The short answer is yes, but it depends on a few things.",
    "Here you go. I kept it short; shall I add more detail?",
    "Thanks for the question. Let me explain it step by step. First, we look at what is given. Then we work it out.",
)
JSON_ORDERS = (
    "Answer with JSON that follows this schema: {}",
    "Respond only with a valid JSON object. The schema:\n{}",
    "Your output must conform to the following JSON Schema.\n\n```json\n{}\n```",
    "Return the result in this format and nothing else:\n{}",
    "Output format (JSON):\n{}",
    "Fill in this structure and print it without any explanation.\n{}",
)
TOOL_OFFERS = (
    "You have access to the following functions. Use them if required -\n{}",
    "You can use these tools:\n{}",
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n<tools>\n{}\n</tools>",
    "Available APIs:\n{}\nChoose the right one and give its arguments.",
    "Here is a list of functions in JSON format that you can invoke.\n{}",
    "Answer the question by calling one of these:\n{}",
)
TOOL_RESULTS = (
    "Observation: {}",
    "Tool output:\n{}",
    "<tool_response>\n{}\n</tool_response>",
    "Result: {}",
    "OUTPUT\n{}",
)
TOOL_CALLS = ("Action: {}", "<tool_call>\n{}\n</tool_call>", "I will call {}", "Thought: I need this.\nAction: {}")

SHORTENED = frozenset({"code", "math", "conversation", "news", "romansh", "multilingual"})
"""Types that a piece of a prompt still has."""
REPEATED = frozenset({"code", "romansh", "multilingual"})
"""Types that a long prompt keeps; a long English text of another type would be a document."""
LONG_CHARS = 11_000


def body_of(record: Record) -> Body:
    """The request alone."""
    return {field: record[field] for field in ("prompt", "messages", "tools", "response_format") if field in record}


def spelled_out(record: Record, draw: random.Random) -> Body:
    """The request with its tools, tool results and schema in its text, so that the text has to tell its type."""
    messages = _messages(record)
    if any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
        messages = _written_calls(messages, draw)
    orders = []
    if record.get("tools"):
        orders.append(draw.choice(TOOL_OFFERS).format(_written_tools(record["tools"], draw)))
    if record.get("response_format"):
        schema = record["response_format"].get("json_schema", {}).get("schema", {})
        names = [name for name in schema.get("properties", {}) if name.replace("_", "").isalnum()][:6]
        if names and draw.random() < 0.6:
            orders.append(_written_layout(names, draw))
        else:
            orders.append(draw.choice(JSON_ORDERS).format(json.dumps(schema, indent=draw.choice((None, 2)))[:6_000]))
    for order in orders:
        first = next((number for number, message in enumerate(messages) if message["role"] == "user"), 0)
        place = draw.choice(("system", "before", "after"))
        if place == "system":
            if messages and messages[0]["role"] == "system":
                messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{order}"}
            else:
                messages.insert(0, {"role": "system", "content": order})
        else:
            said = messages[first]["content"]
            content = f"{order}\n\n{said}" if place == "before" else f"{said}\n\n{order}"
            messages[first] = {"role": "user", "content": content}
    return {"messages": messages}


def variant(record: Record, others: Sequence[Record], draw: random.Random) -> Body:
    """One other form of the request, drawn; `others` are requests of its source."""
    messages = spelled_out(record, draw)["messages"]
    text_type = record["text_type"]
    last = len(messages) - 1
    said = messages[last]["content"]
    if text_type in SHORTENED:
        if draw.random() < 0.3 and "\n" in said.strip():
            said = _without_a_line(said, draw)
        if draw.random() < 0.35:
            said = _piece(said, draw)
        if text_type in REPEATED and draw.random() < 0.08:
            while len(said) < LONG_CHARS:
                said += "\n\n" + _messages(draw.choice(others))[-1]["content"]
        if len(messages) == 1 and draw.random() < 0.25:
            earlier = _messages(draw.choice(others))[-1]["content"]
            reply = draw.choice((*REPLIES, _piece(_messages(draw.choice(others))[-1]["content"], draw)))
            messages = [{"role": "user", "content": earlier}, {"role": "assistant", "content": reply}, *messages]
            last = len(messages) - 1
    if len(messages) == 1 and draw.random() < 0.25:
        before, after = draw.choice(WRAPPERS)
        said = f"{before}{said}{after}"
    if draw.random() < 0.12:
        said = said.lower()
    messages[last] = {**messages[last], "content": said}
    if messages[0]["role"] != "system" and draw.random() < 0.35:
        messages.insert(0, {"role": "system", "content": draw.choice(SYSTEM_PROMPTS)})
    return {"messages": messages}


def _messages(record: Record) -> list[dict[str, Any]]:
    if "messages" not in record:
        return [{"role": "user", "content": record["prompt"]}]
    return [{**message, "content": message.get("content") or ""} for message in record["messages"]]


def _written_calls(messages: Sequence[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """The turns with calls and results as text, as models without tool fields are shown them."""
    call_form, result_form = draw.choice(TOOL_CALLS), draw.choice(TOOL_RESULTS)
    written = []
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            written.append({"role": "user", "content": result_form.format(content)})
            continue
        for call in message.get("tool_calls") or []:
            content += "\n" + call_form.format(json.dumps(call.get("function", {})))
        written.append({"role": message["role"], "content": content.strip()})
    return written


def _written_tools(tools: Sequence[Any], draw: random.Random) -> str:
    functions = [tool.get("function", tool) for tool in tools]
    match draw.randrange(4):
        case 0:
            return json.dumps(functions)
        case 1:
            return "\n".join(json.dumps(tool) for tool in tools)
        case 2:
            return "\n".join(f"{function['name']}: {function.get('description', '')}" for function in functions)
        case _:
            lines = []
            for function in functions:
                arguments = ", ".join(function.get("parameters", {}).get("properties", {}))
                lines.append(f"- {function['name']}({arguments}) - {function.get('description', '')}")
            return "\n".join(lines)


def _written_layout(names: Sequence[str], draw: random.Random) -> str:
    """The order for a JSON object with some fields, as people give it who have no schema."""
    match draw.randrange(4):
        case 0:
            return f"Return JSON with the keys {', '.join(names)}."
        case 1:
            return "Answer in the form {" + ", ".join(f'"{name}": ...' for name in names) + "} and add nothing else."
        case 2:
            listed = " and ".join(f'"{name}"' for name in names)
            return f"Give me the answer as a JSON array of objects with {listed}."
        case _:
            return f"Use valid JSON. Fields: {', '.join(f'{name} (string)' for name in names)}."


def _without_a_line(text: str, draw: random.Random) -> str:
    """The text without its first or last line, where a source's fixed instruction stands."""
    lines = text.strip().split("\n")
    kept = "\n".join(lines[1:] if draw.random() < 0.7 else lines[:-1]).strip()
    return kept if len(kept) >= 40 else text


def _piece(text: str, draw: random.Random) -> str:
    """Some neighbouring words, at least 40 characters of them where the text has that many."""
    length = int(40 * 2 ** draw.uniform(0, 4))
    if len(text) <= length:
        return text
    start = draw.choice((0, 0, draw.randrange(len(text) - length)))
    if start:
        start = text.find(" ", start) + 1 or start
    return text[start : start + length]
