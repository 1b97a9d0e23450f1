"""`profile` from its arguments to what it prints."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selector.cli import profile
from selector.errors import InputError, UsageError
from selector.files.profile import load_profile, write_profile
from selector.profiler.cells import (
    AcceptanceCell,
    AnswerCounts,
    DecodeCell,
    DecodeRepeat,
    FailedStep,
    Metered,
    Origin,
    append_cell,
)
from tests.profiles import PROFILE, sparse_profile

RECORDED = Path(__file__).parents[2] / "data" / "nvml_h200_counter.jsonl"
KIT = Path(__file__).parents[3] / "bench" / "h200" / "qwen3-8b.toml"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    profile.add_parser(parser.add_subparsers())
    args = parser.parse_args([profile.NAME, *arguments])
    return int(args.run(args))


def cell(batch: int, tokens: int) -> DecodeCell:
    energy = Metered(duration_s=5.5, energy_j=2750, watts_mean=500, counter_updates=55, update_interval_s=0.1)
    repeat = DecodeRepeat(
        seed=1, step_ms=5.0 + 0.05 * batch, step_j=2.5 + 0.02 * batch, accept_length=1, context_tokens=tokens + 500,
        steps=1000, window_s=5.5, energy=energy,
    )  # fmt: skip
    return DecodeCell(
        arm="none", sweep_pass="main", batch=batch, prompt_tokens=tokens, method="steady", repeats=(repeat,),
        origin=Origin(host="h", weights="dummy", date="2026-01-01T00:00:00+00:00"),
    )  # fmt: skip


def test_a_sweep_can_be_placed_on_another_gpu_and_port(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = ("--gpus", "1", "--port", "31100")
    assert run("--config", str(KIT), "--out", str(tmp_path), "--models", "/m", "--plan", "--json", *place) == 0
    assert "--port 31100 " in json.loads(capsys.readouterr().out)["launches"][1]["command"]
    with pytest.raises(SystemExit):
        run("--config", str(KIT), "--out", str(tmp_path), "--plan", "--gpus", "0,0")
    assert "argument --gpus: invalid" in capsys.readouterr().err


def test_a_sweep_can_be_of_some_arms_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = ("--config", str(KIT), "--out", str(tmp_path), "--plan", "--json")
    assert run(*common, "--arms", "ngram-8,dspark-8") == 0
    launches = json.loads(capsys.readouterr().out)["launches"]
    assert [launch["arm"] for launch in launches] == [None, "dspark-8", "ngram-8", None]
    with pytest.raises(UsageError, match="names 'dspark', which the sweep lacks; choose from none, dspark-8"):
        run(*common, "--arms", "dspark")
    with pytest.raises(UsageError, match="leave it out"):
        run(*common, "--accepted", "--arms", "none")


def test_the_plan_says_what_is_left_and_how_long_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--config", str(KIT), "--out", str(tmp_path), "--models", "/m", "--plan", "--json") == 0
    before = json.loads(capsys.readouterr().out)
    assert [launch["arm"] for launch in before["launches"]][:3] == [None, "none", "dspark-8"]
    assert "--model-path /m/Qwen3-8B " in before["launches"][1]["command"]
    assert before["seconds"] > 600
    for _ in range(3):  # as many repeats as the sweep wants
        append_cell(tmp_path / "cells.jsonl", cell(1, 512))
    assert run("--config", str(KIT), "--out", str(tmp_path), "--plan", "--json") == 0
    after = json.loads(capsys.readouterr().out)
    assert after["launches"][1]["steps"] == before["launches"][1]["steps"] - 1
    assert run("--config", str(KIT), "--out", str(tmp_path), "--plan") == 0
    assert "in all" in capsys.readouterr().out


def test_cells_become_a_profile_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in (1, 8, 32, 64):
        append_cell(tmp_path / "cells.jsonl", cell(batch, 512))
    new = tmp_path / "new.json"
    common = ["--config", str(KIT), "--out", str(tmp_path), "--assemble", "--base", PROFILE]
    assert run(*common, "--write", str(new), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["arms"]["none"]["out_of_order"] == []
    loaded = load_profile(str(new))
    assert [point.batch for point in loaded.arms["none"].cells] == [1, 8, 32, 64]
    assert run(*common, "--write", str(new)) == 0
    assert "1 arms, 4 cells" in capsys.readouterr().out


def test_a_page_of_a_profile_uses_the_raw_cells_and_the_recording_beside_it(tmp_path: Path) -> None:
    html, raw = tmp_path / "page.html", tmp_path / "raw"
    raw.mkdir()
    write_profile(sparse_profile(), tmp_path / "mine.json")
    origin = Origin(host="h", weights="dummy", date="2026-01-01T00:00:00+00:00")
    append_cell(
        raw / "mine.cells.jsonl", FailedStep(step="none batch 1", reason="the counter went back", origin=origin)
    )
    shutil.copyfile(RECORDED, raw / "mine.trace.jsonl")
    assert run("--report", str(tmp_path / "mine.json"), "--html", str(html), "--tbt-target-ms", "8") == 0
    text = html.read_text()
    assert "the counter went back" in text and "from what the meter recorded" in text
    assert "8 ms</text>" in text and "25 ms</text>" not in text
    assert "sha256" in text


def test_a_new_profile_gets_its_page_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("resvg_py")
    for batch in (1, 8, 32, 64):
        append_cell(tmp_path / "cells.jsonl", cell(batch, 512))
    line = '{"gpu": "0", "t_s": %d.0, "counter_mj": %d000, "sm_mhz": 1980, "temperature_c": 40}'
    (tmp_path / "trace-1.jsonl").write_text("\n".join(line % (t, 400 * t) for t in (1, 2, 3)))
    common = ["--config", str(KIT), "--out", str(tmp_path), "--assemble", "--base", PROFILE, "--json"]
    pictures = tmp_path / "png"
    words = ["--write", str(tmp_path / "new.json"), "--html", str(tmp_path / "new.html"), "--png", str(pictures)]
    assert run(*common, *words) == 0
    assert json.loads(capsys.readouterr().out)["arms"]
    assert "from 400 to 400 W" in (tmp_path / "new.html").read_text()
    assert {path.stem for path in pictures.glob("*.png")} >= {"steps", "roofline", "over-time"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.iterdir())


def test_a_report_needs_somewhere_to_go_and_a_sweep_needs_its_file() -> None:
    with pytest.raises(InputError, match="name --html FILE, --png DIR, or both"):
        run("--report", PROFILE)
    with pytest.raises(InputError, match="no --config or no --out"):
        run("--plan")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--assemble"], "needs --write"),
        (["--html", "x"], "--html and --png came without --assemble"),
        (["--base", "x"], "add --assemble"),
        (["--assemble", "--base", "x", "--write", "y"], "no shipped profile"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run("--config", str(KIT), "--out", str(tmp_path), *arguments)


def test_a_machine_without_the_gpu_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InputError, match=r"gpu\.indices: NVML's Python package .* leave indices out"):
        run("--config", str(KIT), "--out", str(tmp_path))


def test_a_model_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = KIT.read_text().replace("indices = [0]", "")
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"Qwen3-8B/config\.json: there is no such file; check --models"):
        run("--config", str(file), "--out", str(tmp_path), "--models", str(tmp_path))


def test_a_server_that_cannot_start_is_a_failure_that_later_runs_try_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "models" / "Qwen3-8B"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"vocab_size": 151936}')
    text = KIT.read_text().replace("indices = [0]", "").replace('python = "python3"', f'python = "{tmp_path}/none"')
    text = re.sub(r"^arms = .*", "", text[: text.index('[[arms]]\nname = "dspark-8"')], flags=re.MULTILINE)
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    assert run("--config", str(file), "--out", str(tmp_path), "--models", str(tmp_path / "models"), "--json") == 1
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert (result["measured"], result["failed"]) == (0, 2)
    assert result["left"] > 0
    assert "FAILED server of none: cannot run" in printed.err


def test_a_text_type_without_prompts_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"text_type": "code", "prompt": "x"}')
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'version = 1\noutput_name = "x"\n[target]\nname = "M"\nmodel = "m"\nweights = "real"\n'
        '[gpu]\nname = "CPU"\npeak_tflops = 1\nbandwidth_tb_s = 1\n[server]\ncontext_length = 64\n'
        'url = "http://127.0.0.1:1"\n[acceptance]\nprompts = "p.jsonl"\ntext_types = ["code"]\n'
        '[[arms]]\nname = "ngram-4"\nalgorithm = "NGRAM"\nverify_tokens = 4\n'
    )
    with pytest.raises(InputError, match=r"p\.jsonl: has 1 prompts of code, fewer than acceptance\.repeats 3"):
        run("--config", str(sweep), "--out", str(tmp_path / "out"))
    other = tmp_path / "other.jsonl"
    other.write_text('{"text_type": "math", "prompt": "x"}')
    with pytest.raises(InputError, match=r"other\.jsonl: has 0 prompts of code"):
        run("--config", str(sweep), "--out", str(tmp_path / "out"), "--prompts", str(other))


def test_accept_lengths_are_shown_and_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = AnswerCounts(
        prompt="p", prompt_tokens=5, completion_tokens=17, verify_passes=10, accepted_drafts=6,
        accepted_histogram=(4, 6),
    )  # fmt: skip
    measured = AcceptanceCell(
        arm="eagle3-k1", text_type="code", repeat=0, answer_tokens=64, temperature=0, answers=(answer,),
        origin=Origin(host="h", weights="real", date="2026-01-01T00:00:00+00:00"),
    )  # fmt: skip
    other = tmp_path / "real"
    other.mkdir()
    append_cell(other / "cells.jsonl", measured)
    common = ["--config", str(KIT), "--out", str(other)]
    assert run(*common, "--accepted") == 0
    assert "1.600" in capsys.readouterr().out
    assert run(*common, "--accepted", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["accept_length"] == 1.6
    new = tmp_path / "new.json"
    table = KIT.parents[2] / "profiles" / "raw" / "acceptance_published.csv"
    assert run(*common, "--assemble", "--base", PROFILE, "--published", str(table), "--write", str(new)) == 0
    assert load_profile(str(new)).arms["eagle3-k1"].acceptance["code"].mean == 1.6
    out = tmp_path / "cost"
    out.mkdir()
    for batch in (1, 8, 32, 64):
        append_cell(out / "cells.jsonl", cell(batch, 512))
        append_cell(out / "cells.jsonl", cell(batch, 512).model_copy(update={"arm": "eagle3-k1"}))
    assemble = ["--config", str(KIT), "--out", str(out), "--assemble", "--base", PROFILE, "--join", str(other)]
    assert run(*assemble, "--write", str(new), "--json") == 0
    joined = load_profile(str(new)).arms["eagle3-k1"]
    assert joined.acceptance["code"].mean == 1.6
    assert [point.batch for point in joined.cells] == [1, 8, 32, 64]


SERVER = """\
import http.server, json, os, sys, threading
told = threading.Lock()
class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        body = json.dumps({"version": "0", "loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}).encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        length = int(self.headers["content-length"]); asked = json.loads(self.rfile.read(length))
        if self.path == "/v1/chat/completions":
            if told.acquire(blocking=False):  # once: another thread, killed as it opened the file, would leave it empty
                with open(PIDS, "w") as file:
                    file.write(str(os.getpid()))
            threading.Event().wait()
        body = json.dumps([{"meta_info": {"completion_tokens": 64}}]).encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""


def test_sigterm_stops_the_server_that_the_sweep_started(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("PIDS", repr(str(pids))))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"vocab_size": 100}')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'version = 1\noutput_name = "x"\n[target]\nname = "M"\nmodel = "m"\nweights = "real"\n'
        f'[gpu]\nname = "CPU"\npeak_tflops = 1\nbandwidth_tb_s = 1\n[server]\ncontext_length = 64\n'
        f'python = "{python}"\nport = {port}\nflags = ["--max-running-requests", "8"]\n'
        '[acceptance]\ntext_types = ["code"]\n[[arms]]\nname = "ngram-4"\nalgorithm = "NGRAM"\nverify_tokens = 4\n'
    )
    command = [sys.executable, "-m", "selector", "profile", "--config", sweep, "--out", tmp_path / "out"]
    process = subprocess.Popen([*command, "--models", tmp_path], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    server = Path(f"/proc/{pids.read_text()}/stat")
    assert not server.exists() or server.read_text().rpartition(")")[2].split()[0] == "Z"
