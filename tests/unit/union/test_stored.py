"""Nested columns of lake files are found by field id, at every depth, and cast back to the declared types."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.model import table as schema
from lakestore.model import types
from lakestore.union.lake_snapshot import declared

KIND = "struct<a: int8, l: list<struct<t: time, f: fixed(2)>>, m: map<uint16, uint32>>"


def _with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})


def _of_spark(table: schema.Table) -> tuple[pa.DataType, list[Any]]:
    """As another engine could have written it: other names, another order, the lake's types, one field too many."""
    a, lists, element, t, f, maps, key, value = table.columns[0].nested
    inner = pa.struct([_with_id("ff", pa.binary(2), f), _with_id("old", pa.int8(), 999), _with_id("tt", pa.int64(), t)])
    kind = pa.struct(
        [
            _with_id(
                "mm",
                pa.map_(_with_id("key", pa.int32(), key).with_nullable(False), _with_id("value", pa.int64(), value)),
                maps,
            ),
            _with_id("ll", pa.list_(_with_id("element", inner, element)), lists),
            _with_id("a", pa.int32(), a),
        ]
    )
    noon = 12 * 3_600_000_000
    return kind, [{"mm": [(7, 2**32 - 1)], "ll": [{"ff": b"ab", "old": 1, "tt": noon}, None], "a": -1}, None]


def _table() -> schema.Table:
    return schema.define("d.t", pa.schema([("c", types.arrow_type(KIND))]), buckets=1)


def test_fields_inside_are_found_by_id(tmp_path: Any) -> None:
    table = _table()
    kind, values = _of_spark(table)
    pq.write_table(pa.table({"c": pa.array(values, kind)}), tmp_path / "x.parquet")
    read = pq.ParquetFile(tmp_path / "x.parquet").read().column("c").combine_chunks()
    made = declared(read, table.schema.field("c"), table)
    assert made.type.equals(table.schema.field("c").type, check_metadata=True)
    wanted = {"a": -1, "l": [{"t": dt.time(12), "f": b"ab"}, None], "m": [(7, 2**32 - 1)]}
    assert made.to_pylist() == [wanted, None]


def test_a_field_that_the_file_does_not_have_is_null() -> None:
    table = _table()
    number = table.columns[0].nested[0]
    array = pa.array([{"zzz": 5}, None], pa.struct([_with_id("zzz", pa.int32(), number)]))
    made = declared(array, table.schema.field("c"), table)
    assert made.to_pylist() == [{"a": 5, "l": None, "m": None}, None]


def test_files_without_ids_are_read_by_name() -> None:
    table = _table()
    array = pa.array([{"m": [], "a": 5}], pa.struct([("m", pa.map_(pa.int32(), pa.int64())), ("a", pa.int32())]))
    assert declared(array, table.schema.field("c"), table).to_pylist() == [{"a": 5, "l": None, "m": []}]
