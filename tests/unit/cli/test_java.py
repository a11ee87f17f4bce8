"""The Java that Spark and Kafka run on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakestore import java
from lakestore.errors import Unavailable


def program(folder: Path, text: str) -> Path:
    """A program `java` in a folder that prints a text as `java -version` does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without the wheel of Java; the prefix of the environment."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    return tmp_path / "prefix"


def test_java_home_goes_before_the_path(tmp_path: Path, nothing: Path) -> None:
    program(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
    on_path = program(tmp_path / "path", 'openjdk version "17.0.1"')
    path = {"PATH": str(on_path.parent)}
    assert java.java_home(path) == tmp_path / "path"
    assert java.java_home(path | {"JAVA_HOME": str(tmp_path / "home")}) == tmp_path / "home"


def test_a_java_home_that_is_too_old_or_gone_is_passed_over(tmp_path: Path, nothing: Path) -> None:
    program(tmp_path / "old", 'java version "1.8.0_202"')
    path = {"PATH": str(program(tmp_path / "path", 'openjdk version "17.0.1"').parent)}
    assert java.java_home(path | {"JAVA_HOME": str(tmp_path / "old")}) == tmp_path / "path"
    assert java.java_home(path | {"JAVA_HOME": str(tmp_path / "gone")}) == tmp_path / "path"


def test_the_refusal_names_each_java_and_its_fault(tmp_path: Path, nothing: Path) -> None:
    old = program(tmp_path / "old", 'java version "1.8.0_202"')
    mute = program(tmp_path / "mute", "nothing")
    with pytest.raises(Unavailable) as refused:
        java.java_home({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(mute.parent)})
    assert f"({old} is version 1; {mute} does not run)" in str(refused.value)
    assert "extra `java`" in str(refused.value)


def test_the_java_of_the_wheel_starts_with_the_option_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a prefix"))
    home = java.java_home({"PATH": str(tmp_path)})
    assert home.is_relative_to(tmp_path)
    assert java.java_home({"PATH": str(tmp_path)}) == home
    command = [
        str(home / "bin" / "java"),
        "--add-modules=jdk.incubator.vector",
        "-Dname=two words",
        "-XshowSettings:all",
    ]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "name = two words" in done.stderr
    assert java.java_version(home / "bin" / "java") == 21


def test_a_prefix_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "prefix").write_text("a file")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    with pytest.raises(Unavailable, match=r"prefix.*bin/java: .*Not a directory"):
        java.java_home({"PATH": str(tmp_path)})
