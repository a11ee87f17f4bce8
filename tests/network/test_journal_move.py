"""Moves of a data folder between a journal in files and a shared log: nothing is lost, and there is one history."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Conflict, Corrupt, Invalid, LakestoreError, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.files import checkpoint as checkpoints
from lakestore_server.files import journal_file
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import RealDisk
from lakestore_server.journals.shared_journal import JournalEnd, SharedJournal
from lakestore_server.main import Server
from lakestore_server.operate.journal_move import MARK, Mover
from lakestore_server.operate.restore import restore_replica
from lakestore_server.settings import Settings
from lakestore_server.state.commit_record import Deposed
from lakestore_server.state.judge import ForeignLog
from tests.support.replicas import LEASE_SECONDS, MemoryEnd, MemoryLog
from tests.support.seeds import seeded
from tests.support.waiting import until
from tests.support.world.disk import SimDisk

ROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
Rows = list[dict[str, Any]]


def rows(*numbers: int) -> Rows:
    return [{"id": number, "v": str(number)} for number in numbers]


def ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


def changed(table: ls.Table, start: ls.CommitToken, until: ls.CommitToken) -> list[int]:
    """The ids of the rows between two tokens, in order."""
    return [
        number for batch in table.changes(start=start, until=until) for number in batch.to_arrow()["id"].to_pylist()
    ]


@contextmanager
def served(folder: Path, log: MemoryLog | None = None, *, checkpoint: bool = True) -> Iterator[Server]:
    """A server on a folder, which leads; without a log its journal is in files."""
    settings = Settings(folder, port=0, http_port=0, warehouse=str(folder.parent / "warehouse"))
    shared = log and (lambda *_: SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS))
    server = Server(settings, journal_of=shared or FileJournal)
    try:
        server.start()
        until(lambda: server.engine.is_leading, "the leader")
        yield server
    finally:
        server.close(checkpoint=checkpoint)


def mover(folder: Path, log: MemoryLog, **others: Any) -> Mover:
    return Mover(folder, lambda: MemoryEnd(log), LEASE_SECONDS, **others)


def lsn_of(folder: Path, log: MemoryLog | None) -> int:
    """The newest commit of a folder that is opened with a journal; no server of it begins to lead."""
    journal = log and (lambda *_: SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS))
    failures: list[BaseException] = []
    engine = Engine(folder, RealDisk(), RealClock(), on_fatal=failures.append, journal_of=journal or FileJournal)
    engine.loop.close()
    assert failures == []
    return engine.view.lsn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a journal in files and some commits, the last of them after its checkpoint."""
    made = tmp_path / "a b"
    with served(made) as server, ls.connect(server.about["grpc"]) as lake:
        lake.create_table("a.t", ROW, primary_key=["id"], buckets=2).upsert(rows(1, 2, 3))
        server.upkeep.checkpoint()
        lake.table("a.t").delete([{"id": 2}])
        server.engine.loop.close()
    return made


def test_what_clients_hold_stays_valid_through_both_moves(tmp_path: Path) -> None:
    folder, log = tmp_path / "a", MemoryLog()
    with served(folder) as server, ls.connect(server.about["grpc"]) as lake:
        timeline = server.engine.timeline
        table = lake.create_table("a.t", ROW, primary_key=["id"], buckets=2)
        token = table.upsert(rows(1, 2))
        table.upsert(rows(3))
        with lake.producer("etl") as producer, producer.commit(progress="one") as commit:
            commit.upsert("a.t", rows(4))
        stream = table.changes(subscription="billing", start="earliest")
        batch = stream.next(timeout=120)
        assert batch is not None
        batch.ack()
        seen = batch.to_arrow().num_rows
        stream.close()
    mover(folder, log).into_log()
    with served(folder, log) as server, ls.connect(server.about["grpc"]) as lake:
        table = lake.table("a.t")
        assert server.engine.timeline == timeline
        assert ids(table.scan(at=token).to_arrow()) == [1, 2]
        later = table.upsert(rows(5))
        assert changed(table, token, later) == [3, 4, 5]
        with lake.producer("etl") as producer:
            assert producer.progress == "one"
            with producer.commit(progress="two") as commit:
                commit.upsert("a.t", rows(6))
        with served_replica(tmp_path, server, log) as replica:
            until(lambda: replica.engine.view.lsn == server.engine.view.lsn, "the replica")
            assert replica.engine.timeline == timeline
    mover(folder, log).into_files()
    with served(folder) as server, ls.connect(server.about["grpc"]) as lake:
        table = lake.table("a.t")
        assert server.engine.timeline == timeline
        assert ids(table.scan(at=token).to_arrow()) == [1, 2]
        assert ids(table.scan(at=later).to_arrow()) == [1, 2, 3, 4, 5]
        last = table.upsert(rows(7))
        assert changed(table, later, last) == [6, 7]
        with lake.producer("etl") as producer:
            assert producer.progress == "two"
        rest = 0
        with table.changes(subscription="billing") as stream:
            while rest < 7 - seen:
                more = stream.next(timeout=120)
                assert more is not None
                rest += more.to_arrow().num_rows
        assert rest == 7 - seen


@contextmanager
def served_replica(root: Path, server: Server, log: MemoryLog) -> Iterator[Server]:
    """A follower made from a backup of a server."""
    with ls.connect(server.about["grpc"]) as lake:
        lake.transport.backup(pb.BackupRequest(folder=str(root / "backup")))
    restore_replica(root / "backup", root / "replica")
    settings = Settings(root / "replica", port=0, http_port=0, warehouse=str(root / "warehouse"))
    replica = Server(settings, journal_of=lambda *_: SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS))
    replica.start()
    try:
        yield replica
    finally:
        replica.close()


def test_a_move_needs_a_log_that_nobody_has_led(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    with served(tmp_path / "other", log):
        pass
    with pytest.raises(Conflict, match="a server has led this journal already"):
        mover(folder, log).into_log()
    assert lsn_of(folder, None) == 3


def test_a_move_needs_a_folder_that_no_server_has(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    with served(folder), pytest.raises(Conflict, match="in use by another server"):
        mover(folder, log).into_log()
    mover(folder, log).into_log()
    with served(folder, log), pytest.raises(Conflict, match="in use by another server"):
        mover(folder, log).into_files()
    with pytest.raises(Invalid, match="is no folder"):
        mover(tmp_path / "none", log).into_log()
    assert not (tmp_path / "none").exists()


def test_two_moves_into_one_log_leave_one_history(folder: Path, tmp_path: Path) -> None:
    log, copy = MemoryLog(), tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = mover(folder, log)
    begun = SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS)
    begun.begin(3)
    first.into_log()
    with pytest.raises(Conflict):
        mover(copy, log).into_log()
    with pytest.raises((Deposed, ForeignLog)):  # it read the log before the other one claimed it
        list(begun.lead(""))
    begun.close()
    assert (lsn_of(copy, None), lsn_of(folder, log)) == (3, 4)


def test_a_server_with_an_empty_folder_never_leads_a_log_that_a_folder_moved_into(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    mover(folder, log).into_log()
    log.first = 0  # a server that has read the first claim before the move removed it
    begun = SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS)
    with pytest.raises(Corrupt, match="where LSN 1 belongs"):
        list(begun.read(0))
    begun.close()


def test_a_server_with_an_empty_folder_copies_the_one_that_moved(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    mover(folder, log).into_log()
    with served(folder, log) as server:
        settings = Settings(tmp_path / "empty", port=0, http_port=0, warehouse=str(tmp_path / "warehouse"))
        other = Server(settings, journal_of=lambda *_: SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS))
        try:
            until(lambda: other.engine.view.lsn == server.engine.view.lsn, "the copy")
            assert other.engine.timeline == server.engine.timeline
        finally:
            other.close(checkpoint=False)


def test_a_folder_without_a_commit_does_not_move(tmp_path: Path) -> None:
    with served(tmp_path / "a"):
        pass
    with pytest.raises(Invalid, match="has no commit to move"):
        mover(tmp_path / "a", MemoryLog()).into_log()


def test_the_same_command_again_changes_nothing(folder: Path) -> None:
    log = MemoryLog()
    assert (mover(folder, log).into_log(), mover(folder, log).into_log()) == (3, 3)
    assert journal_file.names(RealDisk(), folder) == []
    assert lsn_of(folder, log) == 4
    assert (mover(folder, log).into_files(), mover(folder, log).into_files()) == (4, 4)
    assert lsn_of(folder, None) == 4
    with pytest.raises(Invalid, match=r"continues another journal"):
        lsn_of(folder, log)


def test_an_end_stops_every_other_server_and_the_log_takes_no_further_folder(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    mover(folder, log).into_log()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with served(folder, log, checkpoint=False):
        settings = Settings(copy, port=0, http_port=0, warehouse=str(folder.parent / "warehouse"))
        other = Server(settings, journal_of=lambda *_: SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS))
    # It does not serve, so it never leads, and it writes nothing that a move could see.
    mover(folder, log).into_files()
    until(lambda: other.engine.loop.failure is not None, "the end of the other server")
    assert isinstance(other.engine.loop.failure, JournalEnd)
    other.close(checkpoint=False)
    with pytest.raises(JournalEnd, match="this journal ended"):
        lsn_of(copy, log)
    with pytest.raises(JournalEnd):
        mover(copy, log).into_files()
    with pytest.raises(Conflict, match="has led this journal already"):
        mover(folder, log).into_log()
    assert mover(folder, MemoryLog()).into_log() == lsn_of_files(folder)


def lsn_of_files(folder: Path) -> int:
    held = checkpoints.newest(RealDisk(), folder)
    assert held is not None
    return held.lsn


def test_a_folder_leaves_no_log_that_another_server_leads(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    mover(folder, log).into_log()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with served(copy, log, checkpoint=False) as server:
        with pytest.raises(Conflict, match=f"{server.about['grpc']} leads this journal"):
            mover(folder, log).into_files()
        with ls.connect(server.about["grpc"]) as lake:
            lake.create_database("later")
        lsn = server.engine.view.lsn
    assert mover(folder, log).into_files() == lsn, "the folder of a follower gets every commit of the log"
    assert lsn_of(folder, None) == lsn


class FailingEnd(MemoryEnd):
    """An end whose messages from one on do not come through: lost, or stored without an answer."""

    def __init__(self, log: MemoryLog, count: int, *, is_stored: bool) -> None:
        super().__init__(log)
        self._left, self._is_stored = count, is_stored

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        self._left -= 1
        if self._left < 0 and self._is_stored:
            super().send(message, lambda _: None)
            self._has_lost = True
            return True
        self.is_cut = self._left < 0
        return super().send(message, stored)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_log_that_does_not_answer_leaves_the_folder_with_one_journal(
    folder: Path, tmp_path: Path, is_stored: bool
) -> None:
    for count in range(5):
        log, copy = MemoryLog(), tmp_path / f"in {count}"
        shutil.copytree(folder, copy)
        failing = Mover(copy, lambda: FailingEnd(log, count, is_stored=is_stored), LEASE_SECONDS)  # noqa: B023
        try:
            failing.into_log()
        except Unavailable:
            assert lsn_of(copy, None) == 3
        else:
            assert lsn_of(copy, log) == 4
    for count in range(3):
        log, copy = MemoryLog(), tmp_path / f"out {count}"
        shutil.copytree(folder, copy)
        mover(copy, log).into_log()
        failing = Mover(copy, lambda: FailingEnd(log, count, is_stored=is_stored), LEASE_SECONDS)  # noqa: B023
        try:
            failing.into_files()
        except Unavailable:
            mover(copy, log).into_files()
        assert lsn_of(copy, None) == 4


@pytest.mark.parametrize("way", ["into_log", "into_files"])
def test_power_that_goes_at_any_step_leaves_the_folder_with_one_journal(folder: Path, tmp_path: Path, way: str) -> None:
    chance, log = seeded(), MemoryLog()
    if way == "into_files":
        mover(folder, log).into_log()
    ends = {"old": 0, "new": 0, "ended": 0}
    steps = 0
    while True:
        own = MemoryLog()
        own.messages += log.messages
        disk = SimDisk(_copied(folder, tmp_path / f"{steps} before"))
        disk.lose_power_after(steps)
        try:
            getattr(mover(disk.root, own, disk=disk), way)()
        except (OSError, LakestoreError):
            left = tmp_path / f"{steps} left"
            disk.crash(left, chance.getrandbits(32))
            ends[_state(left, own, way)] += 1
        else:
            break
        finally:
            disk.close()
        steps += chance.randint(1, 3)
    assert ends["old"], ends
    assert ends["new"], ends
    assert steps > 20


def _copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def _state(left: Path, log: MemoryLog, way: str) -> str:
    """The kind of the folder's journal. Then the same command runs again, which ends the move."""
    held = checkpoints.newest(RealDisk(), left)
    assert held is not None
    is_of_files = not held.place or held.place.startswith(journal_file.PREFIX)
    if way == "into_log":
        assert lsn_of(left, None if is_of_files else log) == (3 if is_of_files else 4)
        mover(left, MemoryLog() if is_of_files else log).into_log()
        return "old" if is_of_files else "new"
    state = "new" if is_of_files else "ended" if _has_ended(log) else "old"
    if state == "old":
        assert lsn_of(_copied(left, left.with_name(f"{left.name} copy")), log) == 4
    if state == "ended":
        with pytest.raises(JournalEnd):
            lsn_of(left, log)
    mover(left, log).into_files()
    assert lsn_of(left, None) == 4
    assert MARK not in RealDisk().list(left)
    return state


def _has_ended(log: MemoryLog) -> bool:
    journal = SharedJournal(MemoryEnd(log), RealClock(), LEASE_SECONDS)
    try:
        for position, data in MemoryEnd(log).read(0, 0.0):
            journal._judge.take(position, data)
    finally:
        journal.close()
    return journal._judge._has_ended


def test_a_mark_of_another_folder_ends_nothing(folder: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    mover(folder, log).into_log()
    with served(folder, log):
        pass  # its last checkpoint has every commit, so the end is all that follows
    copy = _copied(folder, tmp_path / "copy")
    mover(folder, log).into_files()
    (copy / MARK).write_bytes(b"%032x" % random.Random(1).getrandbits(128))
    with pytest.raises(JournalEnd):
        mover(copy, log).into_files()
