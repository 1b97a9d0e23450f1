"""The decision log: what is written is read back, and what is no log is refused with its line."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from threading import Event

import orjson
import pytest

from selector.core.tracker import LoadSignal
from selector.core.types import Candidate, Capability, Correction, Finish, RequestView
from selector.errors import TraceError
from selector.files import decision_log_writer
from selector.files.decision_log import (
    BackendRecord,
    CorrectionEvent,
    DecisionEvent,
    EndEvent,
    EnergyEvent,
    HealthEvent,
    PolicyRecord,
    PollEvent,
    RetractEvent,
    SettingsEvent,
    StartEvent,
    encoded,
    parse_decision_log,
    read_decision_log,
    runs,
)
from selector.files.decision_log_writer import DecisionLogWriter, LogSection
from tests.fleets import ENDED

START = StartEvent(
    wall="2026-01-01T00:00:00.000+00:00",
    version="0.1.0",
    target="Made-Up-8B",
    policy=PolicyRecord(label="pack", sha256="0" * 64, params={"arm": "none"}),
    fallback=PolicyRecord(label="least_loaded", sha256="1" * 64),
    seed=7,
    backends=(BackendRecord(name="b0", arm="none"),),
)
REQUEST = RequestView(
    request_id="r",
    arrival_s=0.1 + 0.2,  # a sum that does not print short
    prompt_tokens=12,
    expected_output_tokens=1 / 3,
    text_type="code",
    text_probabilities=(0.1,) * 10,
    tbt_target_ms=25.0,
    needs=frozenset({Capability.TOOLS, Capability.LOGPROBS}),
    session_key="k",
)
CANDIDATE = Candidate(backend="b0", arm="none", feasible=True, tbt_ms=2 / 3, note="ü ≤ 1")
OUTCOME = replace(
    ENDED,
    finish=Finish.CANCELLED,
    prompt_tokens=12,
    accepted_tokens=3,
    dispatched_s=0.4,
    finished_s=1.0 / 7,
    tbt_ms=24.0,
    tbt_target_ms=25.0,
)
DECISION = DecisionEvent(
    t_s=0.7, request=REQUEST, backend="b0", arm="none", reason="why", candidates=(CANDIDATE,), fallback=True
)
EVENTS = (
    DECISION,
    RetractEvent(t_s=0.8, id="r", backend="b0", why="no connection"),
    EndEvent(t_s=0.9, outcome=OUTCOME),
    PollEvent(t_s=1.0, backend="b0", signal=LoadSignal(running=3, waiting=0, kv_tokens=1e5)),
    HealthEvent(t_s=1.1, backend="b0", available=False, reason="down"),
    HealthEvent(t_s=1.2, backend="b0", available=True, reason=None),
    CorrectionEvent(t_s=1.3, backend="b0", correction=Correction(step_time_frac=1.0 / 3, step_energy_frac=1.1)),
    EnergyEvent(t_s=1.4, id="r", backend="b0", joules=None, modelled_j=0.1 + 0.2),
)


def written(path: Path, *, times: int = 1) -> None:
    writer = DecisionLogWriter(path, START)
    for _ in range(times):
        for event in EVENTS:
            writer.write(event.event, {name: getattr(event, name) for name in type(event).model_fields})
    writer.close()
    assert writer.dropped == 0


def test_every_event_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    written(log)
    assert read_decision_log(log) == [START, *EVENTS]
    assert DECISION.decision.candidates == (CANDIDATE,)


def test_an_end_without_its_target_is_read_too(tmp_path: Path) -> None:
    """Logs of before there was one."""
    log = tmp_path / "log.jsonl"
    written(log)
    log.write_bytes(log.read_bytes().replace(b',"tbt_target_ms":25.0}', b"}"))
    (end,) = [event for event in read_decision_log(log) if isinstance(event, EndEvent)]
    assert end.outcome == replace(OUTCOME, tbt_target_ms=None)


def test_a_line_names_its_version_and_event_first() -> None:
    assert encoded("health", {"t_s": 1.0}) == b'{"v":1,"event":"health","t_s":1.0}\n'


def test_a_second_run_is_appended_and_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    written(log)
    written(log)
    assert list(runs(read_decision_log(log))) == 2 * [[START, *EVENTS]]
    # The beginning of a log may be gone.
    assert list(runs([*EVENTS, START])) == [list(EVENTS), [START]]


def test_what_a_crash_cut_short_is_cut_off_when_the_log_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    written(log)
    with log.open("ab") as file:
        file.write(b'{"v":1,"event":"end","t_s":' + b"1" * 100_000)
    with pytest.raises(TraceError, match=rf"log\.jsonl:{len(EVENTS) + 2}: is not JSON"):
        read_decision_log(log)
    written(log)
    assert len(read_decision_log(log)) == 2 * len([START, *EVENTS])


@pytest.mark.parametrize("content", [b"important = true", b'{"v":1}\n', b"\n"])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "fleet.toml"
    other.write_bytes(content)
    with pytest.raises(TraceError, match="exists and is no decision log; choose another file"):
        DecisionLogWriter(other, START)
    assert other.read_bytes() == content


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written"):
        DecisionLogWriter(tmp_path / "no such folder" / "log.jsonl", START)
    with pytest.raises(TraceError, match="cannot be written"):
        DecisionLogWriter(tmp_path, START)


def test_lines_are_dropped_and_counted_when_the_disk_is_too_slow(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    writer = DecisionLogWriter(log, START, flush_every_s=3600, max_pending_bytes=2000)
    for number in range(100):
        writer.write("health", {"t_s": float(number), "backend": "b0", "available": True, "reason": None})
    writer.close()
    kept = read_decision_log(log)
    assert 0 < writer.dropped < 100
    assert len(kept) == 101 - writer.dropped
    assert [event.t_s for event in kept[1:] if isinstance(event, HealthEvent)] == list(range(len(kept) - 1))


def test_events_of_all_kinds_are_lines_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    writer = DecisionLogWriter(log, START, flush_every_s=3600)
    ends = 0
    for number in range(200):
        if number % 70 == 69:
            writer.write("health", {"t_s": float(number), "backend": "b0", "available": True, "reason": None})
        else:
            ends += 1
            writer.write("end", {"t_s": float(number), "outcome": OUTCOME})
    writer.close()
    events = read_decision_log(log)[1:]
    assert [event.t_s for event in events if not isinstance(event, StartEvent)] == list(range(200))
    assert sum(isinstance(event, EndEvent) for event in events) == ends


def test_what_changes_later_is_logged_as_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    writer = DecisionLogWriter(log, START, flush_every_s=3600)
    settings = {"budget": 1.0}
    fields = {"t_s": 1.0, "backend": "b0", "settings": settings, "result": "in force", "why": "the plan wants it"}
    writer.write("settings", fields)
    settings["budget"] = 0.5
    writer.close()
    (event,) = read_decision_log(log)[1:]
    assert isinstance(event, SettingsEvent)
    assert event.settings == {"budget": 1.0}


def test_an_event_that_is_no_json_takes_no_other_along(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    writer = DecisionLogWriter(log, START, flush_every_s=3600)
    for outcome in (OUTCOME, object(), OUTCOME):
        writer.write("end", {"t_s": 1.0, "outcome": outcome})
    writer.close()
    assert [event.event for event in read_decision_log(log)] == ["start", "end", "end"]
    assert writer.dropped == 1
    assert writer.last_error is not None
    assert writer.last_error.startswith("end: ")


def test_a_full_disk_leaves_whole_lines_and_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes 1,000 bytes, in the middle of a line; later there is room again."""
    log = tmp_path / "log.jsonl"
    room = [1000]

    def write(descriptor: int, data: bytes) -> int:
        if not room:
            return os.write(descriptor, data)
        if room[0] == 0:
            failed.set()
            raise OSError(28, "No space left on device")
        count = os.write(descriptor, data[: room[0]])
        room[0] -= count
        return count

    class FakeOs:
        def __getattr__(self, name: str) -> object:
            return write if name == "write" else getattr(os, name)

    failed = Event()
    monkeypatch.setattr(decision_log_writer, "os", FakeOs())
    writer = DecisionLogWriter(log, START, flush_every_s=0.001)
    for number in range(20):
        writer.write("health", {"t_s": float(number), "backend": "b0", "available": True, "reason": None})
    assert failed.wait(10)
    room.clear()
    writer.write("health", {"t_s": 99.0, "backend": "b0", "available": True, "reason": None})
    writer.close()
    kept = read_decision_log(log)
    assert writer.dropped > 0
    assert len(kept) == 22 - writer.dropped
    assert writer.last_error == "No space left on device"


def test_lines_reach_the_file_without_closing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    writer = DecisionLogWriter(log, START, flush_every_s=0.001)
    try:
        while not log.read_bytes():
            pass
        assert read_decision_log(log) == [START]
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", ":2: is not JSON"),
        ("[1]", ":2: is not a JSON object"),
        ('{"v":2,"event":"poll"}', ":2: v: is 2; this release reads version 1"),
        ('{"event":"poll"}', ":2: v: is None"),
        ('{"v":1,"event":"guess"}', ":2: event: "),
        ('{"v":1,"event":"retract","t_s":1,"id":"r","backend":"b0"}', ":2: why: is missing"),
        ('{"v":1,"event":"retract","t_s":1,"id":"r","backend":"b0","why":"","x":1}', ":2: x: is 1"),
        ('{"v":1,"event":"poll","t_s":"soon","backend":"b","signal":{"running":1,"waiting":0}}', ":2: t_s: is 'soon'"),
        ('{"v":1,"event":"poll","t_s":1,"backend":"b","signal":{"running":1}}', ":2: signal.waiting: is missing"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_field(line: str, complaint: str) -> None:
    text = START.model_dump_json() + "\n" + line + "\n"
    with pytest.raises(TraceError) as raised:
        list(parse_decision_log(text, "log.jsonl"))
    assert f"log.jsonl{complaint}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_prompt_has_no_place_in_a_log() -> None:
    line = orjson.loads(encoded("decision", {"request": REQUEST}))
    assert not {"prompt", "messages", "text", "body"} & set(line["request"])
    with pytest.raises(TypeError):
        encoded("decision", {"request": object()})


def test_a_section_waits_for_its_beginning_and_writes_only_outcomes_after_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writer = DecisionLogWriter(path, START)
    first = LogSection(writer)
    second = LogSection(writer, START.model_copy(update={"reloaded": True}))
    second.write("health", {"t_s": 1.0, "backend": "b0", "available": True, "reason": None})
    first.write("health", {"t_s": 2.0, "backend": "b0", "available": False, "reason": "down"})
    first.end()
    second.begin()
    first.write("health", {"t_s": 3.0, "backend": "b0", "available": True, "reason": None})
    first.write("retract", {"t_s": 3.0, "id": "r", "backend": "b0", "why": "x"})
    second.write("health", {"t_s": 4.0, "backend": "b0", "available": False, "reason": "down"})
    writer.close()
    written = [(event.event, getattr(event, "t_s", None)) for event in read_decision_log(path)]
    assert written == [
        ("start", None),
        ("health", 2.0),
        ("start", None),
        ("health", 1.0),
        ("retract", 3.0),
        ("health", 4.0),
    ]
