"""A start never goes back in silence: a journal file that is missing is found by the names of the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore_server.files import checkpoint, journal, journal_file
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.commit_record import CommitRecord, RowsPart
from tests.model.harness import Harness
from tests.support.served import Served


def append(own: FileJournal, *lsns: int) -> None:
    for lsn in lsns:
        batch = pa.record_batch([pa.array([lsn])], names=["v"])
        own.append(lsn, journal.encode(CommitRecord(lsn, lsn, [RowsPart("t", 0, lsn, batch, 0, 1)])))
        own.settle(lsn - 1)


def files_of_three_checkpoints(folder: Path) -> list[str]:
    """Records 1 to 3, 4 and 5, and none."""
    own = FileJournal(RealDisk(), folder)
    own.roll(1)
    append(own, 1, 2, 3)
    own.roll(4)
    append(own, 4, 5)
    own.roll(6)
    own.close()
    return journal_file.names(RealDisk(), folder)


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_a_missing_file_is_told_by_the_names_of_the_others(tmp_path: Path, gone: tuple[int, ...]) -> None:
    names = files_of_three_checkpoints(tmp_path)
    for at in gone:
        (tmp_path / names[at]).unlink()
    own = FileJournal(RealDisk(), tmp_path)
    after = 3 if gone == (0, 1, 2) else 0
    with pytest.raises(Corrupt, match=r"missing|there is no journal file"):
        list(own.read(after))


def test_files_below_a_checkpoint_are_not_needed(tmp_path: Path) -> None:
    names = files_of_three_checkpoints(tmp_path)
    (tmp_path / names[0]).write_bytes(b"not removed yet, and damaged")
    (tmp_path / f"{names[1]}.tmp").write_bytes(b"the copy of a recovery that was interrupted")
    own = FileJournal(RealDisk(), tmp_path)
    assert [entry.lsn for entry in own.read(3)] == [4, 5]
    assert list(own.lead("")) == []
    assert (tmp_path / names[2]).exists(), "its name says which record is the next"
    own.roll(6)
    append(own, 6)
    own.close()
    again = FileJournal(RealDisk(), tmp_path)
    assert [entry.lsn for entry in again.read(3)] == [4, 5, 6]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.[sr][eu][gn]")}


@pytest.mark.parametrize("lost", ["the file between them", "records of the last file"])
def test_an_older_checkpoint_without_its_journal_is_refused_and_nothing_is_removed(tmp_path: Path, lost: str) -> None:
    with Served(tmp_path) as served:
        served.lake.create_table("db.t", {"id": "int64"}, primary_key=["id"], buckets=1).upsert([{"id": 1}])
    (old,) = tmp_path.glob("checkpoint-*")
    files = {old.name: old.read_bytes(), **contents(tmp_path)}
    with Served(tmp_path) as served:
        served.lake.table("db.t").upsert([{"id": 2}])
    (new,) = tmp_path.glob("checkpoint-*")
    flip(new)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    if lost == "records of the last file":
        (own,) = tmp_path.glob("journal-*")
        own.rename(tmp_path / journal_file.name_of(int(old.name.removeprefix(checkpoint.PREFIX)) + 1))
    before = contents(tmp_path)
    with pytest.raises(Corrupt, match="is missing" if "between" in lost else f"{new.name} is damaged, and the journal"):
        Served(tmp_path)
    assert contents(tmp_path) == before, "what only the newest checkpoint names is still there"


@pytest.mark.parametrize("passes", [0, 1])
def test_a_power_cut_in_a_trim_and_a_damaged_checkpoint_lose_nothing(tmp_path: Path, passes: int) -> None:
    """Removals of checkpoints are durable before any of their journal: an older one that comes back is whole."""
    harness = Harness(tmp_path / "harness")
    table = harness.lake.create_table("a.log", {"v": "int64"}, buckets=1)
    table.append([{"v": 1}])
    harness.server.upkeep.checkpoint()
    table.append([{"v": 2}])
    harness.disk.lose_power_at(CrashPoint.TRIM_FILE_REMOVED, passes)
    with pytest.raises(OSError, match="power"):
        harness.server.upkeep.checkpoint()
    harness.stop()
    came_back = 0
    for seed in range(24):
        left = harness.disk.crash(tmp_path / f"{seed}", seed)
        names = checkpoint.names(left, left.root)
        flip(left.root / names[-1])
        came_back += len(names) > 1
        if len(names) > 1:
            with Served(left.root, disk=left) as served:
                assert served.lake.table("a.log").scan().count() == 2
        else:
            with pytest.raises(Corrupt, match=names[0]):
                Served(left.root, disk=left)
    assert came_back == 0 if passes else 0 < came_back < 24
