"""The `classify` command, run as users run it, in a process with pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from selector.cli.classify import classified
from selector.core.types import TEXT_TYPES
from selector.errors import InputError

COMMAND = (sys.executable, "-c", "import sys; from selector.cli import main; sys.exit(main(sys.argv[1:]))", "classify")


def run(*options: str, lines: Iterable[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *options), input="".join(lines), capture_output=True, text=True, timeout=60)


CODE = '{"id": "a1", "prompt": "Write a Rust function that reverses a linked list."}\n'
GERMAN = '{"id": 7, "messages": [{"role": "user", "content": "Was ist die Hauptstadt von Frankreich?"}]}\n'
EMPTY = "{}\n"


def test_json_answers_each_request_with_its_id_and_nothing_else() -> None:
    done = run("--json", lines=[CODE, "\n", GERMAN, EMPTY])
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(answer["id"], answer["text_type"]) for answer in answers] == [
        ("a1", "code"),
        (7, "multilingual"),
        (None, "unknown"),
    ]
    for answer in answers:
        assert list(answer) == ["id", "text_type", "probabilities"]
        assert list(answer["probabilities"]) == list(TEXT_TYPES)
        assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-9)


def test_explain_adds_the_reasons() -> None:
    done = run("--json", "--explain", lines=[GERMAN])
    assert json.loads(done.stdout)["reasons"] == ["German function words 50%"]


def test_without_json_a_table_with_reasons() -> None:
    done = run(lines=[CODE, EMPTY])
    header, code, empty = done.stdout.splitlines()
    assert header.split() == ["id", "text", "type", "p", "next", "because"]
    assert code.split()[:2] == ["a1", "code"]
    assert float(code.split()[2]) > 0.9
    assert code.split()[3] == "conversation"
    assert "names of programming tools" in code
    assert empty.split()[:3] == ["-", "unknown", "0.10"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": }\n', "standard input, line 2: not JSON"),
        ("[1, 2]\n", "standard input, line 2: a JSON array"),
        ("null\n", "standard input, line 2: a JSON null"),
        ('"text"\n', "standard input, line 2: a JSON string"),
    ],
)
def test_a_line_that_is_no_request_ends_it_after_those_before_are_answered(line: str, problem: str) -> None:
    done = run("--json", lines=[CODE, line, GERMAN])
    assert done.returncode == 2
    assert [json.loads(answer)["id"] for answer in done.stdout.splitlines()] == ["a1"]
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_bytes_that_are_not_utf_8_are_named_too() -> None:
    with pytest.raises(InputError, match="standard input, line 1: not JSON"):
        list(classified([b'{"prompt": "\xff"}\n']))


def test_blank_lines_count_in_the_line_numbers() -> None:
    with pytest.raises(InputError, match="line 3"):
        list(classified([b"\n", b"{}\n", b"nonsense\n"]))


def test_answers_come_while_the_pipe_is_open() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        (*COMMAND, "--json"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line, text_type in ((CODE, "code"), (GERMAN, "multilingual")):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["text_type"] == text_type
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_the_help_teaches_with_an_example() -> None:
    done = run("--help", lines=[])
    assert done.returncode == 0
    assert "| drafter-selector classify" in done.stdout
