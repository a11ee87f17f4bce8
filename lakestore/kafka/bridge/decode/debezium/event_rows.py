"""Row images of change events: the requested row, and images converted to its types. Shared by JSON and Avro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium.connect_values import TIMES, Faults, Kind, convert, from_arrow
from lakestore.kafka.bridge.decode.debezium.unavailable import Markers
from lakestore.kafka.bridge.records import Ints


def wanted_row(wanted: pa.Schema | None, units: Mapping[str, str]) -> Kind | None:
    """The row that the columns request if the events have no schema."""
    if wanted is None:
        return None
    return Kind("struct", fields=tuple((part.name, from_arrow(part, units.get(part.name, ""))) for part in wanted))


def row_of(wanted: Kind | None, kind: Kind | None) -> Kind | None:
    """The kind of rows: first the wanted fields, null if the schema lacks them, then the schema's other fields.

    The other fields are kept so that values without a column are counted. If no field is wanted, there is no row.
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
    item = None if kind.item is None else _plain(kind.item)
    return Kind(kind.wire, fields=tuple((name, _plain(part)) for name, part in kind.fields), item=item, key=kind.key)


def row_kind(kind: Kind) -> Kind | None:
    """The kind of rows in an envelope's kind."""
    return kind.child("after") or kind.child("before")


def _meant(own: Kind | None, wanted: Kind) -> Kind:
    """The kind of a schema's field. A time stays a time if a column wants a number or a text."""
    if own is None:
        return wanted
    if wanted.target is not None and pa.types.is_string(wanted.target) and own.name in TIMES:
        return replace(own, target=wanted.target)
    number = wanted.target is not None and pa.types.is_integer(wanted.target)
    return Kind(own.wire) if number and own.name and own.wire in ("int32", "int64") else own


def image(
    raw: pa.StructArray, row: Kind, path: str, faults: Faults, markers: Markers
) -> tuple[pa.StructArray, dict[str, pa.BooleanArray]]:
    """Convert a row image to the types of its kind. Also returns the fields that the source did not send."""
    kept: dict[str, pa.BooleanArray] = {}
    columns = []
    if not pa.types.is_struct(raw.type):
        return convert(raw, row, path, faults), kept
    for at, name in enumerate(raw.type.names):
        column = pc.struct_field(raw, [at])
        mask = markers.mask(column)
        if mask is not None:
            kept[name] = mask.fill_null(False)
            column = pc.if_else(kept[name], pa.scalar(None, column.type), column)
        columns.append(column)
    if kept:
        raw = pa.StructArray.from_arrays(columns, raw.type.names, mask=raw.is_null())
    return convert(raw, row, path, faults), kept


def gather_structs(parts: list[tuple[Ints, pa.StructArray]], count: int) -> pa.StructArray | None:
    """Place structs at their row numbers, with the fields of all of them in the newest types."""
    parts = [(rows, array) for rows, array in parts if len(rows)]
    if not parts:
        return None
    places = np.concatenate([rows for rows, _ in parts])
    at = np.full(count, -1, np.int64)
    at[places] = np.arange(len(places))
    kinds: dict[str, pa.DataType] = {}
    for _, array in parts:
        kinds |= {part.name: part.type for part in array.type}
    kind = Kind("struct", fields=tuple((name, Kind("", target=each)) for name, each in kinds.items()))
    whole = pa.concat_arrays([convert(array, kind, "key", Faults()) for _, array in parts])
    return whole.take(pa.array(at, mask=at < 0))
