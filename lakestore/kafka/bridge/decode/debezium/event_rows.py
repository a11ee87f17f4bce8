"""Rows of change events, shared by the formats: the row that is asked for, and images in its types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium.connect_values import TIMES, Faults, Kind, converted, from_arrow
from lakestore.kafka.bridge.decode.debezium.unavailable import Markers
from lakestore.kafka.bridge.records import Ints


def wanted_row(wanted: pa.Schema | None, units: Mapping[str, str]) -> Kind | None:
    """The row that columns ask for, without a schema."""
    if wanted is None:
        return None
    return Kind("struct", fields=tuple((part.name, from_arrow(part, units.get(part.name, ""))) for part in wanted))


def row_of(wanted: Kind | None, kind: Kind | None) -> Kind | None:
    """The kind of rows: the fields that are wanted, which are null where the schema part lacks them, and behind them
    the schema's other fields, for nothing is to be dropped that nobody has counted. With no field wanted, no rows are.
    """
    if kind is None:
        return wanted
    row = row_kind(kind) or kind
    if wanted is None:
        return row
    own, asked = dict(row.fields), {name for name, _ in wanted.fields}
    fields = [(name, _meant(own.get(name), part)) for name, part in wanted.fields]
    beside = [(name, _plain(part)) for name, part in row.fields if name not in asked] if asked else []
    return Kind("struct", fields=(*fields, *beside))


def _plain(kind: Kind) -> Kind:
    """The kind of a field that is only counted: values as they were written, which no meaning can refuse."""
    item = None if kind.item is None else _plain(kind.item)
    return Kind(kind.wire, fields=tuple((name, _plain(part)) for name, part in kind.fields), item=item, key=kind.key)


def row_kind(kind: Kind) -> Kind | None:
    """The kind of rows, of an envelope's."""
    return kind.child("after") or kind.child("before")


def _meant(own: Kind | None, wanted: Kind) -> Kind:
    """The kind of a field in the schema. A time that a column wants as a number or a text is one."""
    if own is None:
        return wanted
    if wanted.target is not None and pa.types.is_string(wanted.target) and own.name in TIMES:
        return replace(own, target=wanted.target)
    number = wanted.target is not None and pa.types.is_integer(wanted.target)
    return Kind(own.wire) if number and own.name and own.wire in ("int32", "int64") else own


def image(
    raw: pa.StructArray, row: Kind, path: str, faults: Faults, markers: Markers
) -> tuple[pa.StructArray, dict[str, pa.BooleanArray]]:
    """A row image in the types of its kind, and the fields that the source did not send."""
    kept: dict[str, pa.BooleanArray] = {}
    columns = []
    if not pa.types.is_struct(raw.type):
        return converted(raw, row, path, faults), kept
    for at, name in enumerate(raw.type.names):
        column = pc.struct_field(raw, [at])
        mask = markers.found(column)
        if mask is not None:
            kept[name] = mask.fill_null(False)
            column = pc.if_else(kept[name], pa.scalar(None, column.type), column)
        columns.append(column)
    if kept:
        raw = pa.StructArray.from_arrays(columns, raw.type.names, mask=raw.is_null())
    return converted(raw, row, path, faults), kept


def gathered(found: list[tuple[Ints, pa.StructArray]], count: int) -> pa.StructArray | None:
    """Structs at the rows that they are of, with the fields of all, in the newest types."""
    found = [(rows, array) for rows, array in found if len(rows)]
    if not found:
        return None
    places = np.concatenate([rows for rows, _ in found])
    at = np.full(count, -1, np.int64)
    at[places] = np.arange(len(places))
    kinds: dict[str, pa.DataType] = {}
    for _, array in found:
        kinds |= {part.name: part.type for part in array.type}
    kind = Kind("struct", fields=tuple((name, Kind("", target=each)) for name, each in kinds.items()))
    whole = pa.concat_arrays([converted(array, kind, "key", Faults()) for _, array in found])
    return whole.take(pa.array(at, mask=at < 0))
