"""Data files that are not Parquet: ORC and Avro, which another engine's rewrite may have left in a lake table.

Lakestore writes Parquet, and its tierer brings such files back to Parquet by itself; until then they are read here.
Columns are found by field id, as in Parquet. ORC comes from pyarrow, whose times are nanoseconds: a time beyond the
years 1678 to 2261 would turn into another one, so the manifest must show that a file holds none. Avro comes from
PyIceberg, row by row.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.orc as orc
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.exceptions import ResolveError
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakestore.errors import Corrupt, Invalid
from lakestore.lake.field_ids import id_of

BATCH_ROWS = 16_384
_WAY_OUT = "the tiering service rewrites it as Parquet, or `lakestore tier --once` does so now"


class OpenFile(Protocol):
    """A file that is read from its first row to its last."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, with their field ids."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in the order of the file, with these columns."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The manifest's words on the columns of a file, by field id; empty where it has none."""

    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]
    nulls: Mapping[int, int]
    values: Mapping[int, int]

    @staticmethod
    def of(file: DataFile) -> Metrics:
        """The metrics of a PyIceberg file."""
        return Metrics(
            file.lower_bounds or {}, file.upper_bounds or {}, file.null_value_counts or {}, file.value_counts or {}
        )


@contextmanager
def opened(source: InputFile, form: str, metrics: Metrics | None = None) -> Iterator[OpenFile]:
    """A file of one of these formats; `Invalid` for any other format."""
    if form == FileFormat.ORC.value:
        with source.open() as stream:
            yield _Orc(stream, source.location, metrics)
    elif form == FileFormat.AVRO.value:
        yield _Avro(source)
    else:
        raise Invalid(f"file {source.location} is {form}, which is not read here: {_WAY_OUT}")


@contextmanager
def opened_at(location: str, form: str) -> Iterator[OpenFile]:
    """The file at a URI, as `opened` gives it."""
    with opened(PyArrowFileIO().new_input(location), form) as found:
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


class _Avro:
    def __init__(self, source: InputFile) -> None:
        self._source = source
        with _Rows(source) as rows:
            self._schema = schema_to_pyarrow(rows.schema)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # Whole rows: PyIceberg cannot leave a column out when a list is in it.
        places = [(self._schema.get_field_index(name), self._schema.field(name)) for name in columns]
        with _Rows(self._source) as reader:
            # A generator stays at its end, where the reader itself would go on behind the file's last byte.
            rows = (row for row in reader)
            while True:
                with _avro_errors(self._source.location):
                    some = list(islice(rows, BATCH_ROWS))
                if not some:
                    return
                arrays = [
                    pa.array([_plain(row[place], field.type) for row in some], field.type) for place, field in places
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field for _, field in places]))


class _Rows(AvroFile[Record]):
    """PyIceberg's reader, for schemas that name a type and come back to it by the name alone."""

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        with _avro_errors(self.input_file.location):
            self.header = self._read_header()
            said = _spelled_out(json.loads(self.header.meta["avro.schema"]), {})
            self.schema = AvroSchemaConversion().avro_to_iceberg(said)
            self.reader = resolve_reader(self.schema, self.schema)
            self.header.compression_codec()
        return self


@contextmanager
def _avro_errors(path: str) -> Iterator[None]:
    """PyIceberg's failures at damaged bytes as ours; its decoder in C has a SystemError for some."""
    try:
        yield
    except (KeyError, TypeError, ValueError, EOFError, SystemError, ResolveError) as error:
        raise Corrupt(f"file {path} cannot be read as Avro: {error}") from error


def _spelled_out(kind: Any, named: dict[str, Any]) -> Any:
    """An Avro schema in which each use of a named type is its definition."""
    if isinstance(kind, list):
        return [_spelled_out(part, named) for part in kind]
    if isinstance(kind, str):
        return named.get(kind, kind)
    made = {
        key: _spelled_out(part, named) if key in ("type", "items", "values") else part for key, part in kind.items()
    }
    if "fields" in kind:
        made["fields"] = [_spelled_out(part, named) for part in kind["fields"]]
    if kind.get("type") in ("fixed", "record", "enum"):
        named[kind["name"]] = made
    return made


def _plain(value: Any, kind: pa.DataType) -> Any:
    """PyIceberg's value as one that pyarrow takes: records are tuples, and maps are pairs."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {part.name: _plain(value[place], part.type) for place, part in enumerate(kind)}
    if pa.types.is_map(kind):
        return [(_plain(key, kind.key_type), _plain(item, kind.item_type)) for key, item in value.items()]
    return [_plain(part, kind.value_type) for part in value]
