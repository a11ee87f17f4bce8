"""The hot side of a union read as a DataFrame: live rows of offset ranges, fetched from the server as Arrow.

A few rows are fetched by the driver; many are fetched by Spark tasks, one per split of a range, through the
Python data source below. Both give the same rows under the same schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakestore.client.transport import Transport, connect
from lakestore.rows import decode_trusted
from lakestore.schema import Table
from lakestore.union import plan
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb

SOURCE = "lakestore_hot"
DRIVER_ROWS_MAX = 500_000
"""Hot ranges of no more offsets than this in all are fetched by the driver: up to there it is the faster way."""
SPLIT_ROWS_MAX = 500_000
_SIMPLE = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}
_SYSTEM = {"__change": "string", "__bucket": "int", "__offset": "bigint", "__timestamp": "timestamp"}


def spark_type(name: str) -> str:
    """Spark's type for a declared type."""
    return _SIMPLE.get(name, name)


def spark_schema(table: Table, columns: Sequence[str]) -> StructType:
    """Spark's schema of these columns, system columns among them."""
    parsed = StructType.fromDDL(", ".join(_field(table, name) for name in columns))
    assert isinstance(parsed, StructType)
    return parsed


def _field(table: Table, name: str) -> str:
    if name in _SYSTEM:
        return f"`{name}` {_SYSTEM[name]} NOT NULL"
    column = table.column(name)
    return f"`{name}` {spark_type(column.type)}{' NOT NULL' if column.required else ''}"


class Hot:
    """How hot rows come into a session: the server, and from which number of rows on Spark tasks fetch them."""

    def __init__(
        self, spark: SparkSession, transport: Transport, server: str, *, driver_rows_max: int = DRIVER_ROWS_MAX
    ) -> None:
        self._spark = spark
        self._transport = transport
        self._server = server
        self._driver_rows_max = driver_rows_max

    def frame(self, scan: TableScan, columns: Sequence[str], lease: str) -> DataFrame:
        """The live rows of the hot ranges of a plan, with these columns."""
        if scan.hot_rows <= self._driver_rows_max:
            return self._local(scan, columns, lease)
        self._spark.dataSource.register(HotSource)
        requests = [
            plan.fetch_request(scan, split, columns, lease).SerializeToString().hex()
            for split in scan.hot_splits(SPLIT_ROWS_MAX)
        ]
        reader = self._spark.read.format(SOURCE).schema(spark_schema(scan.table, columns))
        return reader.options(server=self._server, requests=json.dumps(requests)).load()

    def _local(self, scan: TableScan, columns: Sequence[str], lease: str) -> DataFrame:
        schema = scan.table.read_schema(list(columns))
        batches = [
            batch
            for split in scan.hot_splits(SPLIT_ROWS_MAX)
            for batch in fetch(self._transport, plan.fetch_request(scan, split, columns, lease))
        ]
        rows = pa.Table.from_batches(batches) if batches else schema.empty_table()
        return self._spark.createDataFrame(rows.cast(schema), schema=spark_schema(scan.table, columns))


def fetch(transport: Transport, request: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
    """The rows of one split, as the server streams them."""
    for answer in transport.fetch(request):
        yield from decode_trusted(answer.rows, crc=answer.crc32c)


class _Split(InputPartition):
    """A fetch request for one Spark task."""

    def __init__(self, request: str) -> None:
        self.request = request


class HotSource(DataSource):
    """The data source behind `Hot.frame`, which makes its options; not a public format."""

    @classmethod
    def name(cls) -> str:
        """The name it is registered under."""
        return SOURCE

    def reader(self, schema: StructType) -> DataSourceReader:
        """One task per request of the options."""
        return _Reader(dict(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [_Split(request) for request in json.loads(self._options["requests"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Split)
        transport = connect(self._options["server"])
        try:
            yield from fetch(transport, pb.FetchRequest.FromString(bytes.fromhex(partition.request)))
        finally:
            transport.close()
