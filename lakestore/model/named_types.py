"""Types and schemas as users name them: those of pyarrow, or texts as in a tables.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.types import arrow_type


def typed(kind: Any, column: str) -> pa.DataType:
    """A type that a user names: one of pyarrow, or its name as in a tables.yaml; `Invalid` for anything else."""
    if isinstance(kind, str):
        return arrow_type(kind)
    if not isinstance(kind, pa.DataType):
        raise Invalid(f"column {column!r}: {kind!r} is no type: say one of pyarrow, or its name, such as 'int64'")
    return kind


def schema_of(schema: Any) -> pa.Schema:
    """A schema that a user names: one of pyarrow, or a dict of column name to type."""
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, Mapping):
        raise Invalid("schema= is a pyarrow schema, or a dict of column name to type, such as {'id': 'int64'}")
    return pa.schema(
        [
            kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, typed(kind, name))
            for name, kind in schema.items()
        ]
    )
