"""Streams of one table: they sleep until it changes, and what they send is made once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes import stream as feed
from lakestore_server.changes.batch_cache import BatchCache, EncodedBatch, StreamRun
from lakestore_server.commit.durable import Wakeups
from tests.support.served import SCHEMA, Served

NAME, OTHER = "t.log", "t.other"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, limits=Limits(feed_cache_bytes=4_000, changes_batch_rows=10))
    for name in (NAME, OTHER):
        running.lake.create_table(name, SCHEMA, buckets=2)
    yield running
    running.close()


def run_of(upto: int, size: int = 100) -> StreamRun:
    return StreamRun(upto, (EncodedBatch.encode(pb.ChangeBatch(rows=bytes(size))),))


def count(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[int]) -> None:
    """Note every call of one of the feed's functions."""
    real = getattr(feed, name)

    def counted(*given: object) -> object:
        calls.append(1)
        return real(*given)

    monkeypatch.setattr(feed, name, counted)


class Listener:
    """Somebody who listens until told otherwise, as a gRPC context does."""

    def __init__(self) -> None:
        self.active = True
        self.callbacks: list[threading.Event] = []

    def is_active(self) -> bool:
        return self.active

    def add_callback(self, callback: object) -> bool:
        self.callbacks.append(callback)  # type: ignore[arg-type]
        return True


def test_a_stream_sleeps_through_commits_to_other_tables(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.append(NAME, 1)
    looks: list[int] = []
    count(monkeypatch, "_changed", looks)
    got: list[int] = []
    follow = served.server.service.verb("Changes")
    stream = follow(pb.ChangesRequest(tables=[NAME]), Listener())
    arrived = threading.Event()

    def consume() -> None:
        with suppress(Unavailable):  # how a server that ends tells it
            for prepared in stream:
                got.append(len(prepared.data))
                arrived.set()

    reader = threading.Thread(target=consume, daemon=True)
    reader.start()
    assert arrived.wait(60)
    arrived.clear()
    for i in range(50):
        served.append(OTHER, i)
    assert len(looks) <= 3
    served.append(NAME, 2)
    assert arrived.wait(60)
    assert len(got) == 2
    served.server.close()
    reader.join(10)
    assert not reader.is_alive(), "a server that ends ends its streams"


def test_bells_wake_who_listens_and_nobody_else() -> None:
    wakeups = Wakeups()
    with wakeups.heard(["a", "b"]) as first, wakeups.heard(["b"]) as second:
        assert wakeups.listeners == 2
        wakeups.ring(["a", "c"])
        assert first.is_set()
        assert not second.is_set()
        wakeups.ring_all()
        assert second.is_set()
    assert not wakeups.listeners


def test_streams_of_one_shape_are_encoded_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(8):
        served.append(NAME, *range(i * 20, i * 20 + 20))
    made: list[int] = []
    count(monkeypatch, "run", made)
    streams = [served.lake.table(NAME).changes() for _ in range(5)]
    alone = [next(stream).token for stream in streams]
    assert len(set(alone)) == 1
    first = len(made)
    tokens = [[next(stream).token for stream in streams] for _ in range(4)]
    assert len(made) - first == 4
    assert all(len(set(step)) == 1 for step in tokens)
    for stream in streams:
        stream.close()


def test_streams_at_different_places_all_get_everything(served: Served) -> None:
    """Leaders, laggards, an `until` inside a shared run: whatever is shared, nobody loses or repeats a row."""
    tokens = [served.append(NAME, i) for i in range(30)]
    fast, slow = served.lake.table(NAME).changes(), served.lake.table(NAME).changes()
    found: dict[str, list[int]] = {"fast": [], "slow": []}
    while len(found["fast"]) < 30:
        found["fast"] += next(fast).to_arrow()["v"].to_pylist()
        if len(found["fast"]) % 3 == 0:
            found["slow"] += next(slow).to_arrow()["v"].to_pylist()
    served.append(NAME, 30)
    short = [row for batch in served.lake.table(NAME).changes(until=tokens[4]) for row in batch.to_pylist()]
    assert sorted(row["v"] for row in short) == [0, 1, 2, 3, 4]
    while len(found["slow"]) < 31:
        found["slow"] += next(slow).to_arrow()["v"].to_pylist()
    found["fast"] += next(fast).to_arrow()["v"].to_pylist()
    assert found["fast"] == found["slow"] == list(range(31))
    fast.close()
    slow.close()
    cache = served.verbs("Changes")._cache
    assert not cache._entries
    assert not cache._bytes


def test_the_cache_is_bounded_and_lonely_streams_leave_nothing() -> None:
    cache = BatchCache(10_000)
    with cache.followed("k"):
        assert cache.shared_run("k", 0, 9, lambda: run_of(1)).upto == 1
        assert not cache._entries
        with cache.followed("k"):
            for lsn in range(100):
                cache.shared_run("k", lsn, 1_000, lambda lsn=lsn: run_of(lsn + 1))  # type: ignore[misc]
                assert cache._bytes <= 10_000
            assert 2 < len(cache._entries) < 10
            assert cache.shared_run("k", 99, 99, lambda: run_of(99)).upto == 99, "a run beyond the limit is not taken"
            huge = cache.shared_run("k", 500, 1_000, lambda: run_of(501, 100_000))
            assert huge.upto == 501
            assert cache._bytes <= 10_000
    assert not cache._entries
    assert not cache._bytes


def test_a_run_that_cannot_be_made_fails_for_its_maker_alone() -> None:
    cache = BatchCache(10_000)

    def fail() -> StreamRun:
        raise LakestoreError("no")

    with cache.followed("k"), cache.followed("k"):
        with pytest.raises(LakestoreError):
            cache.shared_run("k", 0, 9, fail)
        assert cache.shared_run("k", 0, 9, lambda: run_of(3)).upto == 3
