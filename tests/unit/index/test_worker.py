"""The process of a merge starts with little, and takes nothing from the folder in which the server was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakestore_server.host import child

WORKER = "lakestore_server.index.worker"
HEAVY = ("pyarrow", "grpc", "google.protobuf", "lakestore.client", "lakestore_server.commit")


def test_the_process_loads_nothing_large() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-Pm", WORKER],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    ).stderr
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert {"numpy", "lakestore_server.index.run_merge"} <= loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_the_process_takes_no_module_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell of Python has that folder first in its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "orjson.py").write_text("raise RuntimeError('taken from the working folder')")
    process = child.module_process(WORKER)
    process.communicate(timeout=60)
    assert process.returncode == 0, "it ended with its pipe"
