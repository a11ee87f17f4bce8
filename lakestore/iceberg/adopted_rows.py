"""Offset files: the row numbers of data files that were adopted, which lack `__bucket` and `__offset`.

1. An offset file has a row for each position of its data file. Its name follows from the data file's path.
2. It is written once. A checksum covers every byte after the head.
3. A row that was deleted before the adoption has a negative offset, which is distinct within the file.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Corrupt
from lakestore.iceberg import places
from lakestore.model.columns import LAKE_BUCKET, LAKE_COLUMNS, LAKE_OFFSET, LAKE_TIMESTAMP, SYSTEM_TYPES

PREFIX, SUFFIX = ".lakestore-", ".offsets"
_MAGIC, _VERSION = b"LSOF", 1
_HEAD = struct.Struct("<4sII")
"""Magic, version, checksum of the rest."""
_SCHEMA = pa.schema([pa.field(name, SYSTEM_TYPES[name]) for name in LAKE_COLUMNS])


def place_of(data_file: str, table_uuid: str) -> str:
    """The location of the offset file of a data file of a table."""
    folder, _, name = data_file.rpartition("/")
    return f"{folder}/{PREFIX}{table_uuid}-{name}{SUFFIX}"


def data_file_of(path: str) -> str | None:
    """The path of the data file that an offset file belongs to; None if the path is not of an offset file."""
    folder, _, name = path.rpartition("/")
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    _, sign, data = name[len(PREFIX) + 36 : -len(SUFFIX)].partition("-")
    return f"{folder}/{data}" if sign else None


def is_adopted(data_file: str) -> bool:
    """True if a Parquet data file lacks both columns. Raises Arrow's errors."""
    filesystem, path = places.place(data_file)
    return lacks_numbers(pq.read_schema(path, filesystem=filesystem))


def lacks_numbers(schema: pa.Schema) -> bool:
    """True if a data file with this schema lacks both columns."""
    return not {LAKE_BUCKET, LAKE_OFFSET} & set(schema.names)


def numbered(buckets: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of an offset file. `times` are microseconds since 1970."""
    columns = [pa.array(buckets), pa.array(offsets), pa.array(times).cast(SYSTEM_TYPES[LAKE_TIMESTAMP])]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def write(data_file: str, table_uuid: str, rows: pa.Table) -> None:
    """Write the offset file of a data file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        use_dictionary=[LAKE_BUCKET, LAKE_TIMESTAMP],
        column_encoding={LAKE_OFFSET: "DELTA_BINARY_PACKED"},
        write_statistics=False,
    )
    body = sink.getvalue().to_pybytes()
    places.write(place_of(data_file, table_uuid), _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body)) + body)


def read(data_file: str, table_uuid: str, rows: int) -> pa.Table:
    """The row numbers of an adopted data file with this number of rows. Raises `Corrupt`."""
    place = place_of(data_file, table_uuid)
    try:
        data = places.read(place)
    except FileNotFoundError as error:
        raise Corrupt(
            f"data file {data_file} has no {LAKE_BUCKET} and {LAKE_OFFSET}, and its offset file {place} is missing:"
            " bring it back from a copy of the warehouse"
        ) from error
    except OSError as error:
        raise Corrupt(f"offset file {place} cannot be read: {error}") from error
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise Corrupt(f"file {place} is not an offset file")
    _, version, checksum = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise Corrupt(f"offset file {place} has version {version}, and this release knows {_VERSION}: upgrade")
    body = data[_HEAD.size :]
    if google_crc32c.value(body) != checksum:
        raise Corrupt(f"offset file {place} does not match its checksum: bring it back from a copy of the warehouse")
    found = pq.read_table(pa.BufferReader(body)).select(list(LAKE_COLUMNS)).cast(_SCHEMA)
    if found.num_rows != rows:
        raise Corrupt(f"offset file {place} has {found.num_rows} rows where its data file has {rows}")
    return found.combine_chunks()


def check_numbers(column: pa.Array | pa.ChunkedArray, data_file: str) -> None:
    """Raise `Corrupt` if a row of a data file has no number, which a rewrite of adopted rows leaves behind."""
    if column.null_count:
        raise Corrupt(
            f"data file {data_file} has {column.null_count} rows without {LAKE_BUCKET} or {LAKE_OFFSET}: another engine"
            " rewrote adopted rows"
        )
