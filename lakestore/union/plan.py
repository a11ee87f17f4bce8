"""The plan of a union read as a value: the parts that make up each table at one cut.

A table at a cut is its lake snapshot at the tier point, minus the dead offsets, plus the live rows of the hot ranges.
Rows are identified by (bucket, offset), so the result does not depend on how the lake's files are arranged. This module
reads nothing; `lake_files`, `arrow` and Spark execute plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lakestore.errors import Internal, NotFound
from lakestore.model.alteration import Requirement
from lakestore.model.table import Table
from lakestore.rows.ranges import OffsetSet
from lakestore.v1 import lakestore_pb2 as pb

SPLIT_ROWS = 1 << 20
"""Default number of offsets of one fetch."""
DEFINITIONS_KEPT = 64
"""The last definitions are kept as they were read: a plan has the definition of each of its tables."""


@dataclass(frozen=True, slots=True)
class Split:
    """A run of hot offsets of one bucket that one call fetches."""

    bucket: int
    start: int
    end: int
    tier_point: int
    """Start of the bucket's whole hot range. All changes from here on decide which rows are alive."""
    head: int
    """End of the bucket's hot range."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """One bucket at the cut."""

    bucket: int
    tier_point: int
    """The lake holds the rows that were alive at this offset."""
    head: int
    """The first offset after the cut."""
    dead: OffsetSet
    """Offsets superseded by a change in [tier_point, head)."""
    live_sum: int
    """Live sum at `head`."""
    live_rows: int
    """Live rows at `head`."""

    def splits(self, rows: int) -> Iterator[Split]:
        """The hot range in runs of at most `rows` offsets."""
        for start in range(self.tier_point, self.head, rows):
            yield Split(self.bucket, start, min(start + rows, self.head), self.tier_point, self.head)


@dataclass(frozen=True, slots=True)
class TierState:
    """The tier record of the planned snapshot, from the server's journal."""

    snapshot_ids: frozenset[int]
    """Every snapshot of branch main with this tier point. Other engines may have rewritten the tierer's snapshot."""
    tier_point: tuple[int, ...]
    """For each bucket, the offset below which all rows are in the lake."""
    live_sum: tuple[int, ...]
    """For each bucket, the live sum at the tier point."""
    lsn: int
    epoch: int
    schema_id: int


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The share of a table's plan that one of several readers reads. The shares together contain each row once."""

    files: frozenset[str]
    """Paths of the lake's data files."""
    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class TableScan:
    """One table at the cut."""

    table: Table
    metadata_location: str
    """URI of the lake table's metadata; empty if there is none."""
    snapshot_id: int
    """Lake snapshot to read; 0 if nothing is tiered."""
    buckets: tuple[BucketPlan, ...]
    lake_table: Table
    """The definition in the lake snapshot's schema version. `table` is the definition at the cut."""
    lake_beyond: bool = False
    """Whether a log table's snapshot also has rows newer than the cut: those from `tier_point` on."""
    tier: TierState | None = None
    """None if nothing is tiered, or if the server does not report it."""
    part: ScanPart | None = None
    """The share that this reader reads; None for everything."""

    @property
    def in_lake(self) -> bool:
        """Whether there is a lake snapshot to read."""
        return bool(self.metadata_location) and self.snapshot_id != 0 and (self.part is None or bool(self.part.files))

    @property
    def live_rows(self) -> int:
        """Rows of the table at the cut."""
        return sum(bucket.live_rows for bucket in self.buckets)

    @property
    def hot_rows(self) -> int:
        """Offsets in the hot ranges, of live and dead rows."""
        return sum(bucket.head - bucket.tier_point for bucket in self.buckets)

    def hot_splits(self, rows_per_split: int = SPLIT_ROWS) -> list[Split]:
        """The hot ranges of all buckets, or of this reader's share, as runs to fetch."""
        if self.part is not None:
            return list(self.part.splits)
        return [split for bucket in self.buckets for split in bucket.splits(rows_per_split)]

    def dead_below(self, bucket: int) -> npt.NDArray[np.int64]:
        """The bucket's lake rows that died since the tier point, as sorted offsets."""
        part = self.buckets[bucket]
        return part.dead.below(part.tier_point)

    def cold_dead(self) -> dict[int, OffsetSet]:
        """Bucket to its dead offsets in the lake. Buckets without dead rows are absent."""
        dead = {part.bucket: OffsetSet(self.dead_below(part.bucket)) for part in self.buckets}
        return {bucket: offsets for bucket, offsets in dead.items() if len(offsets)}

    def lake_ends(self) -> list[int] | None:
        """For each bucket, the end of the lake rows that belong to the cut; None if the whole snapshot belongs to
        it.
        """
        return [part.head for part in self.buckets] if self.lake_beyond else None


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One cut over the tables of a read."""

    token: str
    """The cut as a text that `at=` accepts."""
    lsn: int
    lease: str
    """The lease that keeps the plan's snapshots and log ranges; empty if none was requested."""
    tables: tuple[TableScan, ...]
    changes_left: int = 0
    """Offsets beyond the cut, if the request bounded it."""

    def scan(self, name: str) -> TableScan:
        """The plan of one table."""
        for part in self.tables:
            if part.table.name == name:
                return part
        raise NotFound(f"table {name} is not part of this snapshot; take one that names it")


def decode(answer: pb.PlanAnswer) -> ReadPlan:
    """Decodes the plan that the server sent."""
    return ReadPlan(
        answer.token, answer.lsn, answer.lease, tuple(_table(part) for part in answer.tables), answer.changes_left
    )


def request(
    tables: Sequence[str],
    *,
    at: str = "",
    lease_seconds: int = 0,
    no_dead: bool = False,
    require: Requirement | None = None,
    changes_max: int = 0,
    hot_bytes_max: int = 0,
) -> pb.PlanRequest:
    """Builds the request for one cut over the named tables. `changes_max` and `hot_bytes_max` bound the hot offsets of
    one table and their stored bytes."""
    return pb.PlanRequest(
        tables=list(tables),
        at=at,
        lease_seconds=lease_seconds,
        no_dead=no_dead,
        require=None if require is None else required(require),
        changes_max=changes_max,
        hot_bytes_max=hot_bytes_max,
    )


def newest(ask: Callable[[pb.PlanRequest], pb.PlanAnswer], table: str) -> TableScan:
    """The plan of one table at the head, without dead offsets and without a lease. `ask` sends a request."""
    return decode(ask(request([table], no_dead=True))).scan(table)


def required(require: Requirement) -> pb.Requirement:
    """Encodes a requirement."""
    wait_ms = int(require.wait_seconds * 1_000)
    return pb.Requirement(
        complete_through_us=require.through_us, freshness_us=require.freshness_us, wait_ms=max(wait_ms, 0)
    )


def fetch_request(
    scan: TableScan, split: Split, columns: Iterable[str], lease: str, where: str = ""
) -> pb.FetchRequest:
    """Builds the request for the live rows of one split. `where` is a condition in SQL; empty for all rows."""
    return pb.FetchRequest(
        table_uuid=scan.table.uuid,
        bucket=split.bucket,
        start=split.start,
        end=split.end,
        columns=list(columns),
        live_only=True,
        live_start=split.tier_point,
        live_end=split.head,
        lease=lease,
        schema_id=scan.table.schema_id,
        where=where,
    )


_definition = lru_cache(DEFINITIONS_KEPT)(Table.from_json)


def _table(part: pb.TablePlan) -> TableScan:
    table = _definition(part.definition)
    scan = TableScan(
        table=table,
        metadata_location=part.metadata_location,
        snapshot_id=part.snapshot_id,
        buckets=tuple(_bucket(bucket) for bucket in sorted(part.buckets, key=lambda bucket: bucket.bucket)),
        lake_table=_definition(part.lake_definition) if part.lake_definition else table,
        lake_beyond=part.lake_beyond,
        tier=_tier(part.tier) if part.HasField("tier") else None,
    )
    _check(scan)
    return scan


def _tier(part: pb.TierState) -> TierState:
    return TierState(
        frozenset(part.snapshot_ids),
        tuple(part.tier_point),
        tuple(part.live_sum),
        part.lsn,
        part.epoch,
        part.schema_id,
    )


def _bucket(part: pb.BucketPlan) -> BucketPlan:
    return BucketPlan(
        bucket=part.bucket,
        tier_point=part.tier_point,
        head=part.head,
        dead=OffsetSet.decode((run.high, run.roaring) for run in part.dead),
        live_sum=part.live_sum,
        live_rows=part.live_rows,
    )


def _check(scan: TableScan) -> None:
    name = scan.table.name
    if [part.bucket for part in scan.buckets] != list(range(scan.table.buckets)):
        raise Internal(f"the plan of table {name} does not name each of its {scan.table.buckets} buckets once")
    for part in scan.buckets:
        if not 0 <= part.tier_point <= part.head:
            raise Internal(f"the plan of table {name} has tier point {part.tier_point} above head {part.head}")
        if part.tier_point and not scan.in_lake:
            raise Internal(f"the plan of table {name} has tier point {part.tier_point} but names no lake snapshot")
