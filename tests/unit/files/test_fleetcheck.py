"""`examine` finds everything that is wrong with a fleet file at once, and warns of what will surprise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selector.files.fleetcheck import Examination, examine
from tests import livearms
from tests.profiles import PROFILE, sparse_document

POLICY = """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Params:
    share: float = 0.5

def make_policy(params, context):
    return object()
"""


def backend(name: str, arm: str = "none", gpu: str = "host0:0", more: str = "", profile: str = PROFILE) -> str:
    return f'[[backends]]\nname = "{name}"\narm = "{arm}"\ngpus = ["{gpu}"]\nprofile = "{profile}"\n{more}\n'


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.py"
    path.write_text(POLICY)
    return path


@pytest.fixture
def fleet(tmp_path: Path, policy: Path) -> Path:
    """Where the fleet file of a test goes; the policy is there already."""
    return tmp_path / "f.toml"


def examined(path: Path, *parts: str, policy: str | None = None, **environ: str) -> Examination:
    mine = path.parent / "policy.py"
    choice = policy if policy is not None else f'[policy]\nname = "{mine}"\nfallback = "{mine}"\n'
    path.write_text('version = 1\ntarget = "Qwen3-8B"\n' + "".join(parts) + choice)
    return examine(path, environ)


def found(examination: Examination, level: str) -> list[str]:
    return [str(finding) for finding in examination.findings if finding.level == level]


def test_a_sound_fleet_is_loaded_without_a_word(fleet: Path) -> None:
    examination = examined(fleet, backend("b0", more='url = "http://127.0.0.1:1"'))
    assert examination.findings == ()
    assert examination.loaded is not None
    assert examination.policy is not None and examination.policy.sha256
    assert examination.fallback is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = ", "is not TOML"),
        ("", "version: is missing; add it"),
    ],
)
def test_a_file_that_cannot_be_read_as_a_fleet_is_an_error(fleet: Path, text: str, expected: str) -> None:
    fleet.write_text(text)
    assert expected in found(examine(fleet), "error")[0]


def test_a_missing_file_is_an_error(fleet: Path) -> None:
    assert found(examine(fleet), "error") == [f"{fleet}: there is no such fleet file; check the path"]


def test_every_schema_error_is_listed(fleet: Path) -> None:
    parts = (backend("b0", more="max_kv_toks = 1"), backend("b1", more="max_kv_tokens = 0"))
    errors = found(examined(fleet, *parts), "error")
    assert len(errors) == 2
    assert "backends[0].max_kv_toks: is not a known field" in errors[0]
    assert "backends[1].max_kv_tokens: is 0" in errors[1]


def test_every_backend_policy_and_address_error_is_listed(fleet: Path) -> None:
    examination = examined(
        fleet,
        backend("b0", arm="mtp-k1", more='url = "http://localhost:5000"'),
        backend("b1", profile="./gone.json", more='url = "http://127.0.0.1:5000/"'),
        backend("b2"),
        policy='[policy]\nname = "no_such"\nfallback = "./gone.py"\n[router]\nhost = "0.0.0.0"\nport = 5000\n',
    )
    errors = found(examination, "error")
    assert len(errors) == 6
    for part in (
        "backends[1].url: is 'http://127.0.0.1:5000', where backend 'b0' already listens",
        "router.port: is 5000, where backend 'b0' already listens",
        "backends[0].arm: 'mtp-k1' is not in profile",
        "backends[1].profile: profile './gone.json'",
        "policy: policy 'no_such': no shipped policy has this name",
        "policy.fallback: policy './gone.py'",
    ):
        assert [error for error in errors if part in error], part
    assert examination.loaded is None


def test_the_same_port_of_two_machines_is_no_clash(fleet: Path) -> None:
    urls = ("http://a:5000", "http://b:5000", "https://a")
    parts = [backend(f"b{n}", gpu=f"g:{n}", more=f'url = "{url}"') for n, url in enumerate(urls)]
    assert found(examined(fleet, *parts), "error") == []


def test_the_router_s_own_ports_are_two(fleet: Path) -> None:
    here = backend("b0", more='url = "http://localhost:5000"')
    (error,) = found(examined(fleet, here, "[router]\nport = 9\ncontrol_port = 9\n"), "error")
    assert "router.control_port: is 9, where the router already listens" in error
    (error,) = found(examined(fleet, here, "[router]\ncontrol_port = 5000\n"), "error")
    assert "router.control_port: is 5000, where backend 'b0' already listens" in error
    assert found(examined(fleet, here, "[router]\nport = 0\ncontrol_port = 0\n"), "error") == []


def test_who_may_write_a_policy_is_looked_at(fleet: Path, policy: Path) -> None:
    policy.chmod(0o666)
    assert ["may be written by everybody" in warning for warning in warnings(fleet, backend("b0"))].count(True) == 2


def test_a_policy_is_made_with_the_file_s_parameters(fleet: Path, policy: Path) -> None:
    choice = f'[policy]\nname = "{policy}"\nfallback = "{policy}"\n[policy.params]\nshares = 1\n'
    (error,) = found(examined(fleet, backend("b0", more='url = "http://a"'), policy=choice), "error")
    assert "shares: is not one of its parameters; it takes share" in error


def warnings(fleet: Path, *parts: str, **environ: str) -> list[str]:
    examination = examined(fleet, *parts, **environ)
    assert found(examination, "error") == []
    return found(examination, "warning")


@pytest.mark.parametrize(
    ("arm", "said", "lacking"),
    [
        ("dspark-8", [], "lacks penalties and hidden_states, which SGLang refuses or ignores under DSPARK"),
        ("dspark-8", ["penalties"], "lacks hidden_states, which"),
        ("eagle3-k3", ["tools"], "lacks penalties, which SGLang refuses or ignores under EAGLE3"),
        ("eagle3-k3", ["penalties"], None),
        ("none", [], None),
    ],
)
def test_an_arm_that_is_said_to_do_what_no_drafter_does_is_warned_of(
    fleet: Path, arm: str, said: list[str], lacking: str | None
) -> None:
    document = sparse_document()
    document["arms"][arm]["cannot_serve"] = said
    path = fleet.parent / "changed.json"
    path.write_text(json.dumps(document))
    about = [each for each in warnings(fleet, backend("b0", arm=arm, profile=str(path))) if "cannot_serve" in each]
    if lacking is None:
        assert about == []
    else:
        (warning,) = about
        assert f"arms.{arm}.cannot_serve: {lacking}" in warning


def test_a_target_that_one_of_its_depths_meets_is_met_by_an_engine_that_chooses(fleet: Path, tmp_path: Path) -> None:
    """Depth 3 has nothing accepted here and takes 6 ms a token, depth 1 less than 5."""
    document = sparse_document()
    for accepted in document["arms"]["eagle3-k3"]["acceptance"].values():
        accepted.update(mean=1.0)
    depths = ["none", "eagle3-k1", "eagle3-k3"]
    document["arms"]["own"] = {"algorithm": "EAGLE3", "verify_tokens": 4, "depths": depths}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    slo = "[slo]\ndefault_class = 'fast'\n[slo.classes.fast]\ntbt_target_ms = 5\n"
    for arm, missed in (("eagle3-k3", True), ("own", False)):
        about = warnings(fleet, backend("b0", arm=arm, profile=str(path)), slo)
        assert any("slo.classes.fast" in each for each in about) == missed


def test_a_target_that_no_arm_meets_is_named_with_the_best_there_is(fleet: Path) -> None:
    classes = "[slo.classes.fast]\ntbt_target_ms = 3\n[slo.classes.slow]\ntbt_target_ms = 9\n"
    parts = (backend("b0", arm="dspark-8"), backend("b1"), f"[slo]\ndefault_class = 'fast'\n{classes}")
    (warning,) = [warning for warning in warnings(fleet, *parts) if "slo.classes" in warning]
    assert "slo.classes.fast.tbt_target_ms: is 3, faster than any arm" in warning
    assert "romansh (4.44 ms, dspark-8)" in warning
    assert "code" not in warning


def test_what_surprises_is_warned_of(fleet: Path) -> None:
    found_here = warnings(
        fleet,
        backend("b0", arm="eagle3-k3", more='max_running_requests = 40\napi_key_env = "KEY"'),
        backend("b1", arm="dspark-8", more='url = "http://a"\napi_key_env = "SET"'),
        SET="secret",
    )
    for part in (
        "b0, b1 share host0:0",
        "arms.eagle3-k3.acceptance: is assumed, not measured or published, for news, romansh",
        "arms.dspark-8.acceptance: is assumed",
        "backends[0].max_running_requests: is 40, and eagle3-k3 was measured up to batch 32",
        "none can serve requests that need penalties",
        "backends[0].api_key_env: names KEY, which is not set here",
        "b0 have no url",
        "b1: http to another machine",
    ):
        assert len([warning for warning in found_here if part in warning]) == 1, part
    assert len(found_here) == 8
    assert not [warning for warning in found_here if "secret" in warning]


def test_a_drafter_without_accept_lengths_is_warned_of(fleet: Path, tmp_path: Path) -> None:
    document = sparse_document()
    del document["arms"]["eagle3-k3"]["acceptance"]["code"]
    document["arms"]["dspark-8"]["acceptance"] = {}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document), "utf-8")
    parts = [backend(f"b{n}", arm=arm, profile=str(other)) for n, arm in enumerate(("none", "eagle3-k3", "dspark-8"))]
    one, all_types = [warning for warning in warnings(fleet, *parts) if "has nothing for" in warning]
    assert "arms.eagle3-k3.acceptance: has nothing for code, which counts as no draft accepted" in one
    assert "arms.dspark-8.acceptance: has nothing for code, math," in all_types and "romansh" in all_types


def test_profiles_that_differ_are_warned_of(fleet: Path, tmp_path: Path) -> None:
    document = sparse_document()
    document["gpu"]["name"] = "H100"
    document["arms"]["ngram-8"]["acceptance"]["code"]["mean"] = 4
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    found_here = warnings(
        fleet,
        backend("b0", more='url = "http://a"'),
        backend("b1", "ngram-8", "h:1", 'url = "http://b"'),
        backend("b2", "ngram-8", "h:2", 'url = "http://c"', profile=str(other)),
    )
    assert [w for w in found_here if "of different GPUs (H200: b0, b1; H100: b2)" in w]
    assert [w for w in found_here if "give ngram-8 different accept lengths" in w and "backends[2].profile" in w]


def test_a_verify_budget_that_the_server_would_ignore_is_warned_of(fleet: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "live.json", livearms.document()
    data["target"]["name"] = "Qwen3-8B"
    launch = data["arms"][livearms.ARM].setdefault("launch", {})
    here = backend("b0", livearms.ARM, more='url = "http://a"', profile=str(path))

    def told() -> list[str]:
        path.write_text(json.dumps(data))
        return [warning for warning in warnings(fleet, here) if "ignores it" in warning]

    (both,) = told()
    assert f"arms.{livearms.ARM}.launch: has no SGLANG_RAGGED_VERIFY_MODE=compact and no --speculative-dspark-" in both
    launch["env"] = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    (one,) = told()
    assert "has no --speculative-dspark-sps-table-path, without" in one
    launch["flags"] = ["--speculative-dspark-sps-table-path", "table.json"]
    assert told() == []
