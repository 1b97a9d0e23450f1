"""`check` tells of a set-up that lets in, or shows, more than was meant; and never a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.files.fleet import parse_fleet
from selector.files.securitycheck import examine_security, is_loopback
from tests.fleets import FLEET_FILE
from tests.profiles import PROFILE

KEY = "a-key-of-twenty-characters-or-more"
KEYED = f'[keys.alice]\nvalue = "{KEY}"\ncontrol = true\n'


def told(folder: Path, *parts: str, mode: int = 0o600, policy: Path | None = None, **environ: str) -> list[str]:
    """Level, field, problem and remedy of each finding, for a fleet with a backend here and one elsewhere."""
    text = FLEET_FILE.replace('name = "plain"', 'name = "plain"\nurl = "http://127.0.0.1:30000"')
    text = text.replace('name = "block"', 'name = "block"\nurl = "https://elsewhere.example"') + "\n".join(parts)
    path = folder / "fleet.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    found: list[str] = []

    def tell(level: str, where: str, problem: str, remedy: str) -> None:
        found.append(f"{level} {where}: {problem}; {remedy}")

    code = {} if policy is None else {"policy": policy}
    examine_security(parse_fleet(text, str(path)), str(path), environ, code, tell)
    assert KEY not in str(found)
    return found


def only(found: list[str]) -> str:
    (one,) = found
    return one


@pytest.mark.parametrize("parts", ["", KEYED, KEYED.replace("control = true\n", "") + "[router]\ncontrol_port = 1"])
def test_a_sound_set_up_is_not_spoken_of(tmp_path: Path, parts: str) -> None:
    assert told(tmp_path, parts) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "router.example"])
def test_a_router_for_everybody_is_warned_of(tmp_path: Path, host: str) -> None:
    warning = only(told(tmp_path, f'[router]\nhost = "{host}"'))
    assert warning.startswith("warning ") and f"router.host: is '{host}', and no key is asked for" in warning
    assert "watch it and abort requests" in warning
    assert told(tmp_path, KEYED + f'[router]\nhost = "{host}"') == []


def test_a_control_port_for_everybody_is_warned_of(tmp_path: Path) -> None:
    warning = only(told(tmp_path, KEYED + '[router]\ncontrol_host = "0.0.0.0"\ncontrol_port = 9'))
    assert "router.control_host: is '0.0.0.0': whoever reaches port 9 may watch" in warning
    assert told(tmp_path, KEYED + '[router]\ncontrol_host = "0.0.0.0"') == []


def test_keys_of_which_none_opens_the_metrics_are_warned_of(tmp_path: Path) -> None:
    assert "none has control = true" in only(told(tmp_path, KEYED.replace("control = true", "")))


def test_a_backend_elsewhere_without_tls_is_warned_of(tmp_path: Path) -> None:
    more = f'[[backends]]\nname = "far"\nurl = "http://far.example"\narm = "none"\ngpus = ["c"]\nprofile = "{PROFILE}"'
    assert "far: http to another machine: prompts, answers and keys" in only(told(tmp_path, more))


def test_keys_that_everybody_may_read_are_warned_of(tmp_path: Path) -> None:
    assert "the fleet file: " in only(told(tmp_path, KEYED, mode=0o644))
    digests = KEYED.replace(f'value = "{KEY}"', f'sha256 = "{"ab" * 32}"')
    assert told(tmp_path, digests, mode=0o644) == []
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYED)
    names_file = f'[security]\nkeys_file = "{keys}"'
    keys.chmod(0o640)
    assert told(tmp_path, names_file, mode=0o644) == []
    keys.chmod(0o644)
    assert f"security.keys_file: {keys} holds keys and may be read by everybody" in only(told(tmp_path, names_file))
    keys.write_text(digests)
    keys.chmod(0o646)
    assert f"{keys} may be written by everybody" in only(told(tmp_path, names_file))


def test_a_policy_that_everybody_may_write_is_code_of_everybody(tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"
    policy.touch()
    policy.chmod(0o644)
    assert told(tmp_path, policy=policy) == []
    policy.chmod(0o666)
    assert f"policy: {policy} may be written by everybody" in only(told(tmp_path, policy=policy))


def test_a_key_that_can_be_guessed_is_warned_of(tmp_path: Path) -> None:
    warning = only(told(tmp_path, '[keys.alice]\nvalue = "let-me-in"\ncontrol = true'))
    assert "keys.alice.value: has fewer than 20 characters" in warning and "let-me-in" not in warning


def test_a_variable_may_be_set_only_where_the_router_runs(tmp_path: Path) -> None:
    keys = '[keys.alice]\nenv = ["ALICE_KEY", "NEXT_KEY"]\ncontrol = true'
    assert only(told(tmp_path, keys, NEXT_KEY=KEY)).startswith("warning ")
    assert "ALICE_KEY is not set here" in only(told(tmp_path, keys, NEXT_KEY=KEY))
    assert told(tmp_path, keys, NEXT_KEY=KEY, ALICE_KEY=KEY + "x") == []


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ('[security]\nkeys_file = "gone.toml"', "gone.toml: there is no such file of keys"),
        ('[security]\nca_file = "gone.pem"', "security.ca_file: gone.pem cannot be read"),
        (KEYED + 'slo_class = "x"', "keys.alice.slo_class: names 'x', which is no class of the fleet"),
    ],
)
def test_what_cannot_be_used_is_an_error(tmp_path: Path, parts: str, complaint: str) -> None:
    error = only(told(tmp_path, parts))
    assert error.startswith("error ") and complaint in error


def test_what_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost", "a.localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example", "")))
