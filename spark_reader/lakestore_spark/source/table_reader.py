"""`spark.read.format("lakestore")`: a union read of one table at one cut, planned by the driver, read by executors.

A part of a plan is a Spark task that reads data files of the lake or ranges of hot offsets with Arrow. Parts carry the
plan, so a retried task reads the same rows. A lease keeps the plan; a task renews it, or leases the same rows again if
the lease has expired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from lakestore.errors import Invalid, NotFound, Unavailable
from lakestore.model.columns import SYSTEM_TYPES, Column
from lakestore.model.table import Table
from lakestore.model.times import position_text
from lakestore.rows import condition_text, literals
from lakestore.rows.condition import RowFilter
from lakestore.rows.projection import Projection
from lakestore.union import arrow, plan
from lakestore.union.cut import Cut
from lakestore.union.plan import ScanPart, TableScan
from lakestore.union.table_keys import KeyServer, read_folders
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source.options import Address, Options
from lakestore_spark.types import for_spark, schema_for_spark, spark_schema, spark_type


def changes_schema(table: Table, columns: Sequence[str]) -> StructType:
    """Spark's schema of a table's changes. Only the key is required, because a delete has nothing else."""
    named = [name for name in columns if name not in SYSTEM_TYPES]
    rows = spark_schema(table, table.selected(named) if named or not columns else [])
    keys = set(table.primary_key)
    shown = [StructField(part.name, part.dataType, part.nullable or part.name not in keys) for part in rows]
    return StructType([*spark_schema(table, list(SYSTEM_TYPES)).fields, *shown])


def rows_schema(table: Table, columns: Sequence[str]) -> StructType:
    """Spark's schema of a table's rows. System columns must be named."""
    if "__change" in columns:
        raise Invalid(f"table {table.name}: a read has rows, not changes; __change comes with a stream")
    return spark_schema(table, table.selected(list(columns)))


@dataclass(frozen=True)
class BoundColumns:
    """Columns of one version of a table."""

    table: Table
    names: tuple[str, ...]
    """Names in that version, and of system columns."""
    labels: tuple[str, ...]
    """Names in Spark's schema, which may differ in case."""

    @staticmethod
    def of(table: Table, schema: StructType) -> BoundColumns:
        """The columns of Spark's schema. Raises `Invalid` for a column that is missing or has another type."""
        known = {column.name.lower(): column for column in table.columns}
        names = []
        for field in schema.fields:
            if field.name in SYSTEM_TYPES:
                names.append(field.name)
                continue
            column = known.get(field.name.lower())
            if column is None:
                raise Invalid(
                    f"table {table.name} has no column {field.name!r}: load it again, or create the Spark table again"
                )
            kind = spark_type(column.type).simpleString()
            if kind != field.dataType.simpleString():
                raise Invalid(
                    f"table {table.name}: column {column.name} is {kind} and the schema says"
                    f" {field.dataType.simpleString()}: load it again, or create the Spark table again"
                )
            names.append(column.name)
        return BoundColumns(table, tuple(names), tuple(schema.fieldNames()))

    @property
    def columns(self) -> list[Column]:
        return [self.table.column(name) for name in self.names if name not in SYSTEM_TYPES]

    def names_in(self, version: Table) -> list[str]:
        """Column names in another version, without younger columns. Raises `Invalid` if a column is gone."""
        names = {column.id: column.name for column in version.columns}
        self._check(version)
        found = [name if name in SYSTEM_TYPES else names.get(self.table.column(name).id) for name in self.names]
        return [name for name in found if name is not None]

    def batch(self, batch: pa.RecordBatch, version: Table) -> pa.RecordBatch:
        """Rows of a version in Spark's types. Raises `Unavailable` if they lack a column of the version."""
        missing = set(self.names_in(version)) - set(batch.schema.names)
        if missing:
            raise Unavailable(f"table {version.name} was altered while column {min(missing)} was asked for: read again")
        columns = self._columns(batch, version)
        arrays = [
            batch.column(batch.schema.get_field_index(name)) if name in SYSTEM_TYPES else columns[name]
            for name in self.names
        ]
        fields = [pa.field(name, array.type) for name, array in zip(self.labels, arrays, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        return for_spark(rows, schema_for_spark(rows.schema))

    def check(self, version: Table, where: str) -> None:
        """Raises `NotFound` for another table of the same name, and `Invalid` if a name in a condition now means
        another column.
        """
        if not version.is_same(self.table):
            raise NotFound(
                f"table {version.name} was dropped, and this is another table of the same name: load it again"
            )
        if version.schema_id == self.table.schema_id or not where:
            return
        ids = {column.name.lower(): column.id for column in version.columns}
        for name in condition_text.parse(where, self.table).columns:
            if name not in SYSTEM_TYPES and ids.get(name.lower(), -1) not in (-1, self.table.column(name).id):
                raise Invalid(
                    f"table {version.name}: {name} in the condition is another column by now: load it again, with a"
                    " condition on the columns as they are"
                )

    def _columns(self, batch: pa.RecordBatch, version: Table) -> dict[str, pa.Array]:
        columns = self.columns
        if version.schema_id == self.table.schema_id:
            return {column.name: batch.column(batch.schema.get_field_index(column.name)) for column in columns}
        self._check(version)
        arrays = Projection(version, self.table).columns(batch, columns)
        return {column.name: array for column, array in zip(columns, arrays, strict=True)}

    def _check(self, version: Table) -> None:
        if version.schema_id <= self.table.schema_id:
            return
        held = {column.id: column for column in version.columns}
        for column in self.columns:
            now = held.get(column.id)
            if now is None or now.type != column.type:
                what = "dropped" if now is None else f"widened to {now.type}"
                raise Invalid(
                    f"table {version.name}: column {column.name} was {what} in schema version {version.schema_id}, and"
                    f" this DataFrame was loaded in version {self.table.schema_id}: load it again; a stream goes on"
                    " from its checkpoint"
                )


LEASE_SECONDS = 300
"""Seconds that a plan is leased before its tasks begin and after the last one."""
PART_BYTES = 64 << 20
"""Approximate bytes of data files in one task."""
PART_ROWS = 500_000
"""Approximate number of hot offsets in one task."""
SPLIT_ROWS = 250_000
PARTS_MAX = 256
"""Most tasks of each kind; larger reads get larger tasks."""


@dataclass(frozen=True)
class Rows:
    """The requested rows: columns and a condition."""

    shown: BoundColumns
    where: str
    """SQL condition; empty for none."""


class PlanPart(InputPartition):
    """One task's part of a plan."""

    def __init__(self, address: Address, answer: bytes, part: ScanPart, rows: Rows) -> None:
        self.address, self.answer, self.part, self.rows = address, answer, part, rows

    def read(self) -> Iterator[pa.RecordBatch]:
        transport = self.address.connect()
        try:
            held = plan.decode(pb.PlanAnswer.FromString(self.answer))
            cut = Cut(transport, (), lease_seconds=LEASE_SECONDS, held=held)
            scan = replace(held.tables[0], part=self.part)
            condition = condition_text.parse(self.rows.where, scan.table) if self.rows.where else None
            for batch in arrow.execute(cut, scan, self.rows.shown.names_in(scan.table), condition):
                yield self.rows.shown.batch(batch, scan.table)
        finally:
            transport.close()


def parts_of(server: KeyServer, address: Address, answer: pb.PlanAnswer, rows: Rows) -> list[PlanPart]:
    """A plan of one table as tasks. A task has no key of the store: it asks the server for one."""
    scan = plan.decode(answer).tables[0]
    rows.shown.names_in(scan.table)
    condition = condition_text.parse(rows.where, scan.table) if rows.where else None
    whole = answer.SerializeToString()
    with closing(read_folders(server, [scan])):
        cold = [PlanPart(address, whole, ScanPart(paths, ()), rows) for paths in _lake_parts(scan, condition)]
    for table in answer.tables:
        for bucket in table.buckets:
            del bucket.dead[:]  # the server leaves dead rows out of its answers
    bare = answer.SerializeToString()
    return [*cold, *(PlanPart(address, bare, ScanPart(frozenset(), runs), rows) for runs in _runs(scan))]


def _lake_parts(scan: TableScan, condition: RowFilter | None) -> list[frozenset[str]]:
    if not scan.in_lake:
        return []
    from lakestore.union import lake_files  # importing PyIceberg takes half a second in each of Spark's workers

    return list(_files(lake_files.planned(scan, condition)))


def _files(files: Sequence[tuple[str, int]]) -> Iterator[frozenset[str]]:
    most = max(PART_BYTES, -(-sum(size for _, size in files) // PARTS_MAX))
    group: list[str] = []
    held = 0
    for path, size in sorted(files):
        if group and held + size > most:
            yield frozenset(group)
            group, held = [], 0
        group.append(path)
        held += size
    if group:
        yield frozenset(group)


def _runs(scan: TableScan) -> Iterator[tuple[plan.Split, ...]]:
    most = max(PART_ROWS, -(-scan.hot_rows // PARTS_MAX))
    group: list[plan.Split] = []
    held = 0
    for split in scan.hot_splits(SPLIT_ROWS):
        if group and held + split.end - split.start > most:
            yield tuple(group)
            group, held = [], 0
        group.append(split)
        held += split.end - split.start
    if group:
        yield tuple(group)


class TableReader(DataSourceReader):
    """A read of one table, at the head when Spark plans it, or at the cut in option `at`.

    It has no `pushFilters`. Spark 4.1 stores the partitions of a push-down in the relation and reads them again for
    later queries of the same DataFrame, view or statement, which have other filters. Without the method Spark evaluates
    every filter itself, also if the session turns on `spark.sql.python.filterPushdown.enabled`. The option `where`
    belongs to the relation, so it is safe.
    """

    def __init__(self, options: Options, table: Table, schema: StructType) -> None:
        self._options, self._shown = options, BoundColumns.of(table, schema)
        if "__change" in self._shown.names:
            raise Invalid("a read has no startingOffsets: use spark.readStream for changes, or leave the option out")
        self._where = literals.fixed(options.text("where"))

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read now and return its tasks."""
        address, options = self._options.address, self._options
        transport = address.connect()
        try:
            at = position_text(options.text("at")) if options.text("at") else ""
            answer = transport.plan(plan.request([options.table], at=at, lease_seconds=LEASE_SECONDS))
            rows = Rows(self._shown, self._where)
            self._shown.check(plan.decode(answer).tables[0].table, rows.where)
            return parts_of(transport, address, answer, rows)
        finally:
            transport.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlanPart)
        return partition.read()
