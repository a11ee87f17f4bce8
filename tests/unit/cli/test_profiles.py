"""Profiles: which server and whose token a call uses, and what login keeps."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.client import profiles
from lakestore.client.grpc import GrpcWire
from lakestore.client.lake import Lake
from lakestore.errors import Invalid

FILE = """
default: test
profiles:
  prod: {server: "127.0.0.2:1", tls: false, token_file: tokens/prod}
  test: {server: "127.0.0.1:1"}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of settings, with two profiles."""
    for name in [name for name in os.environ if name.startswith("LAKESTORE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = tmp_path / "lakestore"
    (made / "tokens").mkdir(parents=True)
    (made / "profiles.yaml").write_text(FILE)
    (made / "tokens" / "prod").write_text("secret\n")
    (made / "tokens" / "prod").chmod(0o600)
    return made


def _asked(server: str | None = None, profile: str | None = None) -> tuple[str, str]:
    found = profiles.target(server, profile)
    return found.server, found.credentials().bearer


def test_flag_before_environment_before_profile_before_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _asked() == ("127.0.0.1:1", "")
    assert _asked(None, "prod") == ("127.0.0.2:1", "secret")
    assert _asked("localhost:9") == ("localhost:9", "")
    monkeypatch.setenv("LAKESTORE_PROFILE", "prod")
    assert _asked() == ("127.0.0.2:1", "secret")
    monkeypatch.setenv("LAKESTORE_TOKEN", "mine")
    assert _asked() == ("127.0.0.2:1", "mine")
    assert _asked(None, "prod") == ("127.0.0.2:1", "secret")
    monkeypatch.setenv("LAKESTORE_SERVER", "localhost:8")
    assert _asked() == ("localhost:8", "mine")
    assert _asked(None, "prod")[0] == "127.0.0.2:1"
    monkeypatch.delenv("LAKESTORE_PROFILE")
    (folder / "profiles.yaml").unlink()
    monkeypatch.delenv("LAKESTORE_SERVER")
    assert _asked() == (profiles.SERVER_DEFAULT, "mine")


def test_a_token_goes_to_its_own_server_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESTORE_PROFILE", "prod")
    monkeypatch.setenv("LAKESTORE_SERVER", "localhost:8")
    assert _asked() == ("localhost:8", "")
    assert _asked("localhost:9") == ("localhost:9", "")
    assert _asked("localhost:9", "prod") == ("localhost:9", "secret")  # both are named: a tunnel, say


def test_a_token_that_others_can_read_is_refused(folder: Path) -> None:
    (folder / "tokens" / "prod").chmod(0o640)
    with pytest.raises(Invalid, match="can be read by others"):
        _asked(None, "prod")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: {a: {servr: x}}", "did you mean server?"),
        ("profile: {}", "neither default nor profiles"),
        ("profiles: {a: {tls: 3}}", "tls is true, false or files"),
        ("profiles: [", "cannot be read"),
        ("- a", "holds no profiles"),
        ("default: b\nprofiles: {a: {}}", "there are a"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(folder: Path, text: str, words: str) -> None:
    (folder / "profiles.yaml").write_text(text)
    with pytest.raises(Invalid, match=r"profiles\.yaml") as refused:
        profiles.target()
    assert words in refused.value.message


def test_an_unknown_profile_names_those_that_are_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Invalid, match=r"did you mean prod\?; there are prod, test"):
        ls.connect(profile="prd")
    assert run_command(["--profile", "prd", "tables", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["kind"], error["applied"], error["retry_after_seconds"]) == ("Invalid", "no", None)
    assert "prod, test" in error["message"]


def test_login_keeps_a_token_that_the_server_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[tuple[str, str]] = []

    def tables(lake: Lake) -> list[object]:
        shown.append((lake.address, lake.transport.credentials.bearer))
        if lake.transport.credentials.bearer != "good":
            raise ls.NotAuthenticated("the token is not known")
        return []

    monkeypatch.setattr(Lake, "tables", tables)
    monkeypatch.setattr(GrpcWire, "greet", lambda _, seconds: None)
    monkeypatch.setattr("sys.stdin", _Lines("bad\n", "good\n"))
    command = ["login", "--profile", "new.one", "--server", "localhost:7", "--json"]
    assert run_command(command) == 1
    assert json.loads(capsys.readouterr().err)["error"]["kind"] == "NotAuthenticated"
    assert not (folder / "tokens" / "new.one").exists()
    assert run_command(command) == 0
    kept = folder / "tokens" / "new.one"
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == ("good\n", 0o600)
    assert stat.S_IMODE((folder / "profiles.yaml").stat().st_mode) == 0o600
    assert shown == [("localhost:7", "bad"), ("localhost:7", "good")]
    (folder / "own").write_text("good\n")
    assert run_command([*command, "--profile", "filed", "--token-file", str(folder / "own")]) == 0
    assert (folder / "tokens" / "filed").read_text() == "good\n"
    assert run_command(["logout", "--profile", "filed"]) == 0
    assert _asked(None, "new.one") == ("localhost:7", "good")
    assert _asked() == ("127.0.0.1:1", "")
    capsys.readouterr()
    assert run_command(["profiles", "--json"]) == 0
    listed = {each["profile"]: each for each in json.loads(capsys.readouterr().out)}
    assert (listed["test"]["default"], listed["new.one"]["default"], listed["prod"]["tls"]) == (True, False, False)
    assert run_command(["logout", "--profile", "new.one"]) == 0
    assert not kept.exists()
    assert _asked(None, "new.one") == ("localhost:7", "")


class _Lines:
    """Standard input that is a pipe."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        return self._lines.pop(0)
