"""A client that lives through a restore: nothing of the history that is over is taken for the new one, and nobody is
stuck."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.client.named_writes import NamedWrites
from lakestore.client.table import Table
from lakestore.client.writer import change
from lakestore.errors import Fenced, Invalid, OtherTimeline, PositionExpired
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.errors import pack_error, unpack_error
from tests.support.switch import Switch, World, ends

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])
LOG = pa.schema([("n", pa.int64())])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        found.served.lake.create_table("a.t", KEYED, primary_key=["id"], buckets=1)
        found.served.lake.create_table("a.log", LOG, buckets=1)
        yield found


def numbers(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("n").to_pylist())


def rows(*given: int) -> pa.Table:
    return pa.table({"n": list(given)}, schema=LOG)


def switch_of(lake: Lake) -> Switch:
    transport: Any = lake.transport
    wire: Switch = transport.wire
    return wire


def test_writes_look_ups_and_writers_with_nothing_in_doubt_go_on_by_themselves(world: World) -> None:
    lake = world.client()
    table, log = lake.table("a.t"), lake.table("a.log")
    writer = log.writer()
    table.upsert([{"id": 1, "v": "kept"}])
    writer.append(rows(1))
    writer.flush()
    backup = world.backup()
    for id_ in (2, 3):
        table.upsert([{"id": id_, "v": "lost"}])
    writer.append(rows(2))
    writer.flush()
    lost = lake.last_token
    world.restore(backup)
    assert table.lookup([{"id": 1}, {"id": 2}]).to_pylist() == [{"id": 1, "v": "kept"}]
    table.upsert([{"id": 4, "v": "new"}])
    with lake.commit() as commit:
        commit.append("a.log", rows(3))
    writer.append(rows(4))
    writer.flush()
    assert (numbers(log), table.scan().count()) == ([1, 3, 4], 2)
    for call in (
        lambda: table.lookup([{"id": 1}], at=lost),
        lambda: table.scan(at=lost).to_arrow(),
        lambda: list(table.changes(lost, until="now")),
    ):
        assert type(ends(call)) is OtherTimeline, "a position that the user names is the user's to give up"
    writer.close()


def test_what_is_in_doubt_reaches_the_user_once(world: World) -> None:
    lake = world.client()
    log = lake.table("a.log")
    log.append(rows(1))
    backup = world.backup()
    switch_of(lake).lost["Commit"] = lambda: world.restore(backup)
    error = ends(lambda: log.append(rows(2)))
    assert isinstance(error, OtherTimeline)
    assert error.applied == "unknown"
    log.append(rows(3))
    assert numbers(log) == [1, 3]


def test_a_writer_with_rows_in_doubt_says_so(world: World) -> None:
    lake = world.client()
    log = lake.table("a.log")
    log.append(rows(1))
    backup = world.backup()
    switch_of(lake).lost["Write"] = lambda: world.restore(backup)
    writer = log.writer()
    writer.append(rows(2))
    error = ends(writer.flush)
    assert type(error) is OtherTimeline
    assert error.applied == "unknown"
    assert [batch.column("n").to_pylist() for batch in writer.unconfirmed] == [[2]]
    with log.writer() as again:
        again.append(rows(3))
    assert numbers(log) == [1, 3]


def test_a_named_producer_is_fenced_by_a_restore_and_its_epoch_is_given_to_nobody_else(world: World) -> None:
    old = world.client().table("a.log")
    backup = world.backup()
    writer = old.writer(producer="etl")
    writer.append(rows(1), progress="1")
    writer.flush()
    world.restore(backup)
    new = world.client().table("a.log").writer(producer="etl")
    assert new.progress == ""
    new.append(rows(2), progress="2")
    new.flush()
    writer.append(rows(3))
    assert type(ends(writer.flush)) is OtherTimeline
    new.append(rows(4))
    new.close()
    assert numbers(old) == [2, 4]
    assert old.writer(producer="etl").progress == "2"


def test_commits_of_a_named_producer_carry_its_progress(world: World) -> None:
    lake = world.client()
    with lake.producer("etl") as first:
        with first.commit(progress="file=1") as commit:
            commit.append("a.log", rows(1))
            commit.upsert("a.t", [{"id": 1, "v": "a"}])
        backup = world.backup()
        with first.commit(progress="file=2") as commit:
            commit.append("a.log", rows(2))
        assert first.progress == "file=2"
        with pytest.raises(Invalid, match="has none"), first.commit(progress="file=3"):
            pass
        world.restart()
        second = lake.producer("etl")
        assert second.progress == "file=2"
        assert type(ends(lambda: _append(first, 3))) is Fenced
    assert isinstance(ends(lambda: _append(first, 3)), Invalid), "it is closed"
    switch_of(lake).lost["Commit"] = lambda: world.restore(backup)
    error = ends(lambda: _append(second, 4))
    assert type(error) is OtherTimeline
    assert error.applied == "unknown"
    assert isinstance(ends(lambda: _append(second, 5)), Invalid)
    third = lake.producer("etl")
    assert third.progress == "file=1", "as of the backup"
    _append(third, 6)
    assert numbers(lake.table("a.log")) == [1, 6]


def _append(producer: NamedWrites, value: int) -> None:
    with producer.commit(progress=f"file={value}") as commit:
        commit.append("a.log", rows(value))


def test_an_older_client_is_fenced_by_its_epoch_alone(world: World) -> None:
    """It does not say which history it means; the restored server opens the producer at the same LSN again."""
    transport = world.served.lake.transport
    backup = world.backup()
    first = transport.open_producer(pb.OpenProducerRequest(producer="etl"))
    world.restore(backup)
    transport = world.served.lake.transport
    second = transport.open_producer(pb.OpenProducerRequest(producer="etl"))
    assert second.epoch > first.epoch
    error = ends(lambda: transport.commit(_commit("etl", first.epoch, 1)))
    assert type(error) is Fenced


def test_an_older_client_whose_commits_are_gone_goes_on_with_another_producer(world: World) -> None:
    transport = world.served.lake.transport
    name = "a" * 32
    transport.commit(_commit(name, 0, 1))
    backup = world.backup()
    transport.commit(_commit(name, 0, 2))
    world.restore(backup)
    error = ends(lambda: world.served.lake.transport.commit(_commit(name, 0, 3)))
    assert error is not None
    assert error.applied == "unknown", "an older client gives a producer up only then"


def _commit(producer: str, epoch: int, sequence: int) -> pb.CommitRequest:
    (batch,) = rows(sequence).to_batches()
    made = change("a.log", pb.APPEND, [batch])
    return pb.CommitRequest(changes=[made], producer=producer, epoch=epoch, sequence=sequence)


@pytest.mark.parametrize("shared", [False, True])
def test_a_subscription_over_a_restore_passes_nothing_over(world: World, shared: bool) -> None:
    lake = world.client()
    log = lake.table("a.log")
    asked: dict[str, Any] = {"shared": True, "member": "m"} if shared else {}
    stream = log.changes(subscription="sub", **asked)
    log.append(rows(*range(5)))
    next(stream).ack()
    backup = world.backup()
    log.append(rows(*range(5, 20)))
    behind = next(stream)
    behind.ack()
    world.restore(backup)
    log.append(rows(*range(100, 125)))
    assert type(ends(lambda: next(stream))) is OtherTimeline
    assert type(ends(behind.ack)) is OtherTimeline
    (held,) = lake.subscriptions()
    assert held.behind == 25
    again = log.changes(subscription="sub", until="now", **asked)
    got = []
    for batch in again:
        got += batch.to_arrow().column("n").to_pylist()
        batch.ack()
    assert sorted(got) == list(range(100, 125))


def test_an_older_client_is_told_a_kind_that_it_knows() -> None:
    packed: Any = dict(pack_error(OtherTimeline("gone", applied="unknown")))
    told = unpack_error(packed, "OUT_OF_RANGE", "")
    assert (type(told), told.applied) == (OtherTimeline, "unknown")
    packed.pop("lakestore-kind")
    assert type(unpack_error(packed, "OUT_OF_RANGE", "")) is PositionExpired
