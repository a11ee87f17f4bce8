"""Settings: file below environment below flags, each value with its origin, and every mistake named where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakestore.cli.main import run_command
from lakestore.client import credentials, profiles
from lakestore.errors import Invalid
from lakestore.model.settings import SettingValues, option, options, read, section
from lakestore_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Inner:
    """A section."""

    bytes_max: int = option(10, low=1)
    """In bytes."""


@dataclass(frozen=True, slots=True)
class Example:
    """One of each kind."""

    data: Path = option(flag=True)
    """A folder."""
    port: int = option(7340, low=0, high=65_535, flag=True)
    """A port."""
    level: str = option("info", choices=("info", "warning"))
    """A choice
    over two lines."""
    key: str = option("", secret=True)
    """Not to be seen."""
    quick: bool = option(False)
    """A switch."""
    names: tuple[str, ...] = option(())
    """Several."""
    limits: Inner = section(Inner)


def given(text: str = "", environment: dict[str, str] | None = None, **flags: Any) -> SettingValues[Example]:
    """What is read from these."""
    return read(Example, file="server.yaml", text=text, environment=environment or {}, flags=flags)


def refusal(text: str = "", environment: dict[str, str] | None = None, **flags: Any) -> str:
    """What is said when these are refused."""
    with pytest.raises(Invalid) as error:
        given(text, environment, **flags).settings()
    return error.value.message


def test_flags_win_over_variables_and_those_over_the_file() -> None:
    text = "data: a\nport: 1\nlevel: warning\nlimits:\n  bytes-max: 5\n"
    found = given(text, {"LAKESTORE_PORT": "2", "LAKESTORE_LIMITS_BYTES_MAX": "6", "HOME": "x"}, data="b")
    assert found.settings() == Example(Path("b"), 2, "warning", limits=Inner(6))
    assert dict(found.origins) == {
        "data": "--data",
        "port": "LAKESTORE_PORT",
        "level": "server.yaml",
        "key": "default",
        "quick": "default",
        "names": "default",
        "limits.bytes_max": "LAKESTORE_LIMITS_BYTES_MAX",
    }


def test_text_stands_for_every_kind() -> None:
    variables = {"LAKESTORE_DATA": "d", "LAKESTORE_QUICK": "yes", "LAKESTORE_NAMES": "a, b", "LAKESTORE_PORT": ""}
    assert given(environment=variables).settings() == Example(Path("d"), quick=True, names=("a", "b"))


def test_unknown_config_key_fails_loudly() -> None:
    assert refusal("data: a\nprot: 1\n") == "server.yaml: there is no setting 'prot': did you mean port?"
    assert "limits.bytes_max?" in refusal("limits:\n  byte_max: 1\n")
    assert "LAKESTORE_PROT" in refusal(environment={"LAKESTORE_PROT": "1"})
    assert "--print-config" in refusal("something_else: 1\n")


def test_the_variables_of_other_tools_are_left_alone() -> None:
    kubernetes = {
        "LAKESTORE_SERVICE_HOST": "10.0.0.1",
        "LAKESTORE_PORT": "tcp://10.0.0.1:7340",
        "LAKESTORE_PORT_7340_TCP": "tcp://10.0.0.1:7340",
    }
    of_clients = [*vars(credentials).items(), *vars(profiles).items()]
    ours = {value: "x" for name, value in of_clients if name.endswith("_VARIABLE")}
    assert "LAKESTORE_PROFILE" in ours
    ours |= {"LAKESTORE_DEBUG": "1", "LAKESTORE_CONFIG": "f"}
    tests = {"LAKESTORE_BENCH_ROWS": "9", "LAKESTORE_CRASH_SEEDS": "8", "LAKESTORE_FLIPS": "9"}
    assert given(environment=kubernetes | ours | tests, data="d").settings() == Example(Path("d"))


def test_a_server_starts_beside_the_variables_of_our_tests() -> None:
    root = Path(__file__).parents[3]
    texts = [(root / name).read_text() for name in ("Makefile", "tests/support/seeds.py")]
    tests = {name: "7" for text in texts for name in re.findall(r"LAKESTORE_[A-Z_]+", text)}
    assert "LAKESTORE_EXPLORE" in tests
    assert given(environment=tests, data="d").settings() == Example(Path("d"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port: 70000", "server.yaml: port must be a whole number from 0 to 65,535, not 70000"),
        ("port: true", "server.yaml: port must be a whole number from 0 to 65,535, not True"),
        ("port:", "server.yaml: port must be a whole number from 0 to 65,535, not None"),
        ("level: loud", "server.yaml: level must be one of info, warning, not 'loud'"),
        ("quick: 3", "server.yaml: quick must be true or false, not 3"),
        ("names: [1]", "server.yaml: names must be a list, not [1]"),
        ("limits:\n  bytes_max: 0", "server.yaml: limits.bytes_max must be a whole number, 1 or more, not 0"),
        ("limits: 3", "server.yaml: limits is a section: write its settings below it, indented"),
        (
            "port: 1\nport: 2",
            "server.yaml is not YAML: line 2, column 1: 'port' is written twice",
        ),
        ("- a", "server.yaml must hold 'name: value' lines, such as data: ./lake"),
        ("port: [", "server.yaml is not YAML"),
        ("port: 1", "data is not set: give --data, LAKESTORE_DATA, or data: in the file of -c"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


def test_a_wrong_variable_or_flag_is_named() -> None:
    assert refusal(environment={"LAKESTORE_PORT": "x"}).startswith("variable LAKESTORE_PORT: port must be")
    assert refusal(port="x").startswith("flag --port: port must be")


def test_a_secret_is_never_shown() -> None:
    found = given("data: a\nkey: hunter2\n")
    assert found.settings().key == "hunter2"
    assert "hunter2" not in "\n".join(found.lines())
    assert "hunter2" not in refusal("key: [hunter2]")
    with pytest.raises(ValueError, match="cannot be a flag"):
        option("", secret=True, flag=True)


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    found = given("data: a\nnames: [x, y]\nquick: on\nlimits:\n  bytes_max: 3\n")
    again = given("\n".join(found.lines()))
    assert again.settings() == found.settings()
    assert "port: 7340  # default" in list(found.lines())


def test_every_setting_of_the_server_says_what_it_is() -> None:
    assert all(each.text for each in options(Settings))
    defaults = {each.name: each.default for each in options(Settings) if not each.is_required}
    assert all(each.parse(each.default, "") == each.default for each in options(Settings) if each.name in defaults)


def test_print_config_shows_origins_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESTORE_HTTP_PORT", "9")
    file = tmp_path / "server.yaml"
    file.write_text(f"data: {tmp_path / 'data'}\n")
    assert run_command(["serve", "-c", str(file), "--port", "0", "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "port: 0  # --port" in lines
    assert "http_port: 9  # LAKESTORE_HTTP_PORT" in lines
    assert f'data: "{tmp_path / "data"}"  # {file}' in lines
    assert not (tmp_path / "data").exists()
    assert run_command(["serve", "-c", str(file), "--http-prot", "1"]) != 0
