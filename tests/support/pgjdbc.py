"""PostgreSQL's own JDBC driver against two servers: the Postgres port, and a PostgreSQL that has the same tables."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.types.json import Jsonb

import lakestore as ls
from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore_demo.ivy import fetch
from tests.support.java_source import compiled
from tests.support.postgres import DATABASE, USER, Postgres
from tests.support.sql_door import EVERY, JSON, ODD, ORDER_COUNT, every_rows, order

VERSION = "42.7.14"
SOURCE = Path(__file__).with_name("PgJdbc.java")
SECONDS = 900.0
LINES = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        ("what", pa.string()),
    ]
)
LINE_ROWS = [{"order_id": n // 2, "line": n % 2, "what": None if n == 3 else f"thing {n}"} for n in range(6)]
_KINDS = {
    "bool": "bool", "int8": "int2", "int16": "int2", "int32": "int4", "int64": "int8", "uint8": "int2",
    "uint16": "int4", "uint32": "int8", "float32": "float4", "float64": "float8", "string": "text",
    "binary": "bytea", "fixed(5)": "bytea",
    "date": "date", "time": "time", "timestamp": "timestamp", "timestamptz": "timestamptz",
    "decimal(20,3)": "numeric(20,3)", "list<int64>": "int8[]", "list<string>": "text[]", "list<date>": "date[]",
}  # fmt: skip
"""Types of Lakestore to those of Postgres, as docs/internals/sql-door.md has them."""


def driver() -> Path:
    """The folder of the driver's jar."""
    return fetch("pgjdbc", VERSION, (f"org.postgresql:postgresql:{VERSION}",), transitive=False)


def lines(address: str, user: str, password: str, *options: str) -> list[str]:
    """What PgJdbc prints."""
    command = [java(), *SHORT_LIVED, "-Xmx256m", "-Duser.timezone=Europe/Paris", "-Duser.language=en"]
    command += ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-cp", compiled(SOURCE, driver()), SOURCE.stem]
    done = subprocess.run(
        [*command, address, user, password, *options], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout.splitlines()


def add_lines(lake: ls.Lake) -> None:
    """The table with a key of two columns."""
    lake.create_table("shop.lines", LINES, primary_key=["order_id", "line"]).upsert(LINE_ROWS)


def fill(real: Postgres) -> None:
    """Give a PostgreSQL the tables of a door and `shop.lines`."""
    every = ", ".join(f'"{name}" {_KINDS.get(kind, "jsonb")}' for name, (kind, _, _) in EVERY.items())
    odd = ", ".join(sql.Identifier(name).as_string(None) + " " + str(kind) for name, kind in _odd())
    real.run(f"""
        CREATE SCHEMA shop;
        CREATE TABLE shop.events (seq int8, kind text);
        CREATE TABLE shop.every (id int8 PRIMARY KEY, {every});
        CREATE TABLE shop.lines (order_id int8, line int4, what text, PRIMARY KEY (order_id, line));
        CREATE TABLE shop.orders
            (order_id int8 PRIMARY KEY, customer text, amount numeric(12, 2), created_at timestamptz);
        CREATE TABLE shop."OddNames" ({odd}, PRIMARY KEY ("Order Id"));
        ALTER DATABASE {DATABASE} SET search_path = shop;
    """)
    with psycopg.connect(host="127.0.0.1", port=real.port, user=USER, dbname=DATABASE) as connection:
        for row in every_rows():
            for name in JSON:
                value = dict(row[name]) if name == "props" and row[name] is not None else row[name]
                row[name] = None if value is None else Jsonb(value)
            _insert(connection, "every", row)
        for number in range(ORDER_COUNT):
            _insert(connection, "orders", order(number))
        for row in LINE_ROWS:
            _insert(connection, "lines", row)


def _odd() -> list[tuple[str, str]]:
    return [(field.name, "int8" if field.type == pa.int64() else "text") for field in ODD]


def _insert(connection: psycopg.Connection[Any], table: str, row: dict[str, Any]) -> None:
    text = sql.SQL("INSERT INTO shop.{} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join([sql.Placeholder()] * len(row)),
    )
    connection.execute(text, list(row.values()))
