"""A tiered table of very many small files that are there: made without Spark, landed as a tierer lands a round."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lakestore
from lakestore.iceberg.manifests import File
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET, LAKE_TIMESTAMP
from lakestore.model.table import Table
from lakestore.rows.live_sum import moved
from lakestore.union import plan
from lakestore.union.plan import TableScan
from lakestore.union.tier_record import Record
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.many_files import LAKE, SCHEMA, ManyFiles

SNAPSHOT = 7
_EPOCH_SECONDS = 600
_CHUNK = 1_000
_INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class LandedFiles:
    """The table `bench.big`, of one bucket, whose ids are the offsets of the rows."""

    table: lakestore.Table
    many: ManyFiles

    @staticmethod
    def of(
        lake: Any, http: str, count: int, partitions: int, rows: int = 2, *, files_per_manifest: int = 1_000
    ) -> LandedFiles:
        """Write the rows, and land them in so many files; `http` is the server's address of its catalog."""
        table = lake.create_table("bench.big", SCHEMA, primary_key=["id"], buckets=1, lake=LAKE)
        with table.writer() as out:
            for begin in range(0, count * rows, 100_000):
                ids = np.arange(begin, min(begin + 100_000, count * rows))
                out.upsert(rows_of(ids, count, partitions, rows))
        place = f"http://{http}/iceberg/v1/namespaces/bench/tables/big"
        with urllib.request.urlopen(place) as answer:
            document = json.load(answer)["metadata"]
        scan = plan.newest(lake.transport.plan, "bench.big")
        many = ManyFiles(
            scan.table, document["location"], count, partitions, rows, files_per_manifest, document=document
        )
        _land(lake, place, many, scan)
        return LandedFiles(table, many)

    def changed(self, ids: np.ndarray) -> None:
        """Write rows anew, as they are."""
        self.table.upsert(rows_of(np.unique(ids), self.many.count, self.many.partitions, self.many.rows))


def rows_of(ids: np.ndarray, count: int, partitions: int, rows: int) -> pa.Table:
    """The rows of these ids."""
    number = ids // rows
    part = (number * partitions // count).astype(np.int32)
    return pa.table([pa.array(ids), pa.array(part), pa.array(number), pa.array(np.full(len(ids), 0.5))], schema=SCHEMA)


def _land(lake: Any, place: str, many: ManyFiles, scan: TableScan) -> None:
    """The tier commit of all files."""
    total = many.count * many.rows
    lease = lake.transport.acquire_tierer(pb.TiererRequest(holder="landing", seconds=_EPOCH_SECONDS))
    live = moved(0, np.arange(total), np.arange(0))
    lsn = plan.decode(lake.transport.plan(plan.request(["bench.big"], no_dead=True))).lsn
    record = Record(lease.epoch, (0,), (total,), (live,), lsn, scan.table.schema_id)
    listed = many.listed(many.manifests(_written(many), SNAPSHOT, 1), SNAPSHOT, 1)
    counted = {"total-records": total, "total-data-files": many.count, "total-files-size": 0}
    nothing = dict.fromkeys(("total-delete-files", "total-position-deletes", "total-equality-deletes"), 0)
    counts = {key: str(value) for key, value in {**counted, **nothing}.items()}
    snapshot = {
        "snapshot-id": SNAPSHOT,
        "sequence-number": 1,
        "timestamp-ms": many.document["last-updated-ms"] + 1,
        "manifest-list": listed,
        "schema-id": scan.table.schema_id,
        "summary": {"operation": "append", **counts, **record.summary()},
    }
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": SNAPSHOT}
    said = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}, main]}
    asked = urllib.request.Request(place, json.dumps(said).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(asked).close()
    lake.transport.release_tierer(pb.TiererRequest(holder="landing", epoch=lease.epoch))


def _written(many: ManyFiles) -> list[File]:
    """The files, written, with their sizes as they are; by a few processes."""
    for part in range(many.partitions):
        Path(many.file(-(-part * many.count // many.partitions)).path.removeprefix("file://")).parent.mkdir(
            parents=True, exist_ok=True
        )
    begins = range(0, many.count, _CHUNK)
    with ProcessPoolExecutor(2) as pool:
        sizes = [size for part in pool.map(partial(_write, many), begins) for size in part]
    return [replace(many.file(number), bytes=size) for number, size in enumerate(sizes)]


def _write(many: ManyFiles, begin: int) -> list[int]:
    """Write some files; their sizes."""
    schema = _schema(many.table)
    sizes = []
    for number in range(begin, min(begin + _CHUNK, many.count)):
        ids = np.arange(number * many.rows, (number + 1) * many.rows)
        rows = rows_of(ids, many.count, many.partitions, many.rows)
        columns = [*rows.columns, pa.array(np.zeros(len(ids), np.int32)), pa.array(ids)]
        columns.append(pa.array(np.zeros(len(ids), np.int64)).cast(_INSTANT))
        out = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, schema=schema), out, compression="none", use_dictionary=False)
        data = out.getvalue()
        Path(many.file(number).path.removeprefix("file://")).write_bytes(data)
        sizes.append(data.size)
    return sizes


def _schema(table: Table) -> pa.Schema:
    ids = {**{name: table.column(name).id for name in SCHEMA.names}, **LAKE_FIELD_IDS}
    lake = {LAKE_BUCKET: pa.int32(), LAKE_OFFSET: pa.int64(), LAKE_TIMESTAMP: _INSTANT}
    own = [*SCHEMA, *(pa.field(name, kind) for name, kind in lake.items())]
    fields = [field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) for field in own]
    return pa.schema(fields)
