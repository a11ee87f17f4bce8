"""`lakestore verify`: checks that log fold = index = lake + hot rows, for each bucket, at one cut.

The server sums up its log and its key index; a union read at the same cut sums up what a reader sees. The sums are live
sums of offsets, so a lost or duplicate row changes them. A second sum over all columns, from log and read, shows wrong
values. Very many data files are summed up by several processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lakestore.errors import NotFound, PositionExpired
from lakestore.iceberg import places
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.union import arrow, plan, shares
from lakestore.union.cut import Cut, Transport
from lakestore.union.explanation import Figures
from lakestore.union.lake_files import LakeRead
from lakestore.union.plan import TableScan
from lakestore.union.sums import Sums, joined, summed
from lakestore.v1 import lakestore_pb2 as pb

ATTEMPTS = 3


class Auditor(Transport, Protocol):
    """A server that can also sum up its own data."""

    def audit(self, request: pb.AuditRequest, /) -> pb.AuditAnswer:
        """Sums of log and index at one cut."""


@dataclass(frozen=True, slots=True)
class BucketCheck:
    """One bucket: the sums of each part of the system."""

    bucket: int
    head: int
    sides: dict[str, Sums] = field(default_factory=dict)
    """Sums of commits, log, index (keyed tables only) and read."""

    @property
    def same(self) -> bool:
        """Whether all sides agree."""
        values = {side.values for side in self.sides.values()} - {None}
        return len({(side.rows, side.offsets) for side in self.sides.values()}) == 1 and len(values) <= 1


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one table."""

    table: str
    token: str
    """The cut of the comparison."""
    buckets: tuple[BucketCheck, ...]
    compared_values: bool
    """Whether all columns were compared too. Not possible once the log's first rows are gone."""
    damage: tuple[str, ...] = ()
    """With `deep`: stored bytes that do not match their checksums. Nothing else is compared then."""
    bytes_checked: int = 0

    @property
    def same(self) -> bool:
        """Whether everything agrees."""
        return not self.damage and all(bucket.same for bucket in self.buckets)

    def problems(self) -> list[str]:
        """One sentence for each bucket that differs."""
        return [*self.damage, *self._differences()]

    def _differences(self) -> list[str]:
        return [f"bucket {b.bucket} of table {self.table}: {_sides(b)}" for b in self.buckets if not b.same]


def verify(transport: Auditor, table: str, *, values: bool = True, deep: bool = False) -> Verification:
    """Compare log, index and union read of a table at one cut. With `deep`, first read and check every stored byte."""
    places.forget_small_files()
    for attempt in range(ATTEMPTS):
        audit = transport.audit(pb.AuditRequest(table=table, deep=deep))
        if audit.damage:
            return Verification(table, audit.token, (), False, tuple(audit.damage), audit.bytes_checked)
        try:
            with Cut(transport, [table], at=audit.token) as cut:
                return _compared(cut, table, audit, values=values)
        except (NotFound, PositionExpired):
            # A flush, or a moved log start, after the audit can make its cut unreadable: audit again.
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _compared(cut: Cut, table: str, audit: pb.AuditAnswer, *, values: bool) -> Verification:
    scan = cut.plan.scan(table)
    names = scan.table.selected(None) if values else []
    columns = [LAKE_BUCKET, LAKE_OFFSET, *names]
    lake = LakeRead.of(scan, None, Figures())
    if shares.are_worth_it(lake.files):
        with shares.share_processes(scan, columns, names) as running:
            hot = summed(arrow.hot(cut, scan, columns), scan, names)
            log = _log_values(cut, scan, columns, names) if values else None
            read = joined([hot, *running.sums(cut.keep)])
    else:
        read = summed(arrow.execute(cut, scan, columns), scan, names)
        log = _log_values(cut, scan, columns, names) if values else None
    buckets = tuple(_bucket(part, scan, read, log) for part in sorted(audit.buckets, key=lambda part: part.bucket))
    return Verification(table, audit.token, buckets, log is not None, bytes_checked=audit.bytes_checked)


def _bucket(part: pb.BucketAudit, scan: TableScan, read: list[Sums], log: list[Sums] | None) -> BucketCheck:
    sides = {"commits": Sums(part.live_rows, part.live_sum), "log": Sums(part.log_rows, part.log_sum)}
    if scan.table.keyed:
        sides["index"] = Sums(part.index_rows, part.index_sum)
    sides["read"] = read[part.bucket]
    if log is not None:
        sides["log"].values = log[part.bucket].values
    else:
        sides["read"].values = None
    return BucketCheck(part.bucket, part.head, sides)


def _log_values(cut: Cut, scan: TableScan, columns: list[str], names: list[str]) -> list[Sums] | None:
    """Sums of the whole table from the log alone; None if its oldest rows are only in the lake."""
    try:
        return summed(_whole_log(cut, scan, columns), scan, names)
    except PositionExpired:
        return None


def _whole_log(cut: Cut, scan: TableScan, columns: list[str]) -> Iterable[pa.RecordBatch]:
    whole = tuple(plan.BucketPlan(b.bucket, 0, b.head, b.dead, b.live_sum, b.live_rows) for b in scan.buckets)
    return arrow.hot(cut, plan.TableScan(scan.table, "", 0, whole, scan.table), columns)


def _sides(check: BucketCheck) -> str:
    return ", ".join(
        f"{name} has {side.rows} rows with sum {side.offsets:016x}"
        + ("" if side.values is None else f" and values {side.values:016x}")
        for name, side in check.sides.items()
    )
