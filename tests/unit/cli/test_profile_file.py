"""The file of profiles under hands and machines: odd texts, odd names, two logins at once, places that refuse."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakestore.cli.main import run_command
from lakestore.client import profiles
from lakestore.client.grpc import GrpcWire
from lakestore.client.lake import Lake
from lakestore.errors import Invalid
from lakestore.model import yaml_text
from tests.support.seeds import examples

ODD_NAMES = ["1", "no", "null", "~x", "2024-01-01", "1e3", "0x1F", "1_000", "12:30", "true"]
_WORDS = st.sampled_from(
    "default|profiles|server|tls|token_file|ca|a|localhost:7340|~nobody-here/x|true|no|1|null|2024-13-45|!!timestamp x"
    "|!!int x|!!binary é|&a|*a|<<|[|]|{|}|:|,|- |\n|\n  |\n    | |\t|'|\"|>|%|\0|\x85|é|#|? |=|.inf".split("|")
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that this user's profiles are in; it is not there yet, and nor is its folder."""
    for name in [name for name in os.environ if name.startswith("LAKESTORE_")]:
        monkeypatch.delenv(name)
    made = tmp_path / "lakestore" / "profiles.yaml"
    monkeypatch.setenv("LAKESTORE_PROFILES", str(made))
    return made


def _agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes every token."""
    monkeypatch.setattr(Lake, "tables", lambda _: [])
    monkeypatch.setattr(GrpcWire, "greet", lambda _, seconds: None)
    monkeypatch.setattr("lakestore.cli.profiles._typed", lambda *_: "secret")


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.lists(_WORDS, max_size=12).map("".join).map(str.encode), st.binary(max_size=40)))
@example(b"2024-13-45: 1")
@example(b"[" * 1_500)
@example(b"a: !!timestamp x")
@example(b"profiles: &p {a: *p}")
@example(b"profiles: {a: {token_file: ~nobody-here/x}}")
@example(b"profiles: {a: {token_file: ''}}")
@example(b'profiles: {a: {server: "a\\0b"}}')
@example(b"profiles: {? [a] : {}}")
@example(b"x: &a [1]\ny: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nprofiles: {a: {server: *b}}")
@example(b"default: {}")
@example(b"profiles: {'': {}}")
@example(b"profiles: {a: {server: x, server: y}}")
def test_every_file_has_profiles_or_one_sentence_with_its_path(file: Path, text: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text)
    try:
        found = profiles.read_profiles()
    except Invalid as refused:
        assert str(file) in refused.message
        assert "\n" not in refused.message
        return
    assert all(isinstance(name, str) for name in found.named)
    assert found.default is None or isinstance(found.default, str)


@pytest.mark.parametrize("text", ["", "profiles:", "default:\nprofiles: {}", "default: ~", "# nothing", "{}"])
def test_login_begins_a_file_that_holds_nothing(file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _agreed(monkeypatch)
    file.parent.mkdir()
    file.write_text(text)
    assert run_command(["login", "--server", "localhost:7", "--json"]) == 0
    assert profiles.target().credentials().bearer == "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_that_yaml_takes_for_values_are_names(
    file: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _agreed(monkeypatch)
    file.parent.mkdir()
    file.write_text(f"default: '{name}'\nprofiles:\n  {name}: {{server: 'localhost:9', tls: no}}\n")
    assert list(profiles.read_profiles().named) == [name]
    assert profiles.target().server == "localhost:9"
    assert run_command(["logout", "--profile", name]) == 0, capsys.readouterr().err
    assert run_command(["logout"]) == 0, capsys.readouterr().err
    assert run_command(["login", "--profile", "new"]) == 0, capsys.readouterr().err
    found = profiles.read_profiles()
    assert (list(found.named), found.default, found.named[name].tls) == ([name, "new"], name, False)
    assert yaml.safe_load(file.read_text())["profiles"][name] == {"server": "localhost:9", "tls": False}


def _log_in(number: int, rounds: int) -> None:
    for each in range(rounds):
        with profiles.edit_sections(profiles.file_of_profiles()) as sections:
            sections.profiles[f"p{number}-{each}"] = {"server": "localhost:7"}


def test_logins_at_once_are_all_kept(file: Path) -> None:
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_log_in, args=(number, 8)) for number in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(120)
    assert [other.exitcode for other in others] == [0] * 4
    assert set(profiles.read_profiles().named) == {f"p{number}-{each}" for number in range(4) for each in range(8)}
    left = {each.name for each in file.parent.iterdir()}
    assert left == {"profiles.yaml", ".profiles.yaml.lock"}


def test_a_link_to_the_file_stays_one(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _agreed(monkeypatch)
    file.parent.mkdir()
    (tmp_path / "kept.yaml").write_text("profiles:\n")
    file.symlink_to(tmp_path / "kept.yaml")
    assert run_command(["login"]) == 0
    assert file.is_symlink()
    assert "token_file: tokens/default" in (tmp_path / "kept.yaml").read_text()
    assert profiles.target().credentials().bearer == "secret"


@pytest.mark.parametrize("place", ["/proc/nowhere/profiles.yaml", "/dev/null/profiles.yaml"])
def test_a_place_that_takes_nothing_is_named(
    file: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _agreed(monkeypatch)
    monkeypatch.setenv("LAKESTORE_PROFILES", place)
    assert run_command(["login"]) == 1
    said = capsys.readouterr().err
    assert place in said
    assert said.startswith("lakestore: ")
    assert ("defect" in said, said.count("\n")) == (False, 1)


@pytest.mark.parametrize("text", ["a: 2024-13-45", "[" * 1_500, "a: !!timestamp x", "a: 1\na: 2", "&a [*a]", "a: !x 1"])
def test_odd_yaml_is_refused_by_one_type(text: str) -> None:
    for loader in (yaml_text.UniqueKeysLoader, yaml_text.TextLoader):
        try:
            found: Any = yaml_text.values(text, loader)
        except yaml_text.Unreadable:
            continue
        assert (loader, found) == (yaml_text.TextLoader, {"a": "2024-13-45"})
