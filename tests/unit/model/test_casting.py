"""Rows of any layout are cast losslessly at any depth, or refused by column, row and rule; nothing unfolds unpaid."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT, Limits
from lakestore.model import table as schema
from lakestore.model import types
from lakestore.rows import ipc
from tests.support.served import Served


def conformed(array: pa.Array, name: str, limits: Limits = DEFAULT) -> pa.Array:
    table = schema.define("d.t", pa.schema([("c", types.arrow_type(name))]), buckets=1)
    made = ipc.conform(pa.RecordBatch.from_arrays([array], names=["c"]), table, limits=limits)
    made.validate(full=True)
    assert made.schema.types == table.schema.types
    assert made.column(0).type.equals(table.schema.field(0).type, check_metadata=True)
    return made.column(0)


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


TEXTS: list[Any] = [["a", None], None, [], ["b"]]
CASTS: list[tuple[pa.DataType, list[Any], str]] = [
    (pa.large_list(pa.large_string()), TEXTS, "list<string>"),
    (pa.list_view(pa.string_view()), TEXTS, "list<string>"),
    (pa.large_list_view(pa.string()), TEXTS, "list<string>"),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), TEXTS, "list<string>"),
    (pa.list_(pa.int64(), 2), [[1, None], None, [3, 4]], "list<uint8>"),
    (pa.list_(pa.null()), [[None], None], "list<struct<a: int8>>"),
    (pa.null(), [None, None], "map<string, int64 not null>"),
    (struct(b=pa.int64(), a=pa.large_string()), [{"b": 7, "a": "x"}, None], "struct<a: string, b: uint32>"),
    (struct(a=pa.int64()), [{"a": 1}, None], "struct<a: int8, b: list<int8>>"),
    (pa.map_(pa.large_string(), pa.int64()), [[("a", 1)], None, []], "map<string, int16>"),
    (pa.list_(struct(key=pa.string(), value=pa.int64())), [[{"key": "a", "value": 1}], None], "map<string, int8>"),
    (pa.time32("s"), [dt.time(1, 2, 3), None], "time"),
    (pa.list_(pa.time64("ns")), [[dt.time(1, 2, 3)]], "list<time>"),
    (pa.large_binary(), [b"abcd", None], "fixed(4)"),
    (pa.list_(pa.binary_view()), [[b"abcd", None]], "list<fixed(4)>"),
    (pa.uuid(), [b"0123456789abcdef", None], "fixed(16)"),
    (pa.list_(pa.decimal256(40, 2)), [[Decimal("1.50")]], "list<decimal(10,2)>"),
]


@pytest.mark.parametrize(("kind", "values", "name"), CASTS, ids=[str(kind) for kind, _, _ in CASTS])
def test_layouts_and_wider_types_are_cast_at_any_depth(kind: pa.DataType, values: list[Any], name: str) -> None:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    whole = pa.array([values[0], *values, values[0]], storage)
    array = (pa.ExtensionArray.from_storage(kind, whole) if storage is not kind else whole).slice(1, len(values))
    expected = pa.array(whole.slice(1, len(values)).to_pylist(), types.arrow_type(name)).to_pylist()
    assert conformed(array, name).to_pylist() == expected


REFUSED: list[tuple[pa.DataType, list[Any], str, str]] = [
    (pa.int64(), [1, -1], "uint8", "column 'c', row 1"),
    (pa.int64(), [1, 2**32], "uint32", "column 'c', row 1"),
    (pa.uint64(), [2**63], "int64", "column 'c', row 0"),
    (pa.list_(pa.int64()), [[1], None, [], [2, 3, 300]], "list<uint8>", "column 'c.element', row 3"),
    (
        struct(a=pa.list_(pa.float64())),
        [{"a": [1.0]}, {"a": [0.1]}],
        "struct<a: list<float32>>",
        "'c.a.element', row 1",
    ),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("b", -1)]], "map<string, uint8>", "'c.value', row 1"),
    (pa.map_(pa.string(), pa.int64()), [[], [("b", 1), ("b", 2)]], "map<string, int64>", "key 'b' twice in row 1"),
    (pa.list_(pa.int64()), [[1], [2, None]], "list<int64 not null>", "'c.element' is required, but null in row 1"),
    (struct(a=pa.int64()), [None, {"a": None}], "struct<a: int64 not null>", "'c.a' is required, but null in row 1"),
    (struct(b=pa.int64()), [{"b": 1}], "struct<a: int64>", "'c' has no field 'b'"),
    (struct(b=pa.int64()), [{"b": 1}], "struct<a: int64 not null, b: int64>", "'c.a' is required, but missing"),
    (pa.map_(pa.string(), pa.int64()), [[("a", None)]], "map<string, int64 not null>", "'c.value' is required"),
    (pa.list_(struct(key=pa.string(), value=pa.int8())), [[{"value": 1}]], "map<string, int8>", "'c.key' is required"),
    (pa.time64("ns"), [0, 1], "time", "column 'c', row 1"),
    (pa.binary(), [b"abcd", b"abc"], "fixed(4)", "column 'c', row 1: 3 bytes are not 4"),
    (pa.binary(3), [b"abc"], "fixed(4)", "'c' is fixed.*4.*, not fixed.*3"),
    (pa.list_(pa.string()), [["1"]], "list<int64>", "'c.element' is int64, not string"),
    (pa.int64(), [1], "list<int64>", "'c' is list<.*not int64"),
    (pa.int64(), [1], "time", "'c' is time64\\[us\\], not int64"),
]


@pytest.mark.parametrize(("kind", "values", "name", "says"), REFUSED)
def test_what_loses_or_lacks_a_value_is_refused_by_place(
    kind: pa.DataType, values: list[Any], name: str, says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        conformed(pa.array(values, kind), name)


def test_what_lies_under_a_null_does_not_count() -> None:
    hidden = pa.array([1, 300], pa.int64())
    nulls = pa.array([False, True])
    inside = pa.StructArray.from_arrays([hidden], names=["a"], mask=nulls)
    assert conformed(inside, "struct<a: uint8 not null>").to_pylist() == [{"a": 1}, None]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=nulls)
    assert conformed(lists, "list<uint8>").to_pylist() == [[1], None]


def _views() -> pa.Array:
    """A thousand views of one long list of long texts."""
    texts = pa.array(["x" * 1000] * 1000)
    offsets, sizes = np.zeros(1000, dtype=np.int32), np.full(1000, 1000, dtype=np.int32)
    return pa.ListViewArray.from_arrays(pa.array(offsets), pa.array(sizes), texts)


def _same_text() -> pa.Array:
    """A million string views of one text in one buffer."""
    text, count = b"x" * 100_000, 20_000
    view = np.frombuffer(np.array([len(text)], "<i4").tobytes() + text[:4] + bytes(8), dtype=np.uint8)
    views = pa.py_buffer(np.tile(view, count))
    return pa.Array.from_buffers(pa.string_view(), count, [None, views, pa.py_buffer(text)])


def _named_often(inner: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, dtype=np.int8)), inner)


BOMBS: list[tuple[pa.Array, str]] = [
    (_views(), "list<string>"),
    (_same_text(), "string"),
    (_named_often(pa.array(["x" * 100_000])), "string"),
    (_named_often(pa.array([["x" * 100_000]])), "list<string>"),
    (pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1)), "list<int64>"),
    (pa.FixedSizeListArray.from_arrays(pa.nulls(60_000_000), 60_000_000), "list<struct<a: int64>>"),
]


@pytest.mark.parametrize(("array", "name"), BOMBS)
def test_a_small_message_does_not_become_a_large_array(array: pa.Array, name: str) -> None:
    with pytest.raises(Invalid, match="send smaller batches"):
        conformed(array, name)


def test_columns_pay_from_one_budget() -> None:
    small = Limits(batch_memory_bytes=100_000)
    table = schema.define("d.t", pa.schema([("a", pa.int64()), ("b", pa.int64())]), buckets=1)
    one, two = [pa.array(np.arange(8_000), pa.int32())] * 2
    ipc.conform(pa.RecordBatch.from_arrays([one], names=["a"]), replace(table, columns=table.columns[:1]), limits=small)
    with pytest.raises(Invalid, match="'b' unfolds"):
        ipc.conform(pa.RecordBatch.from_arrays([one, two], names=["a", "b"]), table, limits=small)


def test_too_many_values_of_one_column_are_refused() -> None:
    small = Limits(nested_values=10)
    assert len(conformed(pa.array([[1] * 10]), "list<int64>", small)) == 1
    with pytest.raises(Invalid, match="holds 11 values, more than 10"):
        conformed(pa.array([[1] * 11]), "list<int64 not null>", small)


def test_floats_are_narrowed_exactly_or_refused(served: Served) -> None:
    table = served.lake.create_table("a.b", pa.schema([("id", pa.int64()), ("f", pa.float32())]), primary_key=["id"])
    table.upsert(pa.table({"id": [1, 2, 3], "f": pa.array([0.5, None, float("nan")])}))
    for wrong in (0.1, 1e300):
        with pytest.raises(Invalid, match="row 1"):
            table.upsert(pa.table({"id": [1, 2], "f": pa.array([0.5, wrong])}))
