"""Each text rule sees its sign, says so, and sees nothing in plain talk."""

from __future__ import annotations

import pytest

from selector.core.requesttext import extract
from selector.core.textrules import Evidence, text_evidence

SIGNS = [
    ("tool_call", "tools offered", "You can call these functions:\n- add(a, b): adds two numbers"),
    ("tool_call", "tools listed", 'Use a tool: [{"name": "f", "parameters": {"type": "object"}}]'),
    ("agentic", "orders for several steps", "You are an autonomous agent. Call one tool in each turn."),
    ("agentic", "commands or their output", "Thought: search.\nAction: search(x)\nObservation: nothing found"),
    ("structured_output", "JSON is asked for", "Answer with valid JSON."),
    ("structured_output", "the form of a JSON object", 'Answer in the format {"name": "..."}'),
    ("structured_output", "a JSON Schema", '{"type": "object", "properties": {}}'),
    ("romansh", "Romansh function words", "Ils uffants n'èn betg sin la plazza, els èn ids en l'uaud cun lur aug."),
    ("romansh", "Romansh is asked for", "Write a poem in Romansh"),
    ("multilingual", "Dutch function words", "Dit is een brief die ik niet aan je wil geven"),
    ("multilingual", "non-Latin script", "今日の天気は"),
    ("multilingual", "non-Latin script", "የፈረንሳይ ፕሬዝዳንት"),
    ("multilingual", "hardly any English", "Okuyita Ttembo kitegeeza kugwa ddalu mu kibira"),
    ("multilingual", "an answer in another language", "Translate it into Finnish"),
    ("long_document", "a text of 12,000 characters", "word and " * 1_333 + "end"),
    ("code", "programming words", "the function returns a string from the array of the class"),
    ("code", "phrases of programming tasks", "Write a function that sorts a list"),
    ("code", "names of programming tools", "Is Kubernetes worth it?"),
    ("code", "programming signs", "{a: [1, 2]; b: [3]}"),
    ("code", "lines of code", "import os\nos.remove(path)"),
    ("code", "a code block", "look:\n```\nls -la | wc\n```"),
    ("math", "words of mathematics", "the derivative of a convergent series"),
    ("math", "formulas", r"\int_0^1 f(x) dx"),
    ("math", "a question about quantities", "Anna has 3 apples and buys 4. How many has she?"),
    ("news", "words of reporting", "Police said on Monday that the former minister was arrested. " * 2),
    ("news", "a request about an article", "Write a headline for this text " + "that follows here below " * 4),
    ("news", "a report rather than a request", "The old bridge fell into the river in the night and " * 3),
    ("conversation", "words of asking", "Can you recommend a good book for my mother?"),
]  # fmt: skip


def evidence(text: str) -> list[Evidence]:
    return text_evidence(extract({"prompt": text}))


@pytest.mark.parametrize(("text_type", "reason", "text"), SIGNS)
def test_a_rule_sees_its_sign(text_type: str, reason: str, text: str) -> None:
    found = [item for item in evidence(text) if item.reason.startswith(reason)]
    assert [item.text_type for item in found] == [text_type]
    assert found[0].weight > 0.3


@pytest.mark.parametrize("text", ["", "Hello there!", "Good morning and welcome"])
def test_plain_talk_shows_no_sign(text: str) -> None:
    assert evidence(text) == []


@pytest.mark.parametrize(
    "text",
    ["Où est la gare ? Je ne sais pas.", "Je ne sais pas. " * 40 + "It is the end of the text and of this test."],
)
def test_a_foreign_text_shows_more_the_more_of_it_is_foreign(text: str) -> None:
    def weight(sample: str) -> float:
        return sum(item.weight for item in evidence(sample) if item.text_type == "multilingual")

    assert weight(text) > 8.0
    assert weight(text) > weight(f"{text} {'This is what he said to me in the end, and it was not true. ' * 12}")


def test_romance_languages_are_not_romansh() -> None:
    for text in (
        "La casa è sul lago e il sole non c'è ancora, ma la gente è già in piazza con il cane.",
        "La casa está en el lago y el sol no ha salido, pero la gente ya está en la plaza con su perro.",
        "La maison est au bord du lac et le soleil ne brille pas, mais les gens sont sur la place avec un chien.",
        "A casa fica no lago e o sol ainda não nasceu, mas as pessoas já estão na praça com o seu cão.",
    ):
        weights = {item.text_type: item.weight for item in evidence(text)}
        assert weights["multilingual"] > 10.0
        assert weights.get("romansh", 0.0) == 0.0


def test_quantities_in_code_are_no_word_problem() -> None:
    question = "What is the total of 3 and 4?"
    assert any(item.reason == "a question about quantities" for item in evidence(question))
    assert not any(item.reason == "a question about quantities" for item in evidence(f"{question}\nreturn 3 + 4"))
