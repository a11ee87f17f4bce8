"""Large merges of runs in a process of their own: the same bytes, early ends, a process or a run that is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Unavailable
from lakestore_server.duties.index_rebuild import IndexMerger
from lakestore_server.host import child
from lakestore_server.host.disk import RealDisk
from lakestore_server.host.priority import NICE
from lakestore_server.index import run_merge, run_store
from lakestore_server.index.entry import ABSENT, DamagedIndex, key_hash, table_prefix
from lakestore_server.index.keys import ByteKeys
from lakestore_server.index.merge_apart import Merge, MergeLost, merge_apart
from lakestore_server.index.number_section import packed
from lakestore_server.index.run import Run
from lakestore_server.index.run_store import write
from lakestore_server.index.run_writer import RunWriter
from tests.support.served import Served

DISK = RealDisk()
HASH = key_hash(bytes(32))
ENTRIES = 900_000
"""Of the larger table in each run: more than a slice."""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Those that merge, as they begin."""
    begun, made = child.module_process, list[subprocess.Popen[bytes]]()

    def watched(module: str, **how: Any) -> subprocess.Popen[bytes]:
        made.append(begun(module, **how))
        return made[-1]

    monkeypatch.setattr(child, "module_process", watched)
    return made


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    chance, paths = np.random.default_rng(3), []
    for at in range(2):
        path = tmp_path_factory.mktemp("runs") / f"{at}.run"
        writer = RunWriter(DISK, path, HASH, at)
        for table in (1, 2):
            most = ENTRIES if table == 1 else 100
            numbers = np.unique(chance.integers(0, 2 * most, most, dtype=np.uint64))
            values = np.where(chance.random(len(numbers)) < 0.1, ABSENT, chance.integers(0, 99, len(numbers)))
            section = writer.begin(table, 8, len(numbers))
            section.add(numbers, packed(numbers, values))
            section.end()
        texts = [table_prefix(3) + b"%d" % n for n in range(at, 300)]
        write(writer, ByteKeys(texts), np.arange(at, 300))
        writer.finish()
        paths.append(path)
    return paths


def test_the_output_is_that_of_a_merge_here(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], inputs: list[Path]
) -> None:
    """One table loses what says ABSENT, of the other one nothing is kept."""
    drops, slices = {table_prefix(1): True, table_prefix(3): False}, list[int]()

    def count(entries: int) -> bool:
        slices.append(entries)
        assert os.getpriority(os.PRIO_PROCESS, processes[0].pid) >= NICE
        return True

    assert merge_apart(Merge(tmp_path / "apart.run", inputs, drops, HASH.seed), count)
    runs = [Run(path, DISK.map(path)) for path in inputs]
    here = RunWriter(DISK, tmp_path / "here.run", HASH, 1)
    assert run_merge.merge(here, runs, drops.__contains__, drops.__getitem__, lambda n: True)
    assert (tmp_path / "apart.run").read_bytes() == (tmp_path / "here.run").read_bytes()
    assert len(slices) > 1
    assert sum(slices) - 300 == Run(tmp_path / "here.run", DISK.map(tmp_path / "here.run")).entries
    assert [process.returncode for process in processes] == [0], "it ended with the merge"


def test_a_merge_ends_early(tmp_path: Path, processes: list[subprocess.Popen[bytes]], inputs: list[Path]) -> None:
    drops = {table_prefix(1): False, table_prefix(2): False}
    assert not merge_apart(Merge(tmp_path / "1.run", inputs, drops, HASH.seed), lambda n: False)
    assert [process.returncode for process in processes] == [0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT])
def test_a_process_that_is_ended_says_nothing_about_the_runs(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], inputs: list[Path], number: signal.Signals
) -> None:
    def end(_entries: int) -> bool:
        os.kill(processes[-1].pid, number)
        return True

    with pytest.raises(MergeLost, match=f"was ended by {number.name}"):
        merge_apart(Merge(tmp_path / "1.run", inputs, {table_prefix(1): False}, HASH.seed), end)


def test_a_defect_of_the_process_says_nothing_about_the_runs(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Merge, "encode", lambda self: b"[]")
    with pytest.raises(MergeLost, match="a defect of the server: ValueError"):
        merge_apart(Merge(tmp_path / "1.run", inputs, {}, HASH.seed), lambda n: True)


def test_damage_and_a_full_disk_are_told(tmp_path: Path, inputs: list[Path]) -> None:
    wrong = bytearray(inputs[0].read_bytes())
    wrong[70_000] ^= 1
    (tmp_path / "0.run").write_bytes(wrong)
    damaged, drops = [tmp_path / "0.run", inputs[1]], {table_prefix(1): False}
    with pytest.raises(DamagedIndex, match=r"run 0\.run of the index is damaged in block 1"):
        merge_apart(Merge(tmp_path / "1.run", damaged, drops, HASH.seed), lambda n: True)
    (tmp_path / "empty.run").touch()
    with pytest.raises(DamagedIndex, match=r"run empty\.run of the index is damaged in its directory"):
        merge_apart(Merge(tmp_path / "3.run", [tmp_path / "empty.run"], drops, HASH.seed), lambda n: True)
    with pytest.raises(Unavailable, match="File exists"):
        merge_apart(Merge(tmp_path / "0.run", inputs, drops, HASH.seed), lambda n: True)
    assert merge_apart(Merge(tmp_path / "2.run", inputs, drops, HASH.seed), lambda n: True)


def test_a_server_has_its_large_merges_made_apart(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "APART_MIN", 1)
    monkeypatch.setattr(IndexMerger, "wake", lambda self: None)
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.b", schema, primary_key=["id"])
        for first in range(4):
            table.upsert(pa.table({"id": range(first, 300), "v": [first] * (300 - first)}, schema))
            table.delete([{"id": 299 - first}])
            served.checkpoint()
        served.server.upkeep.merge_index()
        index = served.engine.index
        assert [run.entries for run in index.runs] == [299], "that it was deleted is not kept of the last key"
        assert [process.returncode for process in processes] == [0]
        found = table.lookup(pa.table({"id": range(300)})).sort_by("id")
        assert found.column("v").to_pylist() == [0, 1, 2, *[3] * 296]
