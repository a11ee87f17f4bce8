"""Position deletes of format version 2: rows of (data file, position), as Parquet.

1. A file that is written here has the deleted positions of one data file, sorted.
2. Arrow's writer takes 0.47 ms for a file, mostly to be set up. A cut may need a file for each of 1,000 data files with
   one dead row, so files of few positions are encoded here: 0.08 ms.
3. Both forms have the same schema and statistics.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestore.errors import Corrupt
from lakestore.iceberg.field_ids import FIELD_ID
from lakestore.iceberg.puffin import Positions
from lakestore.model.varint import varint

PATH, POSITION = "file_path", "pos"
COLUMNS = (PATH, POSITION)
PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
"""The field ids of the two columns."""
SCHEMA = pa.schema(
    [
        pa.field(PATH, pa.string(), nullable=False, metadata={FIELD_ID: str(PATH_ID).encode()}),
        pa.field(POSITION, pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID).encode()}),
    ]
)
_WRITTEN = pa.schema([SCHEMA.field(PATH).with_type(pa.dictionary(pa.int32(), pa.string())), SCHEMA.field(POSITION)])
"""The path column is a dictionary, because writing the text for each row costs more than all else."""
_FEW = 4_096
"""Up to this number of positions zstd costs more time to start than it saves."""


_PLAIN_MAX = 8
"""The most positions that are encoded here. More are smaller in Arrow's packed form."""


def encode(path: str, positions: Positions) -> bytes:
    """A Parquet file of the sorted deleted positions of one data file."""
    if 0 < len(positions) <= _PLAIN_MAX:
        return _plain(path.encode(), positions)
    indices = pa.array(np.zeros(len(positions), np.int32))
    paths = pa.DictionaryArray.from_arrays(indices, pa.array([path]))
    out = pa.BufferOutputStream()
    pq.write_table(
        pa.table([paths, pa.array(positions, pa.int64())], schema=_WRITTEN),
        out,
        compression="zstd" if len(positions) > _FEW else "snappy",
        use_dictionary=[PATH],
        column_encoding={POSITION: "DELTA_BINARY_PACKED"},
        store_schema=False,
    )
    return bytes(out.getvalue())


_MAGIC = b"PAR1"
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Types in Thrift's compact protocol, the form of Parquet's headers and footer."""
_PARQUET_INT64, _PARQUET_BYTES = 2, 6
_PLAIN = b"\0"
"""The encoding of a column, in a list."""
_STOP = b"\0"


def _struct(*fields: tuple[int, int, int | bytes]) -> bytes:
    """A struct of fields (id, type, number or bytes). Nested structs and lists are encoded already."""
    out, last = b"", 0
    for number, kind, value in fields:
        if isinstance(value, int):
            value = varint(value << 1)
        elif kind == _BINARY:
            value = varint(len(value)) + value
        out += bytes(((number - last) << 4 | kind,)) + value
        last = number
    return out + _STOP


def _list(kind: int, *items: bytes) -> bytes:
    return bytes((len(items) << 4 | kind,)) + b"".join(items)


_TEXT = _struct((1, _STRUCT, _STOP))
"""The logical type of a text."""
_SCHEMA = _list(
    _STRUCT,
    _struct((4, _BINARY, b"schema"), (5, _I32, 2)),
    _struct(
        (1, _I32, _PARQUET_BYTES), (3, _I32, 0), (4, _BINARY, PATH.encode()), (6, _I32, 0), (9, _I32, PATH_ID),
        (10, _STRUCT, _TEXT),
    ),
    _struct((1, _I32, _PARQUET_INT64), (3, _I32, 0), (4, _BINARY, POSITION.encode()), (9, _I32, POSITION_ID)),
)  # fmt: skip
_ORDERS = _list(_STRUCT, *[_struct((1, _STRUCT, _STOP))] * 2)
"""Bounds of both columns are ordered by their types."""


def _plain(path: bytes, positions: Positions) -> bytes:
    """A file of one row group with one plain, uncompressed page for each column."""
    rows, held = len(positions), positions.astype("<i8").tobytes()
    paths = _page((len(path).to_bytes(4, "little") + path) * rows, rows)
    values = _page(held, rows)
    columns = (
        _column(_PARQUET_BYTES, PATH, rows, len(paths), len(_MAGIC), path, path),
        _column(_PARQUET_INT64, POSITION, rows, len(values), len(_MAGIC) + len(paths), held[:8], held[-8:]),
    )
    size = len(paths) + len(values)
    group = _struct((1, _LIST, _list(_STRUCT, *columns)), (2, _I64, size), (3, _I64, rows), (6, _I64, size))
    footer = _struct(
        (1, _I32, 2), (2, _LIST, _SCHEMA), (3, _I64, rows), (4, _LIST, _list(_STRUCT, group)),
        (6, _BINARY, b"lakestore version 1"), (7, _LIST, _ORDERS),
    )  # fmt: skip
    return b"".join((_MAGIC, paths, values, footer, len(footer).to_bytes(4, "little"), _MAGIC))


def _page(data: bytes, rows: int) -> bytes:
    head = _struct((1, _I32, rows), (2, _I32, 0), (3, _I32, 3), (4, _I32, 3))
    return _struct((1, _I32, 0), (2, _I32, len(data)), (3, _I32, len(data)), (5, _STRUCT, head)) + data


def _column(kind: int, name: str, rows: int, size: int, begin: int, low: bytes, high: bytes) -> bytes:
    bounds = _struct((3, _I64, 0), (5, _BINARY, high), (6, _BINARY, low))
    about = _struct(
        (1, _I32, kind), (2, _LIST, _list(_I32, _PLAIN)),
        (3, _LIST, _list(_BINARY, varint(len(name)) + name.encode())),
        (4, _I32, 0), (5, _I64, rows), (6, _I64, size), (7, _I64, size), (9, _I64, begin), (12, _STRUCT, bounds),
    )  # fmt: skip
    return _struct((2, _I64, begin), (3, _STRUCT, about))


def decode(held: bytes | pa.Table, name: str) -> Mapping[str, Positions]:
    """Data file to its deleted positions, from a Parquet file or from its two columns. Raises `Corrupt`."""
    try:
        table = held if isinstance(held, pa.Table) else _read(held)
        return _by_path(table)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise Corrupt(f"{name} holds no readable position deletes: {error}") from error


def _read(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data), columns=list(COLUMNS), read_dictionary=[PATH])


def _by_path(table: pa.Table) -> Mapping[str, Positions]:
    if not table.num_rows:
        return {}
    paths, places = table.column(PATH), table.column(POSITION)
    if paths.null_count or places.null_count or pc.min(places).as_py() < 0:
        raise ValueError("a row names no file or no position")
    if not pa.types.is_dictionary(paths.type):
        paths = paths.dictionary_encode()
    paths = paths.unify_dictionaries().combine_chunks()
    codes = paths.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    positions = places.to_numpy()[order]
    ends = np.cumsum(np.bincount(codes, minlength=len(paths.dictionary)))
    return dict(zip(paths.dictionary.to_pylist(), np.split(positions, ends[:-1]), strict=True))
