"""Columns of lake files in the types their table declares.

Fields inside nested columns are found by id, in whatever order the file has them; narrow and unsigned integers and
times are wider in the lake. Files of other engines were checked when they came in.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.lake.field_ids import id_of
from lakestore.limits import WIDEST
from lakestore.model.table import Table
from lakestore.rows.casting import Cast, Part, Place, Wanted


def declared(array: pa.Array, field: pa.Field, table: Table) -> pa.Array:
    """A column of a file as the table declares it."""
    if array.type == field.type and not pa.types.is_nested(field.type):
        return array
    nested = next((column.nested for column in table.columns if column.name == field.name), ())
    return _Stored(table.name, WIDEST).stored(array, Wanted.of(field.type, iter(nested)), field.name)


def recast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in another type of the same shape, at every depth; fields by name."""
    if array.type == kind and not pa.types.is_nested(kind):
        return array
    return _Stored("", WIDEST).stored(array, Wanted.of(kind), "")


class _Stored(Cast):
    """Finds fields by id, and takes values as they are."""

    def stored(self, array: pa.Array, want: Wanted, path: str) -> pa.Array:
        """The array in the wanted type."""
        return self._any(array, want, path, lambda index: index)

    def _places(self, source: pa.StructType, want: Wanted, path: str) -> list[int | None]:
        numbers = [id_of(part) for part in source]
        if all(number is None for number in numbers):
            names = [part.name for part in source]
            return [_index(names, part.field.name) for part in want.parts]
        return [_index(numbers, part.id) for part in want.parts]

    def _absent(self, part: Part, count: int, path: str) -> pa.Array:
        return pa.nulls(count, part.want.kind)

    def _check_present(self, missing: pa.Array, path: str, place: Place) -> None:
        return

    def _check_distinct(self, keys: pa.Array, offsets: object, path: str, place: Place) -> None:
        return

    def _spend(self, count: float, path: str) -> None:
        return

    def _scalar(self, array: pa.Array, kind: pa.DataType, path: str, place: Place) -> pa.Array:
        return pc.cast(array, kind)


def _index(known: Sequence[object], one: object) -> int | None:
    return known.index(one) if one in known else None
