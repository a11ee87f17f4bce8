"""`lakestore verify`: checks that log fold = index = lake + hot rows, for each bucket, at one cut.

The server sums up its log and its key index; a union read at the same cut sums up what a reader sees. The sums are live
sums of offsets, so a lost or duplicate row changes them. A second sum over all columns, from log and read, shows wrong
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import NotFound, PositionExpired
from lakestore.iceberg import places
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows import row_hash
from lakestore.rows.live_sum import mixed
from lakestore.union import arrow, plan
from lakestore.union.cut import Cut, Transport
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb

ATTEMPTS = 3
GATHERED_ROWS, GATHERED_BYTES = 1 << 14, 8 << 20
"""Small batches are joined until they have so many rows or bytes, then summed."""


class Auditor(Transport, Protocol):
    """A server that can also sum up its own data."""

    def audit(self, request: pb.AuditRequest, /) -> pb.AuditAnswer:
        """Sums of log and index at one cut."""


@dataclass(slots=True)
class Sums:
    """The sums of one side of a bucket."""

    rows: int = 0
    offsets: int = 0
    values: int | None = None
    """Sum over all columns; None if it was not computed."""


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
    read = _summed(arrow.execute(cut, scan, columns), scan, names)
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
        return _summed(_whole_log(cut, scan, columns), scan, names)
    except PositionExpired:
        return None


def _whole_log(cut: Cut, scan: TableScan, columns: list[str]) -> Iterable[pa.RecordBatch]:
    whole = tuple(plan.BucketPlan(b.bucket, 0, b.head, b.dead, b.live_sum, b.live_rows) for b in scan.buckets)
    return arrow.hot(cut, plan.TableScan(scan.table, "", 0, whole, scan.table), columns)


def _summed(batches: Iterable[pa.RecordBatch], scan: TableScan, names: list[str]) -> list[Sums]:
    sums = [Sums(values=0) for _ in scan.buckets]
    for batch in _gathered(batches):
        buckets = batch.column(LAKE_BUCKET).to_numpy()
        offsets = mixed(batch.column(LAKE_OFFSET).to_numpy())
        hashes = row_hash.hashes([offsets, *(row_hash.column(batch.column(name)) for name in names)])
        for bucket in np.unique(buckets).tolist():
            _add(sums[bucket], offsets[buckets == bucket], hashes[buckets == bucket])
    return sums


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: summing a batch of ten rows costs as much as one of thousands."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows >= GATHERED_ROWS or size >= GATHERED_BYTES or batch.schema != held[0].schema):
            yield _one(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if held:
        yield _one(held)


def _one(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _add(sums: Sums, offsets: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64]) -> None:
    sums.rows += len(offsets)
    sums.offsets = (sums.offsets + int(offsets.sum(dtype=np.uint64))) % (1 << 64)
    sums.values = ((sums.values or 0) + int(hashes.sum(dtype=np.uint64))) % (1 << 64)


def _sides(check: BucketCheck) -> str:
    return ", ".join(
        f"{name} has {side.rows} rows with sum {side.offsets:016x}"
        + ("" if side.values is None else f" and values {side.values:016x}")
        for name, side in check.sides.items()
    )
