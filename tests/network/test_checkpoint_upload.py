"""Uploads of checkpoints that are killed, overtaken or refused at each request: the newest one is always whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

import lakestore as ls
from lakestore.errors import Unavailable
from lakestore_server.duties import checkpoint_upload
from lakestore_server.duties.checkpoint import DurableCheckpoint
from lakestore_server.duties.checkpoint_upload import CheckpointUpload
from lakestore_server.files import checkpoint
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import RealDisk
from lakestore_server.journals import checkpoint_store
from lakestore_server.journals.checkpoint_store import CheckpointStore
from lakestore_server.journals.object_store import ObjectStore, StoreError
from lakestore_server.journals.shared_journal import SharedJournal, position_of
from lakestore_server.operate.store_copy import StoreCopy
from tests.network.test_first_copy import assert_complete, copy_of, direct, rows, size_of
from tests.support.replicas import Replicas

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.binary())])
URL = "s3://bucket/checkpoints"
STEPS = range(0, 60)
"""Requests at which an upload is disturbed: a test stops at the first upload that has fewer."""


class Kill(BaseException):
    """The process of the server is gone."""


class Shop(ObjectStore):
    """A store in memory in which a test can make one request go wrong."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), URL)
        self.trouble: Callable[[int, bool], None] = lambda number, is_done: None
        """Called with the number of a request, before and after it is done; it may raise."""
        self.requests, self.doing = 0, ""
        """Number of requests so far, and the kind and name of the present one."""
        self.put: list[str] = []

    def put_new(self, name: str, data: bytes) -> bool:
        self.put.append(name)
        return bool(self._watched(f"put {name}", lambda: super(Shop, self).put_new(name, data)))

    def get(self, name: str) -> bytes | None:
        answer: bytes | None = self._watched(f"get {name}", lambda: super(Shop, self).get(name))
        return answer

    def names(self, folder: str) -> list[str]:
        answer: list[str] = self._watched(f"names {folder}", lambda: super(Shop, self).names(folder))
        return answer

    def _watched(self, doing: str, work: Callable[[], Any]) -> Any:
        self.requests += 1
        number, self.doing = self.requests, doing
        self.trouble(number, False)
        answer = work()
        self.trouble(number, True)
        return answer


class LateClock:
    """The clock of the machine, some time later."""

    def __init__(self) -> None:
        self._clock, self.later = RealClock(), 0.0

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.later

    def now_us(self) -> int:
        return self._clock.now_us()


class Shelf:
    """A leader whose checkpoints go to a store, by uploads that the test runs."""

    def __init__(self, replicas: Replicas, shop: Shop) -> None:
        self.replicas, self.shop = replicas, shop
        self.server, self.clock = replicas.servers[0], LateClock()
        journal = self.server.engine.loop.journal
        assert isinstance(journal, SharedJournal)
        self.journal = journal
        self.journal.await_store()
        self.store = CheckpointStore(shop, URL, sleep=lambda _: None)
        self._next = 1_000
        self.takers: list[CheckpointUpload] = []
        """The uploads that later checkpoints are offered to."""
        self.upload = self.started()

    def started(self) -> CheckpointUpload:
        """The duty of a process that has just begun."""
        checkpointer = self.server.upkeep.checkpointer
        made = CheckpointUpload(self.server.engine.loop, checkpointer, self.store, self.clock, keep_seconds=0)
        self.takers.append(made)
        checkpointer.on_durable(self._offer)
        return made

    def _offer(self, made: DurableCheckpoint) -> None:
        for taker in self.takers:
            taker.offer(made)

    def write(self) -> None:
        """Another checkpoint, with new segments and without some of the old ones."""
        self._next += 1_000
        with ls.connect(self.replicas.address(0)) as lake:
            lake.table("a.t").upsert(rows(self._next, 20))
            lake.table("a.log").append(rows(self._next, 20))
        self.server.upkeep.checkpoint()

    def run(self, upload: CheckpointUpload | None = None) -> None:
        self.clock.later += 2 * checkpoint_upload.PAUSE_SECONDS
        (upload or self.upload).run_once()

    def assert_whole(self) -> None:
        """The newest checkpoint is there with all its parts, and the journal from its place on."""
        head = self.store.newest_head(self.journal.timeline())
        assert head is not None
        assert head.checkpoint is not None
        for file in self.store.files_of(head.checkpoint):
            assert sum(len(self.store.part(file, number)) for number in range(len(file.crcs))) == file.size
        assert self.replicas.first <= position_of(head.checkpoint.place)

    def names(self) -> set[str]:
        """The objects that some head in the store names."""
        named = set[str]()
        for head in self.store.heads(self.journal.timeline()).heads:
            if head.checkpoint is not None:
                files = self.store.files_of(head.checkpoint)
                named |= {file.part(number) for file in files for number in range(len(file.crcs))}
                named.add(head.checkpoint.manifest)
        return named


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A leader with 2 MB in two tables, and one checkpoint in the store."""
    monkeypatch.setattr(checkpoint_store, "PART_BYTES", 100_000)
    monkeypatch.setattr(checkpoint_upload, "PART_BYTES", 100_000)
    monkeypatch.setattr("lakestore_server.operate.store_copy.PART_BYTES", 100_000)
    monkeypatch.setattr(checkpoint_upload, "PUTS", 1)  # requests come in one order
    with Replicas(tmp_path, count=1) as replicas, ls.connect(replicas.address(0)) as lake:
        lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2).upsert(rows(0, 40))
        lake.create_table("a.log", SCHEMA, buckets=1).append(rows(0, 40))
        made = Shelf(replicas, Shop())
        made.write()
        made.run()
        yield made


def new_copy(shelf: Shelf, folder: Path, wire: Any = direct) -> Any:
    return copy_of(shelf.replicas, folder, wire, store=StoreCopy(shelf.store, shelf.journal.timeline()))


def flip(shelf: Shelf, name: str) -> None:
    """Change a byte of an object."""
    data = bytearray(obstore.get(shelf.shop._store, name).bytes())
    data[-1] ^= 1
    obstore.put(shelf.shop._store, name, bytes(data))


def refuse(*_: object) -> Iterator[Any]:
    yield from ()
    raise Unavailable("no server is asked")


def test_a_folder_is_copied_from_the_store(shelf: Shelf, tmp_path: Path) -> None:
    shelf.assert_whole()
    copy = new_copy(shelf, tmp_path / "new", refuse)
    copy.run()
    assert_complete(tmp_path / "new")
    assert copy.progress.peer == URL
    assert copy.progress.received == size_of(tmp_path / "new") > 1_000_000


def test_an_upload_puts_only_what_the_store_lacks(shelf: Shelf) -> None:
    first = len(shelf.shop.put)
    shelf.write()
    shelf.run()
    assert 0 < len(shelf.shop.put) - first < first
    shelf.server.upkeep.checkpoint()
    before = len(shelf.shop.put)
    again = shelf.started()
    shelf.server.upkeep.checkpoint()
    shelf.run(again)
    put = [name.partition("/")[0] for name in shelf.shop.put[before:]]
    assert sorted(put) == ["files", "heads", "heads", "manifests"], "a new process puts the checkpoint file alone"
    shelf.assert_whole()


def test_what_no_kept_head_names_is_removed(shelf: Shelf) -> None:
    for _ in range(4):
        shelf.write()
        shelf.run()
    assert set(shelf.store.objects()) == shelf.names()
    heads = shelf.store.heads(shelf.journal.timeline()).heads
    assert len({head.checkpoint.manifest for head in heads if head.checkpoint}) == checkpoint_upload.KEPT_MIN
    oldest = heads[0].checkpoint
    assert oldest is not None
    assert shelf.replicas.first == position_of(oldest.place) > 0, "the journal has what the oldest kept one needs"
    shelf.assert_whole()


def test_heads_and_journal_are_kept_for_the_time_of_a_copy(shelf: Shelf) -> None:
    shelf.upload = shelf.started()
    shelf.upload._keep_seconds = 1e6
    shelf.takers = [shelf.upload]
    for _ in range(3):
        shelf.write()
        shelf.run()
    heads = shelf.store.heads(shelf.journal.timeline()).heads
    assert len(heads) == 5, "the upload of the first process, the claim, three uploads"
    oldest = next(head.checkpoint for head in heads if head.checkpoint is not None)
    assert shelf.replicas.first <= position_of(oldest.place)
    shelf.clock.later += 2e6
    shelf.write()
    shelf.run()
    assert len(shelf.store.numbers()) == 2
    assert shelf.replicas.first > position_of(oldest.place)
    assert set(shelf.store.objects()) == shelf.names()
    shelf.assert_whole()


@pytest.mark.parametrize("is_done", [False, True])
def test_a_kill_at_each_request_leaves_a_whole_checkpoint(is_done: bool, shelf: Shelf) -> None:
    is_over = False
    for step in STEPS:
        shelf.write()
        number = shelf.shop.requests + step

        def kill(at: int, done: bool, number: int = number) -> None:
            if at == number and done == is_done:
                raise Kill

        shelf.shop.trouble = kill
        try:
            shelf.run()
            is_over = shelf.shop.requests < number
        except Kill:
            pass
        shelf.shop.trouble = lambda *_: None
        shelf.assert_whole()
        if is_over:
            break
        shelf.upload = shelf.started()
        shelf.run()
        shelf.assert_whole()
    assert is_over or step > 30
    shelf.write()
    shelf.run()
    shelf.write()
    shelf.run()
    assert set(shelf.store.objects()) == shelf.names(), "nothing of a killed upload stays"


@pytest.mark.parametrize("is_done", [False, True])
def test_a_lost_answer_of_each_request_is_asked_again(is_done: bool, shelf: Shelf) -> None:
    def lose(number: int, done: bool) -> None:
        if done == is_done and number % 3 == 0:
            raise StoreError("the answer is lost")

    shelf.shop.trouble = lose
    shelf.upload = shelf.started()
    for _ in range(2):
        shelf.write()
        shelf.run()
        assert shelf.upload.figures.lsn == shelf.server.engine.view.lsn
    shelf.shop.trouble = lambda *_: None
    shelf.assert_whole()


@pytest.mark.parametrize("is_done", [False, True])
def test_a_leader_that_is_paused_at_each_request_moves_no_pointer(is_done: bool, shelf: Shelf) -> None:
    """Another server claims, uploads twice and removes what nobody names, in the middle of an upload."""
    is_over = False
    for step in STEPS:
        other = shelf.started()
        number = shelf.shop.requests + step

        def pause(at: int, done: bool, number: int = number, other: CheckpointUpload = other) -> None:
            if at == number and done == is_done:
                shelf.shop.trouble = lambda *_: None
                for _ in range(2):
                    shelf.write()
                    shelf.run(other)

        shelf.shop.trouble = pause
        paused = shelf.upload
        shelf.takers = [paused, other]
        shelf.write()
        shelf.run(paused)
        is_over = shelf.shop.trouble is pause
        shelf.shop.trouble = lambda *_: None
        shelf.assert_whole()
        shelf.run(paused)
        shelf.assert_whole()
        if is_over:
            break
    assert is_over or step > 30


def test_files_that_another_server_puts_during_a_removal_stay(shelf: Shelf) -> None:
    other = shelf.started()

    def pause(_: int, is_done: bool) -> None:
        if shelf.shop.doing == "names files" and not is_done:
            shelf.shop.trouble = lambda *_: None
            shelf.write()
            shelf.run(other)

    shelf.shop.trouble = pause
    shelf.write()
    shelf.run()
    shelf.assert_whole()
    (newest,) = shelf.store.heads(shelf.journal.timeline(), newest_only=True).heads
    assert newest.writer == other._writer


def test_a_leader_that_claims_again_puts_what_another_server_removed(shelf: Shelf) -> None:
    (newest,) = shelf.store.heads(shelf.journal.timeline(), newest_only=True).heads
    assert newest.checkpoint is not None
    its = replace(newest.checkpoint, manifest=shelf.store.put_manifest([]))
    assert shelf.store.put_head(replace(newest, number=newest.number + 1, writer="another", checkpoint=its))
    shelf.store.remove([name for name in shelf.store.objects() if name.startswith("files/")])
    for _ in range(2):  # the first upload is void
        shelf.write()
        shelf.run()
    assert shelf.upload.figures.lsn == shelf.server.engine.view.lsn
    shelf.assert_whole()


def test_no_head_is_put_without_every_part(shelf: Shelf) -> None:
    before, seen = shelf.upload.figures.lsn, list[str]()
    allowed = 0

    def refuse_part(*_: object) -> None:
        """Refuse the first new part after some."""
        if shelf.shop.doing.startswith("put files/"):
            if shelf.shop.doing not in seen:
                seen.append(shelf.shop.doing)
            if seen.index(shelf.shop.doing) == allowed:
                raise StoreError("the store is full")

    shelf.shop.trouble = refuse_part
    shelf.write()
    while len(seen) >= allowed:
        seen.clear()
        try:
            shelf.run()
        except Unavailable:
            assert shelf.upload.figures.lsn == before
        shelf.assert_whole()
        allowed += 1
    assert allowed > 3
    assert shelf.upload.figures.lsn == shelf.server.engine.view.lsn


def test_a_head_whose_number_was_removed_is_void(shelf: Shelf) -> None:
    other = shelf.started()
    late = shelf.store.numbers()[-1] + 1

    def pause(_: int, is_done: bool) -> None:
        if shelf.shop.doing == f"put {checkpoint_store.head_name(late)}" and not is_done:
            shelf.shop.trouble = lambda *_: None
            for _ in range(5):
                shelf.write()
                shelf.run(other)

    shelf.shop.trouble = pause
    shelf.write()
    shelf.run()
    assert shelf.upload._head is None
    assert late not in shelf.store.numbers()
    shelf.assert_whole()


def test_a_server_of_an_earlier_epoch_claims_nothing(shelf: Shelf) -> None:
    (newest,) = shelf.store.heads(shelf.journal.timeline(), newest_only=True).heads
    later = replace(newest, number=newest.number + 1, epoch=newest.epoch + 1_000, writer="another server")
    assert shelf.store.put_head(later)
    shelf.write()
    before = list(shelf.shop.put)
    shelf.run()  # its upload is void
    assert shelf.store.numbers()[-1] == later.number
    void = [name for name in shelf.shop.put[len(before) :] if name.startswith("heads")]
    shelf.run()
    assert [name for name in shelf.shop.put[len(before) :] if name.startswith("heads")] == void, "it claims no more"
    assert shelf.upload.figures.behind_seconds(shelf.clock.monotonic() + 5) >= 5
    shelf.assert_whole()


@pytest.mark.parametrize("what", ["head", "manifest"])
def test_a_start_takes_the_checkpoint_before_a_damaged_one(what: str, shelf: Shelf, tmp_path: Path) -> None:
    first = shelf.upload.figures.lsn
    shelf.write()
    shelf.run()
    (newest,) = shelf.store.heads(shelf.journal.timeline(), newest_only=True).heads
    assert newest.checkpoint is not None
    flip(shelf, checkpoint_store.head_name(newest.number) if what == "head" else newest.checkpoint.manifest)
    new_copy(shelf, tmp_path / "new", refuse).run()
    assert_complete(tmp_path / "new")
    held = checkpoint.newest(RealDisk(), tmp_path / "new")
    assert held is not None
    assert held.lsn == first


def test_a_damaged_part_is_copied_from_a_server(shelf: Shelf, tmp_path: Path) -> None:
    flip(shelf, next(name for name in shelf.store.objects() if name.startswith("files/")))
    copy = new_copy(shelf, tmp_path / "new")
    copy.run()
    assert_complete(tmp_path / "new")
    assert copy.progress.peer == shelf.replicas.address(0)


def test_a_copy_from_the_store_goes_on_where_it_was(shelf: Shelf, tmp_path: Path) -> None:
    number = shelf.shop.requests + 20

    def break_off(at: int, _: bool) -> None:
        if at >= number:
            raise StoreError("the store is away")

    def mend(_: str, __: object) -> Iterator[Any]:
        shelf.shop.trouble = lambda *_: None
        yield from ()
        raise Unavailable("no server is asked")

    shelf.shop.trouble = break_off
    copy = new_copy(shelf, tmp_path / "new", mend)
    copy.run()
    assert_complete(tmp_path / "new")
    assert 0 < copy.progress.received < size_of(tmp_path / "new"), "whole files are not fetched again"


def test_a_store_that_is_away_is_told_and_the_journal_waits(shelf: Shelf) -> None:
    def refuse_all(_: int, __: bool) -> None:
        raise StoreError("the store is away")

    first = shelf.replicas.first
    shelf.shop.trouble = refuse_all
    for _ in range(3):
        shelf.write()
        with pytest.raises(Unavailable) as refusal:
            shelf.run()
        shelf.upload._failed(refusal.value)
    assert shelf.upload.figures.problem == "the store is away"
    assert shelf.upload.figures.behind_seconds(shelf.clock.monotonic()) >= 2 * checkpoint_upload.PAUSE_SECONDS
    assert shelf.replicas.first == first, "the journal keeps what the store lacks"
    shelf.shop.trouble = lambda *_: None
    shelf.run()
    assert shelf.upload.figures.problem == ""
    assert shelf.upload.figures.behind_seconds(shelf.clock.monotonic()) == 0
    shelf.assert_whole()


def test_a_server_that_ends_asks_a_store_that_is_away_once(shelf: Shelf) -> None:
    def refuse_all(_: int, __: bool) -> None:
        raise StoreError("the store is away")

    shelf.upload.close()
    before, shelf.shop.trouble = shelf.shop.requests, refuse_all
    with pytest.raises(Unavailable):
        shelf.store.numbers()
    assert shelf.shop.requests == before + 1
