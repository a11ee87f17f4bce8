"""Texts that clients of PostgreSQL send, from `tests/unit/queries/client_texts/*.sql`, and a way to ask them.

- A file begins with its source. `-- name:` begins a text, `-- parameters:` has the values that the client sent,
  `-- differs:` says why a real server answers otherwise, `;;` ends it.
- `{orders}` and the like are oids, which differ between a lake and a real server.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.client.lake import Lake
from lakestore.model.table import Table
from lakestore.union import sql
from lakestore_server.queries.postgres import dialect
from lakestore_server.queries.postgres.catalog import Catalog, Session
from tests.support.postgres import Postgres

FOLDER = Path(__file__).parents[1] / "unit/queries/client_texts"
SESSION = Session("ann", "shop", ("shop",))
_PLACE = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"\$(\d+)\b")


@dataclass(frozen=True, slots=True)
class ClientText:
    """One text of a client."""

    client: str
    name: str
    text: str
    parameters: tuple[str | None, ...] = ()
    differs: str = ""
    """Why a real server answers otherwise; empty if it answers the same."""

    def with_values(self, oids: Mapping[str, int]) -> str:
        """The text with oids and with its parameters as constants."""

        def oid(match: re.Match[str]) -> str:
            return str(oids[match[1]]) if match[1] in oids else match[0]

        def constant(match: re.Match[str]) -> str:
            value = self.parameters[int(match[1]) - 1]
            return "NULL" if value is None else "'" + _PLACE.sub(oid, value).replace("'", "''") + "'"

        text = _PLACE.sub(oid, self.text)
        return _PARAMETER.sub(constant, text) if self.parameters else text


def client_texts() -> Iterator[ClientText]:
    """Every text of every file."""
    for path in sorted(FOLDER.glob("*.sql")):
        for part in path.read_text().split("\n-- name: ")[1:]:
            name, _, rest = part.partition("\n")
            text, end, _ = rest.rpartition("\n;;")
            assert end, f"{path.name}: {name} has no end"
            notes = dict(re.findall(r"^-- (differs|parameters): (.*)\n", text, re.MULTILINE))
            text = re.sub(r"^-- (differs|parameters): .*\n", "", text, flags=re.MULTILINE)
            parameters = tuple(json.loads(notes.get("parameters", "[]")))
            yield ClientText(path.stem, name, text, parameters, notes.get("differs", ""))


def make_tables(lake: Lake) -> None:
    """Create the tables that the texts ask for."""
    lake.create_table("shop.orders", ORDERS, primary_key=["order_id"])
    lake.create_table("crm.people", pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))


ORDERS = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("customer", pa.string(), nullable=False),
        ("amount", pa.decimal128(12, 2)),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
POSTGRES_TABLES = """
CREATE ROLE lakestore; CREATE SCHEMA shop; CREATE SCHEMA crm;
CREATE TABLE shop.orders(order_id int8 PRIMARY KEY, customer text NOT NULL, amount numeric(12,2), ts timestamptz,
    tags text[]);
CREATE TABLE crm.people(id int8 NOT NULL, name text);
ALTER TABLE shop.orders OWNER TO lakestore; ALTER TABLE crm.people OWNER TO lakestore;
ALTER SCHEMA shop OWNER TO lakestore; ALTER SCHEMA crm OWNER TO lakestore;
ALTER DATABASE shop SET search_path = shop; DROP SCHEMA public;
"""
"""The same tables on a real server."""


def lake_oids(tables: Sequence[Table]) -> dict[str, int]:
    """The values of the places in the texts."""
    catalog = Catalog(tables, SESSION)
    orders = next(each for each in catalog.tables if each.table.name == "shop.orders")
    return {
        "orders": orders.oid,
        "orders_pkey": orders.index_oid,
        "orders_constraint": orders.constraint_oid,
        "shop": orders.schema_oid,
    }


def answer(lake: Lake, text: str, session: Session = SESSION) -> pa.Table:
    """The rows of a text in PostgreSQL's dialect, as a query process computes them."""
    tables = lake._connection
    translated, catalog = dialect.translated(sql.load_engine(), text, tables, session)
    query = sql.Query(translated, bounds=sql.Bounds(1 << 30), extra=catalog)
    with sql.stream(lake.transport, query, tables.all) as rows:
        return pa.Table.from_batches(rows.batches, rows.schema)


def rows_of(table: pa.Table) -> list[list[tuple[str, Any]]]:
    """Rows as (column, value), in the types of JSON. Two columns may have one name."""
    columns = [plain(column.to_pylist()) for column in table.columns]
    return [list(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def postgres_rows(postgres: Postgres, text: str) -> list[list[tuple[str, Any]]]:
    """The same of a real server."""
    printed = postgres.run(f"SELECT row_to_json(r) FROM ({text}\n) r")
    lines = [line for line in printed.splitlines() if line]
    return [json.loads(line, parse_float=str, object_pairs_hook=_pairs) for line in lines]


def _pairs(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return pairs


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


def plain(value: Any) -> Any:
    """A value as JSON of PostgreSQL has it: numbers with a point as their digits."""
    return json.loads(json.dumps(value, default=_text), parse_float=str)
