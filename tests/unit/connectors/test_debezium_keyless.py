"""Change events of tables without a key, or with another key than ours: logs, rows that move, made-up values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.decode.debezium.before_images import without_fillers
from lakestore.kafka.bridge.decode.debezium.connect_values import Kind
from lakestore.kafka.bridge.outcome import MappedBlock, Op
from lakestore.kafka.bridge.writing import steps_of
from tests.support.bridge_blocks import check_ends
from tests.support.debezium_events import Pair, block, event, with_schema

TOPIC = "topic: shop.public.orders, format: debezium-json, table: '{schema}.{table}'"
A, B = {"k": 1, "n": "a", "q": 5}, {"k": 2, "n": "b", "q": 6}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


def processed(lake: ls.Lake, pairs: Sequence[Pair], text: str = TOPIC) -> MappedBlock:
    """The ends of records, whose rows are committed."""
    spec = spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{{{text}}}]", "bridge.yaml")
    records = block(pairs)
    mapped = Assembly(spec, lake).pipeline(spec.topics[0], records.topic).process(records)
    check_ends(records, mapped)
    with lake.commit() as commit:
        for rows in mapped.tables:
            key = lake.table(rows.table).definition.primary_key
            for step in steps_of(rows, key):
                if step.op is Op.DELETE:
                    commit.delete(step.table, step.rows)
                elif key:
                    commit.upsert(step.table, step.rows, keep=step.kept)
                else:
                    commit.append(step.table, step.rows)
    return mapped


def rows_of(lake: ls.Lake, columns: Sequence[str], table: str = "public.orders") -> list[tuple[Any, ...]]:
    found = lake.table(table).scan(list(columns)).to_arrow().to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=str)


def test_a_table_without_a_key_is_a_log_of_all_its_events(lake: ls.Lake) -> None:
    pairs = [(None, event("c", None, A)), (None, event("u", A, A | {"n": "z"})), (None, event("d", A)), (None, None)]
    mapped = processed(lake, pairs)
    assert not mapped.rejects
    assert {reason: numbers.tolist() for reason, numbers in mapped.passed.items()} == {"tombstone": [3]}
    assert rows_of(lake, ["op", "k", "n"]) == [("c", 1, "a"), ("d", 1, "a"), ("u", 1, "z")]


def test_the_column_of_the_operation_makes_room_for_a_field_of_its_name(lake: ls.Lake) -> None:
    processed(lake, [(None, event("c", None, {"op": "add"})), (None, event("d", {"op": "add"}))])
    assert rows_of(lake, ["event_op", "op"]) == [("c", "add"), ("d", "add")]


def test_a_log_that_an_earlier_release_made_gets_the_column(lake: ls.Lake) -> None:
    lake.create_table("public.orders", pa.schema([("k", pa.int64()), ("n", pa.string()), ("q", pa.int64())]))
    processed(lake, [(None, event("c", None, A)), (None, event("d", A))])
    assert rows_of(lake, ["op", "k"]) == [("c", 1), ("d", 1)]


def test_a_delete_in_a_log_without_the_column_is_refused(lake: ls.Lake) -> None:
    lake.create_table("public.orders", pa.schema([("k", pa.int64()), ("n", pa.string()), ("q", pa.int64())]))
    mapped = processed(lake, [(None, event("c", None, A)), (None, event("d", A))], f"{TOPIC}, drift: ignore")
    assert [(each.record, each.code) for each in mapped.rejects["public.orders"]] == [(1, "delete-in-log")]


def test_a_log_of_events_with_a_key_has_no_value_of_a_delete_beyond_the_key(lake: ls.Lake) -> None:
    before = {"k": 1, "n": "made up", "q": 1}
    pairs = [({"k": 1}, event("c", None, A)), ({"k": 1}, event("d", before)), ({"k": 1}, None)]
    processed(lake, pairs, f"{TOPIC}, events: log, event_columns: [source.lsn]")
    assert rows_of(lake, ["op", "k", "n", "q", "source_lsn"]) == [("c", 1, "a", 5, 24), ("d", 1, None, None, 24)]


def test_events_that_connect_wrote_twice_are_one_row_of_a_log_by_their_position(lake: ls.Lake) -> None:
    pairs = [({"k": 1}, event("c", None, A)), ({"k": 2}, event("c", None, B)), ({"k": 1}, event("c", None, A))]
    text = f"{TOPIC}, events: log, event_columns: [source.lsn], primary_key: [source_lsn, k]"
    processed(lake, pairs, text)
    assert rows_of(lake, ["source_lsn", "k", "op"]) == [(24, 1, "c"), (24, 2, "c")]


def test_events_apply_by_a_key_alone(lake: ls.Lake) -> None:
    with pytest.raises(Invalid, match=r"public\.orders have no key.*primary_key, or events: log"):
        processed(lake, [(None, event("c", None, A))], f"{TOPIC}, events: apply")
    with pytest.raises(Invalid, match="is about change events: say a debezium format"):
        processed(lake, [], "topic: t, table: d.t, events: log")
    with pytest.raises(Invalid, match="names parts of change events: say a debezium format"):
        processed(lake, [], "topic: t, table: d.t, event_columns: [op]")
    with pytest.raises(Invalid, match=r"names source\.FIELD, .* not 'source'"):
        processed(lake, [], f"{TOPIC}, event_columns: [source]")


def test_a_column_that_an_event_column_is_named_like_is_refused(lake: ls.Lake) -> None:
    with pytest.raises(Invalid, match="has a column 'op', and event_columns needs that name"):
        processed(lake, [({"op": "x"}, event("c", None, {"op": "x"}))], f"{TOPIC}, event_columns: [op]")


@pytest.mark.parametrize("keyed", [False, True])
def test_an_update_that_changes_the_key_of_our_table_leaves_no_old_row(lake: ls.Lake, *, keyed: bool) -> None:
    key = {"k": 1} if keyed else None
    text = f"{TOPIC}, primary_key: [n]"
    big = A | {"t": "long"}
    processed(lake, [(key, event("c", None, big)), (None, event("c", None, B | {"t": "x"}))], text)
    mapped = processed(
        lake,
        [
            (key, event("u", big, big | {"n": "z", "t": "__debezium_unavailable_value"})),
            (None, event("u", B | {"t": "x"}, B | {"t": "y"})),
            (None, event("d", B | {"t": "y"})),
        ],
        text,
    )
    assert not mapped.rejects
    assert [(rows.op.tolist(), rows.record.tolist()) for rows in mapped.tables] == [([1, 0, 0, 1], [0, 0, 1, 2])]
    assert rows_of(lake, ["n", "k", "t"]) == [("z", 1, "long")]


def test_a_key_inside_of_a_struct_moves_its_row_too(lake: ls.Lake) -> None:
    text = f"{TOPIC}, primary_key: [id], columns: [{{name: id, type: int64, from: value.meta.id}}]"
    one, two = {"meta": {"id": 1}}, {"meta": {"id": 2}}
    processed(lake, [(None, event("c", None, one)), (None, event("u", one, one)), (None, event("u", one, two))], text)
    assert rows_of(lake, ["id"]) == [(2,)]


FIELDS = [
    {"field": "k", "type": "int64"},
    {"field": "n", "type": "string", "default": "new"},
    {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp", "default": 0},
    {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    {"field": "tags", "type": "array", "items": {"type": "string"}},
]
SCHEMA = {"type": "struct", "fields": [
    {"field": "before", "type": "struct", "fields": FIELDS}, {"field": "after", "type": "struct", "fields": FIELDS},
    {"field": "op", "type": "string"},
    {"field": "source", "type": "struct", "fields": [
        *({"field": name, "type": "string"} for name in ("connector", "db", "schema", "table")),
    ]},
]}  # fmt: skip
WHOLE = {"k": 1, "n": "x", "at": 1_700_000_000_000_000, "price": "AGQ=", "tags": ["a"]}
MADE_UP = {"k": 1, "n": "new", "at": 0, "price": "AA==", "tags": []}


@pytest.mark.parametrize(
    ("before", "ends"),
    [
        pytest.param(MADE_UP, "refused", id="made up"),
        pytest.param(MADE_UP | {"n": None}, "refused", id="null and made up"),
        pytest.param(WHOLE, "deleted", id="replica identity full"),
    ],
)
def test_a_version_that_debezium_made_up_decides_nothing(lake: ls.Lake, before: Any, ends: str) -> None:
    text = f"{TOPIC}, version: at"
    processed(lake, [({"k": 1}, with_schema(SCHEMA, event("c", None, WHOLE)))], text)
    mapped = processed(lake, [({"k": 1}, with_schema(SCHEMA, event("d", before)))], text)
    codes = [reject.code for rejects in mapped.rejects.values() for reject in rejects]
    assert (rows_of(lake, ["k"]), codes) == ({"refused": ([(1,)], ["no-version"]), "deleted": ([], [])}[ends])


@pytest.mark.parametrize(
    ("kind", "zero", "other"),
    [
        (pa.int32(), 0, 1), (pa.float64(), 0.0, 0.5), (pa.decimal128(38, 10), Decimal(0), Decimal("0.1")),
        (pa.bool_(), False, True), (pa.string(), "", "a"), (pa.string(), "1970-01-01T00:00:00.000000Z", "1970-01-02"),
        (pa.string(), "00:00:00Z", "00:00:01Z"), (pa.string(), "P0Y0M0DT0H0M0S", "P1Y0M0DT0H0M0S"),
        (pa.string(), "{}", "[]"),
        (pa.binary(), b"", b"\0"), (pa.date32(), date(1970, 1, 1), date(1970, 1, 2)),
        (pa.time64("us"), time(0), time(1)),
        (pa.timestamp("us", "UTC"), datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC)),
        (pa.list_(pa.int64()), [], [0]), (pa.map_(pa.string(), pa.string()), [], [("a", "")]),
        (pa.struct([("x", pa.float64()), ("wkb", pa.binary())]), {"x": 0.0, "wkb": b""}, {"x": 0.0, "wkb": b"1"}),
        (pa.binary(2), None, b"\0\0"),
    ],
)  # fmt: skip
def test_a_deleted_row_with_one_real_value_is_real_in_every_type(kind: pa.DataType, zero: Any, other: Any) -> None:
    before = pa.array([{"k": 1, "a": zero, "b": 0}, {"k": 1, "a": other, "b": 0}, {"k": 1, "a": None, "b": 7}, None],
                      pa.struct([("k", pa.int64()), ("a", kind), ("b", pa.int64())]))  # fmt: skip
    row = Kind("struct", fields=(("k", Kind("int64")), ("a", Kind("", target=kind)), ("b", Kind("int64"))))
    head = pa.array([{"source": {"connector": "postgresql"}}] * 4)
    keys = pa.array([{"k": 1}] * 4)
    found = without_fillers(before, row, keys, head)
    assert found.to_pylist()[0] == {"k": 1, "a": None, "b": None}
    assert found[1:].equals(before[1:])


def test_a_key_that_debezium_made_up_deletes_no_row(lake: ls.Lake) -> None:
    text = f"{TOPIC}, primary_key: [n]"
    processed(lake, [({"k": 1}, with_schema(SCHEMA, event("c", None, WHOLE | {"n": "new"})))], text)
    mapped = processed(lake, [({"k": 9}, with_schema(SCHEMA, event("d", MADE_UP | {"k": 9})))], text)
    assert [reject.code for rejects in mapped.rejects.values() for reject in rejects] == ["null-key"]
    assert rows_of(lake, ["n"]) == [("new",)]
