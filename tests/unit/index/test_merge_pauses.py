"""The pauses of a merge: after so many entries that were gone through, whatever became of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lakestore_server.host.disk import RealDisk
from lakestore_server.index import run_merge
from lakestore_server.index.entry import ABSENT, Ints, key_hash
from lakestore_server.index.number_section import packed
from lakestore_server.index.run import Run
from lakestore_server.index.run_writer import RunWriter

DISK, HASH = RealDisk(), key_hash(bytes(32))
ENTRIES, SLICE, PAUSE = 1_000, 50, 100


def run_of(path: Path, values: Ints) -> Run:
    writer = RunWriter(DISK, path, HASH, 1)
    numbers = np.arange(len(values), dtype=np.uint64)
    section = writer.begin(1, 8, len(values))
    section.add(numbers, packed(numbers, values))
    section.end()
    writer.finish()
    return Run(path, DISK.map(path))


@pytest.mark.parametrize("drops_gone", [True, False])
def test_entries_that_go_are_gone_through_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, drops_gone: bool
) -> None:
    monkeypatch.setattr(run_merge, "SLICE_ENTRIES", SLICE)
    monkeypatch.setattr(run_merge, "PAUSE_ENTRIES", PAUSE)
    newer = np.where(np.arange(ENTRIES) < ENTRIES - 10, ABSENT, 7)
    runs = [run_of(tmp_path / "1.run", newer), run_of(tmp_path / "0.run", np.arange(ENTRIES))]
    told: list[int] = []

    def pause(entries: int) -> bool:
        told.append(entries)
        return True

    writer = RunWriter(DISK, tmp_path / "m.run", HASH, 1)
    assert run_merge.merge(writer, runs, lambda _: True, lambda _: drops_gone, pause)
    assert len(told) == ENTRIES // PAUSE + 1
    assert sum(told) == Run(tmp_path / "m.run", DISK.map(tmp_path / "m.run")).entries == (10 if drops_gone else ENTRIES)
    writer = RunWriter(DISK, tmp_path / "n.run", HASH, 1)
    assert not run_merge.merge(writer, runs, lambda _: True, lambda _: drops_gone, lambda _: False)
    writer.close()
