"""The audit of a table: compares the fold of its log with its index and with the sums of its commits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.rows.live_sum import live_sum
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.index.collisions import KeyQuery
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.keys import encoded
from lakestore_server.read import plan
from lakestore_server.read import rows as reads
from lakestore_server.segments.integrity import Integrity
from lakestore_server.state.view import TableState, View

Ints = npt.NDArray[np.int64]
_MASK = (1 << 64) - 1


class AuditVerbs:
    """The verb `audit`. Thread-safe."""

    def __init__(self, engine: Engine, integrity: Integrity) -> None:
        self._engine, self._integrity = engine, integrity

    def audit(self, request: pb.AuditRequest) -> pb.AuditAnswer:
        """The fold of the log and the index's part of it at one cut. On request every stored byte is read first."""
        view = self._engine.view
        answer = pb.AuditAnswer(token=view.token())
        if request.deep:
            deep(self._engine, self._integrity, view.named(request.table), answer)
        if answer.damage:
            return answer
        answer.buckets.extend(bucket_audits(self._engine, view, request.table))
        return answer


def bucket_audits(engine: Engine, view: View, name: str) -> Iterator[pb.BucketAudit]:
    """Per bucket: the commits' sum, the fold of the log, and the part of the fold that the index confirms."""
    state = view.named(name)
    for bucket, log in enumerate(state.logs):
        head = log.at_head
        # The lake has the rows that a log table has dropped; a keyed table has its base in the log.
        start = 0 if log.keyed else log.base.end
        log_sum = index_sum = 0 if log.keyed else log.base.live_sum
        log_rows = index_rows = 0 if log.keyed else log.base.live_rows
        dead = reads.dead_of(log, start, log.head)
        for rows in reads.live_at(log, start, log.head, dead):
            log_sum += live_sum(rows.offsets)
            log_rows += len(rows.offsets)
            confirmed = _confirmed(engine, state, bucket, rows) if log.keyed else rows.offsets
            index_sum += live_sum(confirmed)
            index_rows += len(confirmed)
        yield pb.BucketAudit(
            bucket=bucket,
            head=log.head,
            live_sum=head.live_sum,
            live_rows=head.live_rows,
            log_sum=log_sum & _MASK,
            log_rows=log_rows,
            index_sum=index_sum & _MASK,
            index_rows=index_rows,
        )


def deep(engine: Engine, integrity: Integrity, state: TableState, answer: pb.AuditAnswer) -> None:
    """Check every stored byte of a table, and of the files that all tables share."""
    parts = (integrity.shared(_no_pause), integrity.table(state, _no_pause))
    for part in parts:
        answer.damage.extend(part.damage)
        answer.bytes_checked += part.bytes_checked
        if part.index_damage:
            engine.index.found_problem(part.index_damage, damaged=True)


def _no_pause(_: int) -> None:
    """No pause between reads: a caller waits for the answer."""


def _confirmed(engine: Engine, state: TableState, bucket: int, rows: reads.Rows) -> Ints:
    table = state.table
    named = state.versions.numbered(rows.schema_id).primary_key
    columns: list[pa.Array] = [rows.batch.column(name) for name in named]
    asked = KeyQuery(encoded(columns, table_prefix(table.number)), lambda: columns)
    later, offsets = plan.of_keys(engine, table.name, lambda _: asked, uuid=table.uuid)
    log = later.by_uuid(table.uuid).logs[bucket]
    audited = state.logs[bucket].head
    superseded = reads.dead_of(log, audited if audited >= log.base.end else 0, log.head)
    gone = superseded.contains(rows.offsets) | ~log.holds(rows.offsets)
    confirmed: Ints = rows.offsets[(offsets == rows.offsets) | gone]
    return confirmed
