"""The index's own process starts with little, and takes nothing from the folder in which the server was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakestore_server.index.pipe import Op
from lakestore_server.index.worker_client import IndexProcess

HEAVY = ("pyarrow", "grpc", "google", "orjson", "lakestore.client", "lakestore_server.commit")


def test_the_process_loads_numpy_and_lmdb_and_nothing_large() -> None:
    """Its start is part of the server's, twice."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-Pm", "lakestore_server.index.worker", "unused", "0", "0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    ).stderr
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert {"numpy", "lmdb", "lakestore_server.index.lmdb_store"} <= loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_the_process_takes_no_module_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell of Python has that folder first in its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "lmdb.py").write_text("raise RuntimeError('taken from the working folder')")
    process = IndexProcess(tmp_path / "index")
    (tmp_path / "index").mkdir()
    try:
        assert process.ask(Op.LSN)[0] == -1
    finally:
        process.close()
