"""A stream that waits can be waited for, given up and ended: from any thread, over gRPC and in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore import aio
from lakestore.errors import Invalid, Stopped, StreamEnded, Unavailable
from tests.support.seeds import serial
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64())])
PROMPT = 60.0
"""Seconds in which a machine under load still wakes a thread."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("stopping"), ports=True) as served:
        served.lake.create_table("t.a", SCHEMA)
        served.lake.create_table("t.b", SCHEMA)
        served.lake.table("t.a").append([{"id": 1}])
        yield served


@pytest.fixture(params=["here", "grpc"])
def lake(both: Served, request: pytest.FixtureRequest) -> Iterator[ls.Lake]:
    if request.param == "here":
        yield both.lake
        return
    with ls.connect(both.server.about["grpc"]) as connected:
        yield connected


def fresh() -> str:
    """A name of a subscription that nobody has read."""
    return serial("reader")


KINDS: dict[str, Callable[[ls.Lake], ls.ChangeStream]] = {
    "table": lambda lake: lake.table("t.a").changes(),
    "several tables": lambda lake: lake.changes(["t.a", "t.b"]),
    "snapshot": lambda lake: lake.table("t.a").changes("snapshot"),
    "alone": lambda lake: lake.table("t.a").changes(subscription=fresh()),
    "shared": lambda lake: lake.table("t.a").changes(subscription=fresh(), shared=True),
}


def _follow(stream: ls.ChangeStream, box: dict[str, Any]) -> threading.Thread:
    def run() -> None:
        try:
            for _ in stream:
                pass
            box["end"] = "ended"
        except BaseException as error:
            box["end"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", KINDS)
def test_close_ends_a_waiting_reader_for_good_and_frees_what_it_held(both: Served, lake: ls.Lake, kind: str) -> None:
    wakeups, leases = both.engine.wakeups, both.server.sources.leases
    stream, box = KINDS[kind](lake), dict[str, Any]()
    reader = _follow(stream, box)
    until(lambda: wakeups.listeners, "the stream")
    until(lambda: stream.token, "its first batch")
    stream.close()
    reader.join(PROMPT)
    assert box["end"] == "ended"
    stream.close()
    assert list(stream) == []
    with pytest.raises(StreamEnded, match="the stream is closed"):
        stream.next(timeout=0.1)
    until(lambda: not wakeups.listeners, "the end of the stream at the server")
    until(lambda: not any(lease.holders for lease in leases._leases.values()), "the lease")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_with_an_end_gives_none_and_loses_nothing(both: Served, lake: ls.Lake, kind: str) -> None:
    stream = KINDS[kind](lake)
    seen: list[int] = []

    def take(timeout: float | None) -> bool:
        batch = stream.next(timeout)
        seen.extend(batch.table["id"].to_pylist() if batch is not None else [])
        return batch is not None

    while len(seen) < both.lake.table("t.a").scan().count():
        take(PROMPT)
    while take(0.3):
        pass
    before = len(seen)
    assert stream.next(timeout=0.05) is None
    with lake.within(0.05), pytest.raises(Unavailable, match=r"no change came|deadline passed") as refused:
        next(stream)
    assert refused.value.applied == "no"
    number = both.engine.view.lsn * 10
    both.lake.table("t.a").append([{"id": number}])
    assert take(None)
    both.lake.table("t.a").append([{"id": number + 1}])
    assert take(PROMPT)
    assert seen[before:] == [number, number + 1]
    waiting = threading.Timer(0.05, stream.close)
    waiting.start()
    with pytest.raises(StreamEnded):
        stream.next(timeout=60)
    waiting.join()
    until(lambda: not both.engine.wakeups.listeners, "the end of the stream at the server")


def test_a_stream_with_an_end_says_that_it_is_there(lake: ls.Lake) -> None:
    stream = lake.table("t.a").changes(until="now")
    while True:
        try:
            assert stream.next(timeout=PROMPT)
        except StreamEnded as error:
            assert "stream has ended" in error.message
            break
    assert list(stream) == []


def test_an_error_is_said_again_and_is_no_end(lake: ls.Lake) -> None:
    stream = lake.changes(["t.none"])
    for _ in range(2):
        with pytest.raises(ls.NotFound):
            next(stream)


def test_a_lake_that_is_closed_ends_its_streams_by_name(both: Served) -> None:
    lake = ls.connect(both.server.about["grpc"])
    stream, box = lake.table("t.b").changes(), dict[str, Any]()
    reader = _follow(stream, box)
    until(lambda: both.engine.wakeups.listeners, "the stream")
    lake.close()
    reader.join(PROMPT)
    assert isinstance(box["end"], Stopped)
    until(lambda: not both.engine.wakeups.listeners, "the end of the stream at the server")


def test_a_closed_lake_in_this_process_ends_streams_that_wait(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table, box = served.lake.create_table("t.a", SCHEMA), dict[str, Any]()
        reader = _follow(table.changes(), box)
        until(lambda: served.engine.wakeups.listeners, "the stream")
        served.lake.close()
        reader.join(PROMPT)
        assert isinstance(box["end"], Stopped)


def test_several_threads_take_turns_at_one_stream(both: Served, lake: ls.Lake) -> None:
    table = both.lake.create_table("t.turns" + ("g" if lake is not both.lake else ""), SCHEMA)
    stream, seen = lake.table(table.name).changes(), list[int]()

    def take() -> None:
        for batch in stream:
            seen.extend(batch.table["id"].to_pylist())

    threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(20):
        table.append([{"id": i}])
    until(lambda: len(seen) == 20, "all rows")
    stream.close()
    for thread in threads:
        thread.join(PROMPT)
        assert not thread.is_alive()
    assert sorted(seen) == list(range(20))


def test_batches_of_a_closed_stream_are_acknowledged(lake: ls.Lake) -> None:
    name = fresh()
    stream = lake.table("t.a").changes(subscription=name)
    batch = next(stream)
    stream.close()
    batch.ack()
    assert {each.name: each.token for each in lake.subscriptions()}[name] == batch.token


def test_asyncio_waits_for_a_time_too(both: Served) -> None:
    async def story() -> None:
        async with aio.connect(both.server.about["grpc"]) as lake:
            async with (await lake.table("t.b")).changes() as stream:
                assert await stream.next(timeout=0.05) is None
                both.lake.table("t.b").append([{"id": 5}])
                found = await stream.next(timeout=PROMPT)
                assert found is not None
                assert found.table["id"].to_pylist() == [5]
                await stream.aclose()
                with pytest.raises(Invalid, match="no more batches"):
                    await stream.next(timeout=1)

    asyncio.run(story())
    until(lambda: not both.engine.wakeups.listeners, "the end of the stream at the server")
