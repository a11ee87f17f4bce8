"""Writes the hot rows of a small round with Arrow in this process.

- A Spark job for a thousand rows takes seconds, Arrow milliseconds. Files have the same schema, metrics and partitions,
  and the commit is the same.
- Rows of a sorted table are sorted within each file. Large rounds and rows of very many partitions are left to Spark.
- Nothing names the files before the round's commit. A broken round leaves them to the removal of orphans.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.iceberg import data_files, transforms
from lakestore.iceberg.manifests import DATA, File
from lakestore.iceberg.values import Json
from lakestore.union.plan import ReadPlan, TableScan
from lakestore_tiering import manifest_files
from lakestore_tiering.hot_rows import batches
from lakestore_tiering.iceberg_java import Iceberg, LakeFile
from lakestore_tiering.round import Round

OFFSETS_MAX = 50_000
"""Offsets of the hot ranges up to which Arrow is faster than a Spark job."""
BYTES_MAX = 64 << 20
"""Bytes of rows in memory above which a round is left to Spark."""
PARTITIONS_MAX = 2_048
"""Partitions above which a round is left to Spark. A thousand files take 1 s here; Spark takes 8 s and 1.5 GB."""
WRITES_AT_ONCE = 4


def write(tools: Round, lake: Iceberg, cut: ReadPlan, scan: TableScan) -> list[LakeFile] | None:
    """The files of a small round; None if the round is left to Spark."""
    if scan.hot_rows > OFFSETS_MAX:
        return None
    schema, spec = manifest_files.schema_of(lake), manifest_files.spec_of(lake)
    rows = _rows(tools, cut, scan, data_files.arrow_schema(schema))
    if rows is None:
        return None
    rows = _sorted(rows, scan)
    groups = transforms.groups(rows, spec, schema) if rows.num_rows else []
    if len(groups) > PARTITIONS_MAX:
        return None
    provider = lake.table.locationProvider()
    locations = [str(provider.newDataLocation(f"{uuid.uuid4()}.parquet")) for _ in groups]

    def written(location: str, group: transforms.Group) -> File:
        values, numbers = group
        part = rows if numbers is None else rows.take(pa.array(numbers))
        return data_files.write(part, location, spec["spec-id"], values)

    with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
        files = list(pool.map(written, locations, groups))
    return _as_java(lake, spec, files)


def _sorted(rows: pa.Table, scan: TableScan) -> pa.Table:
    """The rows in the table's order. Nulls come last, wherever the order wants them: no file declares its order."""
    fields = scan.table.lake.sort_fields()
    if not fields or not rows.num_rows:
        return rows
    keys = [(field.column, "descending" if field.descending else "ascending") for field in fields]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))


def _rows(tools: Round, cut: ReadPlan, scan: TableScan, schema: pa.Schema) -> pa.Table | None:
    taken, nbytes = [], 0
    for split in scan.hot_splits(OFFSETS_MAX):
        for batch in batches(tools.transport, scan, split, cut.lease, schema):
            taken.append(batch)
            nbytes += batch.nbytes
            if nbytes > BYTES_MAX:
                return None
    return pa.Table.from_batches(taken, schema)


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
