"""Rows of a log are stored in the bytes that they came in, where these are the rows and nothing but them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change_beside
from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import CommitMessage
from lakestore_server.commit.request import TableChange, _renewed, change_of
from lakestore_server.files import journal_file
from lakestore_server.files import segment as block_crcs_module
from lakestore_server.files.segment import BLOCK, block_crcs
from tests.support.served import Served

COUNT = 12_000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.int32())])
BATCH = pa.record_batch(
    [pa.array(range(COUNT)), pa.array([f"name {i}" for i in range(COUNT)]), pa.array([None, 7] * (COUNT // 2))],
    schema=SCHEMA.with_metadata({"from": "elsewhere"}),
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


def taken(served: Served, batch: pa.RecordBatch, source: Table | None = None) -> TableChange:
    """Rows as the server takes them, before they are committed; their message reads as the batch."""
    versions = served.engine.view.named("a.b").versions
    change, rows = change_beside(source or versions.current, pb.APPEND, [batch])
    assert not change.rows
    found = change_of(versions, change, "someone", rows=CommitMessage(pb.CommitRequest(), {0: rows}).rows_of(0))
    if found.message is not None:
        assert found.message.crcs is not None
        assert found.message.crcs.tolist() == block_crcs(found.message.data).tolist()
        assert pa.ipc.read_record_batch(found.message.data, found.table.storage_schema).equals(found.batch)
    return found


@pytest.mark.parametrize(
    ("options", "batch", "is_kept"),
    [
        ({"buckets": 1}, BATCH, True),
        ({"buckets": 1}, BATCH.slice(3, 9_000), True),
        ({"buckets": 3}, BATCH, True),
        ({"buckets": 3, "bucket_key": ["id"]}, BATCH, False),
        ({"buckets": 1}, BATCH.select(["id", "name"]), False),
        ({"buckets": 1}, BATCH.select(["name", "id", "size"]), False),
        ({"buckets": 1}, BATCH.set_column(0, "id", BATCH.column("id").cast(pa.int32())), False),
    ],
    ids=["as it is", "a slice", "one bucket of three", "by a key", "a column less", "another order", "another type"],
)
def test_the_message_that_is_kept_is_the_batch_that_is_stored(
    served: Served, options: dict[str, Any], batch: pa.RecordBatch, *, is_kept: bool
) -> None:
    table = served.lake.create_table("a.b", SCHEMA, **options)
    assert (taken(served, batch).message is not None) == is_kept
    with table.writer() as out:
        out.append(batch)
    expected = sorted(batch.select([n for n in SCHEMA.names if n in batch.schema.names]).to_pylist(), key=repr)

    def shown(lake: ls.Lake) -> list[dict[str, Any]]:
        return sorted(lake.table("a.b").scan(columns=list(expected[0])).to_arrow().to_pylist(), key=repr)

    assert shown(served.lake) == expected
    served.kill()
    assert shown(served.lake) == expected


def test_large_rows_are_gone_through_once_for_their_checksum(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum that came with them, those of an extent's blocks and the frame's are made of the same pass."""
    table, gone_through = served.lake.create_table("a.b", SCHEMA, buckets=1), list[int]()

    def counted(data: Any, crc: int = 0) -> int:
        gone_through.append(len(data))
        return int(google_crc32c.extend(crc, data))

    with table.writer() as out:
        out.append(BATCH.slice(0, 1))  # tables of checksums are made at the first
        out.flush()
        for module in (ipc, block_crcs_module, journal_file):
            monkeypatch.setattr(module, "crc32c", counted)
        out.append(BATCH)
    monkeypatch.undo()
    rows = change_beside(served.engine.view.named("a.b").table, pb.APPEND, [BATCH])[1]
    size = sum(map(len, rows))
    assert size > 4 * BLOCK
    # The client and the server go through them once, and through a block that is cut short once more.
    assert 2 * size <= sum(gone_through) < 2 * size + 2 * BLOCK


def test_rows_that_an_alteration_changes_are_put_together_anew(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, buckets=1)
    before = taken(served, BATCH)
    source = served.engine.view.named("a.b").table
    table.alter(rename={"size": "length"})
    assert before.message is not None
    assert taken(served, BATCH, source).table.schema_id == 1
    table.alter(add={"more": pa.int8()})
    current = served.engine.view.named("a.b").table
    assert taken(served, BATCH, source).message is None
    assert _renewed(before, current).message is None
    assert _renewed(before, current).batch.schema.names == ["id", "name", "length", "more"]


@pytest.mark.parametrize("kind", [0, 66, -1])
def test_a_kind_of_change_that_the_server_does_not_know_is_refused(served: Served, kind: Any) -> None:
    served.lake.create_table("a.b", SCHEMA)
    versions = served.engine.view.named("a.b").versions
    with pytest.raises(Invalid, match="no kind that this release knows"):
        change_of(versions, pb.Change(table="a.b", kind=kind), "someone")
