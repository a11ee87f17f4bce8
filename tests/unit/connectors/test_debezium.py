"""Changes as Debezium events: what a consumer of Debezium reads, from the changes of a real table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Internal, Invalid
from lakestore.kafka.debezium import PIECE_ROWS, Debezium, Events, Pairs
from lakestore.kafka.events import Encoder
from lakestore.model.table import Table, define
from lakestore.release import RELEASE
from tests.support.all_types import SCHEMA as ALL_TYPES

NOW = 1_700_000_000.5
ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.float64())])


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def orders(lake: ls.Lake) -> Any:
    return lake.create_table("shop.orders", ORDERS, primary_key=["id"], buckets=1)


def _pairs(events: Events) -> list[tuple[Any, Any]]:
    keys = [None] * len(events) if events.keys is None else [json.loads(key) for key in events.keys.to_pylist()]
    return list(zip(keys, [json.loads(value) for value in events.values.to_pylist()], strict=True))


def _read(lake: ls.Lake, *tables: str, kind: str = "debezium", start: str = "earliest") -> list[tuple[Any, Any]]:
    encoder = Encoder(lake, kind, now=lambda: NOW)
    stream = lake.changes(tables, start, until="now", before_images=encoder.before_images)
    return [pair for batch in stream for events in encoder.events(batch) for pair in _pairs(events)]


def _row(id_: int, customer: str | None = None, amount: float | None = None) -> dict[str, Any]:
    return {"id": id_, "customer": customer, "amount": amount}


def test_inserts_updates_and_deletes_carry_both_sides(lake: ls.Lake, orders: Any) -> None:
    orders.upsert([_row(1, "ann", 10.0)])
    orders.upsert([_row(1, "ann", 12.5)])
    orders.delete([{"id": 1}])
    found = _read(lake, "shop.orders")
    assert [key for key, _ in found] == [{"id": 1}] * 3
    said = [(value["op"], value["before"], value["after"]) for _, value in found]
    assert said == [
        ("c", None, _row(1, "ann", 10.0)),
        ("u", _row(1, "ann", 10.0), _row(1, "ann", 12.5)),
        ("d", _row(1, "ann", 12.5), None),
    ]


def test_an_event_is_laid_out_as_debezium_lays_it_out(lake: ls.Lake, orders: Any) -> None:
    orders.upsert([_row(1, "ann", 10.0)])
    time_us = lake.changes(["shop.orders"], until="now").__next__().table["__timestamp"].cast(pa.int64())[0].as_py()
    ((_, event),) = _read(lake, "shop.orders")
    assert list(event) == ["before", "after", "source", "op", "ts_ms", "transaction"]
    assert (event["ts_ms"], event["transaction"]) == (1_700_000_000_500, None)
    assert event["source"] == {
        "version": RELEASE,
        "connector": "lakestore",
        "name": "lakestore",
        "ts_ms": time_us // 1000,
        "snapshot": "false",
        "db": "shop",
        "table": "orders",
        "ts_us": time_us,
        "bucket": 0,
        "offset": 0,
    }


def test_rows_of_a_snapshot_are_reads_and_changes_after_it_are_not(lake: ls.Lake, orders: Any) -> None:
    orders.upsert([_row(1, "ann"), _row(2, "bob")])
    orders.delete([{"id": 2}])
    stream = lake.changes(["shop.orders"], "snapshot", before_images=True)
    encoder = Encoder(lake, "debezium", now=lambda: NOW)
    first = [pair for events in encoder.events(next(stream)) for pair in _pairs(events)]
    orders.upsert([_row(1, "eve")])
    later = [pair for events in encoder.events(next(stream)) for pair in _pairs(events)]
    stream.close()
    said = [(v["op"], v["source"]["snapshot"], v["before"], v["after"]) for _, v in first + later]
    assert said == [
        ("r", "true", None, _row(1, "ann")),
        ("u", "false", _row(1, "ann"), _row(1, "eve")),
    ]


def test_keys_of_several_columns_are_in_the_order_of_the_key(lake: ls.Lake) -> None:
    schema = pa.schema(
        [("v", pa.int32()), pa.field("b", pa.string(), nullable=False), pa.field("a", pa.date32(), nullable=False)]
    )
    table = lake.create_table("shop.pairs", schema, primary_key=["a", "b"])
    table.upsert(pa.table({"a": pa.array([1], pa.int32()).cast(pa.date32()), "b": ['q"'], "v": [None]}, schema=schema))
    ((key, event),) = _read(lake, "shop.pairs")
    assert list(key.items()) == [("a", 1), ("b", 'q"')]
    assert event["after"] == {"v": None, "b": 'q"', "a": 1}


def test_a_log_table_has_creates_without_a_key(lake: ls.Lake) -> None:
    lake.create_table("shop.clicks", pa.schema([("page", pa.string())])).append([{"page": "/"}])
    ((key, event),) = _read(lake, "shop.clicks")
    assert (key, event["op"], event["after"]) == (None, "c", {"page": "/"})


def test_several_tables_in_one_stream_are_told_apart(lake: ls.Lake, orders: Any) -> None:
    lake.create_table("shop.clicks", pa.schema([("page", pa.string())]))
    with lake.commit() as commit:
        commit.upsert("shop.orders", [_row(1)])
        commit.append("shop.clicks", [{"page": "/"}])
    assert {event["source"]["table"] for _, event in _read(lake, "shop.orders", "shop.clicks")} == {"orders", "clicks"}


def test_an_update_cut_in_two_by_a_message_is_one_event() -> None:
    table = define("shop.orders", ORDERS, primary_key=["id"])
    rows = _changes(["+I", "-U", "+U", "-D"])
    pairs, maker = Pairs(), Debezium(table)
    found = []
    for start, count in ((0, 2), (2, 2)):
        whole = pairs.whole("shop.orders", rows.slice(start, count))
        found += [pair for events in maker.events(whole, snapshot=False, now_ms=1) for pair in _pairs(events)]
    assert [(e["op"], e["before"] and e["before"]["id"], e["after"] and e["after"]["id"]) for _, e in found] == [
        ("c", None, 0),
        ("u", 1, 2),
        ("d", 3, None),
    ]


def test_pieces_do_not_part_an_update_from_its_before_image() -> None:
    table = define("shop.orders", ORDERS, primary_key=["id"])
    rows = _changes(["+I", *["-U", "+U"] * PIECE_ROWS])
    pieces = list(Debezium(table).events(rows, snapshot=False, now_ms=1))
    assert len(pieces) == 3
    found = [json.loads(value) for events in pieces for value in events.values.to_pylist()]
    assert [event["after"]["id"] for event in found] == [0, *range(2, 2 * PIECE_ROWS + 1, 2)]
    assert all(event["before"]["id"] == event["after"]["id"] - 1 for event in found[1:])


def test_a_before_image_without_its_update_is_a_defect() -> None:
    table = define("shop.orders", ORDERS, primary_key=["id"])
    with pytest.raises(Internal, match="without its update"):
        list(Debezium(table).events(_changes(["-U", "+I"]), snapshot=False, now_ms=1))


def _changes(changes: list[str]) -> pa.Table:
    count = len(changes)
    return pa.table(
        {
            "__change": changes,
            "__bucket": pa.array([0] * count, pa.int32()),
            "__offset": pa.array(range(count), pa.int64()),
            "__timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
            "id": pa.array(range(count), pa.int64()),
            "customer": pa.array([None] * count, pa.string()),
            "amount": pa.array([1.0] * count),
        }
    )


def test_rows_of_older_versions_are_events_in_their_own_version(lake: ls.Lake, orders: Any) -> None:
    orders.upsert([_row(1, "ann")])
    orders.alter(rename={"id": "number"}, add={"note": pa.string()})
    orders.upsert([{"number": 1, "note": "new"}])
    orders.alter(drop=["note"])
    orders.upsert([{"number": 2}])
    found = _read(lake, "shop.orders")
    assert [list(key) for key, _ in found] == [["id"], ["number"], ["number"]]
    assert [list(event["after"]) for _, event in found] == [
        ["id", "customer", "amount"],
        ["number", "customer", "amount", "note"],
        ["number", "customer", "amount"],
    ]


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_consumers_that_share_a_subscription_make_events_of_older_versions_too(
    lake: ls.Lake, orders: Any, start: str
) -> None:
    orders.upsert([_row(1, "ann")])
    encoder = Encoder(lake, "debezium", now=lambda: NOW)
    options: dict[str, Any] = {"subscription": "s", "shared": True, "member": "m", "before_images": True}
    stream = lake.changes(["shop.orders"], start, **options)
    batches = [next(stream)]
    orders.alter(rename={"id": "number"}, add={"note": pa.string()})
    orders.upsert([{"number": 1, "note": "new"}])
    batches.append(next(stream))
    orders.alter(drop=["note"])
    stream.close()
    found = [pair for batch in batches for events in encoder.events(batch) for pair in _pairs(events)]
    assert [(list(key), list(event["after"])) for key, event in found] == [
        (["id"], ["id", "customer", "amount"]),
        (["number"], ["number", "customer", "amount", "note"]),
    ]


def test_with_the_schema_every_value_has_the_type_that_the_schema_says(lake: ls.Lake) -> None:
    table = lake.create_table("shop.all", ALL_TYPES, primary_key=["id"])
    table.upsert(pa.Table.from_pylist([{"id": 1}], schema=ALL_TYPES))
    ((key, event),) = _read(lake, "shop.all", kind="debezium-schema")
    assert key["payload"] == {"id": 1}
    assert key["schema"]["fields"] == [{"type": "int64", "optional": False, "field": "id"}]
    assert [field["field"] for field in event["schema"]["fields"]] == list(event["payload"])
    after = {field["field"]: field for field in event["schema"]["fields"][1]["fields"]}
    assert list(after) == ALL_TYPES.names
    assert after["c13"] == {
        "type": "int32", "name": "io.debezium.time.Date", "version": 1, "optional": True, "field": "c13"
    }  # fmt: skip
    assert after["c23"]["keys"] == {"type": "string", "optional": False}
    source = event["schema"]["fields"][2]["fields"]
    assert [field["field"] for field in source] == list(event["payload"]["source"])


def test_json_rows_name_their_table_and_change(lake: ls.Lake, orders: Any) -> None:
    orders.upsert([_row(1, "ann", 1.0)])
    orders.delete([{"id": 1}])
    found = _read(lake, "shop.orders", kind="json")
    assert [(key, value["__table"], value["__change"], value["id"]) for key, value in found] == [
        ({"id": 1}, "shop.orders", "+I", 1),
        ({"id": 1}, "shop.orders", "-D", 1),
    ]


def test_an_unknown_format_is_refused_by_name(lake: ls.Lake) -> None:
    with pytest.raises(Invalid, match="'avro'"):
        Encoder(lake, "avro")


def test_a_definition_of_every_type_has_a_connect_schema() -> None:
    made: Table = define("shop.all", ALL_TYPES, primary_key=["id"])
    assert list(Debezium(made, with_schema=True).events(_changes([]), snapshot=False, now_ms=1)) == []
