"""The hot rows of a union read as a DataFrame, fetched from the server as Arrow.

A local Spark reads them from a spool of Parquet files. On a cluster the driver fetches a few rows itself; Spark tasks
fetch many rows, one task per split, by the data source below. All ways give the same rows and schema.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakestore.client.credentials import Credentials
from lakestore.client.servers import connect
from lakestore.client.transport import Transport
from lakestore.model.file_uri import to_uri
from lakestore.rows.ipc import decode_server_rows
from lakestore.union import plan
from lakestore.union.plan import Split, TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.types import for_spark, schema_for_spark, spark_schema

BYTES_MAX = 4 << 30


class Spool:
    """A temporary folder of Parquet files, deleted with the process. Thread-safe."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._folder = Path(tempfile.mkdtemp(prefix="lakestore-hot-"))
        self._lock = threading.Lock()
        self._held: dict[str, list[Path]] = {}
        self._count = 0
        self._bytes = 0
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def has_room(self) -> bool:
        return self._bytes < self._bytes_max

    def write(self, lease: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Path | None:
        """Write a file of these rows. None if there are none."""
        rows: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return None
        with self._lock:
            self._count += 1
            path = self._folder / f"{self._count}.parquet"
            self._held.setdefault(lease, []).append(path)
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(path, schema, **options) as writer:
            for batch in (first, *rows):
                writer.write_batch(batch)
        with self._lock:
            self._bytes += path.stat().st_size
        return path

    def forget(self, lease: str) -> None:
        with self._lock:
            for path in self._held.pop(lease, []):
                self._bytes -= path.stat().st_size
                path.unlink()

    def close(self) -> None:
        """Delete everything. Idempotent."""
        self._finalizer()


SOURCE = "lakestore_hot"
DRIVER_ROWS_MAX = 500_000
"""On a cluster the driver fetches hot ranges of at most this many offsets, because up to there it is faster."""
SPOOL_SPLIT_ROWS_MAX = 250_000
SPOOL_THREADS = 2
SPLIT_ROWS_MAX = 500_000


class Hot:
    """Brings hot rows from a server into a session, the fastest way for this Spark."""

    def __init__(
        self,
        spark: SparkSession,
        transport: Transport,
        server: str,
        *,
        driver_rows_max: int = DRIVER_ROWS_MAX,
        spool: bool | None = None,
    ) -> None:
        self._spark = spark
        self._transport = transport
        self._server = server
        self._driver_rows_max = driver_rows_max
        wanted = str(spark.sparkContext.master).startswith("local[") if spool is None else spool
        self._spool = Spool() if wanted else None

    def frame(self, scan: TableScan, columns: Sequence[str], lease: str) -> DataFrame:
        """The live rows of a plan's hot ranges, with these columns."""
        if self._spool is not None and self._spool.has_room:
            return self._spooled(self._spool, scan, columns, lease)
        if scan.hot_rows <= self._driver_rows_max:
            return self._local(scan, columns, lease)
        self._spark.dataSource.register(HotSource)
        requests = [
            plan.fetch_request(scan, split, columns, lease).SerializeToString().hex()
            for split in scan.hot_splits(SPLIT_ROWS_MAX)
        ]
        reader = self._spark.read.format(SOURCE).schema(spark_schema(scan.table, columns))
        shown = self._transport.credentials.options()
        return reader.options(server=self._server, requests=json.dumps(requests), **shown).load()

    def forget(self, lease: str) -> None:
        if self._spool is not None:
            self._spool.forget(lease)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _spooled(self, spool: Spool, scan: TableScan, columns: Sequence[str], lease: str) -> DataFrame:
        schema = schema_for_spark(scan.table.read_schema(list(columns)))

        def write(split: Split) -> Path | None:
            request = plan.fetch_request(scan, split, columns, lease)
            rows = (for_spark(batch, schema) for batch in fetch(self._transport, request))
            return spool.write(lease, schema, rows)

        with ThreadPoolExecutor(SPOOL_THREADS) as pool:
            paths = [to_uri(path) for path in pool.map(write, scan.hot_splits(SPOOL_SPLIT_ROWS_MAX)) if path]
        spark_columns = spark_schema(scan.table, columns)
        if not paths:
            return self._spark.createDataFrame([], spark_columns)
        return self._spark.read.schema(spark_columns).parquet(*paths)

    def _local(self, scan: TableScan, columns: Sequence[str], lease: str) -> DataFrame:
        schema = schema_for_spark(scan.table.read_schema(list(columns)))
        batches = [
            for_spark(batch, schema)
            for split in scan.hot_splits(SPLIT_ROWS_MAX)
            for batch in fetch(self._transport, plan.fetch_request(scan, split, columns, lease))
        ]
        rows = pa.Table.from_batches(batches, schema)
        return self._spark.createDataFrame(rows, schema=spark_schema(scan.table, columns))


def fetch(transport: Transport, request: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
    """Stream the rows of one split."""
    for answer in transport.fetch(request):
        yield from decode_server_rows(answer.rows, crc=answer.crc32c)


class _Split(InputPartition):
    """A fetch request for one Spark task."""

    def __init__(self, request: str) -> None:
        self.request = request


class HotSource(DataSource):
    """The data source behind `Hot.frame`; not a public format."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [_Split(request) for request in json.loads(self._options["requests"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Split)
        transport = connect(self._options["server"], Credentials.from_options(self._options))
        try:
            for batch in fetch(transport, pb.FetchRequest.FromString(bytes.fromhex(partition.request))):
                yield for_spark(batch, schema_for_spark(batch.schema))
        finally:
            transport.close()
