"""The way of a topic's records to rows of tables: routes, columns, conditions, tombstones; each record ends once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode.decoders import decoder, key_decoder
from lakestore.kafka.bridge.expressions import Expression
from lakestore.kafka.bridge.map import reads_key_fields
from lakestore.kafka.bridge.outcome import DecodedBlock, MappedBlock, Op
from lakestore.kafka.bridge.pipeline import Pipeline
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import ColumnSpec, RouteSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.kafka.bridge.tables import wanted_table
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore.rows import ipc
from tests.support.bridge_blocks import FIRST_MS, FIRST_OFFSET, block, check_ends
from tests.support.seeds import examples

C = ColumnSpec
ORDERS = TableSpec(
    "shop.orders", primary_key=("id",), columns=(C("id", "int64"), C("amount", "float64"), C("who", "string"))
)
LOG = replace(ORDERS, table="shop.log", primary_key=())


def pipeline(
    *specs: TableSpec,
    by: str = "value.kind",
    limits: Limits | None = None,
    tables: Mapping[str, Table] | None = None,
    **topic: Any,
) -> Pipeline:
    """The pipeline of a topic into these tables; several are routed by their short names."""
    otherwise = topic.pop("otherwise", "dlq")
    target = (
        specs[0]
        if len(specs) == 1
        else RouteSpec(by, {spec.table.split(".")[1]: spec for spec in specs}, otherwise=otherwise)
    )
    spec = TopicSpec("", topic="orders", target=target, **topic)
    there = tables if tables is not None else {each.table: wanted_table(each) for each in specs}
    source = SourceSpec("", "", "")
    return Pipeline(
        topic=spec,
        tables=there,
        decoder=decoder(spec, source),
        keys=key_decoder(spec, source, reads_fields=reads_key_fields(spec)),
        limits=limits or DEFAULT,
    )


def process(made: Pipeline, values: Sequence[Any], **parts: Any) -> MappedBlock:
    """The ends of records with these values: bytes, null, or what JSON says."""
    raw = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    records = block(raw, **parts)
    mapped = made.process(records)
    check_ends(records, mapped)
    return mapped


def rows(mapped: MappedBlock, table: str = "shop.orders") -> list[dict[str, Any]]:
    return next((found.batch.to_pylist() for found in mapped.tables if found.table == table), [])


def codes(mapped: MappedBlock) -> dict[int, str]:
    return {reject.record: reject.code for rejects in mapped.rejects.values() for reject in rejects}


def column(spec: ColumnSpec, values: Sequence[Any], **parts: Any) -> tuple[list[Any], dict[int, str]]:
    """The values of one column beside a key, and the rejects."""
    made = pipeline(TableSpec("shop.orders", columns=(spec,)), **parts.pop("topic", {}))
    mapped = process(made, values, **parts)
    return [row[spec.name] for row in rows(mapped)], codes(mapped)


def test_a_reason_names_the_place_of_a_nested_value() -> None:
    kind = "struct<items: list<struct<at: timestamp>>>"
    made = pipeline(TableSpec("shop.orders", columns=(C("id", "int64"), C("order", kind, source="value.o"))))
    items = [{"at": f"2026-01-0{day} 12:00:00"} for day in (1, 2, 3)]
    mapped = process(made, [{"id": 1, "o": {"items": items}}, {"id": 2, "o": {"items": [*items, {"at": "soon"}]}}])
    assert [row["id"] for row in rows(mapped)] == [1]
    ((reject,),) = mapped.rejects.values()
    assert "does not take: value.o.items[3].at: " in reject.sentence
    assert reject.path == "value.o"


def test_rows_have_the_columns_of_the_table_and_their_position() -> None:
    made = pipeline(replace(ORDERS, coordinates=True))
    mapped = process(made, [{"id": 1, "amount": 2, "other": 1}], topic="orders")
    assert rows(mapped) == [
        {
            "id": 1,
            "amount": 2.0,
            "who": None,
            "kafka_source": "orders/Tid/0",
            "kafka_offset": FIRST_OFFSET,
            "kafka_topic": "orders",
            "kafka_partition": 0,
            "kafka_timestamp": datetime.fromtimestamp(FIRST_MS / 1000, UTC),
        }
    ]
    assert mapped.tables[0].batch.schema == wanted_table(made.topic.tables[0]).nullable_schema
    assert mapped.extra == {"other": pa.int64()}


@pytest.mark.parametrize(
    ("expression", "key", "made"),
    [
        ("value.monkey.id", b"opaque", "7"),
        ("'key.' || value.monkey.id", b"opaque", "key.7"),
        ("KEY.id", b'{"id": 5}', "5"),
        ('key."id"', b'{"id": 5}', "5"),
        ("key", b"opaque", "opaque"),
    ],
)
def test_keys_are_decoded_where_an_expression_reads_their_fields_and_only_there(
    expression: str, key: bytes, made: str
) -> None:
    values, rejects = column(C("x", "string", expression=expression), [{"monkey": {"id": 7}}], keys=[key])
    assert (values, rejects) == ([made], {})


def test_columns_come_from_every_part_of_a_record() -> None:
    columns = (
        C("a", "int64", source="value.meta.`a.b`"),
        C("k", "string", source="key"),
        C("raw", "string", source="value"),
        C("h", "int32", source="headers.h"),
        C("all", "map<string, binary>", source="headers"),
        C("listed", "list<struct<name: string, value: binary>>", source="headers"),
        C("t", "string", source="topic"),
        C("p", "int32", source="partition"),
        C("o", "int64", source="offset"),
        C("at", "timestamptz", source="timestamp"),
    )
    made = pipeline(TableSpec("shop.orders", columns=columns))
    headers = [[("h", b"1"), ("h", b"2"), ("g", None)]]
    value = b'{"meta":{"a.b":7}}'
    (row,) = rows(process(made, [value], keys=[b"key"], headers=headers, partitions=[3]))
    assert row == {
        "a": 7,
        "k": "key",
        "raw": value.decode(),
        "h": 2,
        "all": [("h", b"2"), ("g", None)],
        "listed": [{"name": "h", "value": b"1"}, {"name": "h", "value": b"2"}, {"name": "g", "value": None}],
        "t": "orders",
        "p": 3,
        "o": FIRST_OFFSET,
        "at": datetime.fromtimestamp(FIRST_MS / 1000, UTC),
    }


def test_key_is_decoded_where_its_fields_are_read() -> None:
    columns = (C("id", "int64", source="key.id"), C("v", "int64"))
    made = pipeline(TableSpec("shop.orders", primary_key=("id",), columns=columns))
    mapped = process(made, [{"v": 1}, {"v": 2}, {"v": 3}, None], keys=[b'{"id":"7"}', b"x", None, b'{"id":8}'])
    assert [(row["id"], row["v"]) for row in rows(mapped)] == [(7, 1), (8, None)]
    assert mapped.tables[0].op.tolist() == [Op.PUT, Op.DELETE]
    assert codes(mapped) == {1: "bad-json", 2: "null-key"}


def test_value_that_does_not_fit_is_named_with_its_path() -> None:
    made = pipeline(TableSpec("shop.orders", columns=(C("at", "timestamptz", source="value.meta.ts"),)))
    mapped = process(made, [{"meta": {"ts": 1}}, {"meta": {"ts": "yesterday"}}, {"meta": {"ts": "2026-01-01"}}])
    first, second = mapped.rejects["shop.orders"]
    assert (first.record, first.stage, first.code, first.path) == (1, "convert", "not-a-time", "value.meta.ts")
    assert "'yesterday'" in first.sentence
    assert "zone" in second.sentence


def test_nulls_of_keys_and_required_columns() -> None:
    columns = (
        C("id", "int64"),
        C("must", "string", required=True),
        C("kind", "string", required=True, default="plain"),
    )
    made = pipeline(TableSpec("shop.orders", primary_key=("id",), columns=columns))
    mapped = process(made, [{"must": "x"}, {"id": 1}, {"id": 2, "must": "x"}, {"id": None, "must": "x", "kind": "y"}])
    assert codes(mapped) == {0: "null-key", 1: "missing-value", 3: "null-key"}
    assert [row["kind"] for row in rows(mapped)] == ["plain"]


def test_condition_leaves_rows_out_but_no_deletes() -> None:
    made = pipeline(
        replace(ORDERS, where="amount >= 0", columns=(C("id", "int64", source="key"), C("amount", "float64")))
    )
    mapped = process(made, [{"amount": 1}, {"amount": -1}, {}, None], keys=[b"1", b"2", b"3", b"4"])
    assert [row["id"] for row in rows(mapped)] == [1, 4]
    assert mapped.passed["filtered"].tolist() == [1, 2]


@pytest.mark.parametrize("otherwise", ["dlq", "skip"])
def test_records_go_to_the_table_that_their_field_names(otherwise: str) -> None:
    made = pipeline(ORDERS, LOG, otherwise=otherwise)
    kinds = ["orders", "log", "other", None, 7, "log"]
    mapped = process(made, [{"id": at, "kind": kind} for at, kind in enumerate(kinds)])
    assert [row["id"] for row in rows(mapped)] == [0]
    assert [row["id"] for row in rows(mapped, "shop.log")] == [1, 5]
    if otherwise == "skip":
        assert mapped.passed["not-routed"].tolist() == [2, 3, 4]
    else:
        assert codes(mapped) == {2: "no-route", 3: "no-route", 4: "no-route"}
        assert set(mapped.rejects) == {"shop.orders"}


def test_records_go_by_a_header() -> None:
    made = pipeline(ORDERS, LOG, by="headers.to")
    headers = [[("to", b"log")], None, [("to", b"\xff")], [("to", b"orders")]]
    mapped = process(made, [{"id": 1}] * 4, headers=headers)
    assert codes(mapped) == {1: "no-route", 2: "no-route"}
    assert [found.record.tolist() for found in mapped.tables] == [[0], [3]]


def test_table_by_the_name_of_the_topic() -> None:
    spec = replace(LOG, table="shop.t_{topic}")
    made = pipeline(spec, tables={"shop.t_a_b": wanted_table(LOG, name="shop.t_a_b")})
    assert [row["id"] for row in rows(process(made, [{"id": 1}], topic="a.b"), "shop.t_a_b")] == [1]
    assert codes(process(made, [{"id": 1}], topic="c")) == {0: "no-table"}


@pytest.mark.parametrize(
    ("policy", "spec", "code"),
    [
        ("delete", ORDERS, "tombstone-without-key"),
        ("dlq", ORDERS, "tombstone"),
        ("ignore", ORDERS, ""),
        ("delete", LOG, "tombstone"),
        ("ignore", LOG, ""),
    ],
)
def test_tombstone_ends_by_the_policy(policy: Any, spec: TableSpec, code: str) -> None:
    mapped = process(pipeline(replace(spec, tombstone=policy)), [{"id": 1}, None])
    assert codes(mapped) == ({1: code} if code else {})
    assert [found.tolist() for found in mapped.passed.values()] == ([] if code else [[1]])


def test_tombstone_deletes_by_its_key_with_nulls_beside() -> None:
    columns = (C("id", "int64", source="key"), C("amount", "float64", required=True, default=1.0), C("n", "int64"))
    made = pipeline(replace(ORDERS, columns=columns))
    mapped = process(made, [{"n": 1}, None, {"n": 2}], keys=[b"1", b"1", b"2"])
    assert mapped.tables[0].op.tolist() == [Op.PUT, Op.DELETE, Op.PUT]
    assert rows(mapped)[1] == {
        "id": 1,
        "amount": None,
        "n": None,
        "kafka_source": "orders/Tid/0",
        "kafka_offset": FIRST_OFFSET + 1,
    }


def test_row_larger_than_a_message_is_refused_alone() -> None:
    made = pipeline(LOG, limits=Limits(message_bytes=1 << 20))
    mapped = process(made, [{"id": 1, "who": "x"}, {"id": 2, "who": "x" * (1 << 20)}, {"id": 3}])
    assert codes(mapped) == {1: "too-large"}
    assert [row["id"] for row in rows(mapped, "shop.log")] == [1, 3]


def test_expressions_of_columns() -> None:
    columns = (
        C("a", "int64"),
        C("twice", "int64", expression="value.a * 2"),
        C("day", "date", expression="CAST(value.at AS TIMESTAMP)::DATE"),
        C("full", "string", expression="concat_ws('-', value.first, upper(headers.h), key, topic)"),
        C("n", "int64", expression="partition"),
        C("safe", "int64", expression="TRY_CAST(value.text AS BIGINT)"),
    )
    made = pipeline(TableSpec("shop.orders", columns=columns))
    values = [{"a": 1, "at": "2026-01-01T10:00:00", "first": "x", "text": "no"}, {"a": None, "text": 7}]
    first, second = rows(process(made, values, keys=[b"k", None], headers=[[("h", b"up")], None]))
    assert first == {
        "a": 1,
        "twice": 2,
        "day": datetime(2026, 1, 1).date(),
        "full": "x-UP-k-orders",
        "n": 0,
        "safe": None,
    }
    assert second == {"a": None, "twice": None, "day": None, "full": "orders", "n": 0, "safe": 7}


def test_expression_that_fails_refuses_its_row_alone() -> None:
    spec = C("n", "int64", expression="CASE WHEN value.kind = 'n' THEN CAST(value.x AS BIGINT) ELSE 0 END")
    values = [{"kind": "n", "x": "1"}, {"kind": "n", "x": "no"}, {"kind": "s", "x": "no"}] * 20
    found, refused = column(spec, values)
    assert found == [1, 0] * 20
    assert refused == dict.fromkeys(range(1, 60, 3), "expression")


def test_cast_that_fails_is_found_without_a_look_at_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = C(
        "n", "int64", expression="CAST(CAST(trim(value.x) AS DECIMAL(9, 1)) AS BIGINT) + CAST(trim(value.y) AS INT)"
    )
    values = [{"x": "1.0", "y": 1}, {"x": "no", "y": 1}, {"x": "2", "y": "z"}, {"x": None, "y": "7"}] * 50
    runs: list[int] = []
    run = Expression._run

    def counted(self: Expression, *args: Any) -> pa.Array:
        runs.append(1)
        return run(self, *args)

    monkeypatch.setattr(Expression, "_run", counted)
    found, refused = column(spec, values)
    assert found == [2, None] * 50
    assert sorted(refused) == [at for at in range(200) if at % 4 in (1, 2)]
    assert len(runs) < 10


@pytest.mark.parametrize(
    "text",
    [
        "repeat('x', partition)",
        "value.a * 2",
        "random()",
        "now()",
        "current_timestamp",
        "sum(value.a)",
        "row_number() OVER ()",
        "(SELECT 1)",
        "getenv('HOME')",
        '"now"()',
        '"today"()',
        '"random" ()',
        'list_transform([1], lambda x: "random"())',
        "current_localtimestamp()",
        "\"current_setting\"('memory_limit')",
        "\"repeat\"('x', partition)",
        "age(timestamp)",
        "printf('%*d', partition, 1)",
        "'{:{}}'.format('a', partition)",
        "format(value.a, 1)",
        "unnest([1,2])",
        "value.a +",
        "nothing.a",
        "read_text('x')",
        "upper(",
        "value.a; DROP TABLE x",
        "*",
        "topic.x",
        "json_serialize_plan('select 1')",
        "json_serialize_sql('select 1')",
        "version()",
        "current_user",
        "finalize(value.a)",
        "value.a::regclass",
        "list_aggregate([1], value.a)",
        "json_group_array(value.a)",
        "error",
        "parse_duckdb_log_message('x', value.a)",
        "value.a IN (SELECT 1)",
        "variant_bytes_to_variant(value.a, value.a)",
    ],
)
def test_expression_that_is_not_pure_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="column 'n'"):
        column(C("n", "string", expression=text), [{"a": 1}])


def test_definitions_that_can_never_be_are_refused() -> None:
    for spec in (
        replace(LOG, where="nothing > 1"),
        replace(LOG, columns=(C("id", "int64", source="nowhere.a"),)),
        replace(LOG, columns=(C("a", "string", source="value.m"), C("b", "string", source="value.m.x"))),
    ):
        with pytest.raises(Invalid):
            process(pipeline(spec), [{"id": 1}])


@pytest.mark.parametrize("name", ["kafka_source", "kafka_offset"])
def test_columns_that_order_a_key_are_the_bridges_own(name: str) -> None:
    kind = "string" if name == "kafka_source" else "int64"
    spec = TableSpec("d.t", primary_key=("id",), columns=(C("id", "int64"), C(name, kind)))
    with pytest.raises(Invalid, match="source positions needs that name"):
        wanted_table(spec)


def test_definition_that_changes_is_seen_at_the_next_block() -> None:
    tables = {"shop.log": wanted_table(LOG)}
    made = pipeline(replace(LOG, columns=()), tables=tables)
    assert set(rows(process(made, [{"id": 1, "new": 2}]), "shop.log")[0]) == {"id", "amount", "who"}
    tables["shop.log"] = wanted_table(replace(LOG, columns=(*LOG.columns, C("new", "int64"))))
    assert rows(process(made, [{"id": 1, "new": 2}]), "shop.log")[0]["new"] == 2


def test_raw_and_arrow_records() -> None:
    raw = pipeline(TableSpec("shop.orders", columns=(C("body", "binary", source="value"),)), format="raw")
    assert rows(process(raw, [b"\0\1", b""])) == [{"body": b"\0\1"}, {"body": b""}]
    batch = pa.RecordBatch.from_pylist([{"id": 1, "who": "a"}, {"id": 2, "who": "b"}])
    stream = ipc.encode(batch.schema, [batch])
    wide = pa.RecordBatch.from_pylist([{"id": 3, "amount": 1.5}])
    none = ipc.encode(batch.schema, [batch.slice(0, 0)])
    bad = ipc.encode(pa.schema([("id", pa.string())]), [pa.RecordBatch.from_pylist([{"id": "x"}])])
    odd = ipc.encode(pa.schema([("id", pa.duration("s"))]), [])
    made = pipeline(LOG, format="arrow")
    values = [stream, none, b"garbage", ipc.encode(wide.schema, [wide]), bad, odd, stream[:-20]]
    mapped = process(made, values)
    assert mapped.tables[0].record.tolist() == [0, 0, 3]
    assert [row["id"] for row in rows(mapped, "shop.log")] == [1, 2, 3]
    assert mapped.passed["empty"].tolist() == [1]
    assert sorted(codes(mapped)) == [2, 4, 5, 6]


def test_record_of_which_one_row_is_refused_is_refused_whole() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": "1"}, {"id": "x"}, {"id": "y"}])
    good = pa.RecordBatch.from_pylist([{"id": "2"}, {"id": "3"}])
    values = [ipc.encode(part.schema, [part]) for part in (batch, good)]
    mapped = process(pipeline(LOG, format="arrow"), values)
    assert codes(mapped) == {0: "not-a-number"}
    assert [row["id"] for row in rows(mapped, "shop.log")] == [2, 3]


class Changes:
    """A decoder of change events as they are needed."""

    def __init__(self, decoded: DecodedBlock) -> None:
        self._decoded = decoded

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        self.wanted = wanted
        return self._decoded

    def schema(self) -> pa.Schema | None:
        return None


def test_all_fields_are_wanted_of_a_table_that_is_not_known_yet() -> None:
    """Else its first records would come without what nobody asked for."""
    spec = replace(ORDERS, table="shop.{schema}_{table}", columns=())
    rows = Changes(DecodedBlock(pa.array([{"id": 1}]), np.array([0])))
    for each, wanted in ((spec, None), (replace(spec, columns=ORDERS.columns), {"id", "amount", "who"})):
        made = Pipeline(
            topic=TopicSpec("", topic="orders", target=each, format="debezium-json"), tables={}, decoder=rows
        )
        assert codes(made.process(block([b""]))) == {0: "no-table"}
        assert (rows.wanted if rows.wanted is None else set(rows.wanted.names)) == wanted


def test_changes_carry_what_they_mean() -> None:
    values = pa.array([{"id": 1, "amount": None, "who": "a"}, {"id": 2, "amount": 1.0, "who": "b"}, {"id": 3}])
    origin = pa.array([{"database": "d", "schema": "s.1", "table": t} for t in ("x", "y", "x")])
    decoded = DecodedBlock(
        values,
        np.array([0, 1, 2]),
        op=np.array([0, 1, 0], np.int8),
        kept={"amount": pa.array([True, False, False])},
        origin=origin,
        atomic=np.array([5, 5, -1]),
    )
    spec = replace(
        ORDERS,
        table="shop.{schema}_{table}",
        columns=(*ORDERS.columns[:2], C("d", "float64", expression="value.amount + 1")),
    )
    names = {name: wanted_table(spec, name=name) for name in ("shop.s_1_x", "shop.s_1_y")}
    topic = TopicSpec("", topic="orders", target=spec, format="debezium-json")
    records = block([b"", b"", b""])
    mapped = Pipeline(topic=topic, tables=names, decoder=Changes(decoded)).process(records)
    check_ends(records, mapped)
    x, y = mapped.tables
    assert (x.table, x.record.tolist(), x.op.tolist()) == ("shop.s_1_x", [0, 2], [0, 0])
    assert {name: mask.to_pylist() for name, mask in x.kept.items()} == {"amount": [True, False], "d": [True, False]}
    assert x.atomic is not None
    assert x.atomic.tolist() == [5, -1]
    assert y.batch.to_pylist()[0]["amount"] is None
    assert y.op.tolist() == [Op.DELETE]


def test_half_of_a_change_is_refused_with_the_other() -> None:
    """A key change whose new row does not fit must not delete the old one."""
    values = pa.array([{"id": 1, "who": "a"}, {"id": 2, "who": None}, {"id": 3, "who": "b"}])
    columns = (*ORDERS.columns[:2], C("who", "string", required=True))
    decoded = DecodedBlock(
        values, np.array([0, 1, 2]), op=np.array([1, 0, 0], np.int8), atomic=np.array([0, 0, -1], np.int64)
    )
    spec = replace(ORDERS, columns=columns)
    topic = TopicSpec("", topic="orders", target=spec, format="debezium-json")
    records = block([b"", b"", b""])
    mapped = Pipeline(topic=topic, tables={"shop.orders": wanted_table(spec)}, decoder=Changes(decoded)).process(
        records
    )
    check_ends(records, mapped)
    assert codes(mapped) == {0: "half-a-change", 1: "missing-value"}
    assert [row["id"] for row in rows(mapped)] == [3]


GARBAGE = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.one_of(st.integers(0, 3), st.text(max_size=2), st.none()),
            "amount": st.one_of(st.floats(), st.booleans(), st.integers()),
            "kind": st.sampled_from(["orders", "log", "x", 1, None]),
            "who": st.one_of(st.text(max_size=3), st.integers()),
        },
    ).map(lambda value: json.dumps(value).encode()),
)
FORMATS = ["json", "raw", "arrow"]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(GARBAGE, GARBAGE), max_size=12),
    st.sampled_from(FORMATS),
    st.sampled_from(["dlq", "skip"]),
    st.sampled_from(["delete", "ignore", "dlq"]),
    st.sampled_from(["value.kind", "headers.h", "key.kind", "key"]),
)
def test_every_record_of_a_garbage_block_ends_once(
    pairs: list[tuple[bytes | None, bytes | None]], fmt: Any, otherwise: str, tombstone: Any, by: str
) -> None:
    """In rows, among the rejects, or passed; whatever it holds, and nothing raises."""
    orders = replace(ORDERS, where="amount >= 0", tombstone=tombstone)
    log = replace(LOG, columns=(*LOG.columns, C("e", "int64", expression="CAST(value.who AS BIGINT)")))
    made = pipeline(orders, log if fmt == "json" else LOG, by=by, format=fmt, otherwise=otherwise)
    headers = [None if key is None else [("h", key)] for key, _ in pairs]
    records = block([value for _, value in pairs], keys=[key for key, _ in pairs], headers=headers)
    check_ends(records, made.process(records))
