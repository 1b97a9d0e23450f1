"""The `classify` command, run as users run it, in a process with pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from selector.cli.classify import answers
from selector.core.acceptancestate import fingerprint, state_of
from selector.core.texttype import untrained
from selector.core.types import TEXT_TYPES
from selector.errors import InputError
from selector.files.acceptance_state import AcceptanceFile, write_acceptance
from selector.files.fleet import load_fleet_with_profiles
from tests.profiles import PROFILE

COMMAND = (sys.executable, "-c", "import sys; from selector.cli import main; sys.exit(main(sys.argv[1:]))", "classify")


def run(*options: str, lines: Iterable[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *options), input="".join(lines), capture_output=True, text=True, timeout=60)


CODE = '{"id": "a1", "prompt": "Write a Rust function that reverses a linked list."}\n'
GERMAN = '{"id": 7, "messages": [{"role": "user", "content": "Was ist die Hauptstadt von Frankreich?"}]}\n'
EMPTY = "{}\n"
TOOLS = (
    '{"messages": [{"role": "user", "content": "list the files"}, {"role": "tool", "content": "a.txt b"}],'
    ' "tools": [{"type": "function", "function": {"name": "ls"}}]}\n'
)


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


def test_explain_adds_what_spoke_for_the_type() -> None:
    done = run("--json", "--explain", lines=[GERMAN])
    found = json.loads(done.stdout)
    assert "German function words 50%" in found["reasons"]
    assert {"signs", "grams"} <= found.keys()


def test_without_json_an_explanation_for_people() -> None:
    done = run(lines=[CODE, TOOLS, EMPTY])
    assert done.returncode == 0
    code, tools, empty = blocks(done.stdout)
    assert code[0] == "a1: code"
    assert rows(code)["probabilities"].startswith("code ")
    assert "phrases of programming tasks" in rows(code)["reasons"]
    assert "learned n-grams" in rows(code)
    assert tools[0] == "-: agentic"
    assert rows(tools)["structure"] == "21 characters, 2 messages (user, tool), 1 tools, 0 tool calls, 1 results"
    assert empty[0] == "-: unknown"
    assert rows(empty)["reasons"] == "nothing to read"


def blocks(output: str) -> list[list[str]]:
    """The lines of each answer: its heading, and the indented rows under it."""
    found: list[list[str]] = []
    for line in output.splitlines():
        if not line.startswith(" "):
            found.append([])
        found[-1].append(line)
    return found


def rows(block: list[str]) -> dict[str, str]:
    return {line[2:18].strip(): line[19:] for line in block[1:]}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": }\n', "standard input, line 2: not JSON"),
        ("[1, 2]\n", "standard input, line 2: a JSON array"),
        ("null\n", "standard input, line 2: a JSON null"),
        ('"text"\n', "standard input, line 2: a JSON string"),
        ("[" * 5_000 + "\n", "standard input, line 2: not JSON"),
    ],
)
def test_a_line_that_is_no_request_is_named_and_all_others_are_answered(line: str, problem: str) -> None:
    done = run("--json", lines=[CODE, line, GERMAN])
    assert done.returncode == 2
    assert [json.loads(answer)["id"] for answer in done.stdout.splitlines()] == ["a1", 7]
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def faults(lines: list[bytes]) -> list[str]:
    return [str(answer) for answer in answers(lines, untrained()) if isinstance(answer, InputError)]


def test_bytes_that_are_not_utf_8_are_named_too() -> None:
    (fault,) = faults([b'{"prompt": "\xff"}\n'])
    assert fault.startswith("standard input, line 1: not JSON")


def test_blank_lines_count_in_the_line_numbers() -> None:
    (fault,) = faults([b"\n", b"{}\n", b"nonsense\n"])
    assert "line 3" in fault


def test_surrogates_and_long_integers_are_read_and_kept() -> None:
    done = run("--json", lines=['{"id": "\\ud800", "prompt": "Hi \\udfff"}\n', f'{{"id": {10**30}, "prompt": "Hi"}}\n'])
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["\ud800", 10**30]
    assert run(lines=['{"id": "\\ud800", "prompt": "Hi"}\n']).stdout.startswith("\\ud800: conversation")


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


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A fleet file with a plain and a drafting arm, whose router keeps a snapshot."""
    path = tmp_path / "fleet.toml"
    backends = "".join(
        f'[[backends]]\nname = "{arm}"\narm = "{arm}"\ngpus = ["host0:{gpu}"]\nprofile = "{PROFILE}"\n'
        for gpu, arm in enumerate(("none", "dspark-8"))
    )
    snapshot = f'[acceptance]\nsnapshot = "{tmp_path / "acceptance.json"}"\n'
    path.write_text(f'version = 1\ntarget = "Qwen3-8B"\n{backends}{snapshot}', encoding="utf-8")
    return path


def learn(fleet: Path, requests: int) -> None:
    """The router of that fleet saw requests of code with 3 tokens a pass, and kept it."""
    model = load_fleet_with_profiles(fleet).policy_context().acceptance
    for _ in range(requests):
        model.observe("dspark-8", "code", 100, 200)
    snapshot = AcceptanceFile(
        target="Qwen3-8B",
        fingerprint=fingerprint(model),
        router="r1",
        saved="2026-11-29T00:00:00+00:00",
        state=state_of(model),
    )
    write_acceptance(snapshot, fleet.parent / "acceptance.json")


def test_with_a_fleet_the_estimate_of_each_arm_and_the_requests_behind_it(fleet: Path) -> None:
    before, after = [], []
    for requests, found in ((0, before), (100, after)):
        if requests:
            learn(fleet, requests)
        for line in run("--json", "--config", str(fleet), lines=[CODE, GERMAN]).stdout.splitlines():
            estimates = json.loads(line)["acceptance"]
            assert list(estimates) == ["dspark-8"], "without a drafter there is nothing to estimate"
            found.append(estimates["dspark-8"])
    assert before[0]["samples"] == 0
    assert before[0]["mean"] == pytest.approx(before[0]["prior_mean"])
    assert after[0]["samples"] > 80
    assert after[0]["mean"] == pytest.approx(3.0, abs=0.15)
    assert after[0]["prior_mean"] == before[0]["prior_mean"]
    assert after[0]["standard_deviation"] < 0.2 * before[0]["standard_deviation"]
    assert after[1]["samples"] < 10, "what is known of code is not known of German"
    shown = rows(blocks(run("--config", str(fleet), lines=[CODE]).stdout)[0])["accept lengths"]
    assert shown.startswith(f"dspark-8 {after[0]['mean']:.2f} ± ")
    assert f"{after[0]['samples']:.0f} requests seen" in shown


def test_a_snapshot_that_cannot_be_used_is_named(fleet: Path) -> None:
    learn(fleet, 1)
    snapshot = fleet.parent / "acceptance.json"
    impossible = json.loads(snapshot.read_bytes())
    impossible["state"]["cells"]["dspark-8"]["code"]["sums"][0] = -1.0
    for text in ("{", json.dumps(impossible)):
        snapshot.write_text(text, encoding="utf-8")
        done = run("--config", str(fleet), lines=[CODE])
        assert (done.returncode, done.stdout) == (2, "")
        assert str(snapshot) in done.stderr
        assert "Traceback" not in done.stderr


def test_the_help_teaches_with_an_example() -> None:
    done = run("--help", lines=[])
    assert done.returncode == 0
    assert "| drafter-selector classify" in done.stdout
