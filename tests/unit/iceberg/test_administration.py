"""Rename, drop with a grace, undrop, purge, databases: over log, index, lake, subscriptions and catalog at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Conflict, Fenced, Invalid, NotFound
from lakestore.limits import Limits
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.union.verify import verify
from lakestore_server.catalog.contents import Name
from lakestore_server.read import exact_deletes
from lakestore_server.read.exact_deletes import FoundRows
from tests.support.served import DAY, Served
from tests.support.waiting import until

KEYED = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
HOUR = 3_600


@pytest.fixture(name="served")
def one_server(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", limits=Limits(drop_grace_seconds=HOUR)) as served:
        yield served


def made(served: Served, name: str = "a.t", rows: int = 5) -> None:
    table = served.lake.create_table(name, KEYED, primary_key=["k"], buckets=2)
    table.upsert([{"k": i, "v": "x"} for i in range(rows)])


def test_a_rename_moves_the_name_and_nothing_else(served: Served) -> None:
    made(served)
    lake, old = served.lake, served.lake.table("a.t")
    for batch in old.changes(subscription="s", until="now"):
        batch.ack()
    before = served.state("a.t")
    pointer = served.engine.view.pointers["a", "t"]
    stream = old.changes("latest")
    assert stream.next(timeout=0.05) is None
    until(lambda: served.engine.wakeups.listeners, "the stream at the server")
    with Cut(lake.transport, ["a.t"], lease_seconds=60), lake.snapshot() as whole:
        table = lake.table("a.t").rename("b.u")
        assert table.name == "b.u"
        assert whole.scan("b.u").count() == 5
    view = served.engine.view
    assert view.pointers["b", "u"] == pointer, "the lake stays where it is"
    assert ("a", "t") not in view.pointers
    assert (served.state("b.u").heads(), served.state("b.u").table.uuid) == (before.heads(), before.table.uuid)
    table.upsert([{"k": 9, "v": "y"}])
    seen = stream.next(timeout=60)
    assert seen is not None
    assert (seen.name, seen.to_pylist()[0]["k"]) == ("b.u", 9), "an open stream goes on by the table's uuid"
    assert [row["k"] for b in table.changes(subscription="s", until="now") for row in b.to_pylist()] == [9]
    for ask in (lambda: old.upsert([{"k": 1}]), lambda: old.lookup([{"k": 1}]), lambda: list(old.changes(until="now"))):
        with pytest.raises(NotFound, match=r"'a\.t' was renamed: open it by its present name"):
            ask()
    made(served, rows=1)
    assert lake.table("a.t").scan().count() == 1, "the old name is free"
    assert table.scan().count() == 6
    served.restart()
    assert served.lake.table("b.u").lookup([{"k": 9}]).num_rows == 1
    assert verify(served.lake.transport, "b.u").same


def test_a_rename_that_cannot_be_is_refused(served: Served) -> None:
    made(served)
    made(served, "a.other")
    table = served.lake.table("a.t")
    with pytest.raises(Conflict, match=r"a\.other exists already"):
        table.rename("a.other")
    with pytest.raises(Invalid, match=r"is not 'database\.table'"):
        table.rename("a.b.c")
    with pytest.raises(Invalid, match="other"):
        table.rename("other")
    served.lake.registers(["complete/a.t/feed"])
    with pytest.raises(Conflict, match=r"complete/a\.t/feed.*drop it first"):
        table.rename("a.free")
    assert table.rename("a.t").name == "a.t"


def test_engines_rename_through_the_catalog(served: Served) -> None:
    made(served)
    served.server.catalog.rename_table(Name("a", "t"), Name("a", "engine"), "key-1")
    served.server.catalog.rename_table(Name("a", "t"), Name("a", "engine"), "key-1")
    assert served.lake.table("a.engine").scan().count() == 5


def test_a_dropped_table_is_had_back_as_it_was(served: Served) -> None:
    made(served)
    lake, table = served.lake, served.lake.table("a.t")
    for batch in table.changes(subscription="s", until="now"):
        batch.ack()
    heads, location = served.state("a.t").heads(), served.engine.view.pointers["a", "t"].location
    with Cut(lake.transport, ["a.t"], lease_seconds=60) as cut:
        lake.drop_table("a.t")
        hot = arrow.hot(cut, cut.plan.scan("a.t"), ["k"])
        assert sorted(k for batch in hot for k in batch.column("k").to_pylist()) == [0, 1, 2, 3, 4], "a read goes on"
        assert [each.name for each in lake.tables()] == []
        with pytest.raises(NotFound):
            table.upsert([{"k": 1, "v": "z"}])
    served.checkpoint()
    served.clock.advance(HOUR / 2)
    served.server.dropped.run_once()
    served.restart()
    lake = served.lake
    (kept,) = lake.dropped_tables()
    assert (kept.name, kept.rows) == ("a.t", 5)
    assert kept.bytes > 0
    made(served, rows=1)
    with pytest.raises(Conflict, match=r"a new table has the name a\.t: .*--as NAME"):
        lake.undrop("a.t")
    back = lake.undrop("a.t", as_name="b.back")
    assert served.state("b.back").heads() == heads
    assert served.engine.view.pointers["b", "back"].location == location
    assert back.lookup([{"k": 3}]).to_pylist() == [{"k": 3, "v": "x"}]
    back.upsert([{"k": 7, "v": "new"}])
    assert [row["k"] for b in back.changes(subscription="s", until="now") for row in b.to_pylist()] == [7]
    assert lake.dropped_tables() == []
    with pytest.raises(NotFound, match="no dropped table"):
        lake.undrop("a.t")
    served.server.upkeep.scrubber.run_once()
    assert not served.server.upkeep.scrubber.damage
    assert verify(lake.transport, "b.back").same


def test_several_dropped_tables_of_a_name_are_told_apart_by_uuid(served: Served) -> None:
    uuids = []
    for rows in (1, 2):
        made(served, rows=rows)
        uuids.append(served.lake.table("a.t").definition.uuid)
        served.lake.drop_table("a.t")
    with pytest.raises(Conflict, match=r"2 dropped tables had the name a\.t: say which one to undrop with --id"):
        served.lake.undrop("a.t")
    assert served.lake.undrop("a.t", uuid=uuids[0]).scan().count() == 1
    served.lake.drop_table("a.t", uuid=uuids[1], purge=True)
    served.server.dropped.run_once()
    assert served.lake.dropped_tables() == []


def folder_of(served: Served, uuid: str) -> Path:
    return served.engine.folder / "segments" / uuid


def test_what_is_left_goes_when_its_time_is_over_and_by_a_clock_that_is_believed(tmp_path: Path) -> None:
    limits = Limits(drop_grace_seconds=HOUR, clock_confirm_seconds=300)
    with Served(tmp_path / "data", limits=limits, believes_clock=False) as served:
        served.clock.advance(400)
        made(served)
        table = served.lake.table("a.t").definition
        lake = Path(served.engine.view.pointers["a", "t"].location.removeprefix("file://")).parent.parent
        served.checkpoint()
        assert lake.is_dir()
        served.lake.drop_table("a.t")
        served.clock.jump(2 * HOUR)
        served.server.dropped.run_once()
        assert served.lake.dropped_tables(), "a clock that jumps ends nobody's time"
        served.clock.advance(400)
        served.engine.time.read()
        served.clock.advance(1)
        served.server.dropped.run_once()
        assert served.lake.dropped_tables() == []
        assert not lake.exists()
        served.checkpoint()
        assert not any(table.uuid in each.name for each in (served.engine.folder / "segments").iterdir())
        assert not served.engine.view.pointers


def test_a_grace_of_zero_drops_at_once_and_a_read_of_the_lake_is_waited_for(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(drop_grace_seconds=0)) as served:
        made(served)
        served.tier("a.t")
        with Cut(served.lake.transport, ["a.t"], lease_seconds=60):
            served.lake.drop_table("a.t")
            served.server.dropped.run_once()
            assert served.lake.dropped_tables()[0].until is None
            with pytest.raises(Conflict, match="its files are being removed"):
                served.lake.undrop("a.t")
        served.server.dropped.run_once()
        assert served.lake.dropped_tables() == []


def test_the_purge_of_a_dropped_table_waits_for_reads_of_its_log(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(drop_grace_seconds=0)) as served:
        made(served)
        with Cut(served.lake.transport, ["a.t"], lease_seconds=60) as cut:
            served.lake.drop_table("a.t")
            served.server.dropped.run_once()
            served.checkpoint()
            hot = arrow.hot(cut, cut.plan.scan("a.t"), ["k"])
            assert sorted(k for batch in hot for k in batch.column("k").to_pylist()) == [0, 1, 2, 3, 4]
        served.server.dropped.run_once()
        assert served.lake.dropped_tables() == []


def test_a_table_whose_lake_went_while_it_was_dropped_is_read_from_its_log(served: Served) -> None:
    made(served)
    served.tier("a.t")
    uuid, folder = served.state("a.t").table.uuid, served.engine.folder / "warehouse" / "a"
    served.lake.drop_table("a.t")
    (lost,) = folder.iterdir()
    lost.rename(folder.parent / "elsewhere")
    table = served.lake.undrop("a.t")
    assert "the lake of table a.t is gone" in served.engine.lake_ahead[uuid]
    assert served.server.catalog.ahead == served.engine.lake_ahead
    assert table.scan().count() == 5
    assert table.lookup([{"k": 3}]).num_rows == 1
    served.lake.drop_table("a.t")
    (folder.parent / "elsewhere").rename(lost)
    served.lake.undrop("a.t")
    assert served.engine.lake_ahead == {}, "it is there again"


def test_rows_that_were_found_are_those_of_their_table_whatever_its_name_is(served: Served) -> None:
    made(served)
    table, log = served.state("a.t").table, served.state("a.t").logs[0]
    offsets, batch, _ = next(iter(log.stored(0, log.head, 100)))
    found = FoundRows(offsets, batch.select(["k"]))
    served.lake.table("a.t").rename("b.u")
    for _ in range(2):
        assert exact_deletes.live(served.engine, table, found).all()
        served.lake.create_table("a.t", KEYED, primary_key=["k"], buckets=2, if_not_exists=True)
        served.lake.table("a.t").upsert([{"k": k, "v": "other"} for k in range(9)])
    served.lake.drop_table("b.u")
    with pytest.raises(NotFound, match="dropped"):
        exact_deletes.live(served.engine, table, found)


def test_databases(served: Served) -> None:
    lake = served.lake
    made(served)
    lake.create_database("empty")
    assert lake.databases() == {"a": 1, "empty": 0}
    with pytest.raises(Conflict):
        lake.create_database("empty")
    with pytest.raises(Invalid, match="letters a-z"):
        lake.create_database("no good")
    with pytest.raises(Invalid, match="is not empty: it has the table t; drop its tables first"):
        lake.drop_database("a")
    lake.drop_database("empty")
    with pytest.raises(NotFound):
        lake.drop_database("empty")
    lake.drop_table("a.t")
    lake.drop_database("a")
    assert lake.undrop("a.t").scan().count() == 5, "the database is there again with it"
    assert lake.databases() == {"a": 1}


def test_a_subscription_is_reset(served: Served) -> None:
    made(served)
    table = served.lake.table("a.t")
    began = served.clock.us
    stream = table.changes(subscription="s")
    first = stream.next(timeout=60)
    assert first is not None
    first.ack()
    served.clock.advance(DAY)
    token = table.upsert([{"k": 9, "v": "y"}])
    served.lake.reset_subscription("s", "earliest")
    with pytest.raises(Fenced, match="or reset: this consumer must stop"):
        stream.next(timeout=60)
    with pytest.raises(Fenced, match="or reset: this consumer must stop"):
        first.ack()
    for to, found in (
        ("earliest", [0, 1, 2, 3, 4, 9]),
        ("latest", []),
        (token, []),
        ("2026-09-22T00:00Z", [9]),
        ("snapshot", [0, 1, 2, 3, 4, 9]),
    ):
        served.lake.reset_subscription("s", to)
        rows = [row["k"] for b in table.changes(subscription="s", until="now") for row in b.to_pylist()]
        assert sorted(rows) == found, (to, began)
    with pytest.raises(NotFound):
        served.lake.reset_subscription("nobody", "latest")


def test_a_shared_subscription_is_reset_under_its_readers(served: Served) -> None:
    made(served)
    table = served.lake.table("a.t")
    stream = table.changes(subscription="s", shared=True, member="m")
    batches = [batch for batch in (stream.next(timeout=1) for _ in range(2)) if batch is not None]
    assert batches
    served.lake.reset_subscription("s", "latest")
    for batch in batches:
        with pytest.raises(Fenced):
            batch.ack()
    stream.close()
    assert list(table.changes(subscription="s", shared=True, until="now")) == []
    served.lake.reset_subscription("s", "earliest")
    rows = [row["k"] for b in table.changes(subscription="s", shared=True, until="now") for row in b.to_pylist()]
    assert sorted(rows) == [0, 1, 2, 3, 4]
