"""`verify` agrees with a sound server and names the bucket of every planted fault."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from lakestore.errors import Corrupt, Internal, PositionExpired
from lakestore.model.file_uri import to_path
from lakestore.rows import ipc, row_hash
from lakestore.union import lake_files, shares
from lakestore.union.cut import Cut
from lakestore.union.sums import Sums
from lakestore.union.verify import Verification, verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from tests.unit.union.test_union_read import TABLE, Log, Warehouse

Spoil = Callable[[pa.RecordBatch], pa.RecordBatch]


class Audited(Log):
    """A server in memory that also audits; faults can be planted in what it says and sends."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.spoil: Spoil | None = None
        self.expired = False
        self.lost_in_index = 0

    def audit(self, request: pb.AuditRequest, /) -> pb.AuditAnswer:
        """Sums of the log."""
        answer = pb.AuditAnswer(token="cut")
        for part in self.plan(pb.PlanRequest(tables=[request.table], no_dead=True)).tables[0].buckets:
            answer.buckets.add(
                bucket=part.bucket, head=part.head, live_sum=part.live_sum, live_rows=part.live_rows,
                log_sum=part.live_sum, log_rows=part.live_rows,
                index_sum=part.live_sum, index_rows=part.live_rows - (self.lost_in_index if part.bucket else 0),
            )  # fmt: skip
        return answer

    def fetch(self, request: pb.FetchRequest, /) -> Iterator[RowMessage]:
        if self.expired and request.start < self.tier_point[request.bucket]:
            raise PositionExpired("only in the lake")
        for message in super().fetch(request):
            (batch,) = ipc.decode_server_rows(message.rows, crc=message.crc32c)
            # Only the hot side of bucket 1 is spoilt: the whole log stays sound.
            if self.spoil and request.bucket == 1 and request.live_start:
                batch = self.spoil(batch)
            data = ipc.encode(batch.schema, [batch])
            yield RowMessage((data,), ipc.crc32c(data))


@pytest.fixture
def log(tmp_path: Path) -> Audited:
    """300 orders, 100 of them tiered and partly changed since."""
    log, warehouse = Audited(), Warehouse(tmp_path)
    for number in range(100):
        log.write("+I", number)
    warehouse.tier(log)
    for number in range(80, 300):
        log.write("+I" if number >= 100 else "+U", number, version=1)
    return log


def bad(found: Verification) -> list[int]:
    return [check.bucket for check in found.buckets if not check.same]


def test_a_sound_table_is_the_same_everywhere(log: Audited) -> None:
    found = verify(log, "shop.orders")
    assert found.same
    assert found.compared_values
    assert not found.problems()
    assert not log.leases


def test_a_log_that_begins_in_the_lake_is_compared_by_rows(log: Audited) -> None:
    log.expired = True
    found = verify(log, "shop.orders")
    assert found.same
    assert not found.compared_values


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: batch.slice(1),
        lambda batch: pa.concat_batches([batch, batch.slice(0, 1)]),
        lambda batch: batch.set_column(
            batch.schema.get_field_index("small"), "small", pa.array([99] * batch.num_rows, pa.int8())
        ),
    ],
    ids=["a row lost", "a row doubled", "a value changed"],
)
def test_a_fault_in_what_readers_see_is_found(log: Audited, spoil: Spoil) -> None:
    log.spoil = spoil
    found = verify(log, "shop.orders")
    assert bad(found) == [1]
    assert "bucket 1 of table shop.orders" in found.problems()[0]


def test_a_fault_in_the_index_is_found(log: Audited) -> None:
    log.lost_in_index = 1
    assert bad(verify(log, "shop.orders", values=False)) == [1]


def test_batches_of_small_files_are_added_up_together(log: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    hashes = row_hash.hashes

    def counted(parts: list[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
        hashed.append(len(parts[0]))
        return hashes(parts)

    monkeypatch.setattr(row_hash, "hashes", counted)
    log.spoil = lambda batch: batch
    found = verify(log, "shop.orders")
    assert found.same
    assert sorted(hashed) == [300, 300], "the lake's rows with the hot ones, and the log's"
    hashed.clear()
    monkeypatch.setattr(lake_files, "GATHERED_ROWS", 1)
    assert verify(log, "shop.orders").buckets == found.buckets
    assert len(hashed) > 2


def test_several_processes_find_the_same(log: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = verify(log, "shop.orders")
    monkeypatch.setattr(shares, "FILES_MIN", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    begun: list[shares.Share] = []
    answer = shares._answer

    def noted(process: object, share: shares.Share) -> shares.Answer:
        begun.append(share)
        return answer(process, share)  # type: ignore[arg-type]

    monkeypatch.setattr(shares, "_answer", noted)
    together = verify(log, "shop.orders")
    assert together.same
    assert together == alone
    assert sorted(each.number for each in begun) == [0, 1]
    parts = [each.sums() for each in begun]
    assert any(bucket.rows for part in parts for bucket in part), "the hash of its path gives a file to either process"


def test_an_error_in_one_of_several_processes_is_told(log: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "FILES_MIN", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with Cut(log, ["shop.orders"]) as cut:
        (location, _), *_ = lake_files.planned(cut.plan.scan("shop.orders"), None)
    path = Path(to_path(location) or "")
    path.write_bytes(b"no Parquet at all")
    with pytest.raises(Corrupt, match=path.name):
        verify(log, "shop.orders")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Internal, match="ended with code 1"):
        verify(log, "shop.orders")


def test_sums_start_empty() -> None:
    assert Sums() == Sums(0, 0, None)
