"""The journal's sync beside its writes: records that come meanwhile are written, and stand with the next sync only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore_server.files import journal, journal_file
from lakestore_server.files.journal_file import FileJournal, names
from lakestore_server.host.disk import AppendFile
from lakestore_server.state.commit_record import CommitRecord, NotWritten, RowsPart, Unknown
from tests.support.served import Served
from tests.support.waiting import until
from tests.support.world.disk import SimDisk


class Held:
    """A journal of large records whose syncs end when the test says so, and end as it says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal_file, "AHEAD_BYTES", 1)
        self.disk = SimDisk(folder)
        self.journal = FileJournal(self.disk, folder)
        self.journal.roll(1)
        self.syncs: list[Future[None]] = []
        """Begun, in their order."""
        self.pool = ThreadPoolExecutor(1)
        self._hold(monkeypatch)

    def _hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = self.journal._file
        assert file is not None
        sync: Callable[[], None] = file.sync

        def held() -> None:
            outcome = Future[None]()
            self.syncs.append(outcome)
            if threading.current_thread().name == "journal-disk":
                outcome.result(60)
            sync()

        monkeypatch.setattr(file, "sync", held)

    def append(self, *lsns: int) -> None:
        for lsn in lsns:
            batch = pa.record_batch([pa.array([bytes(100)])], names=["v"])
            self.journal.append(lsn, journal.encode(CommitRecord(lsn, lsn, [RowsPart("t", 0, lsn, batch, 0, 1)])))

    def settle(self, beyond: int) -> Future[int]:
        return self.pool.submit(self.journal.settle, beyond)

    @property
    def frames(self) -> list[int]:
        """LSNs of the records that are written."""
        [name] = names(self.disk, self.disk.root)
        return [frame.lsn for frame in journal.frames(self.disk.read(self.disk.root / name), name, last=True)]

    def until_written(self, lsn: int) -> None:
        until(lambda: lsn in self.frames, f"record {lsn} in the file")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(tmp_path, monkeypatch)
    yield made
    for sync in made.syncs:
        if not sync.done():
            sync.set_result(None)
    made.journal.close()
    made.pool.shutdown()


def test_records_are_written_while_others_are_synced_and_stand_with_the_next_sync(held: Held) -> None:
    held.append(1, 2)
    first = held.settle(0)
    until(lambda: len(held.syncs) == 1, "the first sync")
    held.append(3)
    held.until_written(3)
    assert held.journal.durable() == 0, "nothing stands before its sync is over"
    held.syncs[0].set_result(None)
    assert first.result(60) == 2, "what was written beside the sync does not stand by it"
    until(lambda: len(held.syncs) == 2, "the next sync, which nobody had to ask for")
    second = held.settle(2)
    held.append(4)
    held.until_written(4)
    held.syncs[1].set_result(None)
    assert second.result(60) == 3
    until(lambda: len(held.syncs) == 3, "the last sync")
    held.syncs[2].set_result(None)
    assert held.settle(3).result(60) == 4
    assert held.frames == [1, 2, 3, 4]
    assert held.journal.written[1] == held.disk.size(held.disk.root / held.journal.written[0])


def test_a_write_that_fails_beside_a_sync_takes_nothing_from_it(held: Held) -> None:
    held.append(1)
    first = held.settle(0)
    until(lambda: len(held.syncs) == 1, "the sync")
    held.append(2)
    held.until_written(2)
    held.disk.fail("write")
    held.append(3, 4)
    until(lambda: not held.disk.will_fail, "the write that fails")
    held.syncs[0].set_result(None)
    assert first.result(60) == 2, "those in front of the failed one stand, by the sync of the cut"
    with pytest.raises(NotWritten) as refused:
        held.settle(2).result(60)
    assert refused.value.lsn == 3
    assert held.frames == [1, 2]
    held.append(3)
    third = held.settle(2)
    until(lambda: len(held.syncs) == 3, "the sync of the one that came again")
    held.syncs[2].set_result(None)
    assert third.result(60) == 3
    assert held.frames == [1, 2, 3]


def test_after_a_failed_sync_beside_writes_nothing_stands_any_more(held: Held) -> None:
    held.append(1)
    first = held.settle(0)
    until(lambda: len(held.syncs) == 1, "the sync")
    held.append(2)
    held.until_written(2)
    held.syncs[0].set_exception(OSError(5, "Input/output error"))
    with pytest.raises(Unknown):
        first.result(60)
    with pytest.raises(Unknown):
        held.settle(0).result(60)
    assert len(held.syncs) == 1, "no second sync, which would say that all is well"


def test_a_small_record_alone_is_synced_by_its_own_thread(tmp_path: Path) -> None:
    made: FileJournal = FileJournal(SimDisk(tmp_path), tmp_path)
    made.roll(1)
    file: AppendFile | None = made._file
    assert file is not None
    made.append(1, journal.encode(CommitRecord(1, 1)))
    assert made.settle(0) == 1
    assert not any(thread.name == "journal-disk" for thread in threading.enumerate())
    made.close()


def test_small_commits_wake_no_thread_that_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would ask for the interpreter's lock, and have the commit loop hand it over for nothing."""
    woken: list[str] = []
    wait = threading.Condition.wait

    def counted(condition: threading.Condition, timeout: float | None = None) -> bool:
        woken.append(threading.current_thread().name)
        return wait(condition, timeout)

    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.b", schema, primary_key=["id"])
        with monkeypatch.context() as patch:
            patch.setattr(journal_file, "AHEAD_BYTES", 1)
            table.upsert([{"id": 0, "v": "begins the thread that syncs"}])
        assert {"journal-sync", "journal-disk"} <= {thread.name for thread in threading.enumerate()}
        monkeypatch.setattr(threading.Condition, "wait", counted)
        for number in range(20):
            table.upsert([{"id": number, "v": "x"}])
        monkeypatch.undo()
    assert "commit-loop" in woken
    assert not {"journal-sync", "journal-disk"} & set(woken)


@pytest.mark.parametrize("waiting", [2, 3])
@pytest.mark.parametrize("beside", [False, True], ids=["synced in place", "synced beside"])
def test_a_power_cut_under_one_sync_of_several_records_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, waiting: int, beside: bool
) -> None:
    """Sectors come to the disk in any order: a record may be whole and the one before it torn."""
    monkeypatch.setattr(journal_file, "AHEAD_BYTES", 1 if beside else 1 << 40)
    disk = SimDisk(tmp_path / "before")
    made = FileJournal(disk, disk.root)
    made.roll(1)
    value = bytes(range(1, 256)) * 12
    for lsn in range(1, waiting + 2):
        batch = pa.record_batch([pa.array([value[: 3_000 // lsn]])], names=["v"])
        made.append(lsn, journal.encode(CommitRecord(lsn, lsn, [RowsPart("t", 0, lsn, batch, 0, 1)])))
        if lsn == 1:
            assert made.settle(0) == 1
    disk.fail("sync")
    made._write()
    ends = set[int]()
    for seed in range(200):
        after = disk.crash(tmp_path / f"after-{seed}", seed)
        again = FileJournal(after, after.root)
        lsns = [entry.lsn for entry in again.read(0)]
        assert lsns == list(range(1, len(lsns) + 1))
        ends.add(len(lsns))
    assert ends == set(range(1, waiting + 2)), "whatever may be left, and the acknowledged one in any case"
    made.close()
