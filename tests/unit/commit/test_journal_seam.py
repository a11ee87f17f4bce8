"""The commit loop over a journal whose appends take a while: overlapped commits, and answers that wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.local import local_transport
from lakestore.client.writer import change
from lakestore.errors import Conflict, Exhausted, Fenced, NotFound, Unavailable
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.in_flight import LOG_BYTES_MIN
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.disk import Disk
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_server.state.commit_record import Deposed, Unknown
from tests.support.one_try import one_try
from tests.support.seeds import seeded
from tests.support.slow_journal import Fate, SlowJournal
from tests.support.waiting import until
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
Pair = tuple[int, int]
SOON = 0.2
"""Seconds in which an answer that does not wait would be there."""


class World:
    """A server over a journal that the test holds, with a keyed table and a log."""

    def __init__(self, folder: Path, disk: Disk | None = None, seconds: float = 0.02, fate: Fate | None = None) -> None:
        self.folder = folder
        self.server = Server(Settings(folder), disk=disk, journal_of=lambda d, f: self._made(d, f, seconds, fate))
        transport = local_transport(self.server.service)
        self.lake = ls.Lake(transport, "seam")
        self.pool = ThreadPoolExecutor(16)

    def _made(self, disk: Disk, folder: Path, seconds: float, fate: Fate | None) -> SlowJournal:
        self.slow = SlowJournal(disk, folder, seconds, fate)
        return self.slow

    def tables(self) -> None:
        self.lake.create_table("t.keyed", SCHEMA, primary_key=["id"], buckets=1)
        self.lake.create_table("t.log", SCHEMA, buckets=1)

    def held(self, *calls: Callable[[], Any]) -> list[Future[Any]]:
        """Calls one after the other, none of which can be durable; each is on its way, or waits, before the next."""
        self.slow.hold()
        begun: list[Future[Any]] = []
        for call in calls:
            before = self.slow.on_way, len(begun)
            begun.append(self.pool.submit(call))
            until(lambda: self.slow.on_way > before[0] or _rests(self.server), "the append")  # noqa: B023
        return begun

    def close(self, *, checkpoint: bool = True) -> None:
        self.slow.let_go()
        self.lake.close()
        self.server.close(checkpoint=checkpoint)
        self.pool.shutdown()


def _rests(server: Server) -> bool:
    """Whether the loop has had time for what was asked."""
    time.sleep(SOON)
    return not len(server.engine.loop.queue)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    made.tables()
    yield made
    made.close()


def row(id: int, v: int) -> list[dict[str, int]]:
    return [{"id": id, "v": v}]


def message(
    table: str, kind: pb.ChangeKind.ValueType, v: int, sent: tuple[str, int, int] = ("", 0, 0), id: int = 1
) -> pb.CommitRequest:
    """A commit of one row; `sent` is producer, epoch and sequence."""
    batch = pa.RecordBatch.from_pylist(row(id, v), SCHEMA)
    changes = [change(table, kind, [batch], 0)]
    return pb.CommitRequest(changes=changes, producer=sent[0], epoch=sent[1], sequence=sent[2])


def none_is_done(answers: Sequence[Future[Any]]) -> bool:
    time.sleep(SOON)
    return not any(answer.done() for answer in answers)


def test_large_commits_of_a_log_become_one_group_behind_two_that_are_on_their_way(world: World) -> None:
    """Each frame costs the same; small commits go on beside them."""
    rows = pa.RecordBatch.from_pydict({"id": range(40_000), "v": range(40_000)}, SCHEMA)
    assert rows.nbytes > LOG_BYTES_MIN
    engine = world.server.engine
    for turn in range(2):  # the commits of the first turn are no longer counted in the second
        lsn = engine.view.lsn
        world.slow.hold()
        requests = [pb.CommitRequest(changes=[change("t.log", pb.APPEND, [rows], 0)]) for _ in range(5)]
        answers = list[Future[Any]]()
        for number, request in enumerate(requests):
            answers.append(world.pool.submit(world.lake.transport.commit, request))
            placed = min(number + 1, 2), max(number - 1, 0)  # two that wait in the queue at once would be one group
            until(lambda: (world.slow.on_way, len(engine.loop.queue)) == placed, "the request")  # noqa: B023
        assert none_is_done(answers)
        if turn:
            small = message("t.keyed", pb.UPSERT, turn)
            answers.append(world.pool.submit(world.lake.transport.commit, small))
            until(lambda: world.slow.on_way == 3, "the small commit")
            assert len(engine.loop.queue) == 3
        world.slow.let_go()
        for answer in answers:
            answer.result(10)
        assert turn or engine.view.lsn == lsn + 3, "two large commits, and a group of three"
    assert world.lake.table("t.log").scan().count() == 2 * 5 * 40_000


def test_commits_are_made_upon_one_another_while_all_are_on_their_way(world: World) -> None:
    keyed, lsn = world.lake.table("t.keyed"), world.server.engine.view.lsn
    kinds = [(pb.UPSERT, 0), (pb.UPSERT, 1), (pb.UPSERT, 2), (pb.DELETE, 0), (pb.UPSERT, 9)]
    answers = world.held(*(partial(world.lake.transport.commit, message("t.keyed", *kind)) for kind in kinds))
    assert world.slow.on_way == 5, "groups are built while the last is being synced"
    assert none_is_done(answers)
    assert world.server.engine.view.lsn == lsn, "nobody outside sees them"
    assert keyed.lookup([{"id": 1}]).num_rows == 0
    assert keyed.scan().count() == 0
    world.slow.let_go()
    for answer in answers:
        answer.result(10)
    found = [entry for batch in keyed.changes("earliest", until="now") for entry in batch.to_arrow().to_pylist()]
    assert [(entry["__change"], entry["v"]) for entry in found] == [
        ("+I", 0), ("+U", 1), ("+U", 2), ("-D", None), ("+I", 9),
    ]  # fmt: skip
    assert keyed.lookup([{"id": 1}]).to_pylist() == row(1, 9)
    assert verify(world.lake.transport, "t.keyed").same


def test_answers_from_what_is_not_durable_wait(world: World) -> None:
    opened = world.lake.transport.open_producer(pb.OpenProducerRequest(producer="p"))
    first = message("t.log", pb.APPEND, 1, ("p", opened.epoch, 1))
    commit = world.lake.transport.commit
    answers = world.held(
        lambda: commit(first),
        lambda: commit(first),
        lambda: world.lake.transport.open_producer(pb.OpenProducerRequest(producer="p")),
        lambda: commit(message("t.log", pb.APPEND, 2, ("p", opened.epoch, 2))),
        lambda: world.lake.drop_table("t.keyed"),
        lambda: commit(message("t.keyed", pb.UPSERT, 3)),
    )
    assert none_is_done(answers), "a retry, a fenced producer and a table that is gone wait, too"
    assert "t.keyed" in world.server.engine.view.names
    world.slow.let_go()
    assert answers[0].result(10) == answers[1].result(10)
    assert answers[2].result(10).epoch > opened.epoch
    with pytest.raises(Fenced):
        answers[3].result(10)
    with pytest.raises(NotFound):
        answers[5].result(10)
    assert world.lake.table("t.log").scan().count() == 1


def test_a_move_of_a_register_and_its_retry_wait_as_well(world: World) -> None:
    opened = world.lake.transport.open_registers(pb.OpenRegistersRequest(registers=["k/0"]))
    commit = world.lake.transport.commit
    answers = world.held(
        lambda: commit(moving(opened, 1)),
        lambda: commit(moving(opened, 1)),
        lambda: commit(moving(opened, 2)),
        lambda: world.lake.transport.open_registers(pb.OpenRegistersRequest(registers=["k/0"])),
        lambda: commit(moving(opened, 1)),
    )
    assert none_is_done(answers), "a retry, one that comes too late, an opening and who is fenced by it"
    world.slow.let_go()
    first, again = answers[0].result(10), answers[1].result(10)
    assert (first.is_repeated, again.is_repeated, again.token) == (False, True, first.token)
    with pytest.raises(Conflict):
        answers[2].result(10)
    assert answers[3].result(10).registers[0].value == "1"
    with pytest.raises(Fenced):
        answers[4].result(10)
    assert world.lake.table("t.log").scan().count() == 1


def moving(opened: pb.OpenRegistersAnswer, v: int) -> pb.CommitRequest:
    """A commit of one row that moves a new register."""
    made = message("t.log", pb.APPEND, v)
    made.timeline = opened.timeline
    made.registers.add(register="k/0", epoch=opened.epoch, after=str(v))
    return made


def test_a_checkpoint_waits_for_what_is_under_way(world: World) -> None:
    log = world.lake.table("t.log")
    answers = world.held(lambda: log.append(row(1, 1)), world.server.upkeep.checkpoint)
    assert none_is_done(answers)
    world.slow.let_go()
    answers[1].result(10)
    assert log.scan().count() == 1
    world.close()
    with ls.open(world.folder) as lake:
        assert lake.table("t.log").scan().count() == 1


def test_more_than_one_group_is_on_its_way_at_once(tmp_path: Path) -> None:
    world, each = World(tmp_path / "data", seconds=0.1), 5
    world.tables()
    commit = world.lake.transport.commit
    list(world.pool.map(lambda v: [commit(message("t.log", pb.APPEND, v)) for _ in range(each)], range(8)))
    assert world.slow.most_on_way > 1
    assert world.lake.table("t.log").scan().count() == 8 * each
    world.close()


def test_what_was_built_on_a_failed_write_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file journal, whose commits are handed over as soon as several wait."""
    disk, go_on = SimDisk(tmp_path / "data"), threading.Event()
    server = Server(Settings(disk.root), disk=disk)
    transport = local_transport(server.service)
    lake, pool = ls.Lake(transport, "seam"), ThreadPoolExecutor(8)
    keyed = lake.create_table("t.keyed", SCHEMA, primary_key=["id"], buckets=1)
    keyed.upsert(row(1, 0))
    lake.create_table("t.log", SCHEMA)
    opened = transport.open_registers(pb.OpenRegistersRequest(registers=["k/0"]))
    journal = server.engine.loop.journal
    assert isinstance(journal, FileJournal)
    settle = journal.settle

    def held(beyond: int) -> int:
        assert go_on.wait(30)
        return settle(beyond)

    monkeypatch.setattr(journal, "settle", held)
    monkeypatch.setattr(journal, "settles_in_place", False, raising=False)
    answers = []
    for v in range(1, 5):
        answers.append(pool.submit(one_try(lake).commit, message("t.keyed", pb.UPSERT, v)))
        until(lambda: len(journal._waiting) >= v, "the append")  # noqa: B023
    answers.append(pool.submit(one_try(lake).commit, moving(opened, 5)))
    until(lambda: len(journal._waiting) >= 5, "the append")
    answers.append(pool.submit(one_try(lake).commit, moving(opened, 5)))  # its retry, which is answered with it
    until(lambda: not len(server.engine.loop.queue), "the retry's turn")
    disk.fill_up(1)
    go_on.set()
    assert answers[0].result(10).token
    for answer in answers[1:]:
        with pytest.raises(Exhausted, match="free space") as refused:
            answer.result(10)
        assert refused.value.applied == "no"
    assert keyed.lookup([{"id": 1}]).to_pylist() == row(1, 1)
    disk.fill_up(None)
    keyed.upsert(row(1, 7))
    assert [transport.commit(moving(opened, 5)).is_repeated for _ in range(2)] == [False, True]
    found = [entry for batch in keyed.changes("earliest", until="now") for entry in batch.to_arrow().to_pylist()]
    assert [(entry["__change"], entry["v"]) for entry in found] == [("+I", 0), ("+U", 1), ("+U", 7)]
    assert verify(transport, "t.keyed").same
    lake.close()
    server.close(checkpoint=False)
    with ls.open(disk.root) as again:
        assert again.table("t.keyed").lookup([{"id": 1}]).to_pylist() == row(1, 7)
        assert verify(again.transport, "t.keyed").same


class Crowd:
    """Writers in parallel until the journal ends, and a reader that looks all the time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent, self.acknowledged, self.seen = set[Pair](), set[Pair](), set[Pair]()
        self._ended = threading.Event()

    def run(self) -> None:
        """Until no writer is left."""
        reader = self._world.pool.submit(self._read)
        list(self._world.pool.map(self._write, range(6)))
        self._ended.set()
        reader.result(30)

    def _write(self, writer: int) -> None:
        lake = self._world.lake
        for v in range(40):
            self.sent.add((writer, v))
            try:
                if v % 2:
                    lake.table("t.log").append(row(writer, v))
                else:
                    lake.transport.commit(message("t.keyed", pb.UPSERT, v, id=writer))
            except Unavailable as problem:
                assert problem.applied == "unknown", problem
                return
            self.acknowledged.add((writer, v))

    def _read(self) -> None:
        while not self._ended.is_set():
            for state in self._world.server.engine.view.tables.values():
                for _, batch, _ in state.logs[0].rows(0, state.logs[0].head):
                    self.seen.update((e["id"], e["v"]) for e in batch.select(["id", "v"]).to_pylist())


def stored(lake: ls.Lake) -> list[Pair]:
    """Every row that was written, by the logs of both tables."""
    return [
        (entry["id"], entry["v"])
        for name in ("t.log", "t.keyed")
        for batch in lake.table(name).changes("earliest", until="now")
        for entry in batch.to_arrow().to_pylist()
    ]


@pytest.mark.parametrize("error", [Unknown, Deposed])
@pytest.mark.parametrize("stands", [True, False], ids=["standing", "lost"])
def test_nothing_acknowledged_is_void_and_nothing_seen_is_undone(tmp_path: Path, error: Any, stands: bool) -> None:
    """The journal ends somewhere; what was under way stands all the same, or not. The folder is opened again."""
    world = World(tmp_path / "data", seconds=0.003, fate=Fate(error, seeded().randint(3, 60), stands))
    world.tables()
    crowd = Crowd(world)
    crowd.run()
    world.close(checkpoint=False)
    with ls.open(world.folder) as lake:
        found = stored(lake)
        assert len(found) == len(set(found)), "applied once"
        assert crowd.acknowledged <= set(found) <= crowd.sent
        assert crowd.seen <= set(found), "somebody saw a row that was not durable"
        assert verify(lake.transport, "t.keyed").same
