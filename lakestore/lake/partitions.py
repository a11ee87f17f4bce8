"""Partition values of rows, and the rows that have the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.lake.field_ids import id_of
from lakestore.lake.transforms import transformed
from lakestore.lake.values import Json, Value, source_of, types_of

RowNumbers = npt.NDArray[np.int64]
_FEW = 1 << 16
"""Partitions up to which numbers of 16 bits tell them apart: these are sorted in linear time."""


def groups(rows: pa.Table, spec: Json, schema: Json) -> list[tuple[dict[str, Value], RowNumbers | None]]:
    """The partitions of rows: values by field, as manifests have them, and row numbers, or None for all rows.

    The fields of the rows carry their ids. Without rows there is one partition if the table has no others.
    """
    if not spec["fields"]:
        return [({}, None)]
    if not rows.num_rows:
        return []
    types = types_of(schema)
    fields = [_Field.of(rows, field, types.get(source_of(field))) for field in spec["fields"]]
    codes = _joined(fields)
    count = int(codes.max()) + 1
    if count == 1:
        return [(_values(fields, 0), None)]
    narrow = codes.astype(np.uint16) if count <= _FEW else codes
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    return [(_values(fields, int(own[0])), own) for own in np.split(order, ends[:-1])]


@dataclass(frozen=True, slots=True)
class _Field:
    """A partition field's value in each row, as numbers of the values that there are."""

    name: str
    codes: npt.NDArray[np.int64]
    values: list[Any]

    @staticmethod
    def of(rows: pa.Table, field: Json, kind: Any) -> _Field:
        """The values of a field in these rows."""
        transform, name = field["transform"], field["name"]
        if transform == "void":
            return _Field(name, np.zeros(rows.num_rows, np.int64), [None])
        if not isinstance(kind, str):
            raise Invalid(f"partition field {name!r} is of field id {source_of(field)}, which the schema does not have")
        made = transformed(_source(rows, source_of(field)), transform, kind)
        if not pa.types.is_floating(made.type):
            return _Field(name, *_distinct(made))
        # Arrow takes zeros of both signs as one value, where Iceberg has two; NaN is one whatever its bits.
        bits = pa.int32() if pa.types.is_float32(made.type) else pa.int64()
        nan = pc.if_else(pc.is_nan(made), pa.scalar(float("nan"), made.type), made)
        codes, values = _distinct(nan.view(bits))
        return _Field(name, codes, pa.array(values, bits).view(made.type).to_pylist())


def _distinct(column: pa.Array) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Each row's value as a number, and the values by number."""
    found = column.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()


def _source(rows: pa.Table, number: int) -> pa.Array:
    """The column with a field id, which may lie inside structs."""
    for place, field in enumerate(rows.schema):
        found = _inside(rows.column(place), field, number)
        if found is not None:
            return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
    raise Invalid(f"the rows have no column with the field id {number}, by which they are partitioned")


def _inside(column: pa.ChunkedArray, field: pa.Field, number: int) -> pa.ChunkedArray | None:
    if id_of(field) == number:
        return column
    for place, part in enumerate(field.type if pa.types.is_struct(field.type) else ()):
        found = _inside(pc.struct_field(column, [place]), part, number)
        if found is not None:
            return found
    return None


def _joined(fields: Sequence[_Field]) -> npt.NDArray[np.int64]:
    """Each row's partition as a number from 0, without gaps."""
    codes = fields[0].codes
    for field in fields[1:]:
        codes, _ = _distinct(pa.array(codes * len(field.values) + field.codes))
    return codes


def _values(fields: Sequence[_Field], row: int) -> dict[str, Value]:
    return {field.name: field.values[field.codes[row]] for field in fields}
