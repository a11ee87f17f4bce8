"""`spark.read.format("lakestore")`: a union read of one table at one cut, planned by the driver, read by executors.

Each part of a plan is a Spark task that reads some data files of the lake, or some runs of hot offsets, by Arrow. The
parts carry the plan, so that a task that is tried again reads the same rows. A lease holds them; a task renews it while
it reads, and leases the same rows anew where it began too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.model.times import position_text
from lakestore.rows import clock_words, condition_text
from lakestore.rows.condition import RowFilter
from lakestore.union import arrow, plan
from lakestore.union.cut import Cut
from lakestore.union.plan import ScanPart, TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source.options import Address, Options
from lakestore_spark.source.shown import Shown

LEASE_SECONDS = 300
"""Seconds for which a plan is held before a task of it begins, and behind the last one."""
PART_BYTES = 64 << 20
"""Bytes of data files that one task reads, about."""
PART_ROWS = 500_000
"""Hot offsets that one task reads, about."""
SPLIT_ROWS = 250_000
PARTS_MAX = 256
"""Tasks of each kind; beyond so many they get longer."""


@dataclass(frozen=True)
class Rows:
    """The rows that somebody asks for: columns that meet a condition."""

    shown: Shown
    where: str
    """A condition in SQL; empty for none."""


class PlanPart(InputPartition):
    """One task's part of a plan."""

    def __init__(self, address: Address, answer: bytes, part: ScanPart, rows: Rows) -> None:
        self.address, self.answer, self.part, self.rows = address, answer, part, rows

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's types."""
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


def parts_of(address: Address, answer: pb.PlanAnswer, rows: Rows) -> list[PlanPart]:
    """A plan of one table as tasks."""
    scan = plan.decode(answer).tables[0]
    rows.shown.names_in(scan.table)
    condition = condition_text.parse(rows.where, scan.table) if rows.where else None
    whole = answer.SerializeToString()
    cold = [PlanPart(address, whole, ScanPart(paths, ()), rows) for paths in _lake_parts(scan, condition)]
    for table in answer.tables:
        for bucket in table.buckets:
            del bucket.dead[:]  # the server leaves dead rows out of what it sends
    bare = answer.SerializeToString()
    return [*cold, *(PlanPart(address, bare, ScanPart(frozenset(), runs), rows) for runs in _runs(scan))]


def _lake_parts(scan: TableScan, condition: RowFilter | None) -> list[frozenset[str]]:
    """The data files that a read opens, task by task."""
    if not scan.in_lake:
        return []
    from lakestore.union import lake_files  # PyIceberg takes half a second to import, in each of Spark's workers

    return list(_files(lake_files.planned(scan, condition)))


def _files(files: Sequence[tuple[str, int]]) -> Iterator[frozenset[str]]:
    """Data files in groups of about `PART_BYTES`."""
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
    """Hot offsets in groups of about `PART_ROWS`."""
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
    """A read of one table, at the head of the moment in which Spark plans it or at the cut of the option `at`.

    It has no `pushFilters`. Spark 4.1 stores the partitions of a push-down in the relation and reads them again for
    later queries of the same DataFrame, view or statement, which have other filters. Without the method Spark evaluates
    every filter itself, also if the session turns on `spark.sql.python.filterPushdown.enabled`. The option `where`
    belongs to the relation, so it is safe.
    """

    def __init__(self, options: Options, table: Table, schema: StructType) -> None:
        self._options, self._shown = options, Shown.of(table, schema)
        if "__change" in self._shown.names:
            raise Invalid("a read has no startingOffsets: use spark.readStream for changes, or leave the option out")
        self._where = clock_words.fixed(options.text("where"))

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of a plan that is made now."""
        address, options = self._options.address, self._options
        transport = address.connect()
        try:
            at = position_text(options.text("at")) if options.text("at") else ""
            answer = transport.plan(plan.request([options.table], at=at, lease_seconds=LEASE_SECONDS))
            rows = Rows(self._shown, self._where)
            self._shown.check(plan.decode(answer).tables[0].table, rows.where)
            return parts_of(address, answer, rows)
        finally:
            transport.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, PlanPart)
        return partition.read()
