"""`simulate`: the contract of its JSON on a trace small enough to reckon with, its options, and bad input."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selector import cli
from selector.files.shipped import policy_path
from tests.fleets import FLEET_FILE
from tests.loglines import decision_line, end_line
from tests.profiles import PROFILE, sparse_profile

RESULT_KEYS = {
    "policy",
    "requests",
    "requests_rejected",
    "requests_dropped",
    "accepted_tokens",
    "energy_j",
    "decode_j",
    "prefill_j",
    "idle_j",
    "j_per_accepted_token",
    "decode_j_per_accepted_token",
    "tbt_attainment",
    "tbt_p50_ms",
    "tbt_p99_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "mean_power_w",
    "duration_s",
    "extrapolated_energy_frac",
    "attainment_by_text_type",
    "decisions_by_arm",
    "wall_s",
    "simulated_requests_per_s",
}
MORE_RESULT_KEYS = {"policy_sha256", "retractions", "requests_unfinished", "tbt_target_ms", "attainment_by_class"}
WALL_KEYS = {"wall_s", "simulated_requests_per_s"}

FLEET = f"""{FLEET_FILE}
[policy]
name = "static"
[policy.params]
arm = "none"
"""

ROWS = ((0.0, 7_000, 51), (2.0, 800, 1), (4.0, 9_000, 10), (6.0, 300, 101))
"""(arrival s, prompt, answer): one after the other; the second has no TBT, the third fits no context."""

Run = Callable[..., tuple[int, str, str]]


def azure(rows: tuple[tuple[float, int, int], ...]) -> str:
    lines = [f"2023-11-16 18:15:{40 + at_s:010.7f},{prompt},{output}" for at_s, prompt, output in rows]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""])


LAZY = """\
from dataclasses import dataclass
from selector.core.types import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    pass


class Lazy:
    def decide(self, request, fleet):
        return Decision(backend=None if request.arrival_s > 0 else "plain", reason="enough")

    def observe(self, outcome):
        pass


def make_policy(params, context):
    return Lazy()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `drafter-selector simulate` on a trace and a fleet of that text; returns exit code, output and errors."""
    monkeypatch.setattr(cli, "_COMMANDS", ("simulate",))

    def ran(*options: object, trace: str = azure(ROWS), name: str = "conv.csv", fleet: str = FLEET) -> Any:
        (tmp_path / name).write_text(trace)
        (tmp_path / "fleet.toml").write_text(fleet)
        given = ["simulate", "--trace", str(tmp_path / name), "--fleet", str(tmp_path / "fleet.toml")]
        code = cli.main([*given, *map(str, options)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def document(run: Run, *options: object, **files: str) -> dict[str, Any]:
    """The JSON document, which must be all there is."""
    code, out, err = run(*options, "--json", **files)
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def results(run: Run, *options: object, **files: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(run, *options, **files)["results"]
    return found


def only(run: Run, *options: object, **files: str) -> dict[str, Any]:
    (result,) = results(run, *options, **files)
    return result


# ---- the document


def test_the_document_has_the_agreed_keys(run: Run) -> None:
    answer = document(run)
    assert set(answer) == {"results", "oracle_j_per_accepted_token", "trace", "seed"}
    assert answer["oracle_j_per_accepted_token"] is None
    (result,) = answer["results"]
    assert set(result) == RESULT_KEYS | MORE_RESULT_KEYS


def test_the_oracle_bounds_every_result(run: Run) -> None:
    answer = document(run, "--policy", "static:none", "--policy", "static:dspark-8", "--oracle")
    assert [each["policy"] for each in answer["oracle"]] == ["static:none", "static:dspark-8"]
    for bound, result in zip(answer["oracle"], answer["results"], strict=True):
        assert bound["tbt_attainment"] == result["tbt_attainment"]
        assert 0.0 < bound["j_per_accepted_token"] <= result["j_per_accepted_token"]
        above_frac = result["j_per_accepted_token"] / bound["j_per_accepted_token"] - 1.0
        assert bound["above_frac"] == pytest.approx(above_frac)
    bounds = [each["j_per_accepted_token"] for each in answer["oracle"]]
    assert answer["oracle_j_per_accepted_token"] == min(bounds)


def test_the_table_says_what_the_oracle_bounds(run: Run) -> None:
    code, out, _ = run("--policy", "static:dspark-8", "--oracle")
    assert code == 0
    assert "no policy that serves every request takes fewer joules per accepted token" in " ".join(out.split())
    assert re.search(r"static:dspark-8: \d+\.\d+ J/token at 100.0% attained, the policy is \d+\.\d% above", out)


def test_the_oracle_says_nothing_of_a_policy_that_refuses(run: Run, tmp_path: Path) -> None:
    lazy = tmp_path / "lazy.py"
    lazy.write_text(LAZY)
    answer = document(run, "--policy", lazy, "--oracle")
    assert answer["oracle_j_per_accepted_token"] is None
    assert answer["oracle"][0]["j_per_accepted_token"] is None
    _, out, _ = run("--policy", lazy, "--oracle")
    assert "no bound, for it refused requests" in out


def test_the_numbers_are_those_of_a_server_that_serves_one_request_at_a_time(run: Run) -> None:
    result = only(run)
    cost = sparse_profile().cost("none")
    served = [(prompt, output) for _, prompt, output in ROWS if prompt < 8_192]
    prefills = [cost.prefill.cost(prompt) for prompt, _ in served]
    steps = [[cost.step.step(1, prompt + 1 + n) for n in range(output - 1)] for prompt, output in served]
    decode_j = sum(j for request in steps for _, j in request)
    prefill_j = sum(j for _, j in prefills)
    busy_s = (sum(ms for ms, _ in prefills) + sum(ms for request in steps for ms, _ in request)) / 1e3
    duration_s = 6.0 + (prefills[-1][0] + sum(ms for ms, _ in steps[-1])) / 1e3
    idle_j = cost.idle.watts(1) * (2 * duration_s - busy_s)

    assert (result["requests"], result["requests_rejected"], result["requests_dropped"]) == (3, 0, 1)
    assert result["accepted_tokens"] == 51 + 1 + 101
    assert result["decode_j"] == pytest.approx(decode_j, rel=1e-3)
    assert result["prefill_j"] == pytest.approx(prefill_j)
    assert result["idle_j"] == pytest.approx(idle_j, rel=1e-3)
    assert result["energy_j"] == pytest.approx(result["decode_j"] + result["prefill_j"] + result["idle_j"])
    assert result["j_per_accepted_token"] == pytest.approx(result["energy_j"] / 153)
    assert result["decode_j_per_accepted_token"] == pytest.approx(result["decode_j"] / 153)
    assert result["duration_s"] == pytest.approx(duration_s, rel=1e-3)
    assert result["mean_power_w"] == pytest.approx(result["energy_j"] / result["duration_s"])
    means = sorted(sum(ms for ms, _ in request) / len(request) for request in steps if request)
    assert result["tbt_p50_ms"] == pytest.approx(sum(means) / 2, rel=1e-3)
    assert result["tbt_p99_ms"] == pytest.approx(means[0] + 0.99 * (means[1] - means[0]), rel=1e-3)
    waits = sorted(ms for ms, _ in prefills)
    assert result["ttft_p50_ms"] == pytest.approx(waits[1], rel=1e-3)
    assert result["ttft_p99_ms"] == pytest.approx(waits[1] + 0.98 * (waits[2] - waits[1]), rel=1e-3)
    assert result["tbt_attainment"] == 1.0
    assert result["attainment_by_text_type"] == {"conversation": 1.0}
    assert result["decisions_by_arm"] == {"none": 3, "dspark-8": 0}
    assert result["retractions"] == 0
    assert 0.0 <= result["extrapolated_energy_frac"] <= 1.0
    assert result["simulated_requests_per_s"] == pytest.approx(3 / result["wall_s"])


def test_a_result_names_its_policy_and_the_file_that_ran(run: Run) -> None:
    result = only(run, "--policy", "static:dspark-8")
    assert result["policy"] == "static:dspark-8"
    assert result["policy_sha256"] == hashlib.sha256(Path(policy_path("static")).read_bytes()).hexdigest()
    assert result["decisions_by_arm"] == {"none": 0, "dspark-8": 3}


def test_several_policies_give_results_in_the_order_asked_for(run: Run) -> None:
    found = results(run, "--policy", "static:dspark-8", "--policy", "static:none", "--policy", "min_energy")
    assert [result["policy"] for result in found] == ["static:dspark-8", "static:none", "min_energy"]
    assert found[0]["decode_j"] < found[1]["decode_j"]
    assert found[1] | dict.fromkeys(WALL_KEYS) == only(run, "--policy", "static:none") | dict.fromkeys(WALL_KEYS)


def test_a_policy_can_be_a_file_of_ones_own(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "mine [own].py"
    own.write_text(Path(policy_path("least_loaded")).read_text())
    result = only(run, "--policy", own)
    assert result["policy"] == str(own)
    assert result["requests"] == 3
    code, out, err = run("--policy", own)
    assert (code, err) == (0, "")
    assert f"{own}: 3 requests done" in out, "brackets in a path are no markup"


def test_the_fleet_file_s_policy_and_parameters_are_the_default(run: Run) -> None:
    drafting = FLEET.replace('[policy.params]\narm = "none"', '[policy.params]\narm = "dspark-8"')
    assert (only(run)["policy"], only(run)["decisions_by_arm"]["none"]) == ("static", 3)
    assert only(run, fleet=drafting)["decisions_by_arm"]["dspark-8"] == 3
    assert only(run, "--policy", "static", fleet=drafting)["decisions_by_arm"]["dspark-8"] == 3
    # The parameters are that policy's, not another's.
    assert only(run, "--policy", "least_loaded", fleet=drafting)["requests"] == 3


# ---- options


def test_without_a_target_there_is_no_attainment(run: Run) -> None:
    result = only(run, fleet=FLEET.replace("tbt_target_ms = 25", ""))
    assert (result["tbt_attainment"], result["attainment_by_text_type"]) == (None, {})


def test_a_target_given_is_everybody_s(run: Run) -> None:
    assert only(run, "--tbt-target-ms", "0.5")["tbt_attainment"] == 0.0
    assert only(run, "--tbt-target-ms", "100")["tbt_attainment"] == 1.0


def test_several_targets_give_one_list_target_by_target(run: Run) -> None:
    policies = ("--policy", "static:none", "--policy", "static:dspark-8")
    found = results(run, *policies, "--tbt-target-ms", "100", "--tbt-target-ms", "0.5", "--tbt-target-ms", "none")
    assert [(result["tbt_target_ms"], result["policy"], result["tbt_attainment"]) for result in found] == [
        (100.0, "static:none", 1.0), (100.0, "static:dspark-8", 1.0),
        (0.5, "static:none", 0.0), (0.5, "static:dspark-8", 0.0),
        ("none", "static:none", None), ("none", "static:dspark-8", None),
    ]  # fmt: skip
    assert only(run)["tbt_target_ms"] is None, "the fleet's classes have their own"
    table = run(*policies, "--tbt-target-ms", "100", "--tbt-target-ms", "none")[1]
    assert table.index("target 100 ms") < table.index("no target")


def test_attainment_is_told_by_class(run: Run) -> None:
    assert only(run)["attainment_by_class"] == {"chat": 1.0}
    assert only(run, "--tbt-target-ms", "0.5")["attainment_by_class"] == {"chat": 0.0}


def test_a_page_is_written_and_the_document_stays_alone_on_stdout(run: Run, tmp_path: Path) -> None:
    plain = document(run)
    page = tmp_path / "report.html"
    with_page = document(run, "--html", page)
    for answer in (plain, with_page):
        for result in answer["results"]:
            result.update(dict.fromkeys(WALL_KEYS))
    assert with_page == plain, "to be watched changes nothing"
    text = page.read_text()
    fleet, trace = (tmp_path / "fleet.toml", tmp_path / "conv.csv")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert hashlib.sha256(trace.read_bytes()).hexdigest() in text
    assert hashlib.sha256(Path(policy_path("static")).read_bytes()).hexdigest() in text
    assert str(fleet) in text and "text conversation 100% (assumed)" in text
    assert run("--html", page)[2] == f"wrote {page}\n"


def test_a_page_that_cannot_be_written_is_one_line(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--html", tmp_path / "no" / "report.html")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no/report.html: cannot be written (No such file or directory)" in err


def test_limit_takes_the_first_requests(run: Run) -> None:
    answer = document(run, "--limit", "2")
    assert answer["trace"]["requests"] == 2
    assert (answer["results"][0]["requests"], answer["results"][0]["accepted_tokens"]) == (2, 52)


def test_rate_scale_brings_arrivals_closer(run: Run) -> None:
    once, double = only(run), only(run, "--rate-scale", "2")
    assert once["duration_s"] - double["duration_s"] == pytest.approx(3.0, rel=1e-3)
    assert once["decode_j"] == pytest.approx(double["decode_j"], rel=1e-3)
    assert document(run, "--rate-scale", "2")["trace"]["rate_scale"] == 2.0


def test_the_text_mix_is_the_trace_s_own_kind_unless_given_and_it_is_printed(run: Run) -> None:
    assert document(run)["trace"]["text_mix"] == {"conversation": 1.0}
    assert document(run, name="code.csv")["trace"]["text_mix"] == {"code": 1.0}
    mixed = document(run, "--text-mix", "code=3,romansh=1", "--tbt-target-ms", "25")
    assert mixed["trace"]["text_mix"] == {"code": 0.75, "romansh": 0.25}
    assert set(mixed["results"][0]["attainment_by_text_type"]) <= {"code", "romansh"}
    assert "text conversation 100% (assumed)" in run()[1]
    assert "text code 75%, romansh 25% (assumed)" in run("--text-mix", "code=3,romansh=1")[1]


def test_the_text_decides_what_drafting_costs(run: Run) -> None:
    code, romansh = (only(run, "--policy", "static:dspark-8", "--text-mix", text) for text in ("code", "romansh"))
    assert code["decode_j"] < romansh["decode_j"]


def test_equal_seeds_give_equal_documents_and_others_do_not(run: Run) -> None:
    rows = tuple((0.3 * number, 200 + 10 * number, 40) for number in range(30))

    def seeded(seed: int) -> list[dict[str, Any]]:
        found = results(
            run, "--policy", "min_energy", "--text-mix", "code=1,romansh=1", "--seed", seed, trace=azure(rows)
        )
        return [{key: value for key, value in result.items() if key not in WALL_KEYS} for result in found]

    assert seeded(3) == seeded(3)
    assert seeded(3) != seeded(4)
    drafting = ("--policy", "static:dspark-8", "--text-mix", "code")
    first, other = (only(run, *drafting, "--seed", seed, trace=azure(rows))["decode_j"] for seed in (3, 4))
    assert first != other, "not the text types alone, the accepted drafts too"
    assert document(run, "--seed", "3")["seed"] == 3


EXPLODING = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Params:
    pass

class Exploding:
    def decide(self, request, fleet):
        raise RuntimeError("it ran")

def make_policy(params, context):
    return Exploding()
"""


def test_a_mistake_in_the_last_policy_shows_before_the_first_has_run(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "exploding.py"
    own.write_text(EXPLODING)
    code, _, err = run("--policy", own, "--policy", "nope")
    assert (code, err.count("\n")) == (2, 1)
    with pytest.raises(RuntimeError, match="it ran"):
        run("--policy", own)


def test_the_table_has_every_policy_and_marks_the_least_energy(run: Run) -> None:
    code, out, err = run("--policy", "static:none", "--policy", "static:dspark-8")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(" static:")}
    assert set(rows) == {"static:none", "static:dspark-8"}
    assert ["◀" in rows[name] for name in ("static:none", "static:dspark-8")] == [False, True]
    assert "…" not in out
    assert "static:none: 3 requests done; none 100%" in out
    assert "static:none: 0 rejected, 1 over every backend's context" in out


# ---- bad rows and bad input

BAD_ROWS = "2023-11-16 18:15:50.0,0,5\nyesterday,5,5\n"


def test_bad_rows_are_skipped_and_told(run: Run) -> None:
    code, _, err = run(trace=azure(ROWS) + BAD_ROWS, name="conv [cut].csv")
    assert code == 0
    assert "/conv [cut].csv: line 6: " in err, "brackets in a path are no markup"
    assert [line.split(": ", 1)[1] for line in err.splitlines()] == [
        "line 6: ContextTokens is '0', not between 1 and 2,147,483,647",
        "line 7: TIMESTAMP is 'yesterday', not a date and time",
    ]
    assert document(run, trace=azure(ROWS) + BAD_ROWS)["trace"]["bad_rows"] == 2


def test_many_bad_rows_are_summed_up(run: Run) -> None:
    _, _, err = run(trace=azure(ROWS) + "x,1,1\n" * 9)
    assert err.count("\n") == 6
    assert "skipped 4 more bad rows of " in err.splitlines()[-1]


def test_requests_that_failed_in_the_trace_are_told_and_no_reason_to_refuse_it(run: Run) -> None:
    rows = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,GPT-4,5,6,11,API log\n"
    trace = rows + "2,GPT-4,5,0,5,API log\n" * 3
    code, _, err = run("--strict", trace=trace)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("left out 3 rows of ") and err.endswith("conv.csv: failed, 0 response tokens\n")
    assert document(run, trace=trace)["trace"]["skipped"] == {"failed, 0 response tokens": 3}


OWN_POLICY = "class Params: pass\n"


@pytest.mark.parametrize(
    ("options", "files", "words"),
    [
        (["--trace", "{tmp}/nope.csv"], {}, "nope.csv: there is no such trace"),
        (["--fleet", "{tmp}/nope.toml"], {}, "nope.toml: there is no such fleet file"),
        ([], {"trace": "a,b\n1,2\n"}, "conv.csv: line 1: starts with 'a,b', which is no known trace format"),
        (["--strict"], {"trace": azure(ROWS) + BAD_ROWS}, "conv.csv: line 6: ContextTokens is '0'"),
        (["--policy", "nope"], {}, "policy 'nope': no shipped policy has this name"),
        (["--policy", "{tmp}/nope.py"], {}, "nope.py"),
        (["--policy", "{tmp}/own.py"], {}, "own.py: has no dataclass Params"),
        (["--policy", "static:none", "--policy", "static:x"], {}, "policy static: arm: is 'x', which no backend runs"),
        ([], {"fleet": FLEET + "[router]\nprt = 1\n"}, "fleet.toml: router.prt"),
        ([], {"fleet": FLEET.replace(PROFILE, "h100__nope", 1)}, "h100__nope"),
        ([], {"fleet": FLEET.replace("[policy.params]", "[policy.params]\nspeed = 3")}, "policy static: speed"),
        (["--text-mix", "cod=1"], {}, "--text-mix: 'cod' is no text type"),
        (["--text-mix", "code=-1"], {}, "--text-mix: the share of code is '-1'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Run, tmp_path: Path, options: list[str], files: dict[str, str], words: str
) -> None:
    (tmp_path / "own.py").write_text(OWN_POLICY)
    code, out, err = run(*(option.replace("{tmp}", str(tmp_path)) for option in options), **files)
    assert (code, out) == (2, "")
    assert err.startswith("drafter-selector simulate: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [["--limit", "0"], ["--rate-scale", "0"], ["--rate-scale", "inf"], ["--tbt-target-ms", "-3"], ["--seed", "x"]],
)
def test_numbers_out_of_range_are_refused(run: Run, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*options)
    assert ended.value.code == 2
    assert f"argument {options[0]}: " in capsys.readouterr().err


def test_a_class_that_the_fleet_lacks_is_named(run: Run) -> None:
    log = "\n".join(map(json.dumps, (decision_line(slo_class="batch"), end_line())))
    code, out, err = run(trace=log, name="decisions.jsonl")
    assert (code, out) == (2, "")
    assert "fleet.toml: slo.classes: has no class 'batch'" in err and err.count("\n") == 1
    answer = document(run, "--tbt-target-ms", "25", trace=log, name="decisions.jsonl")
    (source,) = answer["trace"].pop("sources")
    assert answer["trace"] == {
        "name": "decisions", "kind": "decisions", "requests": 1, "bad_rows": 0, "skipped": {}, "rate_scale": 1.0,
        "text_mix": None,
    }  # fmt: skip
    assert (source["text_mix"], source["text_mix_from"], source["text_types_assumed"]) == (None, "trace", 0)
    assert answer["results"][0]["attainment_by_text_type"] == {"code": 1.0}
    assert "its own text types" in run("--tbt-target-ms", "25", trace=log, name="decisions.jsonl")[1]
