"""Streams of the data source under Spark's rules, without Spark: each change once, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestore.client.table import Table
from lakestore.errors import Invalid, NotFound, OtherTimeline, PositionExpired
from lakestore.model.token import position_of
from lakestore_spark.source import change_reader, table_reader
from tests.support.log_start import move_log_start
from tests.support.micro_batches import Checkpoint, Killed, Query
from tests.support.seeds import examples
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("name", pa.string())])
NAME = "shop.orders"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with its ports open, and small tasks."""
    with pytest.MonkeyPatch.context() as patch, Served(tmp_path_factory.mktemp("streams"), ports=True) as served:
        patch.setattr(change_reader, "RANGE_CHANGES", 7)
        patch.setattr(table_reader, "PART_ROWS", 9)
        patch.setattr(table_reader, "SPLIT_ROWS", 5)
        yield served


@pytest.fixture
def orders(served: Served) -> Iterator[Table]:
    """A new table of the name."""
    yield served.lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=3)
    served.lake.drop_table(NAME)


def options(served: Served, start: str = "earliest", **more: str) -> dict[str, str]:
    """The options of a stream of the table."""
    return {"server": served.server.about["grpc"], "table": NAME, "startingOffsets": start, **more}


def rows(first: int, last: int, v: int = 0) -> list[dict[str, Any]]:
    """Rows of some keys."""
    return [{"id": key, "v": v, "name": f"n{key}"} for key in range(first, last)]


def fold(changes: list[dict[str, Any]]) -> dict[int, int]:
    """Keys and values after changes that come in the order of each key."""
    live: dict[int, int] = {}
    for change in changes:
        if change["__change"] == "-D":
            live.pop(change["id"], None)
        elif change["__change"] != "-U":
            live[change["id"]] = change["v"]
    return live


def live(table: Table, where: str | None = None) -> dict[int, int]:
    """Keys and values of the table."""
    return {row["id"]: row["v"] for row in table.scan(["id", "v"], where).to_arrow().to_pylist()}


def check_each_once(changes: list[dict[str, Any]]) -> None:
    """No offset twice, and none left out behind the first of its bucket."""
    for bucket in {change["__bucket"] for change in changes}:
        offsets = [change["__offset"] for change in changes if change["__bucket"] == bucket]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 6),  # commits written before
        st.integers(0, 15),  # maxOffsetsPerTrigger
        st.sampled_from(["", "planned", "written"]),
        st.integers(0, 2),  # batches before the driver dies
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(["earliest", "snapshot", "latest"]),
    st.sampled_from(["", "v < 3"]),
    st.booleans(),
    STEPS,
    st.integers(0, 9),
)
def test_every_change_once(
    served: Served, start: str, where: str, images: bool, steps: list[tuple[int, int, str, int]], before: int
) -> None:
    """Folded they are the table, or what of it meets the condition, wherever the driver dies."""
    table = served.lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=3)
    try:
        table.upsert(rows(0, before) or rows(0, 1))
        known = live(table, where or None) if start == "latest" else {}
        point = Checkpoint()
        said = options(served, start, where=where, beforeImages=str(images).lower(), subscription="s" * images)
        Query(point, **said).run(1)
        for number, (count, most, dies, after) in enumerate(steps):
            for key in range(count):
                table.upsert(rows(key, key + 1 + key % 2, number))
            if count % 5 == 4:
                table.delete([{"id": 1}])
            query = Query(point, **said, **({"maxOffsetsPerTrigger": str(most)} if most else {}))
            try:
                query.run(3, dies=dies, after=after)
            except Killed:
                continue
            query.stop()
        query = Query(point, **said)
        query.run()
        query.stop()
        assert point.behind() == 0
        first = [{"__change": "+I", "id": key, "v": v} for key, v in known.items()]
        assert fold(first + point.rows) == live(table, where or None)
        if not where and not images and start != "snapshot":
            check_each_once(point.rows)
    finally:
        served.lake.drop_table(NAME)
        if "s" in [each.name for each in served.lake.subscriptions()]:
            served.lake.drop_subscription("s")


def test_the_limit_takes_whole_commits(served: Served, orders: Table) -> None:
    """As many commits as fit, and one that is longer than the limit by itself; the lag is told."""
    for size in (3, 4, 20, 1, 1):
        orders.upsert(rows(0, size))
    point, said = Checkpoint(), options(served, maxOffsetsPerTrigger="7")
    behind = []
    while Query(point, **said).run(1):
        behind.append(point.behind())
    assert [len(point.sink[batch]) for batch in range(point.committed)] == [7, 20, 2]
    assert behind == [22, 2, 0]


def test_nothing_new_is_no_batch(served: Served, orders: Table) -> None:
    """Also when other tables change meanwhile."""
    point = Checkpoint()
    query = Query(point, **options(served, "latest"))
    assert query.run() == 1
    served.lake.create_table("shop.other", schema=SCHEMA).append(rows(0, 3))
    assert query.run() == 0
    orders.upsert(rows(0, 1))
    assert query.run() == 1
    assert [row["id"] for row in point.rows] == [0]
    query.stop()
    served.lake.drop_table("shop.other")


def test_latest_is_where_the_query_began(served: Served, orders: Table) -> None:
    """Even if the driver dies before its first batch is done, and the restart asks for `latest` again."""
    orders.upsert(rows(0, 3))
    point = Checkpoint()
    with pytest.raises(Killed):
        Query(point, **options(served, "latest")).run(dies="planned")
    orders.upsert(rows(3, 5))
    Query(point, **options(served, "latest")).run()
    assert sorted(row["id"] for row in point.rows) == [3, 4]


def test_times_and_tokens(served: Served, orders: Table) -> None:
    """A start inside the log."""
    orders.upsert(rows(0, 2))
    token = orders.upsert(rows(2, 3))
    served.clock.advance(60)
    moment = served.clock.us
    served.clock.advance(60)
    orders.upsert(rows(3, 4))
    for start in (str(token), str(moment_text(moment))):
        point = Checkpoint()
        Query(point, **options(served, start)).run()
        assert [row["id"] for row in point.rows] == [3]
    with pytest.raises(Invalid, match="not 'earliest'"):
        Query(Checkpoint(), **options(served, "yesterday"))


def moment_text(micros: int) -> str:
    """ISO 8601."""
    from lakestore.model import times

    return times.text_of(micros)


def test_columns_and_log_tables(served: Served, orders: Table) -> None:
    """Chosen columns in their order behind the system's; a log table's rows are rows."""
    orders.upsert(rows(0, 2))
    point = Checkpoint()
    Query(point, **options(served, columns="name, id")).run()
    assert list(point.rows[0]) == ["__change", "__bucket", "__offset", "__timestamp", "name", "id"]
    log = served.lake.create_table("shop.log", schema=SCHEMA, buckets=2)
    log.append(rows(0, 30))
    point = Checkpoint()
    Query(point, **{**options(served), "table": "shop.log"}).run()
    assert sorted(row["id"] for row in point.rows) == list(range(30))
    assert list(point.rows[0]) == ["id", "v", "name"]
    point = Checkpoint()
    Query(point, **{**options(served, "snapshot", where="id < 3", columns="__offset,id"), "table": "shop.log"}).run()
    assert sorted(row["id"] for row in point.rows) == [0, 1, 2]
    served.lake.drop_table("shop.log")


def test_a_schema_change_in_the_middle(served: Served, orders: Table) -> None:
    """New columns wait for the next load, renamed ones go on, and what would be wrong is an error."""
    orders.upsert(rows(0, 2, 1))
    point = Checkpoint()
    query = Query(point, **options(served, where="v >= 0"))
    query.run()
    orders.alter(add={"more": pa.string()}, rename={"v": "w", "name": "title"})
    orders.upsert([{"id": 5, "w": 7, "title": "t", "more": "m"}])
    query.run()
    assert {key: point.rows[-1][key] for key in ("id", "v", "name")} == {"id": 5, "v": 7, "name": "t"}
    query.stop()
    reloaded = Query(point, **options(served))
    orders.upsert([{"id": 6, "w": 8, "title": "t", "more": "m"}])
    reloaded.run()
    assert (point.rows[-1]["w"], point.rows[-1]["more"]) == (8, "m")
    orders.alter(drop=["more"])
    orders.upsert([{"id": 7, "w": 8, "title": "t"}])
    with pytest.raises(Invalid, match="more was dropped in schema version"):
        reloaded.run()
    reloaded.stop()
    Query(point, **options(served)).run()
    assert point.rows[-1]["id"] == 7


def test_rows_before_a_drop_are_still_read(served: Served, orders: Table) -> None:
    """A stream that lags reads what it was loaded for, up to the drop."""
    orders.upsert(rows(0, 2, 1))
    point = Checkpoint()
    query = Query(point, **options(served, maxOffsetsPerTrigger="1"))
    orders.alter(drop=["name"])
    query.run(1)
    assert point.rows[0]["name"] == "n0"
    query.stop()


def test_a_name_that_means_another_column(served: Served, orders: Table) -> None:
    """Names that are swapped under a stream neither mix up its columns nor its condition."""
    orders.upsert(rows(0, 2, 1))
    point, filtered = Checkpoint(), Checkpoint()
    query, other = Query(point, **options(served)), Query(filtered, **options(served, where="v >= 0"))
    query.run()
    orders.alter(rename={"v": "w"})
    orders.alter(add={"v": pa.int64()})
    orders.upsert([{"id": 5, "w": 7, "v": 1}])
    query.run()
    assert point.rows[-1]["v"] == 7
    with pytest.raises(Invalid, match="another column by now"):
        other.run()
    query.stop()
    other.stop()


def test_a_widened_column(served: Served) -> None:
    """Older rows are wide after a reload; narrow streams stop."""
    table = served.lake.create_table(NAME, schema=pa.schema([("n", pa.int32())]))
    table.append([{"n": 1}])
    point = Checkpoint()
    query = Query(point, **options(served))
    query.run()
    table.alter(widen={"n": pa.int64()})
    table.append([{"n": 1 << 40}])
    with pytest.raises(Invalid, match="widened to"):
        query.run()
    Query(point, **options(served)).run()
    fresh = Checkpoint()
    Query(fresh, **options(served)).run()
    assert [row["n"] for row in point.rows] == [row["n"] for row in fresh.rows] == [1, 1 << 40]
    served.lake.drop_table(NAME)


def test_another_table_of_the_name(served: Served, orders: Table) -> None:
    """A dropped table ends the stream by a sentence; so does another one of its name, also at a restart."""
    orders.upsert(rows(0, 2))
    point = Checkpoint()
    query = Query(point, **options(served))
    query.run()
    served.lake.drop_table(NAME)
    with pytest.raises(NotFound):
        query.run()
    served.lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=3).upsert(rows(0, 2))
    with pytest.raises(NotFound, match="a new table has its name"):
        query.run()
    with pytest.raises(NotFound, match="other tables"):
        Query(point, **options(served)).run()


def test_another_history(served: Served, orders: Table) -> None:
    """A checkpoint of a server that was restored is refused."""
    orders.upsert(rows(0, 2))
    point = Checkpoint()
    Query(point, **options(served)).run()
    mine = served.server.engine.timeline
    point.offsets = [text.replace(text, _of_history(text, mine)) for text in point.offsets]
    with pytest.raises(OtherTimeline):
        Query(point, **options(served)).run()


def _of_history(text: str, mine: str) -> str:
    import json
    from dataclasses import replace

    offset = json.loads(text)
    position = position_of(offset["next"])
    assert position.timeline == mine
    offset["next"] = str(replace(position, timeline="f" * len(mine)))
    return json.dumps(offset)


def test_a_log_that_is_gone(served: Served, orders: Table) -> None:
    """`PositionExpired`, not a gap; a subscription has the log kept, up to what is committed."""
    commits = [orders.upsert(rows(0, 2)) for _ in range(4)]
    lost, kept = Checkpoint(), Checkpoint()
    Query(lost, **options(served, maxOffsetsPerTrigger="2")).run(1)
    query = Query(kept, **options(served, maxOffsetsPerTrigger="2", subscription="report"))
    query.run(2)
    subscription = next(each for each in served.lake.subscriptions() if each.name == "report")
    assert position_of(subscription.token).lsn == position_of(str(commits[0])).lsn
    assert subscription.behind == 6
    query.stop()
    move_log_start(served.engine, NAME, position_of(str(commits[2])).lsn)
    with pytest.raises(PositionExpired, match="start at 'snapshot'"):
        Query(lost, **options(served)).run()
    served.lake.drop_subscription("report")


def test_options_are_checked(served: Served, orders: Table) -> None:
    """A misspelt option, one of another use, and values that mean nothing."""
    for wrong, sentence in (
        ({"startingOffset": "latest"}, "no option 'startingoffset'"),
        ({"at": "2026-01-01"}, "at is not one of spark.readStream"),
        ({"maxOffsetsPerTrigger": "0"}, "whole number above 0"),
        ({"beforeImages": "yes"}, "true or false"),
        ({"where": "nothing = 1"}, "no column 'nothing'"),
        ({"columns": "id,nothing"}, "no column 'nothing'"),
    ):
        with pytest.raises(Invalid, match=sentence):
            Query(Checkpoint(), **options(served, **wrong))
    with pytest.raises(Invalid, match="where it starts"):
        Query(Checkpoint(), **{"server": served.server.about["grpc"], "table": NAME})
    served.lake.create_table("shop.log", schema=SCHEMA)
    with pytest.raises(Invalid, match="no primary key"):
        Query(Checkpoint(), **{**options(served, beforeImages="true"), "table": "shop.log"})
    served.lake.drop_table("shop.log")
