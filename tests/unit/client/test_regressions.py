"""Defects that were found by review, each with the shortest way to it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client import retry, writer
from lakestore.errors import Exhausted, Invalid, LakestoreError, Stopped, Unavailable
from lakestore.limits import Limits
from lakestore.model import table as schema
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.duties.checkpoint import segment_runs
from lakestore_server.host.disk import RealDisk
from lakestore_server.read import rows as reads
from lakestore_server.state.chunk import MemoryChunk
from lakestore_server.state.commit_index import CommitIndex
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(name="lake")
def _lake() -> Iterator[ls.Lake]:
    with tempfile.TemporaryDirectory() as folder, ls.open(folder) as lake:
        yield lake


@pytest.mark.parametrize(
    ("column", "key", "value"),
    [(1, "type", "decimal(50,2)"), (1, "type", "decimal(5,9)"), (0, "required", False), (None, "buckets", 2.5)],
)
def test_a_definition_that_cannot_be_kept_is_refused_and_the_server_lives(
    lake: ls.Lake, column: int | None, key: str, value: object
) -> None:
    definition = json.loads(schema.define("a.b", SCHEMA, primary_key=["id"]).to_json())
    (definition if column is None else definition["columns"][column])[key] = value
    with pytest.raises(Invalid):
        lake.transport.create_table(pb.CreateTableRequest(definition=json.dumps(definition)))
    lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])


def test_a_refusal_after_an_unknown_outcome_does_not_give_the_sequence_away(lake: ls.Lake) -> None:
    table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
    commit = lake.transport.commit
    answers: list[LakestoreError] = [
        Unavailable("lost", applied="unknown"),
        Stopped("the server is shutting down"),
    ]

    def flaky(request: pb.CommitRequest) -> pb.CommitAnswer:
        answer = commit(request)
        if answers:
            raise answers.pop(0)
        return answer

    lake.transport.commit = flaky  # type: ignore[method-assign]
    with pytest.raises(Unavailable) as caught:
        table.upsert([{"id": 1, "v": "a"}])
    assert caught.value.applied == "unknown"
    table.upsert([{"id": 2, "v": "b"}])
    assert table.lookup(pa.table({"id": [2]})).num_rows == 1


def test_a_writer_that_was_idle_tries_again_as_long_as_a_busy_one(
    lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(writer, "Backoff", lambda: retry.Backoff(clock=lambda: now[0]))
    table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
    answered, broken = writer.Writer._answered, [False]

    def once_broken(self: writer.Writer, answer: pb.CommitAnswer) -> None:
        if now[0] and not broken[0]:
            broken[0] = True
            raise Unavailable("restarted", applied="unknown")
        answered(self, answer)

    monkeypatch.setattr(writer.Writer, "_answered", once_broken)
    with table.writer() as opened:
        opened.upsert([{"id": 1, "v": "a"}])
        opened.flush()
        now[0] = 1000.0
        opened.upsert([{"id": 2, "v": "b"}])
        opened.flush()
    assert broken[0]
    assert table.lookup(pa.table({"id": [1, 2]})).num_rows == 2


class NoRename(RealDisk):
    """Cannot name checkpoints while `broken`."""

    broken = False

    def rename(self, source: Path, target: Path) -> None:
        """As a real disk, or OSError."""
        if self.broken:
            raise OSError(28, "No space left on device")
        super().rename(source, target)


def test_a_failed_checkpoint_is_made_again_at_the_same_lsn_and_leaves_no_files(tmp_path: Path) -> None:
    disk = NoRename()
    with Served(tmp_path / "data", disk=disk) as served:
        lake = served.lake
        lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
        disk.broken = True
        with pytest.raises(Exhausted, match="No space"):
            served.checkpoint()
        assert not list((tmp_path / "data" / "segments").rglob("*.seg"))
        disk.broken = False
        served.checkpoint()
        assert list((tmp_path / "data" / "segments").rglob("*.seg"))


def test_a_failed_last_checkpoint_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    disk = NoRename()
    lake = ls.open(tmp_path / "data", disk=disk)
    lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
    disk.broken = True
    lake.close()
    with ls.open(tmp_path / "data") as again:
        assert again.table("a.b").lookup(pa.table({"id": [1]})).num_rows == 1


def test_the_checkpoint_thread_tries_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.host.worker.RETRY_SECONDS", 0.01)
    disk = NoRename()
    with Served(tmp_path / "data", disk=disk) as served:
        lake = served.lake
        lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
        checkpointer = served.server.upkeep.checkpointer
        run_once = checkpointer.run_once
        runs: list[int] = []

        def counted() -> None:
            disk.broken = not runs
            runs.append(1)
            run_once()

        monkeypatch.setattr(checkpointer._duty, "_work", counted)
        checkpointer.wake()
        for _ in range(500):
            if len(runs) > 1:
                break
            checkpointer._duty._closing.wait(0.01)
        assert len(runs) > 1


def test_wide_rows_are_sent_in_pieces(tmp_path: Path) -> None:
    with ls.open(tmp_path / "data", limits=Limits(read_batch_bytes=1000)) as lake:
        _wide_rows_come_in_pieces(lake)


def _wide_rows_come_in_pieces(lake: ls.Lake) -> None:
    table = lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert([{"id": i, "v": "x" * 100} for i in range(100)])
    for start in ("earliest", "snapshot"):
        batches = list(table.changes(start, until="now"))
        assert max(len(batch) for batch in batches) < 20
        assert sorted(i for b in batches for i in b.table["id"].to_pylist()) == list(range(100))
    resumed = [row for b in table.changes(batches[2].token, until="now") for row in b.table["id"].to_pylist()]
    assert resumed == [row for b in batches[3:] for row in b.table["id"].to_pylist()]
    assert table.scan().to_arrow().num_rows == 100
    assert [p.num_rows for p in reads.bounded(pa.record_batch({"v": ["x" * 5000]}))] == [1]


def test_segments_end_at_a_size() -> None:
    batch = pa.record_batch({"v": ["x" * 100] * 10})
    chunks = [MemoryChunk(i * 10, batch, CommitIndex.one(i + 1, 0, i * 10 + 10, 0, 0)) for i in range(8)]
    _, runs = segment_runs(chunks, Limits(segment_bytes=3000))
    assert [len(run) for run in runs] == [2, 2, 2, 2]


def test_rows_that_overflow_when_unfolded_end_a_writer_with_a_reason(lake: ls.Lake) -> None:
    table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 1_000_000]))
    opened = table.writer()
    opened.upsert(pa.table({"id": range(3000), "v": many}))
    with pytest.raises(Invalid, match="column 'v'"):
        opened.flush()


def test_a_defect_in_a_write_stream_is_told(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create_table("a.b", SCHEMA, primary_key=["id"])

    def broken(*_: object) -> None:
        raise ValueError("boom")

    monkeypatch.setattr("lakestore_server.commit.producers.change_of", broken)
    opened = table.writer()
    opened.upsert([{"id": 1, "v": "a"}])
    with pytest.raises(LakestoreError, match="boom"):
        opened.flush()


def test_floats_are_narrowed_exactly_or_refused(lake: ls.Lake) -> None:
    table = lake.create_table("a.b", pa.schema([("id", pa.int64()), ("f", pa.float32())]), primary_key=["id"])
    table.upsert(pa.table({"id": [1, 2, 3], "f": pa.array([0.5, None, float("nan")])}))
    for wrong in (0.1, 1e300):
        with pytest.raises(Invalid, match="row 1"):
            table.upsert(pa.table({"id": [1, 2], "f": pa.array([0.5, wrong])}))


def test_a_stream_without_batches_is_no_rows() -> None:
    assert ipc.decode(ipc.encode(SCHEMA, [])).num_rows == 0
