"""Data files in ORC or Avro, which another engine may write into a lake table.

1. Lakestore writes Parquet. The tierer rewrites other files as Parquet; until then this module reads them.
2. Columns are found by field id, like in Parquet.
3. pyarrow reads times of ORC as nanoseconds, which change a time before 1678 or after 2261. So a column of times is
   read only if the bounds in the manifest exclude such times.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.orc as orc

from lakestore.errors import Corrupt, Invalid
from lakestore.iceberg.avro import Container
from lakestore.iceberg.field_ids import FIELD_ID, id_of
from lakestore.iceberg.places import open_file
from lakestore.iceberg.values import Metrics
from lakestore.model.decimals import from_unscaled_value

BATCH_ROWS = 16_384
_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_UNITS = {"micros": "us", "nanos": "ns"}


class AvroRows:
    """An Avro file, read whole. Its rows are decoded batch by batch."""

    def __init__(self, data: bytes, name: str) -> None:
        """Raises `Corrupt` with the file's name if it is no Avro file with Iceberg's field ids."""
        self._container, self._name = Container.opened(data, name), name
        try:
            self._schema = pa.schema(list(_Types().struct(orjson.loads(self._container.meta["avro.schema"]))))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"file {name} cannot be read as Avro: {error}") from error

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their field ids."""
        return self._schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows with these columns, in the order of the file."""
        fields = [self._schema.field(name) for name in columns]
        rows = (row for block in self._container.blocks() for row in block)
        while some := list(islice(rows, BATCH_ROWS)):
            yield pa.RecordBatch.from_arrays([self._array(some, field) for field in fields], schema=pa.schema(fields))

    def _array(self, rows: Sequence[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array([_value(row[field.name], field.type) for row in rows], field.type)
        except (pa.ArrowInvalid, OverflowError) as error:
            raise Corrupt(f"file {self._name} cannot be read as Avro: {error}") from error


class _Types:
    """Arrow types of one Avro schema; remembers the named types of the schema."""

    def __init__(self) -> None:
        self._known: dict[str, pa.DataType] = {}

    def struct(self, schema: Any) -> pa.StructType:
        """The Arrow struct of a record."""
        return pa.struct([self._field(part["name"], part["type"], part.get("field-id")) for part in schema["fields"]])

    def _field(self, name: str, schema: Any, number: int | None) -> pa.Field:
        nullable = isinstance(schema, list)
        kind = next(part for part in schema if part != "null") if nullable else schema
        ids = None if number is None else {FIELD_ID: str(number).encode()}
        return pa.field(name, self._type(kind), nullable=nullable, metadata=ids)

    def _type(self, schema: Any) -> pa.DataType:
        if isinstance(schema, str):
            return _PLAIN[schema] if schema in _PLAIN else self._known[schema]
        kind, logical = schema["type"], schema.get("logicalType", "")
        made = self._nested(schema, kind, logical)
        if made is None:
            made = _logical(schema, logical) or (pa.binary(schema["size"]) if kind == "fixed" else self._type(kind))
        if kind in ("record", "fixed"):
            self._known[schema["name"]] = made
        return made

    def _nested(self, schema: Any, kind: Any, logical: str) -> pa.DataType | None:
        if kind == "record":
            return self.struct(schema)
        if kind == "map":
            key = self._field("key", "string", schema.get("key-id"))
            return pa.map_(key.with_nullable(False), self._field("value", schema["values"], schema.get("value-id")))
        if kind == "array" and logical == "map":
            key, value = (
                self._field(part["name"], part["type"], part["field-id"]) for part in schema["items"]["fields"]
            )
            return pa.map_(key, value)
        return pa.list_(self._field("element", schema["items"], schema.get("element-id"))) if kind == "array" else None


def _logical(schema: Any, logical: str) -> pa.DataType | None:
    """The Arrow type of a logical type; None for one that changes nothing."""
    if logical == "date":
        return pa.date32()
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    name, _, unit = logical.rpartition("-")
    if unit not in _UNITS:
        return None
    if name == "time":
        return pa.time64(_UNITS[unit])
    return pa.timestamp(_UNITS[unit], "UTC" if schema.get("adjust-to-utc", True) else None)


def _value(value: Any, kind: pa.DataType) -> Any:
    """A decoded value in the form that pyarrow takes: maps as pairs, decimals as `Decimal`."""
    if value is None:
        return None
    if pa.types.is_decimal(kind):
        return from_unscaled_value(int.from_bytes(value, "big", signed=True), kind.scale)
    if pa.types.is_struct(kind):
        return {part.name: _value(value[part.name], part.type) for part in kind}
    if pa.types.is_map(kind):
        return [(_value(key, kind.key_type), _value(item, kind.item_type)) for key, item in value.items()]
    return [_value(part, kind.value_type) for part in value] if pa.types.is_list(kind) else value


_WAY_OUT = "the tiering service rewrites it as Parquet, or `lakestore tier --once` does so now"


class OpenFile(Protocol):
    """An open data file, read from the first row to the last."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their field ids."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in file order, with these columns."""


@contextmanager
def opened(stream: Any, location: str, form: str, metrics: Metrics | None = None) -> Iterator[OpenFile]:
    """Open a stream as ORC or Avro; `Invalid` for another format."""
    if form == "ORC":
        yield _Orc(stream, location, metrics)
    elif form == "AVRO":
        yield AvroRows(stream.read(), location)
    else:
        raise Invalid(f"file {location} is {form}, which is not read here: {_WAY_OUT}")


@contextmanager
def opened_at(location: str, form: str, metrics: Metrics | None = None) -> Iterator[OpenFile]:
    """Open the file at a location, like `opened`."""
    with open_file(location) as stream, opened(stream, location, form, metrics) as found:
        yield found


class _Orc:
    def __init__(self, stream: Any, path: str, metrics: Metrics | None) -> None:
        self._file, self._path, self._metrics = orc.ORCFile(stream), path, metrics

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in columns:
            self._check_times(name, self.schema.field(name))
        for stripe in range(self._file.nstripes):
            yield self._file.read_stripe(stripe, columns=list(columns))

    def _check_times(self, name: str, field: pa.Field) -> None:
        """Raises `Invalid` unless the manifest shows that all times of the column fit into nanoseconds."""
        kind = field.type
        if pa.types.is_timestamp(kind) and not self._fits(id_of(field)):
            raise Invalid(
                f"data file {self._path} is ORC, and its column {name!r} may hold times that cannot be read"
                f" from ORC here: {_WAY_OUT}"
            )
        inner = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
        for part in inner:
            self._check_times(name, part)

    def _fits(self, number: int | None) -> bool:
        known = self._metrics
        if known is None or number is None:
            return False
        if number in known.values and known.nulls.get(number) == known.values[number]:
            return True
        bounds = [side[number] for side in (known.lower, known.upper) if number in side]
        return len(bounds) == 2 and all(_FIRST_US <= struct.unpack("<q", bound)[0] <= _LAST_US for bound in bounds)


_FIRST_US, _LAST_US = -(1 << 63) // 1_000 + 1, (1 << 63) // 1_000 - 1
