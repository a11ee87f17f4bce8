"""Paths on the command line: each option that takes one, on places that are there, are none, are full, or no files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest

from lakestore.cli.main import run_command
from lakestore.cli.row_files import Output
from lakestore.loading.load import SkippedFile
from tests.support.commands import leaves
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])
WRITERS = {
    ("support-bundle", "output"): ["support-bundle", "-o"],
    ("read", "output"): ["read", "t.a", "--format", "csv", "-o"],
    ("sql", "output"): ["sql", "FROM t.a", "--format", "csv", "-o"],
    ("changes", "output"): ["changes", "t.a", "--until", "now", "--format", "csv", "-o"],
    ("write", "skip_bad"): ["write", "t.a", "ROWS", "--skip-bad"],
    ("backup", "dest"): ["backup"],
    ("token", "token_file"): ["token", "ana", "--token-file"],
    ("restore", "data"): ["restore", "BACKUP", "--data"],
}
"""Options that name what is written, each with a command line that ends in its value."""
READERS = {
    ("apply", "path"): ["apply", "-f"],
    ("contract import", "path"): ["contract", "import"],
    ("contract apply", "path"): ["contract", "apply"],
    ("contract diff", "path"): ["contract", "diff"],
    ("contract export", "path"): ["contract", "export", "-f"],
    ("serve", "config"): ["serve", "-c"],
    ("init-journal", "config"): ["init-journal", "-c"],
    ("journal move", "config"): ["journal", "move", "--to", "files", "-c"],
    ("journal move", "data"): ["journal", "move", "--to", "kafka://localhost:1/t", "--data"],
    ("doctor", "config"): ["doctor", "--offline", "-c"],
    ("support-bundle", "config"): ["support-bundle", "-o", "BUNDLE", "-c"],
    ("support-bundle", "logs"): ["support-bundle", "-o", "BUNDLE", "--log"],
    ("bridge", "path"): ["bridge", "--check", "-f"],
    ("dlq replay", "path"): ["dlq", "replay", "t.a", "-f"],
    ("inspect", "paths"): ["inspect"],
    ("restore", "src"): ["restore", "--data", "NEW"],
    ("tables", "token_file"): ["tables", "--token-file"],
    ("tables", "tls_ca"): ["tables", "--tls-ca"],
    ("write", "files"): ["write", "t.a"],
}
"""Options that name what is read."""
ELSEWHERE = {("init-bridge", "output"), ("demo", "folder"), ("contract check", "path")}
"""A broker answers first; the folder is made; a fault of a contract is an answer."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with one table."""
    with Served(tmp_path_factory.mktemp("server"), ports=True) as served:
        served.lake.create_table("t.a", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "x": "a"}])
        yield str(served.server.about["grpc"])


@pytest.fixture
def said(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str]], tuple[int, str]]:
    """A function that runs a command: its exit code, and its sentence, which is one."""
    monkeypatch.setenv("LAKESTORE_SERVER", server)
    (tmp_path / "rows.csv").write_text("id,x\n1,a\n")
    (tmp_path / "is_there").write_text("- no, file of: ours\n\x00")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    names = {"ROWS": "rows.csv", "BACKUP": "backup", "NEW": "new", "BUNDLE": "bundle.tar.gz"}
    if not (tmp_path / "backup").exists():
        assert run_command(["backup", str(tmp_path / "backup")]) == 0

    def run(arguments: list[str]) -> tuple[int, str]:
        capsys.readouterr()
        code = run_command([str(tmp_path / names[each]) if each in names else each for each in [*arguments, "--json"]])
        told = capsys.readouterr().err.strip().splitlines()
        if not code:
            return 0, ""
        error = json.loads(told[-1])["error"]
        assert error["kind"] != "Internal", error
        return code, error["message"]

    return run


def test_every_option_that_takes_a_path_is_tried() -> None:
    found = {
        (name, parameter.name)
        for name, each in leaves()
        for parameter in each.params
        if isinstance(parameter.type, click.Path)
    }
    assert found <= WRITERS.keys() | READERS.keys() | ELSEWHERE


@pytest.mark.parametrize("place", ["no/where", "is_there/below", "/proc/x", "n" * 300])
def test_what_cannot_be_written_is_one_sentence(
    said: Callable[[list[str]], tuple[int, str]], tmp_path: Path, place: str
) -> None:
    for (name, _), arguments in WRITERS.items():
        if name in ("backup", "restore") and place == "no/where":
            continue  # these make the folders above
        before = set(tmp_path.rglob("*"))
        code, sentence = said([*arguments, str(tmp_path / place)])
        assert code, name
        assert place.removeprefix("/").split("/")[0] in sentence, (name, sentence)
        assert not sentence.startswith(("No such file", "Not a directory", "File name")), (name, sentence)
        assert ".part" not in sentence, (name, sentence)
        assert ": " in sentence, (name, sentence)
        assert set(tmp_path.rglob("*")) - {tmp_path / "new"} == before, name


def test_what_is_there_is_never_lost_without_a_word(
    said: Callable[[list[str]], tuple[int, str]], tmp_path: Path
) -> None:
    there = (tmp_path / "is_there").read_bytes()
    for name in ("support-bundle", "restore", "backup"):
        [arguments] = [each for (command, _), each in WRITERS.items() if command == name]
        for place in ("is_there", "folder"):
            code, sentence = said([*arguments, str(tmp_path / place)])
            assert code, (name, place)
            assert place in sentence, sentence
    code, sentence = said([*WRITERS["write", "skip_bad"], str(tmp_path / "folder")])
    assert code
    assert "folder" in sentence
    assert (tmp_path / "is_there").read_bytes() == there
    code, sentence = said(["support-bundle", "-o", str(tmp_path / "is_there")])
    assert sentence == f"{tmp_path / 'is_there'} is there already: name another file, or remove it"


def test_what_cannot_be_read_is_one_sentence(said: Callable[[list[str]], tuple[int, str]], tmp_path: Path) -> None:
    for place in ("none", "is_there", "folder"):
        for key, arguments in READERS.items():
            if (key, place) == (("support-bundle", "logs"), "is_there"):
                continue  # any file is a log
            code, sentence = said([*arguments, str(tmp_path / place)])
            assert code, (key, place)
            if "token" not in sentence:
                assert place in sentence, (key, sentence)
            assert "No such file or directory: " not in sentence, (key, sentence)
            (tmp_path / "bundle.tar.gz").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow"])
def test_a_full_device_is_named_and_stays_one(
    said: Callable[[list[str]], tuple[int, str]], tmp_path: Path, kind: str
) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    code, sentence = said(["read", "t.a", "--format", kind, "-o", str(tmp_path / "full")])
    assert (code, sentence) == (
        1, f"there is no room left for {tmp_path / 'full'}: make room, or name another place"
    )  # fmt: skip
    assert (tmp_path / "full").is_symlink()
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow"])
def test_rows_go_into_a_pipe_and_over_a_link(
    said: Callable[[list[str]], tuple[int, str]], tmp_path: Path, kind: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert said(["read", "t.a", "--format", kind, "-o", str(tmp_path / "pipe")]) == (0, "")
    reader.join(20)
    assert found[0]
    (tmp_path / "link").symlink_to(tmp_path / "is_there")
    assert said(["read", "t.a", "--format", kind, "-o", str(tmp_path / "link")]) == (0, "")
    assert (tmp_path / "link").is_symlink()
    if kind != "arrow":  # a stream in a pipe, a file elsewhere
        assert (tmp_path / "is_there").read_bytes() == found[0]


def test_a_full_standard_output_is_one_sentence(server: str) -> None:
    command = [sys.executable, "-m", "lakestore", "read", "t.a", "--format", "csv", "--server", server]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "lakestore: there is no room left for the output: make room, or name another place\n"


def test_a_full_disk_leaves_nothing_half(
    said: Callable[[list[str]], tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tarfile.TarFile.addfile", full)
    code, sentence = said(["support-bundle", "-o", "BUNDLE"])
    assert code
    assert sentence.startswith(f"there is no room left for {tmp_path / 'bundle.tar.gz'}: ")
    assert not (tmp_path / "bundle.tar.gz").exists()
    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "rows.csv").write_text("id,x\n1,a\nz,b\n")
    code, sentence = said(["write", "t.a", "ROWS", "--again", "--skip-bad", str(tmp_path / "bad")])
    assert code
    assert sentence.startswith(f"there is no room left for {tmp_path / 'bad'}: ")
    with pytest.raises(OSError, match="No space") as error, Output(tmp_path / "new.csv", "csv", SCHEMA):
        pass
    assert error.value.filename == str(tmp_path / "new.csv")
    assert not list(tmp_path.glob("*new.csv*"))


def test_bad_rows_are_kept_in_files_alone() -> None:
    with pytest.raises(Exception, match="is not a file for bad rows"):
        SkippedFile(Path("/dev/full"), ("", 0), [])
