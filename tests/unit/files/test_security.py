"""Keys are read from three places, held as digests, and never told by any message."""

from __future__ import annotations

import pickle
from hashlib import sha256
from pathlib import Path

import pytest

from selector.errors import FleetError
from selector.files.fleet import Fleet, parse_fleet
from selector.files.security import Holder, load_holders
from tests.fleets import FLEET_FILE

SECRET = "sk-made-up-0123456789"
DIGEST = sha256(SECRET.encode()).hexdigest()


def fleet(*parts: str) -> Fleet:
    return parse_fleet(FLEET_FILE + "[slo.classes.batch]\n" + "\n".join(parts), "fleet.toml")


def holders(*parts: str, **environ: str) -> dict[str, Holder]:
    return {holder.name: holder for holder in load_holders(fleet(*parts), "fleet.toml", environ)}


def test_without_keys_there_is_nobody() -> None:
    assert holders() == {}


@pytest.mark.parametrize(
    "given",
    [f'value = "{SECRET}"', f'sha256 = "{DIGEST}"', f'sha256 = ["{DIGEST.upper()}"]', 'env = "ALICE_KEY"'],
)
def test_a_key_is_the_same_however_it_is_given(given: str) -> None:
    alice = holders(f"[keys.alice]\n{given}", ALICE_KEY=SECRET)["alice"]
    assert alice.digests == {bytes.fromhex(DIGEST)}
    assert (alice.slo_class, alice.slo_classes, alice.control) == ("chat", None, False)


def test_several_keys_of_one_holder() -> None:
    alice = holders(f'[keys.alice]\nvalue = ["first-key-of-alice", "{SECRET}"]\nenv = "NEXT"', NEXT="third-of-alice")
    assert len(alice["alice"].digests) == 3


def test_the_classes_of_a_key_hold_its_own_one() -> None:
    alice = holders(f'[keys.alice]\nvalue = "{SECRET}"\nslo_class = "batch"\nslo_classes = []')["alice"]
    assert (alice.slo_class, alice.slo_classes) == ("batch", {"batch"})


def test_a_file_of_keys_adds_to_the_fleet_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[keys.bob]\nvalue = "the-key-of-bob"\nrequests_per_minute = 6\n')
    found = holders(f'[security]\nkeys_file = "{path}"', f'[keys.alice]\nvalue = "{SECRET}"')
    assert sorted(found) == ["alice", "bob"]
    assert found["bob"].requests_per_minute == 6.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "keys: is missing"),
        ("[keys]\n", "keys: dictionary should have at least 1 item"),
        ('version = 2\n[keys.bob]\nvalue = "the-key-of-bob"', "version is 2"),
        ('[keys.alice]\nvalue = "the-key-of-bob"', "keys.alice: is in the fleet file too"),
        (f'[keys.bob]\nsha256 = "{DIGEST}"', "keys.bob: has a key of 'alice'"),
        ("keys = ", "is not TOML"),
        (None, "there is no such file of keys"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_told(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FleetError) as told:
        holders(f'[security]\nkeys_file = "{path}"', f'[keys.alice]\nvalue = "{SECRET}"')
    assert str(path) in str(told.value) and complaint in str(told.value)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("", "holds no key"),
        ('value = "short"', "value holds what cannot be a key"),
        (f'value = "{SECRET} with spaces"', "value holds what cannot be a key"),
        (f'value = [1234567890, "{SECRET}"]', "should be a valid string"),
        ("value = 1234567890", "should be a valid tuple"),
        (f'sha256 = "{SECRET}"', "sha256 holds what is no digest"),
        (f'env = "{SECRET}"', "env holds what is no name of a variable"),
        ('env = "ALICE_KEY"', "names ALICE_KEY, which is not set"),
        ('env = "BROKEN"', "BROKEN holds what cannot be a key"),
        (f'valu = "{SECRET}"', "did you mean 'value'?"),
        (f'value = "{SECRET}"\nslo_class = "x"', "names 'x', which is no class of the fleet; use batch, chat"),
        (f'value = "{SECRET}"\nslo_classes = ["chat", "x"]', "keys.alice.slo_classes: names 'x'"),
        (f'value = "{SECRET}"\nslo_classes = ["batch"]', "slo_classes: lacks 'chat', the class of requests that name"),
        (f'value = "{SECRET}"\nburst_requests = 0', "keys.alice.burst_requests: is 0"),
    ],
)
def test_what_cannot_be_used_is_told_without_a_secret(given: str, complaint: str) -> None:
    with pytest.raises(FleetError) as told:
        holders(f"[keys.alice]\n{given}", BROKEN=f"{SECRET}\n")
    message = str(told.value)
    assert complaint in message
    assert SECRET not in message and "1234567890" not in message


@pytest.mark.parametrize("text", [f'keys = "{SECRET}"\n', f'keys = {{alice = "{SECRET}"}}\n'])
def test_a_secret_in_place_of_a_table_is_not_told_either(text: str) -> None:
    with pytest.raises(FleetError) as told:
        parse_fleet(text + FLEET_FILE, "fleet.toml")
    assert "fleet.toml: keys" in str(told.value) and SECRET not in str(told.value)


def test_a_fleet_shows_no_key() -> None:
    shown = fleet(f'[keys.alice]\nvalue = "{SECRET}"\nsha256 = "{"ab" * 32}"')
    for text in (repr(shown), str(shown.model_dump()), shown.model_dump_json()):
        assert SECRET not in text and "ab" * 32 not in text
    assert pickle.loads(pickle.dumps(shown)) == shown
