"""Position deletes of format version 2: rows of (data file, position), as Parquet."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestore.errors import Corrupt
from lakestore.iceberg.field_ids import FIELD_ID
from lakestore.iceberg.puffin import Positions

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
"""The path as a dictionary: the text itself for each row costs most of the writing."""
_FEW = 4_096
"""Positions up to which zstd takes longer to begin than it saves."""


def encode(path: str, positions: Positions) -> bytes:
    """A Parquet file of the deleted positions of one data file; positions are sorted."""
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


def decode(held: bytes | pa.Table, name: str) -> Mapping[str, Positions]:
    """Data files with their deleted positions, of a Parquet file or of its two columns; `Corrupt` of damaged bytes."""
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
