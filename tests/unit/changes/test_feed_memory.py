"""What a change stream takes of rows that are gone is bounded, however small the records that removed them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore.model.token import LogPosition
from lakestore_server.changes.batches import Shape, run
from lakestore_server.changes.filter import bind_condition
from lakestore_server.changes.sharing.stream import member_run
from tests.support.served import Served

NAME = "t.wide"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("blob", pa.string())])
ROWS, BYTES = 40, 100_000


@dataclass(frozen=True)
class Deleted:
    """A table of large rows, all of them deleted one by one."""

    served: Served
    limits: Limits
    written: int
    """The commit before the deletes."""
    shape: Shape


def deleted(folder: Path, where: str | None) -> Deleted:
    """Streams with a condition, or with before-images, need the rows that were deleted."""
    limits = Limits(read_batch_bytes=1 << 20)
    served = Served(folder, limits=limits)
    table = served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
    table.upsert([{"id": i, "blob": "x" * BYTES} for i in range(ROWS)])
    written = served.engine.view.lsn
    for i in range(ROWS):
        table.delete([{"id": i}])
    state = served.state(NAME)
    conditions = (bind_condition(where, state.versions),) if where else ()
    shape = Shape((state.table.uuid,), before_images=where is None, columns=(), where=conditions)
    return Deleted(served, limits, written, shape)


@pytest.mark.parametrize("where", [None, "blob <> 'y'"])
def test_deletes_of_large_rows_come_in_messages_of_bounded_size(tmp_path: Path, where: str | None) -> None:
    made = deleted(tmp_path, where)
    engine = made.served.engine
    at, commits = made.written, []
    while at < engine.view.lsn:
        found = run(engine.view, made.shape, LogPosition(engine.timeline, at), engine.view.lsn, made.limits)
        assert found.nbytes < made.limits.read_batch_bytes
        commits.append(found.upto - at)
        at = found.upto
    assert sum(commits) == ROWS
    assert min(commits[:-1]) >= 4
    start = str(LogPosition(engine.timeline, made.written))
    shown = made.served.lake.table(NAME).changes(start=start, until="now", before_images=True)
    assert sorted(key for batch in shown for key in batch.to_arrow().column("id").to_pylist()) == list(range(ROWS))
    made.served.close()


@pytest.mark.parametrize("where", [None, "blob <> 'y'"])
def test_deletes_of_large_rows_are_sent_to_a_member_in_runs_of_bounded_size(tmp_path: Path, where: str | None) -> None:
    """Of a shared subscription."""
    made = deleted(tmp_path, where)
    view, state = made.served.engine.view, made.served.state(NAME)
    bucket, at, commits = (state.table.uuid, 0), ROWS, []
    while at < state.logs[0].head:
        found = member_run(view, made.shape, {bucket: at}, view.lsn, made.limits)
        assert found is not None
        assert sum(piece.batch.nbytes for piece in found.pieces) < made.limits.read_batch_bytes
        commits.append(found.ends[bucket] - at)
        at = found.ends[bucket]
    assert sum(commits) == ROWS
    assert min(commits[:-1]) >= 4
    made.served.close()
