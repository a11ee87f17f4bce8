"""Casts the columns of files by the rules of the file's format, and gives the reasons of refused rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakestore.model.types import is_bytes, map_parts, optional, type_name
from lakestore.rows import casting
from lakestore.rows.casting import Rules
from lakestore.rows.scalar_casts import Mask, python_value

SHOWN_CHARS = 60


def file_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column in text files: bytes are hex texts, and no nested field is required."""
    if is_bytes(kind):
        return pa.string()
    return map_parts(optional(kind), file_type) if pa.types.is_nested(kind) else kind


@dataclass(frozen=True, slots=True)
class Casts:
    """The casts of one file format."""

    rules: Rules

    def mask(self, array: pa.Array, field: pa.Field) -> tuple[pa.Array, Mask | None]:
        """Cast a column. A misfit becomes null and true in the mask; the mask is None if all fit."""
        return casting.mask(array, field, self.rules)

    def reason(self, value: pa.Array, field: pa.Field) -> str:
        """The reason why the only value of a column does not fit."""
        return casting.why(value, field, self.rules)

    def why(self, array: pa.Array, row: int, field: pa.Field) -> str:
        """The reason why a row's value does not fit its column."""
        one = array.slice(row, 1)
        text = str(python_value(array, row))
        shown = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
        said = f"column {field.name!r}: {shown!r} is no {type_name(field.type, field.name)}"
        if not pa.types.is_nested(field.type):
            return said
        return f"{said}: {' '.join(self.reason(one, field).split())}"


def missing(batch: pa.RecordBatch, fields: pa.Schema) -> dict[int, str]:
    """Maps each row with a null in a required column to the first such column."""
    found: dict[int, str] = {}
    for field in fields:
        if field.nullable or field.name not in batch.schema.names:
            continue
        column = batch.column(field.name)
        if column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                found.setdefault(row, field.name)
    return found
