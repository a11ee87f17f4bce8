"""What a change stream takes of rows that are gone is bounded, however small the records that removed them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore.server.feed_batches import Shape, run
from lakestore.server.feed_filter import bound
from lakestore.token import Token
from tests.support.kept import Kept

NAME = "t.wide"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("blob", pa.string())])
ROWS, BYTES = 40, 100_000


@pytest.mark.parametrize("where", [None, "blob <> 'y'"])
def test_deletes_of_large_rows_come_in_messages_of_bounded_size(tmp_path: Path, where: str | None) -> None:
    limits = Limits(read_batch_bytes=1 << 20)
    kept = Kept(tmp_path, limits=limits)
    table = kept.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
    table.upsert([{"id": i, "blob": "x" * BYTES} for i in range(ROWS)])
    written = kept.server.engine.view.lsn
    for i in range(ROWS):
        table.delete([{"id": i}])
    view, state = kept.server.engine.view, kept.state(NAME)
    conditions = (bound(where, state.versions),) if where else ()
    shape = Shape((state.table.uuid,), before_images=where is None, columns=(), where=conditions)
    at, commits = written, []
    while at < view.lsn:
        made = run(view, shape, Token(kept.server.engine.timeline, at), view.lsn, limits)
        assert made.nbytes < limits.read_batch_bytes
        commits.append(made.upto - at)
        at = made.upto
    assert sum(commits) == ROWS
    assert min(commits[:-1]) >= 4
    shown = table.changes(start=str(Token(kept.server.engine.timeline, written)), until="now", before_images=True)
    assert sorted(key for batch in shown for key in batch.to_arrow().column("id").to_pylist()) == list(range(ROWS))
    kept.close()
