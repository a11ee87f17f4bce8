"""Batch reads of the data source: parts that are the table at one cut, columns, conditions, alterations, leases."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lakestore.client.table import Table
from lakestore.errors import Invalid, NotFound
from lakestore_spark.source import LakestoreSource, table_reader
from lakestore_spark.source.options import KEPT, Options
from tests.support.log_tierer import LogTierer
from tests.support.micro_batches import loaded, read_rows, through_pickle
from tests.support.served import Served

NAME = "shop.orders"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("z", pa.timestamp("us")),
        ("m", pa.decimal128(9, 2)),
        ("u", pa.uint16()),
        ("h", pa.time64("us")),
    ]
)
VALUES: dict[str, list[Any]] = {
    "id": [0, 1, 2, 3],
    "f": [0.0, -1.5, 2.0, math.nan],
    "s": ["", "a", "ab%", "é'\\"],
    "b": [True, False],
    "d": [date(2026, 1, 1), date(1969, 12, 31)],
    "t": [datetime(2026, 1, 1, tzinfo=UTC), datetime(1969, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    "z": [datetime(2026, 1, 1), datetime(1969, 1, 1, 0, 0, 0, 1)],
    "m": [Decimal("1.25"), Decimal("-3.00")],
    "u": [0, 65_535],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with its ports open, and small tasks."""
    with pytest.MonkeyPatch.context() as patch, Served(tmp_path_factory.mktemp("reads"), ports=True) as served:
        patch.setattr(table_reader, "PART_ROWS", 3)
        patch.setattr(table_reader, "SPLIT_ROWS", 2)
        patch.setattr(table_reader, "PART_BYTES", 1)
        yield served


@pytest.fixture(scope="module")
def orders(served: Served) -> Table:
    """Every value of every column once, and nulls."""
    table = served.lake.create_table(NAME, schema=SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(
        [
            {"id": i, **{name: values[i % len(values)] for name, values in VALUES.items() if name != "id"}}
            for i in range(8)
        ]
    )
    table.upsert([{"id": 8}])
    return table


def options(served: Served, **more: str) -> dict[str, str]:
    """The options of a read of the table."""
    return {"server": served.server.about["grpc"], "table": NAME, **more}


def test_spark_keeps_every_filter(served: Served, orders: Table) -> None:
    """Spark 4.1 reads the partitions of a push-down again for queries with other filters, so the reader takes none."""
    source, schema = loaded(**options(served))
    reader = source.reader(schema)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    few: list[spark.Filter] = [spark.EqualTo(("id",), 1)]
    assert list(reader.pushFilters(few)) == few
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 9


def test_parts_are_the_table_at_one_cut(served: Served, orders: Table) -> None:
    """Each row once, of several tasks, whatever is written while they read."""
    source, schema = loaded(**options(served))
    reader = source.reader(schema)
    before = orders.scan().to_arrow().num_rows
    parts = [through_pickle(part) for part in reader.partitions()]
    token = orders.upsert([{"id": 100}])
    assert len(parts) > 1
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == before
    assert len(read_rows(options(served))) == before + 1
    assert orders.delete([{"id": 100}])
    assert len(read_rows(options(served, at=str(token)))) == before + 1
    assert len(read_rows(options(served))) == before


def test_columns_and_conditions(served: Served, orders: Table) -> None:
    """Columns in the order of the option, system columns among them; a condition on others."""
    rows = read_rows(options(served, columns="s,__offset,id", where="id < 2 OR b IS NULL"))
    assert [list(row) for row in rows] == [["s", "__offset", "id"]] * 3
    assert sorted(row["id"] for row in rows) == [0, 1, 8]


def test_files_of_the_lake(served: Served) -> None:
    """A part reads its own files: the rows of a table in the lake and the log, each once."""
    table = served.lake.create_table("shop.log", schema=pa.schema([("n", pa.int64())]), buckets=2)
    tierer = LogTierer(served.server, served.lake.transport)
    for start in (0, 20, 40):
        table.append([{"n": n} for n in range(start, start + 20)])
        tierer.flush("shop.log")
    table.append([{"n": n} for n in range(60, 70)])
    said = {**options(served), "table": "shop.log"}
    source, schema = loaded(**said)
    parts = source.reader(schema).partitions()
    assert len([part for part in parts if part.part.files]) >= 3
    assert sorted(row["n"] for row in read_rows(said)) == list(range(70))
    assert sorted(row["n"] for row in read_rows({**said, "where": "n > 58"})) == list(range(59, 70))
    narrow, _ = loaded(**said, where="n < 10")
    assert len([part for part in narrow.reader(schema).partitions() if part.part.files]) < len(parts)
    served.lake.drop_table("shop.log")


def test_a_lost_lease_is_taken_anew(served: Served, orders: Table) -> None:
    """A task that begins after the lease has run out leases the same rows again."""
    source, schema = loaded(**options(served))
    reader = source.reader(schema)
    parts = reader.partitions()
    served.clock.advance(table_reader.LEASE_SECONDS * 3)
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == len(read_rows(options(served)))


def test_a_declared_schema(served: Served, orders: Table) -> None:
    """Some columns in another order and case; what the table does not have is an error."""
    said = StructType([StructField("S", StringType()), StructField("id", LongType())])
    assert list(read_rows(options(served), schema=said)[0]) == ["S", "id"]
    with pytest.raises(Invalid, match="no column 'x'"):
        read_rows(options(served), schema=StructType([StructField("x", LongType())]))
    with pytest.raises(Invalid, match="id is bigint and the schema says int"):
        read_rows(options(served), schema=StructType([StructField("id", IntegerType())]))
    with pytest.raises(Invalid, match="no startingOffsets"):
        read_rows(options(served), schema=StructType([StructField("__change", StringType())]))


def test_an_altered_table(served: Served) -> None:
    """A DataFrame keeps its columns by id, and says so where it cannot."""
    table = served.lake.create_table("shop.a", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append([{"a": 1, "b": 2}])
    said = {**options(served), "table": "shop.a"}
    source, schema = loaded(**said)
    filtered, _ = loaded(**said, where="a = 1")
    table.alter(rename={"a": "c"})
    reader = source.reader(schema)
    assert [batch.to_pylist() for part in reader.partitions() for batch in reader.read(part)] == [[{"a": 1, "b": 2}]]
    table.alter(add={"a": pa.int64()})
    with pytest.raises(Invalid, match="another column by now"):
        filtered.reader(schema).partitions()
    table.alter(drop=["b"])
    with pytest.raises(Invalid, match="b was dropped"):
        source.reader(schema).partitions()
    served.lake.drop_table("shop.a")
    served.lake.create_table("shop.a", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    with pytest.raises(NotFound, match="another table of the same name"):
        source.reader(schema).partitions()
    served.lake.drop_table("shop.a")


def test_a_table_of_sparks_catalog_keeps_its_options(served: Served, orders: Table) -> None:
    """In its schema, as PySpark gives a data source nothing else; never a secret."""
    said = options(served, columns="id")
    _, schema = loaded(**said, **{f"option.{name}": value for name, value in said.items()})
    assert schema.fields[0].metadata[KEPT]["table"] == NAME
    assert len(_read_bare(schema)) == 9
    with pytest.raises(Invalid, match="keeps no token"):
        loaded(**said, token="t", **{"option.table": NAME})
    plain = loaded(**said)[1]
    assert plain.fields[0].metadata == {}


def _read_bare(schema: StructType) -> list[Any]:
    """Rows of the table whose options its schema keeps, as Spark reads a table of its catalog."""
    said: Any = CaseInsensitiveDict({"path": "file:/somewhere"})
    reader: Any = LakestoreSource(said).reader(schema)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_the_path_may_name_the_table(served: Served, orders: Table) -> None:
    """`load("shop.orders")`; no table at all is an error."""
    server = served.server.about["grpc"]
    assert len(read_rows({"server": server, "path": NAME})) == 9
    with pytest.raises(Invalid, match="needs a table"):
        read_rows({"server": server})
    with pytest.raises(Invalid, match="no option 'tabel'"):
        read_rows({"server": server, "tabel": NAME})


def test_credentials_go_with_the_tasks(tmp_path: Any) -> None:
    """A token of the options, a certificate as text or as a file; both or none."""
    pem = "-----BEGIN CERTIFICATE-----\n"
    file = tmp_path / "ca.pem"
    file.write_text(pem)
    for said in (pem, str(file)):
        address = Options({"server": "far:1", "token": "t", "tls_ca": said}, "spark.read", ()).address
        again = through_pickle(address)
        assert again.credentials.bearer == "t"
        assert again.credentials.pem.ca == pem.strip().encode() or again.credentials.pem.ca == pem.encode()
    with pytest.raises(Invalid, match="in the clear"):
        _ = Options({"server": "far:1", "token": "t"}, "spark.read", ()).address
    with pytest.raises(Invalid, match="go together"):
        _ = Options({"server": "far:1", "tls_cert": pem}, "spark.read", ()).address
    with pytest.raises(Invalid, match="cannot be read"):
        _ = Options({"server": "far:1", "tls_ca": "/nowhere"}, "spark.read", ()).address


def test_it_is_found_by_name() -> None:
    """PySpark looks for modules that begin with `pyspark_`, and registers their `DefaultSource`."""
    import pyspark_lakestore

    assert pyspark_lakestore.DefaultSource.name() == "lakestore"


def test_a_worker_of_a_stream_imports_no_pyiceberg() -> None:
    """Spark makes a Python worker for each step of a query, and each imports the source."""
    said = "import sys, lakestore_spark.source; print('pyiceberg' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
