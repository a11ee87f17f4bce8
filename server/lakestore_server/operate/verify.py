"""What a table's parts say of themselves: status figures, and the fold of the log against the index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.rows.live_sum import live_sum
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.index.collisions import KeyQuery
from lakestore_server.index.key_index import table_prefix
from lakestore_server.index.keys import encoded
from lakestore_server.read import rows as reads
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.state import TableState, View

Ints = npt.NDArray[np.int64]
_MASK = (1 << 64) - 1


def table_status(state: TableState) -> dict[str, Any]:
    """A table in figures."""
    tier = list(state.tiers.values())[-1] if state.tiers else None
    points = tier.tier_point if tier else (0,) * len(state.logs)
    heads = state.heads()
    return {
        "name": state.table.name,
        "uuid": state.table.uuid,
        "keyed": state.table.keyed,
        "schema_id": state.table.schema_id,
        "buckets": len(heads),
        "rows": sum(log.at_head.live_rows for log in state.logs),
        "head": heads,
        "log_start": list(state.starts()),
        "log_start_lsn": state.log_start_lsn,
        "log_start_us": max(log.base.time_us for log in state.logs) if state.log_start_lsn else 0,
        "retention": str(state.table.retention) if state.table.retention else None,
        "ttl": str(state.table.ttl) if state.table.ttl else None,
        "tier_point": list(points),
        "hot": sum(heads) - sum(points),
        "freshness": state.table.lake.freshness,
        "last_commit_us": max(log.at_head.time_us for log in state.logs),
        "tiered_commit_us": max(_time_at(log, point) for log, point in zip(state.logs, points, strict=True)),
        "snapshot_id": tier.snapshot_id if tier else None,
        "stored_rows": sum(chunk.rows for log in state.logs for chunk in log.chunks),
        "segments": sum(len([c for c in log.chunks if hasattr(c, "path")]) for log in state.logs),
        "segment_bytes": sum(c.size for log in state.logs for c in log.chunks if hasattr(c, "path")),
    }


def _time_at(log: BucketLog, end: int) -> int:
    found = log.at_end(end)
    return found[1].time_us if found else 0


def bucket_audits(engine: Engine, view: View, name: str) -> Iterator[pb.BucketAudit]:
    """Per bucket: what commits summed up, what the log folds to, and what of that the index confirms."""
    state = view.named(name)
    for bucket, log in enumerate(state.logs):
        head = log.at_head
        # What a log table has dropped lives on in the lake; a primary-key table has its base here.
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


def deep(engine: Engine, state: TableState, answer: pb.AuditAnswer) -> None:
    """Every stored byte of a table, and of the files that all tables share, against its checksum."""
    parts = (engine.integrity.shared(_no_pause), engine.integrity.table(state, _no_pause))
    for part in parts:
        answer.damage.extend(part.damage)
        answer.bytes_checked += part.bytes_checked
        if part.index_damage:
            engine.index.found_problem(part.index_damage, damaged=True)


def _no_pause(_: int) -> None:
    """Somebody waits for the answer."""


def _confirmed(engine: Engine, state: TableState, bucket: int, rows: reads.Rows) -> Ints:
    """The live offsets that the index names, or that a later commit superseded."""
    table = state.table
    named = state.versions.numbered(rows.schema_id).primary_key
    columns: list[pa.Array] = [rows.batch.column(name) for name in named]
    asked = KeyQuery(encoded(columns, table_prefix(table.number)), lambda: columns)
    later, offsets = engine.lookup(table.name, lambda _: asked)
    log = later.by_uuid(table.uuid).logs[bucket]
    audited = state.logs[bucket].head
    superseded = reads.dead_of(log, audited if audited >= log.base.end else 0, log.head)
    gone = superseded.contains(rows.offsets) | ~log.holds(rows.offsets)
    confirmed: Ints = rows.offsets[(offsets == rows.offsets) | gone]
    return confirmed
