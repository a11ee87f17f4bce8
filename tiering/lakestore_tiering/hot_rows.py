"""The hot rows of a round as a DataFrame whose tasks read Parquet files, without Python and without the server.

1. The tierer fetches the rows and writes them with Arrow, in the schema of the lake table.
2. Tasks in the tierer's process read the files from a temporary folder. Tasks on a cluster read them from the lake
   table's folder, because executors reach the warehouse.
3. The files are an Iceberg table that no catalog knows. Its splits follow the bytes and the number of tasks that can
   run at once, whatever the sizes of the buckets.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakestore.client.transport import Transport
from lakestore.errors import LakestoreError
from lakestore.iceberg import data_files, places
from lakestore.iceberg.manifests import File
from lakestore.model.columns import LAKE_COLUMNS
from lakestore.model.file_uri import to_path, to_uri
from lakestore.rows.ipc import decode_server_rows
from lakestore.union import plan
from lakestore.union.lake_snapshot import recast
from lakestore.union.plan import Split, TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_tiering import manifest_files
from lakestore_tiering.iceberg_java import Iceberg, java_errors

BYTES_MAX = 4 << 30
"""Bytes in the temporary folder above which the files of another round go to the lake table's folder."""
SPLIT_ROWS_MAX = 250_000
FILE_BYTES_MAX = 64 << 20
"""Bytes of rows in memory after which a file ends."""
WRITES_AT_ONCE = 2
TASK_BYTES_MIN, TASK_BYTES_MAX = 1 << 20, 64 << 20
"""Bytes of hot files that one task reads. A task on a large machine would otherwise write a file of a few rows."""
SHUFFLE_BYTES_MIN, SHUFFLE_BYTES_MAX = 8 << 20, 256 << 20
"""Bytes of rows of one partition that one task writes: the least keeps small rounds from writing many small files."""
_log = logging.getLogger("lakestore.tiering")


@dataclass(frozen=True, slots=True)
class HotRows:
    """The hot rows of one plan."""

    frame: DataFrame
    task_bytes: int
    """Bytes of shuffled rows for one task. Shuffled rows are compressed, and larger than in a file."""


@dataclass(slots=True)
class _Folder:
    """The files of one lease in one folder."""

    location: str
    lake: Iceberg | None
    """The lake table whose folder it is; None for a temporary folder."""
    names: list[str]
    bytes: int = 0


class Hot:
    """Brings hot rows from a server into a session. Thread-safe."""

    def __init__(
        self, spark: SparkSession, transport: Transport, *, is_local: bool | None = None, bytes_max: int = BYTES_MAX
    ) -> None:
        """`is_local` says whether tasks run in this process; default: as the session's master says."""
        master = str(spark.sparkContext.master)
        self._is_local = master == "local" or master.startswith("local[") if is_local is None else is_local
        self._spark, self._transport, self._bytes_max = spark, transport, bytes_max
        self._temporary = Path(tempfile.mkdtemp(prefix="lakestore-hot-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        self._lock = threading.Lock()
        self._folders: dict[str, list[_Folder]] = {}

    def frame(self, lake: Iceberg, scan: TableScan, lease: str) -> HotRows | None:
        """The live rows of a plan's hot ranges, in the lake table's schema; None if there are none."""
        folder = self._new_folder(lake, lease)
        schema = data_files.arrow_schema(manifest_files.schema_of(lake))

        def write(split: Split) -> list[File]:
            rows = batches(self._transport, scan, split, lease, schema)
            return [self._written(folder, part) for part in _parts(rows, schema)]

        with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
            files = [file for written in pool.map(write, scan.hot_splits(SPLIT_ROWS_MAX)) for file in written]
        if not files:
            return None
        share = sum(file.bytes for file in files) // max(1, self._spark.sparkContext.defaultParallelism) + 1
        listed = manifest_files.uncatalogued(
            lake,
            folder.location,
            files,
            put=lambda name, data: self._put(folder, name, data),
            task_bytes=min(max(share, TASK_BYTES_MIN), TASK_BYTES_MAX),
        )
        with java_errors():
            frame = lake.frame_of(listed, is_local=folder.lake is None)
        return HotRows(frame, min(max(share, SHUFFLE_BYTES_MIN), SHUFFLE_BYTES_MAX))

    def forget(self, lease: str) -> None:
        """Remove the files of a lease. What cannot be removed is left to the search for orphans."""
        with self._lock:
            folders = self._folders.pop(lease, [])
        for folder in folders:
            try:
                _remove(folder)
            except (LakestoreError, OSError) as error:
                _log.warning("hot rows in %s are left to the search for orphans: %s", folder.location, error)

    def close(self) -> None:
        """Delete everything. Idempotent."""
        for lease in list(self._folders):
            self.forget(lease)
        self._finalizer()

    def _new_folder(self, lake: Iceberg, lease: str) -> _Folder:
        with self._lock:
            used = sum(each.bytes for folders in self._folders.values() for each in folders if each.lake is None)
            name = f"hot-{uuid.uuid4().hex}"
            if self._is_local and used < self._bytes_max:
                folder = _Folder(to_uri(self._temporary / name), None, [])
            else:
                # The search for orphans looks in `data`, so a tierer that is killed leaves nothing for good.
                folder = _Folder(f"{str(lake.table.location()).rstrip('/')}/data/{name}", lake, [])
            self._folders.setdefault(lease, []).append(folder)
        return folder

    def _named(self, folder: _Folder, name: str) -> str:
        """The location of a new file. It is noted before the file is there, so that a broken write is removed too."""
        with self._lock:
            folder.names.append(name)
        return f"{folder.location}/{name}"

    def _written(self, folder: _Folder, rows: pa.Table) -> File:
        file = data_files.write(rows, self._named(folder, f"{uuid.uuid4().hex}.parquet"), manifest_files.PLAIN_SPEC, {})
        with self._lock:
            folder.bytes += file.bytes
        return file

    def _put(self, folder: _Folder, name: str, data: bytes) -> str:
        location = self._named(folder, name)
        places.write(location, data)
        return location


def fetch(transport: Transport, request: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
    """Stream the rows of a request."""
    for answer in transport.fetch(request):
        yield from decode_server_rows(answer.rows, crc=answer.crc32c)


def batches(
    transport: Transport, scan: TableScan, split: Split, lease: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The live rows of one split, in a schema of `data_files.arrow_schema`."""
    columns = [*scan.table.selected(None), *LAKE_COLUMNS]
    for batch in fetch(transport, plan.fetch_request(scan, split, columns, lease)):
        arrays = [recast(batch.column(part.name), part.type) for part in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows as tables of about `FILE_BYTES_MAX`, without an empty one."""
    taken: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in rows:
        if batch.num_rows:
            taken.append(batch)
            nbytes += batch.nbytes
        if nbytes > FILE_BYTES_MAX:
            yield pa.Table.from_batches(taken, schema)
            taken, nbytes = [], 0
    if taken:
        yield pa.Table.from_batches(taken, schema)


def _remove(folder: _Folder) -> None:
    local = to_path(folder.location)
    if local is not None:
        shutil.rmtree(local, ignore_errors=not Path(local).exists())
    elif folder.lake is not None:
        with java_errors():
            for name in folder.names:
                folder.lake.table.io().deleteFile(f"{folder.location}/{name}")
