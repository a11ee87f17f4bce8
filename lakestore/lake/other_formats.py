"""Data files that are not Parquet: ORC and Avro, which another engine's rewrite may have left in a lake table.

Lakestore writes Parquet, and its tierer brings such files back to Parquet by itself; until then they are read here.
Columns are found by field id, as in Parquet. ORC comes from pyarrow, whose times are nanoseconds: a time beyond the
years 1678 to 2261 would turn into another one, so the manifest must show that a file holds none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.orc as orc

from lakestore.errors import Invalid
from lakestore.lake.avro_rows import AvroRows
from lakestore.lake.field_ids import id_of
from lakestore.lake.metrics import Metrics
from lakestore.lake.places import place

_WAY_OUT = "the tiering service rewrites it as Parquet, or `lakestore tier --once` does so now"


class OpenFile(Protocol):
    """A file that is read from its first row to its last."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, with their field ids."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in the order of the file, with these columns."""


@contextmanager
def opened(stream: Any, location: str, form: str, metrics: Metrics | None = None) -> Iterator[OpenFile]:
    """An open file of one of these formats; `Invalid` for any other format."""
    if form == "ORC":
        yield _Orc(stream, location, metrics)
    elif form == "AVRO":
        yield AvroRows(stream.read(), location)
    else:
        raise Invalid(f"file {location} is {form}, which is not read here: {_WAY_OUT}")


@contextmanager
def opened_at(location: str, form: str, metrics: Metrics | None = None) -> Iterator[OpenFile]:
    """The file at a location, as `opened` gives it."""
    filesystem, path = place(location)
    with filesystem.open_input_file(path) as stream, opened(stream, location, form, metrics) as found:
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
        """`Invalid` unless the manifest shows that all times of a column fit into nanoseconds."""
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
