"""Writes the hot rows of a small round with Arrow in this process.

- A Spark job for a thousand rows takes seconds, Arrow milliseconds. Files have the same schema, metrics and partitions,
  and the commit is the same.
- Large rounds, sorted tables and rows of many partitions are left to Spark.
- Nothing names the files before the round's commit. A broken round leaves them to the removal of orphans.
"""

from __future__ import annotations

import uuid

import pyarrow as pa

from lakestore.iceberg import data_files, transforms
from lakestore.iceberg.manifests import DATA, File
from lakestore.iceberg.values import Json
from lakestore.model.columns import LAKE_COLUMNS
from lakestore.union import plan
from lakestore.union.lake_snapshot import recast
from lakestore.union.plan import ReadPlan, TableScan
from lakestore_tiering import manifest_files
from lakestore_tiering.hot_rows import fetch
from lakestore_tiering.iceberg_java import Iceberg, LakeFile
from lakestore_tiering.round import Round

OFFSETS_MAX = 50_000
"""Offsets of the hot ranges up to which Arrow is faster than a Spark job."""
BYTES_MAX = 64 << 20
"""Bytes of rows in memory above which a round is left to Spark."""
PARTITIONS_MAX = 16
"""Partitions above which a round is left to Spark."""


def write(tools: Round, lake: Iceberg, cut: ReadPlan, scan: TableScan) -> list[LakeFile] | None:
    """The files of a small round; None if the round is left to Spark."""
    if scan.hot_rows > OFFSETS_MAX or scan.table.lake.sort_by:
        return None
    schema, spec = manifest_files.schema_of(lake), manifest_files.spec_of(lake)
    rows = _rows(tools, cut, scan, data_files.arrow_schema(schema))
    if rows is None:
        return None
    groups = transforms.groups(rows, spec, schema) if rows.num_rows else []
    if len(groups) > PARTITIONS_MAX:
        return None
    locations = lake.table.locationProvider()
    files = []
    for values, numbers in groups:
        part = rows if numbers is None else rows.take(pa.array(numbers))
        location = str(locations.newDataLocation(f"{uuid.uuid4()}.parquet"))
        files.append(data_files.write(part, location, spec["spec-id"], values))
    return _as_java(lake, spec, files)


def _rows(tools: Round, cut: ReadPlan, scan: TableScan, schema: pa.Schema) -> pa.Table | None:
    columns = [*scan.table.selected(None), *LAKE_COLUMNS]
    batches, nbytes = [], 0
    for split in scan.hot_splits(OFFSETS_MAX):
        for batch in fetch(tools.transport, plan.fetch_request(scan, split, columns, cut.lease)):
            arrays = [recast(batch.column(part.name), part.type) for part in schema]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            nbytes += batches[-1].nbytes
            if nbytes > BYTES_MAX:
                return None
    return pa.Table.from_batches(batches, schema)


def _as_java(lake: Iceberg, spec: Json, files: list[File]) -> list[LakeFile]:
    names = [part["name"] for part in spec["fields"]]
    return [
        LakeFile(
            file.path,
            file.rows,
            file.bytes,
            file.bounds,
            java,
            file.format,
            tuple(file.partition[name] for name in names),
        )
        for file, java in zip(files, manifest_files.java(lake, DATA, files), strict=True)
    ]
