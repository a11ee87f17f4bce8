"""The form of a table's hot files: one version of it as the lake has it, as an Arrow schema with field ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakestore.errors import Internal
from lakestore.lake.field_ids import FIELD_ID
from lakestore.model.table import Table

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a table's files: its version at a cut as the lake has it."""

    table: Table
    schema: Json
    """Iceberg's schema of the version."""
    spec: Json
    """The partition spec of few partitions."""
    flat: Json
    """The unpartitioned spec of many."""

    @property
    def arrow(self) -> pa.Schema:
        """The schema of the files, with field ids at every depth."""
        return pa.schema([_field(part) for part in self.schema["fields"]])


_PRIMITIVE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}


def _field(part: Json) -> pa.Field:
    """A column of files. Parts of nested ones are optional: Parquet's writer refuses required parts of null structs."""
    metadata = {FIELD_ID: str(part["id"]).encode()}
    return pa.field(part["name"], _arrow(part["type"]), nullable=not part["required"], metadata=metadata)


def _part(name: str, number: int, kind: Any, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, _arrow(kind), nullable=nullable, metadata={FIELD_ID: str(number).encode()})


def _arrow(kind: Any) -> pa.DataType:
    if not isinstance(kind, str):
        if kind["type"] == "struct":
            return pa.struct([_part(part["name"], part["id"], part["type"]) for part in kind["fields"]])
        if kind["type"] == "list":
            return pa.list_(_part("element", kind["element-id"], kind["element"]))
        key = _part("key", kind["key-id"], kind["key"], nullable=False)
        return pa.map_(key, _part("value", kind["value-id"], kind["value"]))
    if kind in _PRIMITIVE:
        return _PRIMITIVE[kind]
    numbers = [int(number) for number in kind.partition("(" if "(" in kind else "[")[2].rstrip(")]").split(",")]
    if kind.startswith("decimal"):
        return pa.decimal128(*numbers)
    if kind.startswith("fixed"):
        return pa.binary(numbers[0])
    raise Internal(f"the lake's type {kind} is none of a table of ours")
