"""The union-read plan as a value: what makes up each table at one cut.

A table at a cut is its lake snapshot at the tier point, less the dead offsets, and the live rows of the hot
ranges. Rows are told apart by (bucket, offset), so the answer is exact whatever the lake's files look like.
Nothing here reads anything; `lake`, `arrow` and Spark are the executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestore.errors import Internal, NotFound
from lakestore.model.alteration import Requirement
from lakestore.model.table import Table
from lakestore.rows.ranges import OffsetSet
from lakestore.v1 import lakestore_pb2 as pb

SPLIT_ROWS = 1 << 20
"""Offsets that one fetch of the hot side covers, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Split:
    """A run of hot offsets of one bucket, fetched in one call."""

    bucket: int
    start: int
    end: int
    tier_point: int
    """Start of the bucket's whole hot range, whose changes decide liveness."""
    head: int
    """End of it."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """One bucket at the cut."""

    bucket: int
    tier_point: int
    """The lake holds the rows live at this offset."""
    head: int
    """First offset after the cut."""
    dead: OffsetSet
    """Every offset that a change in [tier_point, head) supersedes."""
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
    """The tier record of a planned snapshot, from the server's journal."""

    snapshot_ids: frozenset[int]
    """Every snapshot of main at this tier point: rewrites by other engines stand upon the tierer's."""
    tier_point: tuple[int, ...]
    """Per bucket, the offset below which everything is in the lake."""
    live_sum: tuple[int, ...]
    """Per bucket, the live sum at the tier point."""
    lsn: int
    epoch: int
    schema_id: int


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The part of a table's plan that one of several readers reads; the parts of all are each row once."""

    files: frozenset[str]
    """Paths of the lake's data files."""
    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class TableScan:
    """One table at the cut."""

    table: Table
    metadata_location: str
    """URI of the lake table's metadata; empty when there is none."""
    snapshot_id: int
    """Lake snapshot to read; 0 when nothing is tiered."""
    buckets: tuple[BucketPlan, ...]
    lake_table: Table
    """The definition in the version that the lake snapshot has: `table` is the one at the cut."""
    lake_beyond: bool = False
    """Whether the snapshot holds rows of a log table that are newer than the cut: those from `tier_point` on."""
    tier: TierState | None = None
    """None when nothing is tiered, or of a server that does not say."""
    part: ScanPart | None = None
    """The part that this reader reads; None for all of it."""

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
        """Offsets in the hot ranges, dead and alive."""
        return sum(bucket.head - bucket.tier_point for bucket in self.buckets)

    def hot_splits(self, rows_per_split: int = SPLIT_ROWS) -> list[Split]:
        """The hot ranges of all buckets as runs to fetch, or the part's runs."""
        if self.part is not None:
            return list(self.part.splits)
        return [split for bucket in self.buckets for split in bucket.splits(rows_per_split)]

    def dead_below(self, bucket: int) -> npt.NDArray[np.int64]:
        """The bucket's lake rows that died since the tier point, as sorted offsets."""
        part = self.buckets[bucket]
        return part.dead.below(part.tier_point)

    def cold_dead(self) -> dict[int, OffsetSet]:
        """Bucket to its dead offsets in the lake; buckets without any are absent."""
        dead = {part.bucket: OffsetSet(self.dead_below(part.bucket)) for part in self.buckets}
        return {bucket: offsets for bucket, offsets in dead.items() if len(offsets)}

    def lake_ends(self) -> list[int] | None:
        """Per bucket, where the lake rows of the cut end; None when all rows of the snapshot belong to it."""
        return [part.head for part in self.buckets] if self.lake_beyond else None


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One cut over the tables of a read."""

    token: str
    """The cut, as `at=` takes it."""
    lsn: int
    lease: str
    """Holds the lake snapshots and log ranges of the plan; empty when none was asked for."""
    tables: tuple[TableScan, ...]

    def scan(self, name: str) -> TableScan:
        """The part of the plan for the table of that name."""
        for part in self.tables:
            if part.table.name == name:
                return part
        raise NotFound(f"table {name} is not part of this snapshot; take one that names it")


def decode(answer: pb.PlanAnswer) -> ReadPlan:
    """The plan that the server sent."""
    return ReadPlan(answer.token, answer.lsn, answer.lease, tuple(_table(part) for part in answer.tables))


def request(
    tables: Sequence[str],
    *,
    at: str = "",
    lease_seconds: int = 0,
    no_dead: bool = False,
    require: Requirement | None = None,
) -> pb.PlanRequest:
    """The request for one cut over the named tables."""
    asked = None if require is None else required(require)
    return pb.PlanRequest(tables=list(tables), at=at, lease_seconds=lease_seconds, no_dead=no_dead, require=asked)


def required(require: Requirement) -> pb.Requirement:
    """A requirement as it is asked for."""
    wait_ms = int(require.wait_seconds * 1_000)
    return pb.Requirement(
        complete_through_us=require.through_us, freshness_us=require.freshness_us, wait_ms=max(wait_ms, 0)
    )


def fetch_request(
    scan: TableScan, split: Split, columns: Iterable[str], lease: str, where: str = ""
) -> pb.FetchRequest:
    """The request for the live rows of one split, or for those that meet a condition in SQL."""
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


def _table(part: pb.TablePlan) -> TableScan:
    table = Table.from_json(part.definition)
    scan = TableScan(
        table=table,
        metadata_location=part.metadata_location,
        snapshot_id=part.snapshot_id,
        buckets=tuple(_bucket(bucket) for bucket in sorted(part.buckets, key=lambda bucket: bucket.bucket)),
        lake_table=Table.from_json(part.lake_definition) if part.lake_definition else table,
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
