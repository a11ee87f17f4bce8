"""Local compaction of primary-key tables: the dead go, the living and what is still asked for stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import PositionExpired
from lakestore.limits import Limits
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files.segment import Segment
from lakestore_server.index.entry import ABSENT, FLAG, table_prefix
from lakestore_server.index.keys import encoded
from lakestore_server.state.bucket_log import BucketLog
from tests.support.log_start import compact, move_log_start
from tests.support.served import Served

NAME = "t.keyed"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


class World:
    """A table and what it should hold."""

    def __init__(self, served: Served, *, buckets: int = 1, **options: Any) -> None:
        self.served = served
        self.table = served.lake.create_table(NAME, SCHEMA, primary_key=["k"], buckets=buckets, **options)
        self.live: dict[int, int] = {}

    @property
    def log(self) -> BucketLog:
        """The first bucket's."""
        return self.served.state(NAME).logs[0]

    def upsert(self, rows: dict[int, int]) -> str:
        self.served.clock.advance(1)
        self.live |= rows
        return self.table.upsert([{"k": k, "v": v} for k, v in rows.items()])

    def delete(self, *keys: int) -> str:
        self.served.clock.advance(1)
        for key in keys:
            self.live.pop(key, None)
        return self.table.delete([{"k": k} for k in keys])

    def compact(self) -> None:
        """Everything up to now may go, and what may go goes."""
        move_log_start(self.served.engine, NAME)
        compact(self.served.server)

    def changes(self, start: str = "earliest") -> list[tuple[str, int, int]]:
        stream = self.table.changes(start, until="now", before_images=True)
        return [(r["__change"], r["k"], r["v"]) for batch in stream for r in batch.to_arrow().to_pylist()]

    def check(self) -> None:
        """Scan, look-up, snapshot stream, audit and every stored byte."""
        found = {row["k"]: row["v"] for row in self.table.scan().to_arrow().to_pylist()}
        assert found == self.live
        asked = sorted({*self.live, *range(10)})
        rows = self.table.lookup([{"k": k} for k in asked]).to_pylist()
        assert {row["k"]: row["v"] for row in rows} == {k: self.live[k] for k in asked if k in self.live}
        assert {k: v for _, k, v in self.changes("snapshot")} == self.live
        result = verify(self.served.lake.transport, NAME)
        assert result.problems() == []
        assert result.compared_values
        assert verify(self.served.lake.transport, NAME, deep=True).problems() == []

    def lose_index(self) -> None:
        engine = self.served.engine
        engine.index.found_problem("a test says so", damaged=False)
        while not engine.index.ready:
            engine.wait_beyond(1 << 60, 0.01)


def offsets(log: BucketLog) -> list[int]:
    """Which records are stored."""
    return [offset for found, _, _ in log.stored(0, log.head) for offset in found.tolist()]


def test_only_what_lives_stays_below_the_log_start(served: Served) -> None:
    world = World(served)
    world.upsert({1: 10, 2: 20, 3: 30})
    world.upsert({1: 11})
    world.delete(3)
    world.compact()
    assert offsets(world.log) == [1, 3]
    assert world.log.head == 5
    world.check()
    world.upsert({1: 12, 3: 31})
    assert world.changes() == [("-U", 1, 11), ("+U", 1, 12), ("+I", 3, 31)]
    world.check()
    world.compact()
    assert offsets(world.log) == [1, 5, 6]
    world.check()
    world.lose_index()
    world.check()
    world.upsert({2: 22})
    world.check()


def test_a_table_that_was_emptied_keeps_no_row(served: Served) -> None:
    world = World(served)
    world.upsert(dict.fromkeys(range(10), 0))
    world.delete(*range(10))
    world.compact()
    assert world.log.chunks == ()
    assert world.log.head == 20
    world.check()
    served.restart()
    world.table = served.lake.table(NAME)
    assert world.log.head == 20
    world.check()
    world.upsert({3: 4})
    assert offsets(world.log) == [20]
    world.check()


def test_the_times_of_rows_that_stay_are_their_commits(served: Served) -> None:
    world = World(served)
    for i in range(30):
        world.upsert({i: 0, 100: i, 101 + i % 7: i})
    before = world.table.scan(columns=["k", "__timestamp"]).to_arrow().sort_by("k")
    world.compact()
    assert len(offsets(world.log)) == len(world.live) == 38
    assert world.table.scan(columns=["k", "__timestamp"]).to_arrow().sort_by("k") == before
    served.restart()
    assert served.lake.table(NAME).scan(columns=["k", "__timestamp"]).to_arrow().sort_by("k") == before
    found = served.lake.table(NAME).lookup([{"k": k} for k in range(30)], columns=["k", "__timestamp"])
    assert found == before.slice(0, 30)


def test_before_images_after_compaction(served: Served) -> None:
    """What was superseded at or above the log start is there, however old it is."""
    world = World(served)
    first = world.upsert(dict.fromkeys(range(100), 0))
    for i in range(5):
        world.upsert(dict.fromkeys(range(90), i))
    cut = world.upsert({200: 0})
    world.upsert({95: 1, 96: 1})
    world.delete(97, 10)
    move_log_start(served.engine, NAME, served.engine.view.lsn - 2)
    compact(served.server)
    assert world.changes(cut) == world.changes()
    assert sorted(world.changes()) == sorted(
        [("-U", 95, 0), ("+U", 95, 1), ("-U", 96, 0), ("+U", 96, 1), ("-D", 97, 0), ("-D", 10, 4)]
    )
    assert {row["k"]: row["v"] for row in world.table.scan(at=cut).to_arrow().to_pylist()}[97] == 0
    with pytest.raises(PositionExpired):
        world.table.scan(at=first).to_arrow()
    world.check()


def test_a_dead_row_in_a_segment_that_stays_is_never_woken(served: Served) -> None:
    """Its killer goes, the fact that it is dead does not: here chains of versions run over segments that stay."""
    world = World(served)
    engine = served.engine
    world.upsert(dict.fromkeys(range(1_000), 0))
    world.compact()
    for i in range(1, 4):
        for _ in range(8):
            world.upsert(dict.fromkeys(range(20), i))
        world.delete(19)
        world.compact()
    assert {0, 1, 2} <= set(offsets(world.log)), "the large segment is mostly alive, so it was not rewritten"
    assert len(offsets(world.log)) < 1_000 + 60
    kills = np.concatenate([chunk.kills() for chunk in world.log.chunks])
    assert set(range(20)) <= set(kills.tolist()) | {0}
    world.check()
    world.lose_index()
    world.check()
    served.restart()
    world.table = served.lake.table(NAME)
    engine = served.engine
    world.check()
    world.upsert(dict.fromkeys(range(600), 9))
    world.compact()
    assert sum(len(chunk.kills()) for chunk in world.log.chunks) == 0, "the dead are gone, and so is what names them"
    assert sorted(offsets(world.log)) == sorted(set(offsets(world.log)))
    world.check()
    assert engine is served.engine


def test_the_disk_use_of_n_rows_is_bounded_over_50_n_updates(tmp_path: Path) -> None:
    rows, per_commit = 2_000, 200
    limits = Limits(segment_rows=1_000, segment_bytes=1 << 20, compaction_bytes=64 << 10)
    served = Served(tmp_path, limits=limits)
    world = World(served)
    rng = np.random.default_rng(5)
    world.upsert(dict.fromkeys(range(rows), 0))
    most = files = 0
    for i in range(50 * rows // per_commit):
        world.upsert(dict.fromkeys(rng.integers(0, rows, per_commit).tolist(), i))
        if i % 5 == 4:
            move_log_start(served.engine, NAME)
            compact(served.server)
            most = max(most, sum(chunk.rows for chunk in world.log.chunks))
            files = max(files, len(list((tmp_path / "segments").glob("*/*"))))
    assert world.log.head > 40 * rows
    assert most < 2.2 * rows
    assert files <= 16
    world.check()
    world.lose_index()
    world.check()
    served.close()


def test_sparse_segments_hold_rows_of_one_schema_version(served: Served) -> None:
    world = World(served)
    world.upsert(dict.fromkeys(range(40), 0))
    world.compact()
    world.table.alter(add={"w": pa.int32()})
    world.upsert(dict.fromkeys(range(25), 1))
    world.delete(30)
    world.compact()
    log = world.log
    assert [(chunk.schema_id, chunk.rows) for chunk in log.chunks] == [(0, 14), (1, 26)]
    assert isinstance(log.chunks[0], Segment)
    assert log.chunks[0].is_sparse
    world.table = served.lake.table(NAME)
    world.check()
    world.lose_index()
    world.check()


def test_a_damaged_base_segment_stops_its_compaction_and_no_checkpoint(served: Served, tmp_path: Path) -> None:
    world = World(served)
    world.upsert(dict.fromkeys(range(5_000), 0))
    served.checkpoint()
    served.close()
    file = next((tmp_path / "segments").glob("*/*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    served.start()
    world.table = served.lake.table(NAME)
    for i in range(3):
        world.table.upsert([{"k": 6_000 + i, "v": i}])
        move_log_start(served.engine, NAME)
        served.checkpoint()
    assert served.server.upkeep.checkpointer.figures.failed == 0
    assert file.exists()


def test_a_base_segment_that_cannot_be_written_fails_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, limits=Limits(shared_segment_bytes=0))
    world = World(served)
    world.upsert({1: 1, 2: 2})
    world.upsert({1: 2, 2: 3})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lakestore_server.files.new_segment.write_sparse", full)
        move_log_start(served.engine, NAME)
        served.checkpoint()
        assert served.server.upkeep.checkpointer.figures.failed == 0
        assert offsets(world.log) == [0, 1, 2, 3]
    compact(served.server)
    assert offsets(world.log) == [2, 3]
    world.check()
    served.close()


def test_a_shared_file_that_cannot_be_written_fails_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one rewrites nothing, so what fails there is not what compaction asks for."""
    served = Served(tmp_path)
    world = World(served, buckets=3)
    world.upsert(dict.fromkeys(range(40), 1))
    world.upsert(dict.fromkeys(range(40), 2))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lakestore_server.files.shared_file.write", full)
        move_log_start(served.engine, NAME)
        with pytest.raises(OSError, match="No space"):
            served.checkpoint()
    assert not list(tmp_path.glob("segments/*/*"))
    compact(served.server)
    assert sum(log.chunks[0].rows for log in served.state(NAME).logs) == 40
    world.check()
    served.close()


def test_a_full_disk_is_not_tried_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tmp_path, limits=Limits(compaction_bytes=1, shared_segment_bytes=0))
    world = World(served)
    world.upsert({1: 1, 2: 2})
    world.upsert({1: 2, 2: 3})
    woken: list[int] = []

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lakestore_server.files.new_segment.write_sparse", full)
        move_log_start(served.engine, NAME)
        patch.setattr(served.server.upkeep.checkpointer._duty, "wake", lambda: woken.append(1))
        served.checkpoint()
    assert woken == []
    compact(served.server)
    assert offsets(world.log) == [2, 3]
    served.close()


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (pa.ArrowInvalid("offset overflow while concatenating arrays"), [0, 1, 2, 3]),
        (pa.ArrowMemoryError("malloc of size 99 failed"), [2, 3]),
        (MemoryError(), [2, 3]),
    ],
)
def test_what_does_not_fit_fails_no_checkpoint_and_memory_may_be_there_later(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, left: list[int]
) -> None:
    world = World(served)
    world.upsert({1: 1, 2: 2})
    world.upsert({1: 2, 2: 3})

    def failing(*_: object) -> None:
        raise error

    move_log_start(served.engine, NAME)
    with monkeypatch.context() as patch:
        patch.setattr("lakestore_server.segments.compaction.left_of", failing)
        served.checkpoint()
    assert served.server.upkeep.checkpointer.figures.failed == 0
    compact(served.server)
    assert offsets(world.log) == left
    world.check()


def test_a_snapshot_stream_goes_on_where_it_was_over_sparse_segments(served: Served) -> None:
    world = World(served)
    world.upsert(dict.fromkeys(range(50), 0))
    world.upsert(dict.fromkeys(range(0, 50, 2), 1))
    world.compact()
    batches = list(world.table.changes("snapshot", until="now"))
    assert sum(batch.to_arrow().num_rows for batch in batches) == 50
    plan = served.lake.transport.plan(pb.PlanRequest(tables=[NAME], lease_seconds=60)).tables[0]
    assert plan.buckets[0].head == 75
    assert plan.snapshot_id == 0


def test_tombstones_stay_until_their_time_is_over_and_then_leave_the_index(served: Served) -> None:
    world = World(served, merge="versioned(v)", tombstone_ttl="1h")
    world.upsert(dict.fromkeys(range(10), 1))
    world.upsert(dict.fromkeys(range(10), 2))
    world.delete(*range(5))
    world.compact()
    assert offsets(world.log) == list(range(15, 25)), "the rows go, their deletes stay"
    world.lose_index()
    world.check()
    assert index_values(served, 0) == [20 | FLAG], "a rebuild finds them"
    served.restart()
    world.table = served.lake.table(NAME)
    served.clock.advance(3_540)
    world.upsert({20: 1})
    world.compact()
    assert set(range(20, 25)) <= set(offsets(world.log))
    served.clock.advance(60)
    world.upsert({21: 1})
    world.compact()
    assert offsets(world.log) == [15, 16, 17, 18, 19, 25, 26]
    assert index_values(served, 0) == [ABSENT]
    world.check()
    served.restart()
    assert index_values(served, *range(5)) == [ABSENT] * 5
    world.table = served.lake.table(NAME)
    world.check()


def test_tombstones_of_keys_without_a_row_go_in_their_time_too(served: Served) -> None:
    world = World(served, merge="versioned(v)", tombstone_ttl="1h")
    world.upsert({1: 1})
    world.table.delete([{"k": 7, "v": 5}, {"k": 8, "v": 5}])
    world.table.delete([{"k": 8, "v": 6}])
    world.check()
    world.compact()
    assert offsets(world.log) == [0, 1, 2, 3]
    world.lose_index()
    world.check()
    assert index_values(served, 7, 8) == [1 | FLAG, 3 | FLAG]
    served.clock.advance(3_600)
    world.upsert({2: 1})
    world.compact()
    assert offsets(world.log) == [0, 4]
    assert index_values(served, 7, 8) == [ABSENT, ABSENT]
    world.check()


def test_a_tombstone_that_was_replaced_leaves_what_replaced_it(served: Served) -> None:
    world = World(served, merge="versioned(v)", tombstone_ttl="1h")
    world.upsert({1: 1, 2: 1})
    world.delete(1, 2)
    world.upsert({1: 7})
    served.clock.advance(3_600)
    world.upsert({3: 1})
    world.compact()
    assert offsets(world.log) == [4, 5]
    assert index_values(served, 1, 2) == [4, ABSENT]
    world.check()


def index_values(served: Served, *wanted: int) -> list[int]:
    prefix = table_prefix(served.state(NAME).table.number)
    found: list[int] = served.engine.index.find(encoded([pa.array(wanted, pa.int64())], prefix)).tolist()
    return found


def test_positions_behind_a_range_that_is_gone_are_those_of_the_log_start(served: Served) -> None:
    """The last segment below it went as a whole; what is left ends far below."""
    world = World(served)
    world.upsert(dict.fromkeys(range(100), 0))
    world.compact()
    world.upsert(dict.fromkeys(range(200, 220), 0))
    world.delete(*range(200, 220))
    world.compact()
    log = world.log
    assert [chunk.end for chunk in log.chunks] == [100]
    assert (log.head, log.at_lsn(served.engine.view.lsn)) == (140, log.base)
    assert log.at_time(served.clock.now_us()) == log.base
    world.check()
    served.restart()
    world.table = served.lake.table(NAME)
    world.check()
    world.upsert({5: 1})
    assert world.changes() == [("-U", 5, 0), ("+U", 5, 1)]
    world.check()
