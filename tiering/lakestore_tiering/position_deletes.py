"""Position deletes for rows found dead: Parquet delete files (format 2) or deletion vectors (format 3).

Each covers one data file. Of format 2 a data file collects a few, which are then merged into one, so that the
cost of a round follows its changes. Of format 3 there is one vector per data file, always the whole of it.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakestore.errors import Corrupt
from lakestore_tiering.dead_rows import DeadRows, Positions, place, read_columns
from lakestore_tiering.iceberg_java import Iceberg, LakeFile, java_map

FILES_PER_DATA_FILE_MAX = 4
"""Number of delete files of one data file from which the next write merges them."""
_PATH, _POS = "file_path", "pos"
_SCHEMA = pa.schema(
    [
        pa.field(_PATH, pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
        pa.field(_POS, pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
    ]
)
_VECTOR_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])


@dataclass(frozen=True, slots=True)
class Deletes:
    """Delete files to add, and the files that they replace, as Java files."""

    added: list[Any] = field(default_factory=list)
    removed: list[Any] = field(default_factory=list)


def write_deletes(lake: Iceberg, found: Sequence[DeadRows]) -> Deletes:
    """Delete files for the rows found, in the table's format."""
    if not found:
        return Deletes()
    return _vectors(lake, found) if lake.format_version >= 3 else _parquet_files(lake, found)


def _parquet_files(lake: Iceberg, found: Sequence[DeadRows]) -> Deletes:
    deletes = Deletes()
    for part in found:
        positions, old = part.positions, part.file.deletes
        if len(old) >= FILES_PER_DATA_FILE_MAX and all(delete.alone for delete in old.values()):
            read = (_read(delete.java, part.file) for delete in old.values())
            positions = np.unique(np.concatenate([positions, *read]))
            deletes.removed.extend(delete.java for delete in old.values())
        deletes.added.append(_parquet_file(lake, part.file, positions))
    return deletes


def _read(java: Any, file: LakeFile) -> Positions:
    rows = read_columns(str(java.location()), str(java.format()), [_PATH, _POS])
    paths = rows.column(_PATH).unique().to_pylist()
    if paths != [file.path]:
        raise Corrupt(f"delete file {java.location()} covers {paths}, not {file.path} alone")
    return np.asarray(rows.column(_POS).to_numpy(), dtype=np.int64)


def _parquet_file(lake: Iceberg, file: LakeFile, positions: Positions) -> Any:
    location = str(lake.table.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.parquet"))
    filesystem, path = place(location)
    filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([file.path]))
    rows = pa.table([paths.cast(pa.string()), pa.array(positions)], schema=_SCHEMA)
    pq.write_table(
        rows,
        path,
        filesystem=filesystem,
        compression="zstd",
        use_dictionary=[_PATH],
        column_encoding={_POS: "DELTA_BINARY_PACKED"},
    )
    source = lake.table.io().newInputFile(location)
    metrics = lake.api.parquet.ParquetUtil.fileMetrics(source, lake.api.MetricsConfig.forPositionDelete())
    builder = lake.api.FileMetadata.deleteFileBuilder(lake.spec_of(file.java)).ofPositionDeletes()
    builder = builder.withInputFile(source).withFormat("PARQUET").withPartition(file.java.partition())
    return builder.withMetrics(metrics).withReferencedDataFile(file.path).build()


def _vectors(lake: Iceberg, found: Sequence[DeadRows]) -> Deletes:
    jvm, api = lake.jvm, lake.api
    earlier = {}
    for part in found:
        for delete in part.file.deletes.values():
            stored = api.deletes.PositionDeleteIndex.deserialize(_stored(delete.java), delete.java)
            earlier[part.file.path] = stored
    loads = jvm.com.google.common.base.Functions.forMap(java_map(jvm, earlier), None)
    factory = api.io.OutputFileFactory.builderFor(lake.table, 0, 0).format(api.FileFormat.PUFFIN).build()
    writer = api.deletes.BaseDVFileWriter(factory, loads)
    for part in found:
        spec, partition = lake.spec_of(part.file.java), part.file.java.partition()
        writer.delete(part.file.path, _index(lake, part, spec, partition), spec, partition)
    writer.close()
    result = writer.result()
    return Deletes(list(result.deleteFiles()), list(result.rewrittenDeleteFiles()))


def _index(lake: Iceberg, part: DeadRows, spec: Any, partition: Any) -> Any:
    """The positions as Iceberg's own bitmap, which it takes only as a stored vector with a delete file around."""
    data = vector(part.positions)
    builder = lake.api.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes().withFormat("PUFFIN")
    builder = builder.withPath(part.file.path).withPartition(partition).withFileSizeInBytes(len(data))
    builder = builder.withReferencedDataFile(part.file.path).withContentOffset(0).withContentSizeInBytes(len(data))
    return lake.api.deletes.PositionDeleteIndex.deserialize(data, builder.withRecordCount(len(part.positions)).build())


def vector(positions: Positions) -> bytes:
    """Positions as the blob `deletion-vector-v1` of the Iceberg specification."""
    body = _VECTOR_MAGIC + BitMap64(positions.astype(np.uint64)).serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _stored(java: Any) -> bytes:
    filesystem, path = place(str(java.location()))
    with filesystem.open_input_file(path) as stream:
        data: bytes = stream.read_at(int(java.contentSizeInBytes()), int(java.contentOffset()))
    return data
