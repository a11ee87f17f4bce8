"""Merging of segments: the same rows in fewer files, which the next checkpoint names, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore_server.files import new_segment
from lakestore_server.files.new_segment import SparseRows
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import AppendFile, RealDisk
from lakestore_server.segments import merging
from lakestore_server.segments.compaction import Base, runs_due
from lakestore_server.segments.merging import Merger
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CommitIndex
from tests.support.log_start import move_log_start
from tests.support.served import Served
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())])
LIMITS = Limits(segment_rows=10, shared_segment_bytes=0, merge_bytes=0, merge_segments=4, scrub_bytes=0)
NAME = "t.keyed"


@pytest.fixture
def disk(tmp_path: Path) -> SimDisk:
    return SimDisk(tmp_path / "data")


@pytest.fixture
def served(tmp_path: Path, disk: SimDisk) -> Iterator[Served]:
    with Served(tmp_path / "data", disk=disk, limits=LIMITS) as served:
        served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
        yield served


def cut(served: Served, times: int, first: int = 0) -> None:
    """Checkpoints with 20 rows each, half of which come again in the next."""
    for i in range(first, first + times):
        rows = [{"id": 10 * i + n, "v": i, "text": f"{i}-{n}"} for n in range(20)]
        served.lake.table(NAME).upsert(rows)
        served.checkpoint()


def merger(served: Served) -> Merger:
    return served.server.upkeep.checkpointer.merger


def log(served: Served) -> BucketLog:
    return served.state(NAME).logs[0]


def ranges(served: Served) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in log(served).chunks]


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "data" / "segments").rglob("*.seg")}


def rows(served: Served) -> list[dict[str, Any]]:
    return sorted(served.lake.table(NAME).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def test_a_checkpoint_names_merged_segments_in_place_of_theirs(served: Served, tmp_path: Path) -> None:
    cut(served, 9)
    before, held = rows(served), list(log(served).stored(0, 180))
    merger(served).run_once()
    assert len(ranges(served)) == 9
    served.checkpoint()
    assert ranges(served) == [(0, 80), (80, 160), (160, 180)]
    assert files(tmp_path) == {chunk.path.name for chunk in log(served).chunks if isinstance(chunk, Segment)}
    after = list(log(served).stored(0, 180))
    assert pa.Table.from_batches([b for _, b, _ in after]) == pa.Table.from_batches([b for _, b, _ in held])
    assert rows(served) == before
    served.server.close(checkpoint=False)
    served.start()
    for chunk in log(served).chunks:
        cast("Segment", chunk).check_all()
    assert rows(served) == before
    found = served.lake.table(NAME).lookup([{"id": 5}, {"id": 99}])
    assert found.column("text").to_pylist() == ["0-5", "8-19"]


@pytest.mark.parametrize("are_looked_up", [False, True])
def test_rows_that_nobody_looks_up_go_past_the_page_cache_and_are_compared_when_they_come_back(
    served: Served, monkeypatch: pytest.MonkeyPatch, *, are_looked_up: bool
) -> None:
    asked: dict[str, bool] = {}
    create = SimDisk.create

    def noted(disk: SimDisk, path: Path, *, is_cached: bool = True) -> AppendFile:
        asked[path.name] = is_cached
        return create(disk, path, is_cached=is_cached)

    monkeypatch.setattr(SimDisk, "create", noted)
    cut(served, 4)
    if are_looked_up:
        assert served.lake.table(NAME).lookup([{"id": 5}]).num_rows == 1
    merger(served).run_once()
    served.checkpoint()
    [merged] = log(served).chunks
    assert isinstance(merged, Segment)
    assert asked[merged.path.name] is are_looked_up
    assert merged._body.is_needless is are_looked_up
    assert len(rows(served)) == 50


def test_what_a_failed_checkpoint_would_have_named_the_next_one_names(
    served: Served, disk: SimDisk, tmp_path: Path
) -> None:
    cut(served, 4)
    before = rows(served)
    merger(served).run_once()
    disk.fail("rename checkpoint-")
    with pytest.raises(OSError, match="planted"):
        served.checkpoint()
    assert rows(served) == before
    served.checkpoint()
    assert ranges(served) == [(0, 80)]
    assert len(files(tmp_path)) == 1
    assert rows(served) == before


def test_a_merge_of_segments_that_went_meanwhile_goes(served: Served, tmp_path: Path) -> None:
    cut(served, 4)
    merger(served).run_once()
    assert any("merged" in name for name in files(tmp_path))
    served.purge(NAME)
    served.checkpoint()
    served.checkpoint()
    assert files(tmp_path) == set()


def test_compaction_leaves_alone_what_is_being_merged_and_drops_the_dead_of_it_later(
    served: Served, tmp_path: Path
) -> None:
    cut(served, 4)
    merger(served).run_once()
    for i in range(4):
        served.lake.table(NAME).delete([{"id": n} for n in range(10 * i, 10 * i + 10)])
    before = rows(served)
    move_log_start(served.server.engine, NAME)
    served.checkpoint()
    assert (0, 80) in ranges(served)
    assert rows(served) == before
    for _ in range(3):
        served.checkpoint()
    assert log(served).chunks[0].rows < 80
    assert rows(served) == before
    assert all("merged" not in name for name in files(tmp_path))


def test_compacted_segments_are_merged_with_their_offsets(served: Served) -> None:
    cut(served, 12)
    move_log_start(served.server.engine, NAME)
    for _ in range(3):
        served.checkpoint()
    before, held = rows(served), [chunk.rows for chunk in log(served).chunks]
    merger(served).run_once()
    served.checkpoint()
    sparse = [chunk for chunk in log(served).chunks if isinstance(chunk, Segment) and chunk.is_sparse]
    assert len(log(served).chunks) < len(held)
    assert sum(chunk.rows for chunk in log(served).chunks) == sum(held)
    assert any("merged" in chunk.path.name for chunk in sparse)
    assert rows(served) == before
    served.server.close(checkpoint=False)
    served.start()
    assert rows(served) == before


def test_nothing_begins_before_the_first_checkpoint(served: Served, tmp_path: Path) -> None:
    """It removes what nobody names."""
    cut(served, 4)
    merger(served).run_once()
    assert any("merged" in name for name in files(tmp_path))
    served.server.close(checkpoint=False)
    served.start()
    merger(served).run_once()
    assert not any("merged" in name for name in files(tmp_path))
    served.checkpoint()
    merger(served).run_once()
    assert any("merged" in name for name in files(tmp_path))


def _segment(start: int, size: int, times: int = 0) -> Any:
    segment = SimpleNamespace(start=start, end=start + size, size=size, own_size=size, rows=size, schema_id=0)
    segment.part, segment.times = SimpleNamespace(at=None), times
    return segment


def test_a_row_is_written_again_as_often_as_segments_grow_by_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4,000 cuts of 100 to 1,000 bytes there are few segments, and each row was written again a few times."""
    monkeypatch.setattr(merging, "Segment", SimpleNamespace)
    limits = Limits(shared_segment_bytes=0, merge_segments=8, merged_segment_bytes=200_000, segment_rows=1)
    chunks: list[Any] = []
    for i in range(4_000):
        chunks.append(_segment(chunks[-1].end if chunks else 0, (100, 100, 130, 1_000, 250)[i * 7 % 5]))
        held = cast("BucketLog", SimpleNamespace(chunks=tuple(chunks), base=SimpleNamespace(end=0)))
        for group in list(merging.groups_due(held, limits)):
            at = chunks.index(group[0])
            times = sum(each.size * (each.times + 1) for each in cast("list[Any]", group))
            size = group[-1].end - group[0].start
            chunks[at : at + len(group)] = [_segment(group[0].start, size, times / size)]
    total = sum(each.size for each in chunks)
    assert max(each.size for each in chunks) <= 200_000
    assert len(chunks) < 2 * total / 50_000 + 4 * 8
    assert sum(each.size * each.times for each in chunks) / total < 3.5


def test_compaction_looks_at_nothing_that_is_busy(served: Served) -> None:
    cut(served, 4)
    move_log_start(served.server.engine, NAME)
    held, base = log(served), Base()
    base.advance(held, 0, 0)
    due = [id(chunk) for run in runs_due(held.chunks, base, LIMITS) for chunk in run.chunks]
    assert len(due) > 1
    left = [id(chunk) for run in runs_due(held.chunks, base, LIMITS, frozenset(due[:1])) for chunk in run.chunks]
    assert due[0] not in left


def test_what_gone_records_superseded_is_kept_with_the_offsets(tmp_path: Path) -> None:
    schema = pa.schema([("__change", pa.int8()), ("__prev", pa.int64()), ("id", pa.int64())])
    made = []
    for start, offsets, kills in ((0, [1, 3], [7, 9]), (10, [12], [2, 7])):
        count = len(offsets)
        batch = pa.record_batch([[0] * count, [-1] * count, offsets], schema=schema)
        index = CommitIndex.one(start + 1, 1, start + 10, 0, count)
        path = tmp_path / f"{start}.seg"
        left = SparseRows(start, start + 10, 0, batch, np.array(offsets), np.array(kills), index)
        new_segment.write_sparse(RealDisk(), path, left)
        made.append(Segment(RealDisk(), path, lambda _: schema, keyed=True))
    merging.write(RealDisk(), tmp_path / "merged.seg", made, lambda _: None, is_cached=False)
    merged = Segment(RealDisk(), tmp_path / "merged.seg", lambda _: schema, keyed=True)
    merged.check_all()
    [piece] = merged.batches()
    assert piece.offsets().tolist() == piece.load().column("id").to_pylist() == [1, 3, 12]
    assert merged.kills().tolist() == [2, 7, 9]
    assert (merged.start, merged.end, merged.index.end.tolist()) == (0, 20, [10, 20])
    assert merged.is_sparse
