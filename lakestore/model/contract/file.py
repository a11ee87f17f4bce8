"""Contracts and tables of `tables.yaml`: from one to the other, and back.

- A contract describes one or several tables; `wanted` gives the table of one entry of its `schema`.
- `exported` writes the contract of definitions. `wanted` of it is the same definition again.
- A table's name is its `physicalName` with a database, or the namespace of an Iceberg server before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from lakestore.model.columns import LAKE_OPTIONS, Column, LakeOptions
from lakestore.model.contract import column_types, document
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.document import Entry, column_name, stored_columns
from lakestore.model.contract.event_time import TIME_TYPE
from lakestore.model.contract.late_data import time_columns
from lakestore.model.contract.rules import rules_of
from lakestore.model.merge_engines import UPSERT
from lakestore.model.outside_values import excerpt
from lakestore.model.table import Table
from lakestore.model.table_file import COLUMN_KEYS, TABLE_KEYS, WantedColumn, WantedTable
from lakestore.model.ttl import TOMBSTONE_SECONDS
from lakestore.model.types import arrow_type

VERSION = "v3.2.0"
"""The version of the standard that `exported` writes."""
TABLE, COLUMN = "lakestore.table", "lakestore.column"
TABLE_OPTIONS = tuple(key for key in TABLE_KEYS if key not in ("name", "columns", "primary_key"))
COLUMN_OPTIONS = tuple(key for key in COLUMN_KEYS if key not in ("name", "type", "required"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A place where consumers find the tables: an entry of `servers`."""

    name: str
    type: str
    """`iceberg` or `kafka`."""
    fields: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, str]:
        return {"server": self.name, "type": self.type, **dict(self.fields)}


def iceberg_places(url: str) -> list[ServerPlace]:
    """The head and the tiered state in the Iceberg REST catalog of a server."""
    return [
        ServerPlace(name, "iceberg", (("catalog", name), ("catalogUrl", url), ("warehouse", name)))
        for name in ("now", "lake")
    ]


def wanted_tables(root: Entry, database: str = "", existing: Mapping[str, Table] | None = None) -> list[WantedTable]:
    """The tables of all entries of `schema`. Raises `Invalid` with the line of what cannot be honoured."""
    return [wanted(root, entry, database, existing) for entry in root.listed("schema")]


def selected(root: Entry, names: Sequence[str] = (), database: str = "") -> list[Entry]:
    """All entries of `schema`, or the entries with some names of tables or of entries. Raises `Invalid`."""
    entries = root.listed("schema")
    if not entries:
        raise root.error("describes no table: its schema is empty")
    if not names:
        return entries
    known = {entry.text("name"): entry for entry in entries}
    known |= {column_name(entry): entry for entry in entries}
    if any(name not in known for name in names):
        known |= {table_name(root, entry, database): entry for entry in entries}
    for name in names:
        if name not in known:
            raise root.error(f"has no table {excerpt(name)}; there are {', '.join(e.text('name') for e in entries)}")
    return [known[name] for name in names]


def table_name(root: Entry, entry: Entry, database: str = "") -> str:
    """The name of an entry's table. `database` is for a contract that tells none."""
    name = column_name(entry)
    if "." in name:
        return name
    spaces = [s.text("namespace") for s in root.listed("servers") if s.text("type") == "iceberg"]
    space = database or next((space for space in spaces if space), "")
    if not space:
        raise entry.error(
            f"tells no database for the table {name!r}: say physicalName: DATABASE.{name}, or --database NAME"
        )
    return f"{space}.{name}"


def wanted(root: Entry, entry: Entry, database: str = "", existing: Mapping[str, Table] | None = None) -> WantedTable:
    """The table of one entry of `schema`.

    `existing` has the definitions on the server. If its contract names a column that was renamed since, the column
    gets its name in the contract back instead of being dropped.
    """
    name = table_name(root, entry, database)
    for part in name.split("."):
        if not _NAME.fullmatch(part):
            raise entry.error(f"is the table {name!r}; names of tables have the letters a-z and A-Z, digits and _")
    properties = stored_columns(entry)
    if not properties:
        raise entry.error("has no properties, which are the columns of a table")
    counted = rules_of(root, entry).null_counted
    wanted_columns = [_wanted_column(column) for column in properties]
    columns = [replace(each, required=False) if each.name in counted else each for each in wanted_columns]
    table = (existing or {}).get(name)
    options = _options(root, entry)
    if key := _primary_key(properties):
        options["primary_key"] = key
    if partition := _partition(properties):
        options["lake"] = {"partition_by": partition} | options.get("lake", {})
    place = f"line {entry.line}"
    return WantedTable(name, tuple(_beside(columns, table)), options, place)


def with_contract(
    root: Entry,
    entry: Entry,
    text: str,
    *,
    database: str = "",
    existing: Mapping[str, Table] | None = None,
    why: str = "",
) -> tuple[WantedTable, Contract]:
    """The table of an entry with the columns that its contract adds, and that contract. `text` is the document."""
    table, contract = wanted(root, entry, database, existing), Contract(text, entry.text("name"), why=why)
    names = {column.name for column in table.columns}
    times = [WantedColumn(name, TIME_TYPE) for name in time_columns(contract) if name not in names]
    return replace(table, columns=(*table.columns, *times)), contract


def _beside(columns: list[WantedColumn], table: Table | None) -> Iterator[WantedColumn]:
    """The columns for a table that exists.

    A column of the contract that was renamed since is the renamed one. A value that the contract requires and the
    column does not is a rule for new rows, because rows that are there may have none.
    """
    there = {column.name: column for column in table.columns} if table else {}
    ids = table.contract.column_ids if table and table.contract else {}
    by_id = {column.id: column for column in there.values()}
    taken = {column.name for column in columns}
    for column in columns:
        bound = by_id.get(ids.get(column.name, 0))
        if column.name not in there and bound is not None and bound.name not in taken and not column.renamed_from:
            column = replace(column, renamed_from=bound.name)
        old = there.get(column.name) or there.get(column.renamed_from)
        yield replace(column, required=False) if old is not None and not old.required else column


def _wanted_column(column: Entry) -> WantedColumn:
    name = column_name(column)
    if not name:
        raise column.error("has no name")
    said = document.custom_properties(column).get(COLUMN)
    options: dict[str, Any] = {}
    if said is not None:
        said.check_keys(*COLUMN_OPTIONS)
        options = dict(said.value)
    former, later = options.get("renamed_from", ""), options.get("new_rows_only", False)
    if said is not None and (not isinstance(former, str) or not isinstance(later, bool)):
        raise said.error("has a renamed_from that is no name, or a new_rows_only that is neither true nor false")
    required = column_types.is_required(column) or _is_key(column)
    return WantedColumn(name, column_types.type_of(column), required, options.get("default"), later, former)


def _is_key(column: Entry) -> bool:
    flag = column.field("primaryKey")
    return flag is not None and flag.value is True


def _primary_key(properties: Sequence[Entry]) -> list[str]:
    return _positioned([column for column in properties if _is_key(column)], "primaryKeyPosition")


def _partition(properties: Sequence[Entry]) -> list[str]:
    flags = [(column, column.field("partitioned")) for column in properties]
    return _positioned([column for column, flag in flags if flag and flag.value is True], "partitionKeyPosition")


def _positioned(columns: Sequence[Entry], position: str) -> list[str]:
    """Names of columns by their position, and in the order of the document without one."""

    def place(numbered: tuple[int, Entry]) -> tuple[int, int]:
        at, column = numbered
        said = column.field(position)
        if said is not None and type(said.value) is not int:
            raise said.error("is a whole number")
        return (said.value if said is not None and said.value > 0 else at + 1, at)

    return [column_name(column) for _, column in sorted(enumerate(columns), key=place)]


def _options(root: Entry, entry: Entry) -> dict[str, Any]:
    said = document.properties(root, entry).get(TABLE)
    if said is None:
        return {}
    said.check_keys(*TABLE_OPTIONS)
    lake = said.field("lake")
    if lake is not None:
        lake.check_keys(*LAKE_OPTIONS)
    key = said.field("bucket_key")
    if key is not None:
        key.entries()
    return dict(said.value)


def exported(tables: Sequence[Table], places: Sequence[ServerPlace] = ()) -> str:
    """The contract of some definitions, from which `wanted` makes them again."""
    first = tables[0]
    short = [table.short_name for table in tables]
    named = [name if short.count(name) == 1 else table.name for name, table in zip(short, tables, strict=True)]
    said: dict[str, Any] = {
        "apiVersion": VERSION,
        "kind": "DataContract",
        "id": first.uuid or first.name,
        "name": first.name if len(tables) == 1 else first.namespace,
        "version": "1.0.0",
        "status": "active",
    }
    if places:
        said["servers"] = [place.as_dict() for place in places]
    said["schema"] = [_entry(name, table) for name, table in zip(named, tables, strict=True)]
    return yaml_text(said)


def yaml_text(value: Any) -> str:
    """A document as YAML, in the order of its keys."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text


def _entry(name: str, table: Table) -> dict[str, Any]:
    options = table_options(table)
    return {
        "name": name,
        "physicalName": table.name,
        "physicalType": "table",
        "logicalType": "object",
        "properties": [_property(table, column) for column in table.columns],
        "customProperties": [{"property": TABLE, "value": options}],
    }


def _property(table: Table, column: Column) -> dict[str, Any]:
    said = {"name": column.name, **column_types.fields_of(arrow_type(column.type))}
    if column.name in table.primary_key:
        said |= {"primaryKey": True, "primaryKeyPosition": table.primary_key.index(column.name) + 1}
    if column.required:
        said["required"] = True
    if column.default is not None:
        said["customProperties"] = [{"property": COLUMN, "value": {"default": column.default}}]
    return said


def table_options(table: Table) -> dict[str, Any]:
    """The options of a definition by the names of `tables.yaml`, without key and columns and without defaults."""
    usual = LakeOptions()
    lake = {name: getattr(table.lake, name) for name in LAKE_OPTIONS}
    lake = {name: value for name, value in lake.items() if value != getattr(usual, name)}
    said: dict[str, Any] = {"buckets": table.buckets}
    if table.bucket_key != table.primary_key:
        said["bucket_key"] = list(table.bucket_key)
    if table.merge != UPSERT:
        said["merge"] = table.merge.as_data()
    if lake:
        said["lake"] = {name: list(value) if isinstance(value, tuple) else value for name, value in lake.items()}
    if table.retention:
        amounts = {"age": table.retention.age_seconds, "bytes": table.retention.bytes}
        said["retention"] = {name: value for name, value in amounts.items() if value is not None}
    if table.deletes != "allow":
        said["deletes"] = table.deletes
    if table.skip_unchanged:
        said["skip_unchanged"] = True
    if table.ttl:
        said["ttl"] = {"column": table.ttl.column, "after": table.ttl.seconds}
    if table.tombstone_seconds != TOMBSTONE_SECONDS:
        said["tombstone_ttl"] = table.tombstone_seconds
    return said
