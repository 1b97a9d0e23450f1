"""The text type of requests written for these tests, one or more for every rule, and the shape of an estimate."""

from __future__ import annotations

import math
from typing import Any

import pytest

from selector.core.textmodel import probabilities
from selector.core.texttype import TextEstimate, classify, explain, extract, untrained
from selector.core.types import TEXT_TYPES
from selector.files.textmodel import shipped_text_model

WEATHER_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def ask(content: str, **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def estimate(body: dict[str, Any]) -> TextEstimate:
    return classify(extract(body), shipped_text_model())


def probability(body: dict[str, Any], text_type: str) -> float:
    return estimate(body).probabilities[TEXT_TYPES.index(text_type)]


BY_STRUCTURE = [
    ("tool_call", ask("What is the weather in Oslo?", tools=[WEATHER_TOOL])),
    ("tool_call", ask("What is the weather in Oslo?", functions=[{"name": "get_weather"}])),
    ("tool_call", ask("Wie ist das Wetter in Chur?", tools=[WEATHER_TOOL], response_format={"type": "json_object"})),
    ("tool_call", {"messages": [{"role": "system", "content": "You are a helpful assistant."},
                                {"role": "user", "content": "Weather in Oslo?"}], "tools": [WEATHER_TOOL]}),
    ("agentic", {"messages": [{"role": "user", "content": "list the files"},
                              {"role": "assistant", "content": None,
                               "tool_calls": [{"id": "1", "function": {"name": "ls", "arguments": "{}"}}]},
                              {"role": "tool", "content": "a.txt"}]}),
    ("agentic", {"messages": [{"role": "system", "content": "You run an airline desk. Confirm each change. " * 20},
                              {"role": "user", "content": "Please move my flight"}], "tools": [WEATHER_TOOL]}),
    ("structured_output", ask("Describe the picture", response_format={"type": "json_object"})),
    ("structured_output", ask("Schreibe ein Beispiel", response_format={"type": "json_schema", "json_schema": {}})),
    ("structured_output", {"text": "hello", "sampling_params": {"json_schema": '{"type": "object"}'}}),
]  # fmt: skip

BY_TEXT = [
    ("tool_call", 'You can use these tools:\n[{"name": "get_weather", "description": "Weather", "parameters": '
                  '{"type": "object", "properties": {"city": {"type": "string"}}}}]\nQuestion: weather in Paris?'),
    ("structured_output", 'Extract name, age and city and answer as JSON with the keys "name", "age" and "city". '
                          "Text: Anna, 31, lives in Chur."),
    ("structured_output", 'Fill this in: {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", '
                          '"properties": {"name": {"type": "string"}}}'),
    ("romansh", "Co vai? Jau sun sin viadi en l'Engiadina e tschertg in hotel bunmartgà."),
    ("romansh", "Scriva ina curta istorgia davart in uors che viva en las muntognas."),
    ("romansh", "Il tren per Cuira va mintga ura, ma las dumengias na datti betg uschè blers curs sco durant l'emna."),
    ("romansh", "Translate the following sentence into Romansh: The weather is nice today."),
    ("romansh", "Übersetze ins Rumantsch Grischun: Guten Morgen, wie geht es dir?"),
    ("multilingual", "Was ist die Hauptstadt von Frankreich?"),
    ("multilingual", "¿Cuál es la capital de Australia y por qué no es Sídney?"),
    ("multilingual", "Bonjour, pouvez-vous m'aider à écrire une fonction Python qui trie une liste ?"),
    ("multilingual", "Perché il cielo è blu? Spiega come se avessi cinque anni."),
    ("multilingual", "Explique em poucas palavras como funciona um motor elétrico."),
    ("multilingual", "Chönd Sie mir bitte säge, wänn dr Zug uf Bärn fahrt?"),
    ("multilingual", "Напиши короткий рассказ про зиму."),
    ("multilingual", "오늘 날씨가 어때요?"),
    ("multilingual", "Translate to German: The cat sat on the mat."),
    ("long_document", "The quick brown fox jumped over the dog and went home to sleep. " * 160 + "\n\nSummarise it."),
    ("code", "Write a Rust function that reverses a linked list."),
    ("code", "How do I undo the last git commit without losing changes?"),
    ("code", "Why does this crash?\n```c\nint *p = NULL;\n*p = 3;\n```"),
    ("code", "SELECT name, COUNT(*) FROM users GROUP BY name;\nMake this query faster."),
    ("code", 'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'),
    ("math", "Solve for x: 3x + 7 = 22"),
    ("math", "A train leaves at 9:00 at 120 km/h and one at 10:00 at 90 km/h from 450 km away. When do they meet?"),
    ("math", "Prove that the square root of 2 is irrational."),
    ("math", "Let $G$ be a finite group of order $pq$ with primes $p<q$. Show that it has a normal subgroup."),
    ("news", "Firefighters in northern California battled a fast-moving wildfire on Tuesday that forced thousands of "
             "residents to leave their homes, authorities said. At least four people were hurt, according to police."),
    ("conversation", "Where is Romansh spoken, and by how many people?"),
    ("conversation", "I had a fight with my sister last night and I feel awful. What should I do?"),
    ("conversation", "Plan a three-day trip to Rome with two children."),
    ("conversation", "Hi"),
]  # fmt: skip


@pytest.mark.parametrize(("text_type", "body"), BY_STRUCTURE)
def test_structure_decides(text_type: str, body: dict[str, Any]) -> None:
    assert estimate(body).text_type == text_type
    assert probability(body, text_type) > 0.8


@pytest.mark.parametrize(("text_type", "text"), BY_TEXT)
@pytest.mark.parametrize("as_body", [ask, lambda text: {"prompt": text}, lambda text: {"text": text}])
def test_text_decides_where_the_structure_is_silent(text_type: str, text: str, as_body: Any) -> None:
    assert estimate(as_body(text)).text_type == text_type


@pytest.mark.parametrize(
    "turns",
    [
        ["Fix the failing test", "```bash\npytest -x\n```", "Command output:\nE   AssertionError: 3 != 4"],
        ["/add app.py\nrename the function", "app.py\n```\n<<<<<<< SEARCH\ndef f():\n```", "now run the tests"],
    ],
)
def test_a_dialogue_with_commands_and_their_output_is_agentic_without_tool_fields(turns: list[str]) -> None:
    roles = ("user", "assistant", "user")
    body = {"messages": [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]}
    assert estimate(body).text_type == "agentic"


def test_a_dialogue_about_code_alone_is_code() -> None:
    turns = ("Sort a list in Python", "```python\nreturn sorted(xs)\n```", "And in reverse, in the same function?")
    body = {"messages": [{"role": r, "content": t} for r, t in zip(("user", "assistant", "user"), turns, strict=True)]}
    assert estimate(body).text_type == "code"


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": []}, {"prompt": ""}, {"prompt": " \n\t"}, {"messages": [{"role": "user", "content": []}]},
     {"input_ids": [1, 2, 3]}],
)  # fmt: skip
def test_nothing_to_read_is_unknown_and_every_type_is_as_likely(body: dict[str, Any]) -> None:
    found = estimate(body)
    assert found.text_type == "unknown"
    assert set(found.probabilities) == {1 / len(TEXT_TYPES)}
    assert explain(extract(body), shipped_text_model(), "unknown").reasons == ("nothing to read",)
    assert classify(extract(body), shipped_text_model()).reasons == ()


def test_weak_signs_leave_a_mixture() -> None:
    found = estimate(ask("Hi"))
    assert found.text_type == "conversation"
    assert max(found.probabilities) < 0.6


def test_scores_are_cooled_by_the_temperature_of_the_highest() -> None:
    scores = [0.0] * len(TEXT_TYPES)
    scores[2] = 3.0
    temperatures = tuple(1.0 + position for position in range(len(TEXT_TYPES)))
    found = probabilities(scores, temperatures)
    assert found[2] / found[0] == pytest.approx(math.exp(3.0 / temperatures[2]))
    assert sum(found) == pytest.approx(1.0)


def test_reasons_speak_for_the_type_and_come_strongest_first() -> None:
    text = extract(ask("Write a Rust function that reverses a linked list.", tools=[WEATHER_TOOL]))
    assert explain(text, untrained(), "tool_call").reasons == ("tools offered (1)",)
    for_code = explain(text, untrained(), "code").reasons
    assert len(for_code) > 1
    assert any(reason.startswith("phrases of programming tasks") for reason in for_code)
    assert explain(text, untrained(), "romansh").reasons == ("nothing speaks for another type",)


def test_an_explanation_names_signs_and_pieces_of_the_text_itself() -> None:
    text = extract(ask("Write a Rust function that reverses a linked list."))
    found = explain(text, shipped_text_model(), "code")
    assert found.grams
    assert all(gram in text.text.lower() for gram, _ in found.grams)
    for weighted in (found.grams, found.signs):
        nats = [weight for _, weight in weighted]
        assert nats == sorted(nats, reverse=True)
        assert min(nats, default=1.0) > 0
    assert explain(text, untrained(), "code").grams == ()


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "Write a Rust function"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        [{"type": "image_url", "image_url": {"url": "data:x"}}, "Write a Rust function"],
    ],
)
def test_the_text_among_pictures_is_read(content: Any) -> None:
    assert estimate(ask(content)).text_type == "code"


@pytest.mark.parametrize("wild", ["\ud800", "\x00", "\udfff\x00 ", "\u202e"])
def test_characters_no_text_should_have_change_nothing(wild: str) -> None:
    assert estimate(ask(f"Write a Rust function that reverses a linked list.{wild}")).text_type == "code"


def test_the_end_of_a_long_prompt_is_read() -> None:
    filler = "The report goes on about the weather and the sea and many other things of that time. " * 20_000
    text = extract(ask(f"{filler}\n\nTranslate the text above into Romansh."))
    assert classify(text, shipped_text_model()).text_type == "romansh"
