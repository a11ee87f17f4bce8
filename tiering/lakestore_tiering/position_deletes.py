"""Position deletes for dead rows: Parquet delete files (format 2) or deletion vectors (format 3).

Each covers one data file. In format 2 a few files of one data file accumulate before they are merged, so the cost of a
round follows its changes. In format 3 a data file has one vector, always complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lakestore.errors import Corrupt
from lakestore.iceberg import places, position_deletes
from lakestore.iceberg.manifest_lists import DELETES
from lakestore.iceberg.manifests import POSITION_DELETES, File
from lakestore.iceberg.offset_cache import DeadRows, read_columns
from lakestore.iceberg.position_deletes import PATH_ID, POSITION_ID
from lakestore.iceberg.puffin import Positions, vector
from lakestore.iceberg.values import Metrics
from lakestore.rows.distinct import distinct
from lakestore_tiering import manifest_files
from lakestore_tiering.iceberg_java import Iceberg, LakeFile, java_map

FILES_PER_DATA_FILE_MAX = 4
"""Delete files of one data file at which the next write merges them."""
WRITES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Deletes:
    """Java delete files to add, and the files that they replace."""

    added: list[Any] = field(default_factory=list)
    removed: list[Any] = field(default_factory=list)


def write_deletes(lake: Iceberg, dead_rows: Sequence[DeadRows[LakeFile]]) -> Deletes:
    """Write delete files for dead rows in the table's format."""
    if not dead_rows:
        return Deletes()
    return _vectors(lake, dead_rows) if lake.format_version >= 3 else _parquet_files(lake, dead_rows)


def _parquet_files(lake: Iceberg, dead_rows: Sequence[DeadRows[LakeFile]]) -> Deletes:
    deletes, made = Deletes(), []
    for part in dead_rows:
        positions, old = part.positions, part.file.deletes
        if len(old) >= FILES_PER_DATA_FILE_MAX and all(delete.alone for delete in old.values()):
            read = (_read(delete.java, part.file) for delete in old.values())
            positions = distinct(np.concatenate([positions, *read]))
            deletes.removed.extend(delete.java for delete in old.values())
        made.append((part.file, positions))
    provider = lake.table.locationProvider()
    locations = [str(provider.newDataLocation(f"{uuid.uuid4()}-deletes.parquet")) for _ in made]
    with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
        files = list(pool.map(_written, locations, *zip(*made, strict=True)))
    # Files under the current partitioning as one manifest: each builder call would cross into the JVM.
    pairs = [(file, data) for file, (data, _) in zip(files, made, strict=True)]
    deletes.added.extend(_from_manifest(lake, [each for each in pairs if each[1].partition is not None]))
    deletes.added.extend(_built(lake, *each) for each in pairs if each[1].partition is None)
    return deletes


def _written(location: str, data: LakeFile, positions: Positions) -> File:
    encoded = position_deletes.encode(data.path, positions)
    places.write(location, encoded)
    path, ends = data.path.encode(), (int(positions[0]), int(positions[-1]))
    low, high = ({PATH_ID: path, POSITION_ID: end.to_bytes(8, "little")} for end in ends)
    counts = dict.fromkeys((PATH_ID, POSITION_ID), len(positions))
    return File(
        content=POSITION_DELETES,
        path=location,
        format="PARQUET",
        spec_id=0,
        partition={},
        rows=len(positions),
        bytes=len(encoded),
        metrics=Metrics(low, high, dict.fromkeys(counts, 0), counts),
        referenced_data_file=data.path,
    )


def _read(java: Any, file: LakeFile) -> Positions:
    location = str(java.location())
    found = position_deletes.decode(read_columns(location, str(java.format()), position_deletes.COLUMNS), location)
    if list(found) != [file.path]:
        raise Corrupt(f"delete file {location} covers {list(found)}, not {file.path} alone")
    return found[file.path]


def _from_manifest(lake: Iceberg, pairs: Sequence[tuple[File, LakeFile]]) -> list[Any]:
    if not pairs:
        return []
    spec = manifest_files.spec_of(lake)
    names = [part["name"] for part in spec["fields"]]
    files = [
        replace(file, spec_id=spec["spec-id"], partition=dict(zip(names, data.partition or (), strict=True)))
        for file, data in pairs
    ]
    return [each.get() for each in manifest_files.java(lake, DELETES, files)]


def _built(lake: Iceberg, file: File, data: LakeFile) -> Any:
    source = lake.table.io().newInputFile(file.path)
    metrics = lake.api.parquet.ParquetUtil.fileMetrics(source, lake.api.MetricsConfig.forPositionDelete())
    builder = lake.api.FileMetadata.deleteFileBuilder(lake.spec_of(data.java)).ofPositionDeletes()
    builder = builder.withInputFile(source).withFormat(file.format).withPartition(data.java.partition())
    return builder.withMetrics(metrics).withReferencedDataFile(data.path).build()


def _vectors(lake: Iceberg, dead_rows: Sequence[DeadRows[LakeFile]]) -> Deletes:
    jvm, api = lake.jvm, lake.api
    earlier = {}
    for part in dead_rows:
        for delete in part.file.deletes.values():
            stored = api.deletes.PositionDeleteIndex.deserialize(_stored(delete.java), delete.java)
            earlier[part.file.path] = stored
    loads = jvm.com.google.common.base.Functions.forMap(java_map(jvm, earlier), None)
    factory = api.io.OutputFileFactory.builderFor(lake.table, 0, 0).format(api.FileFormat.PUFFIN).build()
    writer = api.deletes.BaseDVFileWriter(factory, loads)
    for part in dead_rows:
        spec, partition = lake.spec_of(part.file.java), part.file.java.partition()
        writer.delete(part.file.path, _index(lake, part, spec, partition), spec, partition)
    writer.close()
    result = writer.result()
    return Deletes(list(result.deleteFiles()), list(result.rewrittenDeleteFiles()))


def _index(lake: Iceberg, part: DeadRows[LakeFile], spec: Any, partition: Any) -> Any:
    """The positions as Iceberg's bitmap. Iceberg takes one only as a stored vector inside a delete file."""
    data = vector(part.positions)
    builder = lake.api.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes().withFormat("PUFFIN")
    builder = builder.withPath(part.file.path).withPartition(partition).withFileSizeInBytes(len(data))
    builder = builder.withReferencedDataFile(part.file.path).withContentOffset(0).withContentSizeInBytes(len(data))
    return lake.api.deletes.PositionDeleteIndex.deserialize(data, builder.withRecordCount(len(part.positions)).build())


def _stored(java: Any) -> bytes:
    return places.read_part(str(java.location()), int(java.contentOffset()), int(java.contentSizeInBytes()))
