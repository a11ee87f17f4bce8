"""Compaction of adopted files: their live rows go into new files that have the row numbers as columns.

1. It runs on the branch of a compaction instead of Iceberg's rewrite, which would write nulls for the numbers.
2. A file is read and written alone, in pieces of bounded memory. The next compaction joins small pieces.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lakestore.iceberg import adopted_rows, data_files, transforms
from lakestore.iceberg.manifests import DATA, File
from lakestore.model.columns import LAKE_COLUMNS
from lakestore.model.table import Table
from lakestore.union import lake_pruning
from lakestore.union.explanation import Figures
from lakestore.union.lake_files import DataFile, Deletes, FileRead
from lakestore.union.lake_snapshot import FileList, PlannedFile, recast
from lakestore.union.plan import TableScan
from lakestore_tiering import manifest_files
from lakestore_tiering.iceberg_java import Iceberg
from lakestore_tiering.live_files import FORMAT

PIECE_BYTES = 256 << 20
"""Bytes of rows in memory from which a new file is begun."""
RUN_BYTES = 8 << 30
"""Bytes of adopted files that one compaction takes."""


def adopted(lake: Iceberg, table: Table, snapshot_id: int) -> frozenset[str]:
    """The paths of adopted files of a snapshot, up to `RUN_BYTES`. A file of ours has bounds of its row numbers."""
    found = set[str]()
    size = 0
    for entries, places in _files(lake, table, snapshot_id).places:
        _, known = entries.ends
        for place in places[~known[places]].tolist():
            file = entries.read(place).file
            if size < RUN_BYTES and file.format == FORMAT and adopted_rows.is_adopted(file.path):
                found.add(file.path)
                size += file.bytes
    return frozenset(found)


def _files(lake: Iceberg, table: Table, snapshot_id: int) -> FileList:
    scan = TableScan(table, lake.metadata_location(), snapshot_id, (), table)
    return lake_pruning.choose_files(scan, None)[0]


def rewrite(lake: Iceberg, table: Table, branch: str, snapshot_id: int, paths: frozenset[str]) -> None:
    """Rewrite these data files of a snapshot on a branch that was forked from it, in one commit."""
    files = _files(lake, table, snapshot_id)
    deletes, old, new = Deletes(files, Figures()), [], list[File]()
    for each in files:
        if each.file.path in paths:
            new += _rewritten(lake, table, each, deletes)
            old.append(each.file)
    update = lake.table.newRewrite().toBranch(branch).validateFromSnapshot(snapshot_id)
    for java in _java(lake, old):
        update = update.deleteFile(java)
    for java in _java(lake, new):
        update = update.addFile(java)
    update.commit()


def _java(lake: Iceberg, files: Sequence[File]) -> list[Any]:
    by_spec = {
        number: [file for file in files if file.spec_id == number] for number in {file.spec_id for file in files}
    }
    return [each.get() for number, same in by_spec.items() for each in manifest_files.java(lake, DATA, same, number)]


def _rewritten(lake: Iceberg, table: Table, each: PlannedFile, deletes: Deletes) -> Iterator[File]:
    """New files with the live rows of one file, in its order, in their partitions under the present spec."""
    schema = data_files.arrow_schema(manifest_files.schema_of(lake))
    columns = (*table.selected(None), *LAKE_COLUMNS)
    read = DataFile(each.file, FileRead(table, columns, {}, None, Figures()))
    held: list[pa.RecordBatch] = []
    for batch in read.batches(deletes.of(each)):
        arrays = [recast(batch.column(part.name), part.type) for part in schema]
        held.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        if sum(part.nbytes for part in held) >= PIECE_BYTES:
            yield from _written(lake, held, each.file)
            held = []
    if any(part.num_rows for part in held):
        yield from _written(lake, held, each.file)


def _written(lake: Iceberg, held: Sequence[pa.RecordBatch], file: File) -> Iterator[File]:
    rows, provider = pa.Table.from_batches(held), lake.table.locationProvider()
    parted: list[transforms.Group] = [(dict(file.partition), None)]
    if file.spec_id != lake.spec_id:
        parted = transforms.groups(rows, manifest_files.spec_of(lake), manifest_files.schema_of(lake))
    for partition, numbers in parted:
        part = rows if numbers is None else rows.take(pa.array(numbers))
        location = str(provider.newDataLocation(f"{uuid.uuid4()}.parquet"))
        yield data_files.write(part, location, lake.spec_id, partition)
