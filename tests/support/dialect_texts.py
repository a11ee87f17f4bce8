"""Texts in PostgreSQL's dialect, from `tests/sql_door/dialect_texts/*.sql`, and the answers of a server.

- Each line is one text. A line `-- differs: …` before it says why Lakestore answers otherwise.
- An answer is the type of each column with its values as texts, or an SQLSTATE.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.types.json import Jsonb

FOLDER = Path(__file__).parents[1] / "sql_door/dialect_texts"
_DIFFERS = "-- differs: "
ITEMS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("s", pa.int16()),
        ("f", pa.float64()),
        ("r", pa.float32()),
        ("d", pa.decimal128(12, 2)),
        ("t", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("tz", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("nums", pa.list_(pa.int64())),
        ("at", pa.string()),
        ("doc", pa.struct([("city", pa.string()), ("code", pa.int32()), ("list", pa.list_(pa.int32()))])),
    ]
)
_POSTGRES_TYPES = {
    "int64": "int8",
    "int32": "int4",
    "int16": "int2",
    "double": "float8",
    "float": "float4",
    "decimal128(12, 2)": "numeric(12,2)",
    "string": "text",
    "bool": "bool",
    "date32[day]": "date",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "binary": "bytea",
    "list<item: string>": "text[]",
    "list<item: int64>": "int8[]",
}
"""By the name of the Arrow type; another type is jsonb."""
_MOMENT = dt.datetime(2026, 11, 28, 15, 30, 1, 234567)
ROWS: list[tuple[Any, ...]] = [
    (
        1,
        10,
        1,
        1.5,
        0.5,
        Decimal("1.25"),
        "apple",
        True,
        dt.date(2024, 1, 31),
        _MOMENT,
        _MOMENT,
        b"\0\xff\\",
        ["a", "b"],
        [1, 2],
        "x",
        {"city": "Bonn", "code": 5, "list": [1, 2]},
    ),
    (
        2,
        -3,
        2,
        -1.0,
        2.0,
        Decimal("-2.50"),
        "Banane",
        False,
        dt.date(2024, 2, 29),
        dt.datetime(2000, 1, 1),
        dt.datetime(2000, 1, 1),
        b"abc",
        ["b", None, 'c"d'],
        [],
        "y",
        {"city": None, "code": None, "list": []},
    ),
    (
        3,
        None,
        3,
        2.5,
        -0.0,
        Decimal("100.00"),
        "ähre_%",
        None,
        dt.date(1999, 12, 31),
        dt.datetime(1969, 12, 31, 23, 59, 59),
        dt.datetime(1969, 12, 31, 23, 59, 59),
        b"",
        [],
        [3, None],
        None,
        {"city": 'a"b', "code": -1, "list": None},
    ),
    (4, 7, None, 1e20, 1e10, None, "", True, None, None, None, None, None, None, "z", None),
    (
        5,
        10,
        -5,
        None,
        None,
        Decimal("0.00"),
        None,
        False,
        dt.date(1, 1, 1),
        dt.datetime(2024, 3, 10, 12),
        dt.datetime(2024, 3, 10, 12),
        b"'\n",
        ["b"],
        [5, 6, 7],
        "w",
        {"city": "", "code": 0, "list": [3]},
    ),
]


TYPES = {
    (20, 23): "int8 for int4: DuckDB counts in int8",
    (23, 1700): "int4 for numeric: round, ceil and div of integers",
    (701, 1700): "float8 for numeric: averages, deviations, quotients",
    (700, 701): "float4 for float8: a float4 with an integer",
    (701, 700): "float8 for float4: sums of float4",
    (21, 23): "int2 for int4: an int2 with a constant",
    (21, 701): "int2 for float8: sign",
    (21, 1700): "int2 for numeric: sign",
    (3802, 114): "jsonb for json",
    (3802, 2249): "jsonb for a row",
    (3802, 1016): "jsonb for an array of arrays",
    (25, 18): 'text for "char"',
    (25, 19): "text for name",
    (25, 1042): "text for char(n)",
    (25, 1043): "text for varchar(n)",
    (25, 2206): "text for regtype",
    (1009, 1015): "text[] for varchar[]",
    (1016, 1007): "int8[] for int4[]",
}
"""Pairs of oids, Lakestore's and PostgreSQL's, for values with the same text. docs/postgres.md lists them."""


_JSON = frozenset({114, 3802})
"""The oids of json and jsonb."""


@dataclass(frozen=True, slots=True)
class DialectText:
    """One text."""

    group: str
    text: str
    differs: str = ""
    """Why Lakestore answers otherwise; empty if it answers the same."""


def dialect_texts() -> Iterator[DialectText]:
    """Every text of every file."""
    for path in sorted(FOLDER.glob("*.sql")):
        differs = ""
        for line in path.read_text().splitlines():
            if line.startswith(_DIFFERS):
                differs = line.removeprefix(_DIFFERS)
            elif line and not line.startswith("--"):
                yield DialectText(path.stem, line, differs)
                differs = ""


@dataclass(frozen=True, slots=True)
class DialectAnswer:
    """What a server answers to a text."""

    sqlstate: str = ""
    names: tuple[str, ...] = ()
    types: tuple[int, ...] = ()
    """Oids."""
    rows: tuple[tuple[str | None, ...], ...] = ()
    message: str = ""

    def difference(self, other: DialectAnswer) -> str:
        """The first thing in which two answers differ; empty if they are the same."""
        for what in ("sqlstate", "rows", "names", "types"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if what == "types" and len(mine) == len(theirs):
                pairs = zip(mine, theirs, strict=True)
                if all(one == two or (one, two) in TYPES for one, two in pairs):
                    continue
            if mine != theirs:
                return f"{what} {mine} {self.message} instead of {theirs} {other.message}"
        return ""


def dialect_answer(connection: psycopg.Connection[Any], text: str) -> DialectAnswer:
    """The answer to a text, as texts."""
    result = connection.pgconn.exec_(text.encode())
    if result.status == ExecStatus.FATAL_ERROR:
        code, message = (
            result.error_field(field) or b"" for field in (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
        )
        return DialectAnswer(code.decode(), message=message.decode())
    columns = range(result.nfields)
    types = tuple(result.ftype(column) for column in columns)
    rows = (
        tuple(_text(result.get_value(row, column), types[column]) for column in columns)
        for row in range(result.ntuples)
    )
    return DialectAnswer(
        names=tuple((result.fname(column) or b"").decode() for column in columns),
        types=types,
        rows=tuple(rows),
    )


def _text(value: bytes | None, kind: int) -> str | None:
    """A value as text; JSON without its spaces, with its keys in order and without zeros behind a point."""
    if value is None:
        return None
    return json.dumps(json.loads(value, parse_float=_number), sort_keys=True) if kind in _JSON else value.decode()


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def items_rows() -> list[dict[str, Any]]:
    """The rows of shop.items for Lakestore."""
    rows = [dict(zip(ITEMS.names, row, strict=True)) for row in ROWS]
    return [row | {"tz": row["tz"] and row["tz"].replace(tzinfo=dt.UTC)} for row in rows]


def make_postgres_items(connection: psycopg.Connection[Any]) -> None:
    """Create shop.items with the same rows in PostgreSQL."""
    columns = ", ".join(f'"{each.name}" {_POSTGRES_TYPES.get(str(each.type), "jsonb")}' for each in ITEMS)
    connection.execute(f"CREATE SCHEMA shop; SET search_path = shop; CREATE TABLE shop.items ({columns})")
    marks = ", ".join(["%s"] * len(ITEMS))
    for row in items_rows():
        doc = None if row["doc"] is None else Jsonb(row["doc"])
        values = [*list(row.values())[:-1], doc]
        connection.execute(f"INSERT INTO shop.items VALUES ({marks})", values)
