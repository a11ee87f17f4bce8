"""Keys of every scalar type: their bytes are ordered as their values, tell all of them apart, and find their rows."""

from __future__ import annotations

import datetime
import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.model.types import NAMES, arrow_type
from lakestore.rows import keys
from lakestore.union.verify import verify
from tests.support.served import Served
from tests.unit.index.test_index_faults import lose

PREFIX = b"\x00\x00\x00\x07"
UTC = datetime.UTC
MOMENTS = [datetime.datetime(1, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)]
MOMENTS += [datetime.datetime(1970, 1, 1), datetime.datetime(2026, 11, 21, 1, 2, 3, 4), datetime.datetime(9999, 1, 1)]


def whole(low: int, high: int) -> list[int]:
    """Numbers at the edges of a range."""
    return sorted({n for n in (low, low + 1, -256, -255, -1, 0, 1, 255, 256, high - 1, high) if low <= n <= high})


ORDERED: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": whole(-(2**7), 2**7 - 1),
    "int16": whole(-(2**15), 2**15 - 1),
    "int32": whole(-(2**31), 2**31 - 1),
    "int64": whole(-(2**63), 2**63 - 1),
    "uint8": whole(0, 2**8 - 1),
    "uint16": whole(0, 2**16 - 1),
    "uint32": whole(0, 2**32 - 1),
    "date": [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(9999, 1, 1)],
    "time": [datetime.time(), datetime.time(0, 0, 0, 1), datetime.time(12), datetime.time(23, 59, 59, 999_999)],
    "timestamp": MOMENTS,
    "timestamptz": [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    "decimal(38,0)": [Decimal(n) for n in (-(10**38) + 1, -(2**64), -1, 0, 1, 2**64, 10**38 - 1)],
    "decimal(9,2)": [Decimal(n).scaleb(-2) for n in (-(10**9) + 1, -101, -100, -1, 0, 1, 99, 100, 10**9 - 1)],
    "fixed(3)": [b"\0\0\0", b"\0\0\1", b"\0\xff\0", b"abc", b"\xff\xff\xff"],
    "string": ["", "\0", "\0\0", "\0a", "a", "a\0", "a\0\0", "a\0b", "a\1", "aa", "b", "é", "\U0001f600"],
    "binary": [b"", b"\0", b"\0\0", b"\0\1", b"\0\xff", b"\1", b"a", b"a\0", b"a\0\xff", b"a\1", b"\xff", b"\xff\xff"],
}


def test_every_scalar_type_but_floats_is_here() -> None:
    assert set(NAMES) - {"float32", "float64"} <= set(ORDERED)


@pytest.mark.parametrize("name", ORDERED)
def test_bytes_are_ordered_as_the_values_are(name: str) -> None:
    encoded = keys.encode([pa.array(ORDERED[name], arrow_type(name))], PREFIX)
    assert encoded == sorted(encoded)
    assert len(set(encoded)) == len(encoded)


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(["string", "binary", "int16", "fixed(3)"], repeat=2))
)
def test_bytes_of_two_columns_are_ordered_as_the_pairs_are(first: str, second: str) -> None:
    """Also where one value begins with another, or holds what ends a value."""
    pairs = list(itertools.product(ORDERED[first], ORDERED[second]))
    columns = [pa.array([p[i] for p in pairs], arrow_type(name)) for i, name in enumerate((first, second))]
    for part in (slice(None), slice(3, 17)):
        encoded = keys.encode([column[part] for column in columns], PREFIX)
        assert encoded == sorted(encoded)
        assert len(set(encoded)) == len(encoded)


def test_keys_of_every_type_find_their_rows_also_in_a_rebuilt_index(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        for name, values in ORDERED.items():
            key = pa.array(values, arrow_type(name))
            schema = pa.schema([("k", key.type), ("n", pa.int64())])
            table = lake.create_table(f"a.{name[:5]}{len(name)}", schema, primary_key=["k"], buckets=2)
            for _ in range(2):
                table.upsert(pa.table([key, pa.array(range(len(key)))], schema=schema))
            assert table.last_result is not None
            assert table.last_result.updated == len(key)
            table.delete(pa.table({"k": key[:1]}))
    for lost in (False, True):
        if lost:
            lose(tmp_path)
        with Served(tmp_path) as served:
            served.until_indexed()
            for name, values in ORDERED.items():
                table = served.lake.table(f"a.{name[:5]}{len(name)}")
                found = table.lookup(pa.table({"k": pa.array(values, arrow_type(name))}))
                assert found["n"].to_pylist() == list(range(1, len(values)))
                assert verify(served.lake.transport, table.name).same


def test_what_cannot_be_a_key_is_refused_by_column_row_and_reason(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        for kind in (pa.float32(), pa.float64()):
            with pytest.raises(Invalid, match=r"column 'k' is a float .* NaN equals nothing .* use a decimal"):
                lake.create_table("a.f", pa.schema([("k", kind)]), primary_key=["k"])
        table = lake.create_table("a.b", pa.schema([("k", pa.string()), ("n", pa.int64())]), primary_key=["k"])
        for call in (table.upsert, table.delete, table.lookup):
            with pytest.raises(Invalid, match=r"column 'k' is null in row 1"):
                call(pa.table({"k": ["a", None, "b"]}) if call != table.upsert else [{"k": "a"}, {"k": None}])
        long = [{"k": f"{i}"} for i in range(50)] + [{"k": "x" * 70_000}]
        with pytest.raises(Invalid, match=r"key of 'k': row 50: a key of 70000 bytes is longer than 65536"):
            table.upsert(long)
        assert table.scan().count() == 0
