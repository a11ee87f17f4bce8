"""Acknowledged commits survive kill -9 and power cuts: each row is there once, in dense offsets."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.local import local_transport
from lakestore.client.writer import change as wire_change
from lakestore.errors import LakestoreError, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.model.model import Change
from tests.model.test_every_step import Story
from tests.support.process import ServerProcess
from tests.support.seeds import seeded
from tests.support.waiting import until

FEW, MANY = 3, 20
PRODUCERS = 3
KEYS = 400
SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64())])
LOG = pa.schema([("producer", pa.int64()), ("n", pa.int64())])


class Load:
    """A producer with keys of its own: each commit upserts some, deletes some and logs one row, all or nothing."""

    def __init__(self, number: int, address: str, chance: random.Random | None = None) -> None:
        self.number = number
        self.lake = ls.connect(address)
        self.acknowledged = 0
        self.expected: dict[int, int] = {}
        self.stop = threading.Event()
        self.error: LakestoreError | None = None
        self._chance = chance or seeded(number)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                self._commit_once(self.acknowledged + 1)
        except LakestoreError as error:
            self.error = error

    def _commit_once(self, n: int) -> None:
        """The client itself sends again until it has an answer."""
        keys = [key * PRODUCERS + self.number for key in self._chance.sample(range(KEYS), 40)]
        written, deleted = keys[:30], keys[30:]
        changes = (
            ("t.state", pb.UPSERT, pa.table({"id": written, "version": [n] * len(written)}, schema=SCHEMA)),
            ("t.state", pb.DELETE, pa.table({"id": deleted})),
            ("t.log", pb.APPEND, pa.table({"producer": [self.number], "n": [n]}, schema=LOG)),
        )
        self.lake._connection.producers.commit(
            [wire_change(name, kind, rows.to_batches()) for name, kind, rows in changes]
        )
        self.expected.update(dict.fromkeys(written, n))
        for key in deleted:
            self.expected.pop(key, None)
        self.acknowledged = n

    def wait_beyond(self, done: int) -> None:
        """Until one more commit than these is acknowledged."""
        until(lambda: self.acknowledged > done or self.error, f"producer {self.number} to get on", 60)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Finish the commit that is under way."""
        self.stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def fold(lake: ls.Lake, name: str) -> tuple[dict[int, tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(rows by key, all records) of a changelog; offsets are dense per bucket."""
    offsets: dict[int, list[int]] = defaultdict(list)
    state: dict[int, tuple[Any, ...]] = {}
    records: list[tuple[Any, ...]] = []
    for batch in lake.table(name).changes("earliest", until="now"):
        for change, bucket, offset, _, *row in zip(*(c.to_pylist() for c in batch.to_arrow().columns), strict=True):
            offsets[bucket].append(offset)
            records.append((change, *row))
            if change == "-D":
                state.pop(row[0])
            else:
                state[row[0]] = tuple(row)
    for found in offsets.values():
        assert found == list(range(len(found)))
    return state, records


def check(address: str, loads: list[Load], acknowledged: list[int]) -> None:
    """While producers go on: the log holds every acknowledged commit once, without a gap, and all parts agree."""
    with ls.connect(address) as lake:
        cut = when_connected(lake)
        log = Counter(tuple(row.values()) for row in cut.scan("t.log").to_arrow().to_pylist())
        assert set(log.values()) <= {1}, "a commit was applied twice"
        for load, done in zip(loads, acknowledged, strict=True):
            numbers = sorted(n for producer, n in log if producer == load.number)
            assert numbers == list(range(1, len(numbers) + 1)), "a commit is missing"
            assert len(numbers) >= done, "an acknowledged commit is lost"


def when_connected(lake: ls.Lake) -> ls.Snapshot:
    """A cut; gRPC shares connections of one process, and may still wait before it connects again."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return lake.snapshot()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def check_quiet(address: str, loads: list[Load]) -> None:
    """With producers at rest: fold of changes == look-ups == scan == what the producers sent."""
    expected = {key: (key, n) for load in loads for key, n in load.expected.items()}
    with ls.connect(address) as lake:
        when_connected(lake)
        folded, _ = fold(lake, "t.state")
        assert folded == expected
        scanned = lake.table("t.state").scan().to_arrow().to_pylist()
        assert sorted(tuple(row.values()) for row in scanned) == sorted(expected.values())
        keys = list(range(KEYS * PRODUCERS))
        found = lake.table("t.state").lookup(pa.table({"id": keys})).to_pylist()
        assert [tuple(row.values()) for row in found] == [expected[key] for key in keys if key in expected]
        _, records = fold(lake, "t.log")
        assert len(records) == sum(load.acknowledged for load in loads)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_kills_under_load(tmp_path: Path, kills: int) -> None:
    chance = seeded(11)
    server = ServerProcess(tmp_path / "data")
    port, http_port = server.port, server.http_port
    with ls.connect(server.address) as lake:
        lake.create_table("t.state", SCHEMA, primary_key=["id"], buckets=3)
        lake.create_table("t.log", LOG, buckets=2)
    loads = [Load(number, server.address, random.Random(chance.random())) for number in range(PRODUCERS)]
    killed_at = [0] * PRODUCERS
    for kill in range(kills):
        for load, done in zip(loads, killed_at, strict=True):
            load.wait_beyond(done)
        time.sleep(chance.uniform(0, 0.3))  # somewhere inside the next commits
        acknowledged = [load.acknowledged for load in loads]
        server.kill()
        killed_at = [load.acknowledged for load in loads]
        server = ServerProcess(tmp_path / "data", port=port, http_port=http_port)
        check(server.address, loads, acknowledged)
        if kill % 5 == 4:
            assert server.stop() == 0, "an orderly end writes a checkpoint"
            server = ServerProcess(tmp_path / "data", port=port, http_port=http_port)
    for load in loads:
        load.end()
    server.kill()
    server = ServerProcess(tmp_path / "data", port=port, http_port=http_port)
    check_quiet(server.address, loads)
    assert min(load.acknowledged for load in loads) >= kills, "each got on between any two kills"
    for load in loads:
        load.lake.close()
    assert server.stop() == 0


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_power_may_go_after_any_acknowledgement(tmp_path: Path, seed: int | None) -> None:
    """On the simulated disk: what was not synced is gone (None), or comes back in parts. The models cut power at every
    step of every writer; here it goes after answers alone."""
    story = Story(tmp_path)
    for number in range(3):
        story.write((Change("t.log", "append", ((number, "row"),)), Change("t.one", "upsert", ((number, number),))))
        story.harness.crash(seed)
    story.check()
    story.harness.stop()


def test_every_byte_is_synced_before_it_is_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real disk: the calls of the operating system, file by file. A commit relies on the journal, a checkpoint
    on everything that it names."""
    synced: dict[int, int] = {}

    def watched(sync: Callable[[int], None]) -> Callable[[int], None]:
        def watch(fd: int) -> None:
            found = os.fstat(fd)
            sync(fd)
            synced[found.st_ino] = found.st_size

        return watch

    def unsynced(pattern: str) -> list[str]:
        found = {file: file.stat() for file in folder.glob(pattern) if file.is_file()}
        assert found, f"no file is called {pattern}"
        return [file.name for file, about in found.items() if synced.get(about.st_ino) != about.st_size]

    folder = tmp_path / "lake"
    monkeypatch.setattr(os, "fdatasync", watched(os.fdatasync))
    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    server = Server(Settings(folder))
    with closing(server), ls.Lake(local_transport(server.service), str(folder)) as lake:
        table = lake.create_table("t.log", LOG)
        for number in range(3):
            synced.pop(folder.stat().st_ino, None)
            table.append([{"producer": 1, "n": number}])
            assert unsynced("journal-*") == []
            if number == 1:
                server.upkeep.checkpoint()
                assert folder.stat().st_ino in synced, "new names are in the folder for good"
                assert unsynced("checkpoint-*") == unsynced("segments/**/*") == []
