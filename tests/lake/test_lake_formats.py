"""Iceberg's Java reads what the room `lake` writes, and what Java writes is kept whole when it is written again."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakestore.iceberg import places, position_deletes, puffin
from lakestore.iceberg.field_ids import FIELD_ID
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list, write_list
from lakestore.iceberg.manifests import (
    ADDED,
    DATA,
    EXISTING,
    POSITION_DELETES,
    Entry,
    File,
    described,
    heading,
    write_manifest,
)
from lakestore.iceberg.transforms import groups
from lakestore.iceberg.values import metrics
from tests.support.manifests import read_manifest
from tests.support.seeds import seeded

pytestmark = pytest.mark.spark

SNAPSHOT, SEQUENCE = 4_711, 1
_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "id": ("long", pa.int64()),
    "yes": ("boolean", pa.bool_()),
    "small": ("int", pa.int32()),
    "f": ("float", pa.float32()),
    "d": ("double", pa.float64()),
    "day": ("date", pa.date32()),
    "at": ("timestamptz", pa.timestamp("us", "UTC")),
    "local": ("timestamp", pa.timestamp("us")),
    "s": ("string", pa.string()),
    "b": ("binary", pa.binary()),
    "price": ("decimal(9, 2)", pa.decimal128(9, 2)),
    "wide": ("decimal(38, 10)", pa.decimal128(38, 10)),
}
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": number, "name": name, "required": False, "type": kind}
        for number, (name, (kind, _)) in enumerate(_TYPES.items(), 1)
    ],
}
ARROW = pa.schema(
    [
        pa.field(name, arrow, metadata={FIELD_ID: str(number).encode()})
        for number, (name, (_, arrow)) in enumerate(_TYPES.items(), 1)
    ]
)
SCHEMA_NAMES, AT = tuple(_TYPES), list(_TYPES).index("at")
SPECS: dict[int, list[tuple[str, str, str]]] = {
    2: [
        ("id", "bucket[4]", "bucket(4, id)"),
        ("at", "month", "months(at)"),
        ("price", "truncate[50]", "truncate(50, price)"),
        ("s", "bucket[3]", "bucket(3, s)"),
        ("wide", "bucket[5]", "bucket(5, wide)"),
    ],
    3: [
        ("s", "truncate[2]", "truncate(2, s)"),
        ("local", "hour", "hours(local)"),
        ("day", "day", "days(day)"),
        ("at", "year", "years(at)"),
        ("price", "identity", "price"),
        ("price", "bucket[7]", "bucket(7, price)"),
        ("small", "truncate[10]", "truncate(10, small)"),
    ],
}
"""Format version to source column, transform and its value by a function of Iceberg in Spark."""


def spec_of(version: int) -> dict[str, Any]:
    ids = {part["name"]: part["id"] for part in SCHEMA["fields"]}
    fields = [
        {"source-id": ids[source], "transform": transform, "name": f"{place}. {source} ä", "field-id": 1000 + place}
        for place, (source, transform, _) in enumerate(SPECS[version])
    ]
    return {"spec-id": 0, "fields": fields}


def some_rows(chance: random.Random, count: int) -> pa.Table:
    epoch = datetime(1970, 1, 1)

    def moment() -> datetime:
        return epoch + timedelta(microseconds=chance.randrange(-(10**14), 10**14))

    def row(number: int) -> dict[str, Any]:
        made = {
            "id": number,
            "yes": chance.random() < 0.5,
            "small": chance.randrange(-40, 40),
            "f": chance.choice([1.5, -0.0, 0.0, math.nan, -math.inf]),
            "d": chance.choice([1e300, -0.0, math.nan]),
            "day": date(1970, 1, 1) + timedelta(days=chance.randrange(-40, 40)),
            "at": moment().replace(tzinfo=UTC),
            "local": moment(),
            "s": chance.choice(["", "a", "über", "𝔘nd mehr als sechzehn Zeichen", "\uffff" * 20]),
            "b": chance.choice([b"", b"\xff" * 20, b"abcdefghijklmnopqrs"]),
            "price": Decimal(chance.randrange(-20_000, 20_000)).scaleb(-2),
            "wide": Decimal(chance.choice([-1, 1]) * chance.randrange(10**27)).scaleb(-10),
        }
        return {name: None if name != "id" and chance.random() < 0.1 else value for name, value in made.items()}

    return pa.Table.from_pylist([row(number) for number in range(count)], schema=ARROW)


@dataclass
class Snapshot:
    """A table of one snapshot in a folder, as a table of Hadoop's catalog lies there."""

    folder: Path
    version: int
    spec: dict[str, Any]
    schema: dict[str, Any]
    manifests: list[Manifest] = field(default_factory=list)

    @property
    def location(self) -> str:
        return f"file:{self.folder}"

    def write(self, name: str, data: bytes) -> str:
        places.write(f"{self.location}/{name}", data)
        return f"{self.location}/{name}"

    def manifest(self, entries: Sequence[Entry], content: int, name: str, **said: Any) -> None:
        data = write_manifest(entries, content=content, schema=self.schema, spec=self.spec, format_version=self.version)
        made = described(
            self.write(f"metadata/{name}.avro", data),
            len(data),
            entries,
            content=content,
            schema=self.schema,
            spec=self.spec,
            snapshot_id=SNAPSHOT,
            sequence=SEQUENCE,
        )
        self.manifests.append(replace(made, **said))

    def commit(self, rows: int, sequence: int = SEQUENCE) -> None:
        lineage = {"first-row-id": 0, "added-rows": rows} if self.version == 3 else {}
        data = write_list(
            self.manifests, format_version=self.version, snapshot_id=SNAPSHOT, parent_id=None, sequence=sequence
        )
        snapshot = {
            "snapshot-id": SNAPSHOT,
            "sequence-number": sequence,
            "timestamp-ms": 1_700_000_000_000,
            "manifest-list": self.write("metadata/list.avro", data),
            "summary": {"operation": "append"},
            "schema-id": self.schema["schema-id"],
            **lineage,
        }
        document = {
            "format-version": self.version,
            "table-uuid": "11111111-2222-4333-8444-555555555555",
            "location": self.location,
            "last-sequence-number": sequence,
            "last-updated-ms": 1_700_000_000_000,
            "last-column-id": 99,
            "current-schema-id": self.schema["schema-id"],
            "schemas": [self.schema],
            "default-spec-id": self.spec["spec-id"],
            "partition-specs": [self.spec],
            "last-partition-id": 1099,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": SNAPSHOT,
            "snapshots": [snapshot],
            **({"next-row-id": rows} if self.version == 3 else {}),
        }
        self.write("metadata/v1.metadata.json", orjson.dumps(document))
        self.write("metadata/version-hint.text", b"1")

    def read(self, spark: SparkSession, part: str = "") -> DataFrame:
        return spark.read.format("iceberg").load(f"{self.location}{part}")


def data_entries(table: Snapshot, rows: pa.Table) -> list[Entry]:
    """The rows as one data file of each partition."""
    entries: list[Entry] = []
    for partition, numbers in groups(rows, table.spec, SCHEMA):
        own = rows if numbers is None else rows.take(pa.array(numbers))
        out = pa.BufferOutputStream()
        pq.write_table(own, out, compression="zstd")
        held = bytes(out.getvalue())
        file = File(
            content=DATA,
            path=table.write(f"data/{len(entries)}.parquet", held),
            format="PARQUET",
            spec_id=table.spec["spec-id"],
            partition=partition,
            rows=own.num_rows,
            bytes=len(held),
            metrics=metrics(own),
            split_offsets=(4,),
            sort_order_id=0,
        )
        entries.append(Entry(ADDED, None, None, None, file))
    return entries


def delete_entries(table: Snapshot, data: Sequence[Entry], positions: puffin.Positions) -> list[Entry]:
    """The same positions of all these files as deletes, in the form of the version."""
    if table.version == 2:
        return [_position_deletes(table, entry.file, positions) for entry in data]
    held, places_ = puffin.puffin([(entry.file.path, positions) for entry in data])
    path, made = table.write("data/all.puffin", held), []
    for entry, (begin, size) in zip(data, places_, strict=True):
        file = _delete(entry.file, path, len(held), positions)
        file = replace(file, format="PUFFIN", content_offset=begin, content_size=size)
        made.append(Entry(ADDED, SNAPSHOT, SEQUENCE, SEQUENCE, file))
    return made


def _position_deletes(table: Snapshot, data: File, positions: puffin.Positions) -> Entry:
    held = position_deletes.encode(data.path, positions)
    path = table.write(data.path.removeprefix(f"{table.location}/") + ".deletes", held)
    return Entry(ADDED, SNAPSHOT, SEQUENCE, SEQUENCE, _delete(data, path, len(held), positions))


def _delete(data: File, path: str, size: int, positions: puffin.Positions) -> File:
    return File(
        content=POSITION_DELETES,
        path=path,
        format="PARQUET",
        spec_id=data.spec_id,
        partition=data.partition,
        rows=len(positions),
        bytes=size,
        referenced_data_file=data.path,
        key_metadata=b"key",
    )


def shown(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value


def plain(rows: pa.Table) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: tuple(shown(value) for value in row.values()) for row in rows.to_pylist()}


@pytest.mark.parametrize("version", [2, 3])
def test_java_reads_a_snapshot_that_is_written_here(spark: SparkSession, tmp_path: Path, version: int) -> None:
    rows = some_rows(seeded("java"), 15)
    table = Snapshot(tmp_path / "t", version, spec_of(version), SCHEMA)
    data = data_entries(table, rows)
    deletes = delete_entries(table, data[::3], np.zeros(1, np.int64))
    table.manifest(data, DATA, "data", first_row_id=0 if version == 3 else None)
    table.manifest(deletes, DELETES, "deletes")
    table.commit(rows.num_rows)
    dead = {pq.read_table(places.place(entry.file.path)[1])["id"][0].as_py() for entry in data[::3]}
    living = rows.filter([number not in dead for number in rows["id"].to_pylist()])
    check_rows(spark, table, living)
    check_entries(spark, table, [*data, *deletes])
    first, second = table.read(spark, "#manifests").orderBy("content").collect()
    assert (first.added_data_files_count, second.added_delete_files_count) == (len(data), len(deletes))
    summaries = table.manifests[0].partitions
    assert summaries is not None
    assert [part.contains_null for part in first.partition_summaries] == [part.contains_null for part in summaries]


def check_rows(spark: SparkSession, table: Snapshot, rows: pa.Table) -> None:
    """Java gives these rows, in the partitions that its own functions compute, and leaves none out by its filters."""
    functions = [function for _, _, function in SPECS[table.version]]
    called = [f"lake.system.{name}" if "(" in name else name for name in functions]
    found = table.read(spark).selectExpr(*SCHEMA_NAMES, "_partition", *(f"{f} AS p{i}" for i, f in enumerate(called)))
    read = {}
    for row in found.collect():
        width = len(SCHEMA_NAMES)
        *values, partition = row[: width + 1]
        assert tuple(partition) == row[width + 1 :], row
        read[row.id] = tuple(
            shown(bytes(v) if isinstance(v, bytearray) else v.astimezone(UTC) if i == AT and v else v)
            for i, v in enumerate(values)
        )
    assert read == plain(rows)
    for condition, meets in CONDITIONS.items():
        kept = {row.id for row in table.read(spark).where(condition).select("id").collect()}
        assert kept == {row["id"] for row in rows.to_pylist() if meets(row)}, condition


CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "s > 'b'": lambda row: row["s"] is not None and row["s"] > "b",
    "f <= 0": lambda row: row["f"] is not None and row["f"] <= 0,
    "price < -50 OR small > 20": lambda row: (row["price"] or 0) < -50 or (row["small"] or 0) > 20,
}
"""Conditions by which Java leaves out files, by bounds and by partition."""


def check_entries(spark: SparkSession, table: Snapshot, entries: Sequence[Entry]) -> None:
    """Java reads each field of these entries."""
    found = {_key(row.data_file): row for row in table.read(spark, "#entries").collect()}
    assert len(found) == len(entries)
    for entry in entries:
        file, row = entry.file, found[entry.file.path, entry.file.content_offset]
        held, figures = row.data_file.asDict(), file.metrics
        assert (row.status, row.snapshot_id) == (entry.status, entry.snapshot_id or SNAPSHOT)
        assert (row.sequence_number, row.file_sequence_number) == (SEQUENCE, SEQUENCE)
        assert (held["content"], held["file_format"], held["record_count"]) == (file.content, file.format, file.rows)
        assert (held["file_size_in_bytes"], held["sort_order_id"]) == (file.bytes, file.sort_order_id)
        assert _bounds(held["lower_bounds"]) == figures.lower
        assert _bounds(held["upper_bounds"]) == figures.upper
        assert (held["value_counts"] or {}, held["null_value_counts"] or {}) == (figures.values, figures.nulls)
        assert (held["nan_value_counts"] or {}, held["column_sizes"] or {}) == (figures.nans, figures.sizes)
        assert held["key_metadata"] == file.key_metadata
        assert held["split_offsets"] == (list(file.split_offsets) if file.split_offsets else None)
        assert held["referenced_data_file"] == file.referenced_data_file
        assert held["content_size_in_bytes"] == file.content_size
        if table.version == 3 and file.content == DATA:
            assert held["first_row_id"] is not None


def _key(file: Any) -> tuple[str, int | None]:
    return file.file_path, file.content_offset


def _bounds(held: Any) -> dict[int, bytes]:
    return {key: bytes(value) for key, value in (held or {}).items()}


def test_figures_are_those_of_java(spark: SparkSession, tmp_path: Path) -> None:
    rows = some_rows(seeded("figures"), 50)
    path = tmp_path / "f.parquet"
    pq.write_table(rows, path)
    jvm: Any = spark._jvm
    source = jvm.org.apache.iceberg.hadoop.HadoopFileIO(spark._jsparkSession.sessionState().newHadoopConf())
    java = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(
        source.newInputFile(str(path)), jvm.org.apache.iceberg.MetricsConfig.getDefault()
    )
    ours = metrics(rows)
    assert dict(java.valueCounts()) == ours.values
    assert dict(java.nullValueCounts()) == ours.nulls
    lower, upper = (
        {key: _of_buffer(found[key]) for key in found} for found in (java.lowerBounds(), java.upperBounds())
    )
    assert lower == ours.lower
    # Java's upper bound leaves NaN out, and DuckDB and Spark find NaN above every number: ours is none then.
    assert {key: bound for key, bound in upper.items() if not ours.nans.get(key)} == ours.upper


def _of_buffer(buffer: Any) -> bytes:
    copy = buffer.duplicate()
    return bytes(copy.get() & 0xFF for _ in range(copy.remaining()))


def test_manifests_of_java_are_kept_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Delete manifests are what presenting writes anew, without the vectors that it replaces."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.formats")
    options = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
    spark.sql(
        "CREATE TABLE lake.formats.java (id BIGINT, price DECIMAL(9, 2), cost DECIMAL(9, 2)) USING iceberg"
        f" PARTITIONED BY (bucket(2, id), price, cost) TBLPROPERTIES ({options})"
    )
    spark.sql("INSERT INTO lake.formats.java SELECT id, id % 2, 1.5 FROM range(40)")
    spark.sql("DELETE FROM lake.formats.java WHERE id IN (3, 4, 5)")
    (row,) = spark.sql("SELECT * FROM lake.formats.java.snapshots ORDER BY committed_at DESC LIMIT 1").collect()
    manifests = read_list(places.read(row.manifest_list), row.manifest_list)
    table = Snapshot(tmp_path / "t", 3, {}, {})
    for number, manifest in enumerate(manifests):
        data = places.read(manifest.path)
        said, entries = heading(data, manifest.path), read_manifest(data, manifest)
        table.spec, table.schema = dict(said.spec), dict(said.schema)
        assert (said.format_version, said.content) == (3, manifest.content)
        again = write_manifest(
            entries, content=said.content, schema=said.schema, spec=said.spec, format_version=said.format_version
        )
        records, ours = (list(fastavro.reader(io.BytesIO(held))) for held in (data, again))
        assert [_said(one) for one in ours] == [_said(one) for one in records]
        kept = [replace(entry, status=EXISTING) for entry in entries]
        table.manifest(kept, manifest.content, f"m{number}", first_row_id=manifest.first_row_id)
    assert {manifest.content for manifest in manifests} == {DATA, DELETES}
    table.commit(40, sequence=2)
    living = sorted(row.id for row in table.read(spark).select("id").collect())
    assert living == [number for number in range(40) if number not in (3, 4, 5)]
    found = table.read(spark, "#entries").where("status = 0").collect()
    theirs = spark.sql("SELECT * FROM lake.formats.java.entries WHERE status <> 2").collect()
    assert sorted(map(_said_by_java, found)) == sorted(map(_said_by_java, theirs))


def _said(record: Any) -> Any:
    """A record without what it inherits from its manifest."""
    held = record["data_file"].items()
    file = {key: value for key, value in held if key != "first_row_id" and value not in (None, [])}
    return file | {"partition": list(record["data_file"]["partition"].values())}


def _said_by_java(row: Any) -> str:
    held = {key: value or None for key, value in row.data_file.asDict(recursive=True).items()}
    return repr((row.snapshot_id, row.sequence_number, row.file_sequence_number, held))
