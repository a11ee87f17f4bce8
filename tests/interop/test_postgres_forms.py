"""A Postgres server is the oracle: it reads our binary rows and writes the same texts and bytes as our encoders.

Each example is a column of one type. The server takes it as COPY in binary, so a wrong byte is an error or another
value; then it writes the column as text, CSV, binary and DataRow, and every message must equal ours.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore_server.queries.postgres import texts, types, values
from lakestore_server.queries.postgres.rows import CopyBinary, CopyOptions, CopyText, DataRows, RowEncoder
from tests.support import seeds
from tests.support.postgres import DATABASE, USER, Postgres

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/St_Johns",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Africa/Monrovia",
    "Africa/Casablanca",
)
FLOAT_INTEGERS = st.integers(-(10**24), 10**24) | st.integers(1 << 53, 1 << 60)
INT64 = (-(1 << 63), (1 << 63) - 1)


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[Any]]:
    with Postgres() as server:
        where = f"host=127.0.0.1 port={server.port} user={USER} dbname={DATABASE}"
        with psycopg.connect(where, autocommit=True) as opened:
            yield opened


def bodies(encoder: RowEncoder, batch: pa.RecordBatch) -> list[bytes]:
    """The bodies of all messages of a result with this batch."""
    data = encoder.start() + b"".join(bytes(part) for _, part in encoder.parts(batch, 1 << 20)) + encoder.end()
    found = []
    while data:
        size = struct.unpack(">i", data[1:5])[0]
        found.append(data[5 : 1 + size])
        data = data[1 + size :]
    return found


def check(connection: psycopg.Connection[Any], column: pa.Array, name: str, zone: str = "UTC") -> None:
    """The server writes the column as we do, in every format."""
    batch = pa.record_batch([column], names=["v"])
    cursor = connection.cursor()
    cursor.execute(f"SET TimeZone = '{zone}'; DROP TABLE IF EXISTS t; CREATE TEMP TABLE t (v {name})")
    with cursor.copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(b"".join(bodies(CopyBinary(), batch)))
    encoders: list[tuple[str, RowEncoder]] = [
        ("TEXT, HEADER", CopyText(batch.schema, CopyOptions(has_header=True), zone)),
        ("CSV", CopyText(batch.schema, CopyOptions.csv(), zone)),
        ("CSV, FORCE_QUOTE *", CopyText(batch.schema, replace(CopyOptions.csv(), quoted=("*",)), zone)),
        ("CSV, FORCE_QUOTE (v)", CopyText(batch.schema, replace(CopyOptions.csv(), quoted=("v",)), zone)),
        ("BINARY", CopyBinary()),
    ]
    for form, encoder in encoders:
        with cursor.copy(f"COPY (SELECT v FROM t) TO STDOUT (FORMAT {form})") as copy:
            theirs = [bytes(message) for message in copy]
        assert bodies(encoder, batch) == theirs, form
    for is_binary in (False, True):
        cursor.execute("SELECT v FROM t", binary=is_binary)
        result = cursor.pgresult
        assert result is not None
        answers = [result.get_value(row, 0) for row in range(result.ntuples)]
        theirs = [_row([answer]) for answer in answers]
        assert bodies(DataRows(batch.schema, (is_binary,), zone), batch) == theirs
        ours = types.postgres_type(batch.schema.field(0))
        assert (ours.oid, ours.size, ours.modifier) == (result.ftype(0), result.fsize(0), result.fmod(0))
        if name not in ("timetz", "numeric", "numeric(70,35)", "numeric(70,35)[]"):  # no parameter has so many digits
            given_back = [values.parameter(ours.oid, is_binary, answer, zone=zone).column for answer in answers[:10]]
            written = texts.text(column[:10], zone).to_pylist()
            assert [texts.text(value, zone)[0].as_py() for value in given_back] == written


def _row(values: Sequence[bytes | None]) -> bytes:
    cells = [struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in values]
    return struct.pack(">h", len(values)) + b"".join(cells)


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=60)


FLOATS = [0.0, -0.0, 1e15, 1e14, 123456789012345.0, 1e16, 1e22, 9.99999999999999e13, 1e-4, 1e-5, 1.5e-7, 5e-324, 1e100]
FLOATS += [
    float("inf"),
    float("-inf"),
    float("nan"),
    1e6,
    1e5,
    16777216.0,
    1234567.5,
    99999.99,
    0.00012345,
    1e-10,
    1e300,
]
SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int2": (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    "int4": (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "int8": (pa.int64(), st.integers(*INT64)),
    "float8": (pa.float64(), st.floats() | st.sampled_from(FLOATS) | FLOAT_INTEGERS.map(float)),
    "float4": (
        pa.float32(),
        st.floats(width=32)
        | (st.sampled_from([x for x in FLOATS if x != 1e100]) | FLOAT_INTEGERS).map(
            lambda x: struct.unpack("f", struct.pack("f", x))[0]
        ),
    ),
    "numeric(38,10)": (pa.decimal128(38, 10), st.decimals("-1e27", "1e27", places=10)),
    "numeric(5,2)": (pa.decimal128(5, 2), st.decimals("-999.99", "999.99", places=2)),
    "numeric(20,0)": (pa.decimal128(20, 0), st.integers(-(10**20) + 1, 10**20 - 1).map(Decimal)),
    "numeric(5,-3)": (pa.decimal128(5, -3), st.integers(-99_999, 99_999).map(lambda x: Decimal(x).scaleb(3))),
    "numeric(70,35)": (pa.decimal256(70, 35), st.decimals("-1e34", "1e34", places=35)),
    "numeric(9,9)": (pa.decimal128(9, 9), st.decimals("-0.999999999", "0.999999999", places=9)),
    "text": (pa.string(), st.text(st.characters(exclude_characters="\0", codec="utf-8"))),
    "bytea": (pa.binary(), st.binary()),
    "date": (pa.date32(), st.integers(-2_440_588, 2_145_031_948 + 10_957) | st.integers(-800_000, 60_000)),
    "time": (pa.time64("us"), st.integers(0, 86_399_999_999)),
    "timestamp": (pa.timestamp("us"), st.integers(-210_866_803_200_000_000, INT64[1] - 1)),
    "timestamptz": (pa.timestamp("us", "UTC"), st.integers(-(10**16) * 6, 10**16)),
    "interval": (
        pa.month_day_nano_interval(),
        st.tuples(
            st.integers(-30, 30) | st.integers(-(1 << 31) + 1, (1 << 31) - 1),
            st.integers(-3, 3) | st.integers(-(1 << 31) + 1, (1 << 31) - 1),
            (st.integers(-3, 3) | st.integers(-(1 << 53), 1 << 53)).map(lambda us: us * 1000),
        ),
    ),
    "uuid": (pa.uuid(), st.uuids().map(lambda value: value.bytes)),
}


@pytest.mark.parametrize("name", SCALARS)
def test_values_are_written_as_the_server_writes_them(connection: psycopg.Connection[Any], name: str) -> None:
    kind, values = SCALARS[name]

    @settings(max_examples=seeds.examples(50))
    @given(lists(values))
    def run(drawn: list[Any]) -> None:
        check(connection, pa.array(drawn, kind), name)

    run()


def array_of_lists(drawn: list[Any], kind: pa.DataType) -> pa.Array:
    """Lists of any type; pyarrow makes no lists of extension types."""
    elements = pa.array([value for values in drawn if values is not None for value in values], kind)
    ends = [0, *itertools.accumulate(len(values or ()) for values in drawn)]
    mask = pa.array([values is None for values in drawn], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements, mask=mask)


@pytest.mark.parametrize("name", SCALARS)
def test_arrays_are_written_as_the_server_writes_them(connection: psycopg.Connection[Any], name: str) -> None:
    kind, values = SCALARS[name]

    @settings(max_examples=seeds.examples(50))
    @given(lists(st.lists(st.none() | values, max_size=5)))
    def run(drawn: list[Any]) -> None:
        column = array_of_lists(drawn, kind)
        check(connection, column, f"{name}[]")
        check(connection, column.slice(1), f"{name}[]")

    run()


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_moves_timestamps_as_the_server_moves_them(connection: psycopg.Connection[Any], zone: str) -> None:
    @settings(max_examples=seeds.examples(50))
    @given(lists(st.integers(-(10**15) * 6, 10**16) | st.integers(0, 1 << 51)))
    def run(drawn: list[Any]) -> None:
        check(connection, pa.array(drawn, pa.timestamp("us", "UTC")), "timestamptz", zone)

    run()


HUGE = [0, 1, -1, 10**38, (1 << 127) - 1, -(1 << 127) + 1, None, 12_340_000]
ZONED_TIMES = ((0, 0), (1, 9_000), (86_399_000_000, -1), (86_399_000_000, -57_540))
OTHERS: dict[str, tuple[pa.Array, str]] = {
    "int8": (pa.array([1, -128, None], pa.int8()), "int2"),
    "uint8": (pa.array([1, 255, None], pa.uint8()), "int2"),
    "uint16": (pa.array([1, 65535, None], pa.uint16()), "int4"),
    "uint32": (pa.array([1, (1 << 32) - 1, None], pa.uint32()), "int8"),
    "uint64": (pa.array([1, (1 << 64) - 1, None, 0, 10_000], pa.uint64()), "numeric"),
    "half": (pa.array([np.float16(0.5), None, np.float16(65504.0)], pa.float16()), "float4"),
    "null": (pa.nulls(3), "text"),
    "dictionary": (pa.array(["a", None, "b", "a"]).dictionary_encode(), "text"),
    "dictionary of ints": (pa.array([1, None, 3, 1]).dictionary_encode(), "int8"),
    "large": (pa.array(["a", None, ""], pa.large_string()), "text"),
    "view": (pa.array(["a", None, "", "a long text in a view"], pa.string_view()), "text"),
    "large binary": (pa.array([b"a", None, b""], pa.large_binary()), "bytea"),
    "binary view": (pa.array([b"a", None, b"", bytes(40)], pa.binary_view()), "bytea"),
    "fixed": (pa.array([b"abc", None, b"\0\1\2"], pa.binary(3)), "bytea"),
    "date64": (pa.array([date(2020, 1, 1), None], pa.date64()), "date"),
    "infinite dates": (pa.array([(1 << 31) - 1, -(1 << 31) + 1, None, 0], pa.int32()).cast(pa.date32()), "date"),
    "infinite": (pa.array([INT64[1], -INT64[1], None, 0], pa.int64()).cast(pa.timestamp("us")), "timestamp"),
    "infinite, zoned": (pa.array([INT64[1], 0, None], pa.int64()).cast(pa.timestamp("us", "UTC")), "timestamptz"),
    "seconds": (pa.array([datetime(2020, 1, 1, 2), None], pa.timestamp("s")), "timestamp"),
    "milliseconds": (pa.array([datetime(2020, 1, 1, 2, 3, 4, 120_000), None], pa.timestamp("ms")), "timestamp"),
    "times": (pa.array([0, None, 86_399], pa.time32("s")), "time"),
    "end of day": (pa.array([0, None, 86_400_000_000], pa.int64()).cast(pa.time64("us")), "time"),
    "durations": (pa.array([timedelta(days=40, seconds=-1, microseconds=5), None, timedelta(0)]), "interval"),
    "large list": (pa.array([["a"], None, []], pa.large_list(pa.string())), "text[]"),
    "fixed list": (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)), "int4[]"),
    "enums": (pa.ListArray.from_arrays([0, 2, 3], pa.array(["a", "b", None]).dictionary_encode()), "text[]"),
    "true": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None, 2], pa.int8())), "bool"),
    "zoned times": (
        pa.ExtensionArray.from_storage(
            pa.opaque(pa.binary(8), "time_tz", "DuckDB"),
            pa.array([(us << 24 | 57_599 - east).to_bytes(8, "little") for us, east in ZONED_TIMES], pa.binary(8)),
        ),
        "timetz",
    ),
    "hugeint": (
        pa.ExtensionArray.from_storage(
            pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
            pa.array(
                [None if value is None else value.to_bytes(16, "little", signed=True) for value in HUGE], pa.binary(16)
            ),
        ),
        "numeric",
    ),
    "uhugeint": (
        pa.ExtensionArray.from_storage(
            pa.opaque(pa.binary(16), "uhugeint", "DuckDB"),
            pa.array([((1 << 128) - 1).to_bytes(16, "little"), None, bytes(16)], pa.binary(16)),
        ),
        "numeric",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_arrow_types(connection: psycopg.Connection[Any], name: str) -> None:
    column, of = OTHERS[name]
    for part in (column, column.slice(1), column.slice(0, 1), column.slice(0, 0), pa.nulls(2, column.type)):
        check(connection, part, of)


BAD = {
    "bool": ["", "maybe", "2"],
    "int2": ["", "1.5", "40000", "x", "1_"],
    "int4": ["99999999999", "0 1"],
    "int8": ["9223372036854775808", "--1"],
    "float8": ["", "1e", "abc", "1 2"],
    "numeric": ["", "1..2", "e5"],
    "bytea": ["\\xzz"],
    "date": ["", "2020-02-30", "2020-13-01", "yesterdayish", "0000-01-01"],
    "time": ["25:00:00", "12:60:00", "x"],
    "timestamp": ["2020-01-01 24:00:01", "x", "2020-02-30 00:00:00"],
    "timestamptz": ["2020-01-01 00:00:00+", "x", "400000-01-01 00:00:00+00"],
    "interval": ["", "1 parsec", "x"],
    "uuid": ["", "1234", "0000000-0000-0000-0000-000000000000z"],
    "jsonb": ["", "{", "{'a': 1}"],
    "int4[]": ["", "{", "{1,}", "{a}", "1", '{"1}', "{1}x"],
    "text[]": ["{a", '{"a', '{"a"b}'],
}
GOOD = {
    "bool": ["t", "TRUE", " on ", "no"],
    "int8": [" 12 ", "-0", "+5"],
    "float8": ["1e5", ".5", "-inf", "NaN", "Infinity", "1."],
    "bytea": ["\\x00ff", "a\\\\b\\000c", ""],
    "date": ["2020-02-29", "0044-03-15 BC", "infinity", "-infinity", "12020-01-01"],
    "time": ["01:02", "01:02:03.5", "24:00:00", "01:02:03+02"],
    "timestamp": ["2020-01-01", "2020-01-01T01:02:03Z", "2020-01-01 01:02:03.123456789", "0044-03-15 01:00:00 BC"],
    "timestamptz": [
        "2020-07-01 12:00",
        "2020-01-01T00:00:00Z",
        "2020-01-01 00:00:00-03:30",
        "2020-01-01 00:00 Asia/Kolkata",
        "2020-03-29 02:30:00",
        "2020-10-25 02:30:00",
        "0044-03-15 12:00:00+00 BC",
        "infinity",
    ],
    "interval": [
        "1 year 2 mons -3 days +04:05:06.7",
        "P1Y2M3DT4H5M6.5S",
        "@ 1 day 2 hours ago",
        "90 minutes",
        "1.5 days",
        "-3 days",
        "00:00:01.000001",
        "2 weeks",
        "P2W",
        "1.5 months",
        "5.000007 s",
    ],
    "uuid": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "A0EEBC999C0B4EF8BB6D6BB9BD380A11"],
    "int4[]": ["{}", "{1, 2 ,NULL}", " { } "],
    "text[]": ['{a b,"c,\\"d",null,"NULL",""}', "{a\\,b}", "{äß,\u4e2d}"],
}


def sqlstate_of_server(connection: psycopg.Connection[Any], name: str, text: str) -> str:
    with pytest.raises(psycopg.Error) as failure:
        connection.execute("SELECT {}::{}".format("'" + text.replace("'", "''") + "'", name))
    return str(failure.value.sqlstate)


def oid_of(connection: psycopg.Connection[Any], name: str) -> int:
    row = connection.execute(f"SELECT '{name}'::regtype::oid").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in BAD for text in BAD[name]])
def test_a_bad_text_has_the_code_of_the_server(connection: psycopg.Connection[Any], name: str, text: str) -> None:
    with pytest.raises(Invalid) as failure:
        values.parameter(oid_of(connection, name), False, text.encode())
    assert getattr(failure.value, "sqlstate", "") == sqlstate_of_server(connection, name, text)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in GOOD for text in GOOD[name]])
def test_a_text_has_the_meaning_of_the_server(connection: psycopg.Connection[Any], name: str, text: str) -> None:
    zone = "Europe/Berlin"
    connection.execute(f"SET TimeZone = '{zone}'")
    row = connection.execute(f"SELECT '{text}'::{name}::text").fetchone()
    assert row is not None
    value = values.parameter(oid_of(connection, name), False, text.encode(), zone=zone).column
    assert texts.text(value, zone)[0].as_py() == ({"true": "t", "false": "f"}[row[0]] if name == "bool" else row[0])


@given(st.sampled_from(sorted(values._BINARIES) + sorted(types.ELEMENTS)), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(oid: int, data: bytes) -> None:
    for is_binary in (False, True):
        try:
            value = values.parameter(oid, is_binary, data).column
        except (values.BadText, values.BadBinary, values.ValueOutOfRange):
            continue
        assert len(value) == 1
        DataRows(pa.schema([("v", value.type)])).rows(pa.record_batch([value], names=["v"]))
