"""What a member of a shared subscription is sent at once is bounded by the rows that changes removed, too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore.server.feed_batches import Shape
from lakestore.server.feed_filter import bound
from lakestore.server.sharing.batches import member_run
from tests.support.kept import Kept

NAME = "t.wide"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("blob", pa.string())])
ROWS, BYTES = 40, 100_000


@pytest.mark.parametrize("where", [None, "blob <> 'y'"])
def test_deletes_of_large_rows_are_sent_to_a_member_in_runs_of_bounded_size(tmp_path: Path, where: str | None) -> None:
    limits = Limits(read_batch_bytes=1 << 20)
    kept = Kept(tmp_path, limits=limits)
    table = kept.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
    table.upsert([{"id": i, "blob": "x" * BYTES} for i in range(ROWS)])
    for i in range(ROWS):
        table.delete([{"id": i}])
    view, state = kept.server.engine.view, kept.state(NAME)
    conditions = (bound(where, state.versions),) if where else ()
    shape = Shape((state.table.uuid,), before_images=where is None, columns=(), where=conditions)
    bucket, at, commits = (state.table.uuid, 0), ROWS, []
    while at < state.logs[0].head:
        made = member_run(view, shape, {bucket: at}, view.lsn, limits)
        assert made is not None
        assert sum(piece.batch.nbytes for piece in made.pieces) < limits.read_batch_bytes
        commits.append(made.ends[bucket] - at)
        at = made.ends[bucket]
    assert sum(commits) == ROWS
    assert min(commits[:-1]) >= 4
    kept.close()
