"""Shipped policies and profiles are found in a checkout and in an installed package, and wrong names are explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selector.errors import InputError, PolicyError, ProfileError
from selector.files import shipped

OURS = '[project]\nname = "drafter-selector"\n'


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up checkout with two policies and two profiles, and the current folder elsewhere."""
    root = tmp_path / "checkout"
    (root / "selector").mkdir(parents=True)
    (root / "pyproject.toml").write_text(OURS)
    touch(root / "policies/pack.py", root / "policies/min_energy.py")
    touch(root / "profiles/h200__qwen2.5-7b.json", root / "profiles/a100__m.json")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(shipped, "PACKAGE_DIR", root / "selector")
    return root


def test_a_checkout_uses_the_folders_next_to_the_package(checkout: Path) -> None:
    touch(checkout / "selector/_shipped/policies/stale.py")
    assert shipped.policies_dir() == checkout / "policies"
    assert shipped.profiles_dir() == checkout / "profiles"
    assert shipped.policy_names() == ("min_energy", "pack")
    assert shipped.profile_names() == ("a100__m", "h200__qwen2.5-7b")


@pytest.mark.parametrize(
    "pyproject",
    [None, '[project]\nname = "another"\n', "[tool.ruff]\n", 'project = "drafter-selector"\n', "= not TOML", "\xff"],
    ids=["absent", "another project", "no project", "project is no table", "not TOML", "not UTF-8"],
)
def test_an_installed_package_uses_the_folders_inside_it(
    pyproject: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages/selector"
    touch(package / "_shipped/policies/pack.py", package / "_shipped/profiles/m.json")
    touch(package.parent / "policies/of_another_distribution.py")
    if pyproject is not None:
        (package.parent / "pyproject.toml").write_bytes(pyproject.encode("latin-1"))
    monkeypatch.setattr(shipped, "PACKAGE_DIR", package)
    assert shipped.policies_dir() == package / "_shipped/policies"
    assert shipped.profiles_dir() == package / "_shipped/profiles"
    assert shipped.policy_names() == ("pack",)
    assert shipped.profile_names() == ("m",)


def test_the_installed_project_of_this_test_run_finds_real_folders() -> None:
    assert shipped.policies_dir().is_dir()
    assert shipped.profiles_dir().is_dir()


def test_names_are_the_files_of_the_kind_at_the_top_level_only(checkout: Path) -> None:
    for folder, suffix in (("policies", ".py"), ("profiles", ".json")):
        touch(*(checkout / folder / name for name in (f"_draft{suffix}", f"._pack{suffix}", "README.md")))
        touch(checkout / folder / "nested" / f"inner{suffix}")
        (checkout / folder / f"folder{suffix}").mkdir()
    assert shipped.policy_names() == ("min_energy", "pack")
    assert shipped.profile_names() == ("a100__m", "h200__qwen2.5-7b")


def test_a_bare_name_is_a_shipped_one_even_beside_a_file_of_that_name(checkout: Path) -> None:
    touch(Path("pack"), Path("pack.py"))
    assert shipped.policy_path("pack") == checkout / "policies/pack.py"
    assert shipped.profile_path("h200__qwen2.5-7b") == checkout / "profiles/h200__qwen2.5-7b.json"


@pytest.mark.parametrize("given", ["mine.py", "./mine.py", "sub/mine.py", "sub/mine", "./pack"])
def test_a_suffix_or_separator_makes_it_a_path_from_the_current_folder(given: str, checkout: Path) -> None:
    touch(Path(given))
    assert shipped.policy_path(given) == Path(given)


def test_a_bare_name_is_never_a_path(checkout: Path) -> None:
    touch(Path("mine"))
    with pytest.raises(PolicyError, match="no shipped policy has this name"):
        shipped.policy_path("mine")


def test_absolute_paths_are_kept(checkout: Path) -> None:
    assert shipped.profile_path(f"{checkout}/profiles/a100__m.json") == checkout / "profiles/a100__m.json"


@pytest.mark.parametrize(
    ("find", "given", "error", "parts"),
    [
        (shipped.policy_path, "min_enrgy", PolicyError, ["policy 'min_enrgy'", "no shipped", "mean min_energy?"]),
        (shipped.policy_path, "sub/pakc.py", PolicyError, ["policy 'sub/pakc.py'", "no such file", "mean pack?"]),
        (shipped.policy_path, "pack.py", PolicyError, ["no such file", "did you mean pack?", ": min_energy, pack"]),
        (shipped.policy_path, "../elsewhere", PolicyError, ["is no file"]),
        (shipped.policy_path, "", PolicyError, ["policy ''", "no shipped policy"]),
        (shipped.profile_path, "h200__qwen2-7b", ProfileError, ["profile 'h200__qwen2-7b'", "mean h200__qwen2.5-7b?"]),
        (shipped.profile_path, "two\nlines", ProfileError, [r"'two\nlines'", ": a100__m, h200__qwen2.5-7b"]),
    ],
)
def test_what_is_not_found_is_explained_in_one_line(
    find: Callable[[str], Path], given: str, error: type[InputError], parts: list[str], checkout: Path
) -> None:
    with pytest.raises(error) as raised:
        find(given)
    message = str(raised.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_nothing_is_suggested_for_a_name_like_no_other(checkout: Path) -> None:
    with pytest.raises(PolicyError) as raised:
        shipped.policy_path("zzz")
    assert "did you mean" not in str(raised.value)


def test_an_installation_without_shipped_files_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PACKAGE_DIR", tmp_path / "selector")
    assert shipped.policy_names() == ()
    with pytest.raises(PolicyError, match="shipped policies: none"):
        shipped.policy_path("pack")
