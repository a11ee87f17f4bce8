"""Rules of a lake definition: whatever `create` and `alter` accept, Iceberg's Java library builds. Pure.

A table that breaks one of them can never be tiered, and no engine can open it to mend it. Three rules:

- no two fields of the schema have one dotted name, and upper and lower case are alike, as Spark has it;
- no two partition fields have one name, and none has the name of a field of the schema but its own source's;
- a transform has values of its column's type, and Java can store each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lakestore.errors import Invalid
from lakestore.lake.values import decimal_of, fixed_of
from lakestore.model.table import Table
from lakestore_server.iceberg import our_tables, schemas
from lakestore_server.iceberg.schemas import Json

_DATES = ("date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
_WHOLE = ("int", "long")
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "identity": (*_WHOLE, *_DATES, "time", "boolean", "float", "double", "string", "uuid", "binary", "decimal"),
    "bucket": (*_WHOLE, *_DATES, "time", "string", "uuid", "binary", "decimal", "fixed"),
    "truncate": (*_WHOLE, "string", "binary"),
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": _DATES[1:],
}
"""Transform to the types whose values it has and Java can store.

Java 1.12 writes an identity of `fixed` so that no reader can read the manifest. It refuses a decimal that `truncate`
took below the lowest one of its type: one row near that end would stop the tiering of its table.
"""
_TRANSFORM = re.compile(r"(\w+)(?:\[(\d+)\])?")


def check_new(table: Table) -> None:
    """Refuse the definition of a new table that Java does not build."""
    check_version(table, table)
    types = {number: kind for number, _, kind in schemas.fields(our_tables.schema_of(table))}
    for part, text in zip(our_tables.spec_of(table)["fields"], table.lake.partition_by, strict=True):
        _check_transform(table, text, part["transform"], types[part["source-id"]])


def _check_transform(table: Table, text: str, transform: str, kind: str) -> None:
    match = _TRANSFORM.fullmatch(transform)
    assert match is not None
    plain = "decimal" if decimal_of(kind) else "fixed" if fixed_of(kind) is not None else kind
    if plain not in _SOURCES[match[1]]:
        known = [name for name, sources in _SOURCES.items() if plain in sources]
        raise Invalid(
            f"table {table.name}: partition field {text!r} has no values that engines can store for the type {kind};"
            f" use {', '.join(known)}"
        )
    if match[2] is not None and not int(match[2]):
        raise Invalid(f"table {table.name}: partition field {text!r} needs a number from 1 up")


def check_version(first: Table, table: Table) -> None:
    """Refuse a version of a table that Java does not build; partition fields keep the names of the first version."""
    schema = our_tables.schema_of(table)
    taken: dict[str, tuple[int, str]] = {}
    for number, name, _ in schemas.fields(schema):
        other = taken.setdefault(name.lower(), (number, name))
        if other[0] != number:
            raise Invalid(
                f"table {table.name}: column or nested field {name!r} has the same name as {other[1]!r} (upper and"
                " lower case are alike): choose another name"
            )
    schemas.check_schema(schema, table.lake.format_version)
    parts: set[str] = set()
    for part in our_tables.spec_of(first)["fields"]:
        _check_part(table, part, taken, parts)
        parts.add(part["name"].lower())


def _check_part(table: Table, part: Json, taken: Mapping[str, tuple[int, str]], parts: set[str]) -> None:
    name = part["name"].lower()
    if name in parts:
        raise Invalid(
            f"table {table.name}: two fields of the lake's partitioning have the name {part['name']!r}: keep one"
        )
    number, column = taken.get(name, (part["source-id"], ""))
    if number != part["source-id"]:
        raise Invalid(
            f"table {table.name}: column {column!r} has the name of a field of the lake's partitioning:"
            " choose another name"
        )
