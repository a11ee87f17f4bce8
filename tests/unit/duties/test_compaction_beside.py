"""Large runs of segments are compacted beside checkpoints: the next one names what is left, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore.limits import Limits
from lakestore_server.files.segment import Segment
from lakestore_server.index.entry import ABSENT, FLAG, table_prefix
from lakestore_server.index.keys import encoded
from lakestore_server.segments import compaction, segment_run
from lakestore_server.segments.merging import Merger
from lakestore_server.state.bucket_log import BucketLog
from tests.support.log_start import compact, move_log_start
from tests.support.served import Served
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
LIMITS = Limits(segment_rows=40, shared_segment_bytes=0, merge_bytes=0, merge_segments=64, scrub_bytes=0)
NAME = "t.keyed"


@pytest.fixture
def disk(tmp_path: Path) -> SimDisk:
    return SimDisk(tmp_path / "data")


@pytest.fixture
def served(tmp_path: Path, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(compaction, "beside_bytes", lambda limits: 0)
    with Served(tmp_path / "data", disk=disk, limits=LIMITS) as served:
        served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
        yield served


def write(served: Served, ids: range, value: int) -> None:
    served.lake.table(NAME).upsert([{"id": i, "v": value} for i in ids])


def due(served: Served) -> None:
    """A segment of 40 rows, 30 of them dead, that a checkpoint has seen below the log start."""
    write(served, range(40), 0)
    served.checkpoint()
    write(served, range(30), 1)
    move_log_start(served.server.engine, NAME)
    served.checkpoint()


def merger(served: Served) -> Merger:
    return served.server.upkeep.checkpointer.merger


def log(served: Served) -> BucketLog:
    return served.state(NAME).logs[0]


def stored(served: Served) -> int:
    return sum(chunk.rows for chunk in log(served).chunks)


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "data" / "segments").rglob("*.seg")}


def named(served: Served) -> set[str]:
    return {chunk.path.name for chunk in log(served).chunks if isinstance(chunk, Segment)}


def rows(served: Served) -> list[dict[str, Any]]:
    return sorted(served.lake.table(NAME).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def expected(*values: tuple[range, int]) -> list[dict[str, Any]]:
    found = {i: value for ids, value in values for i in ids}
    return [{"id": i, "v": found[i]} for i in sorted(found)]


def test_a_checkpoint_reads_no_large_run_and_the_next_one_names_what_is_left(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def never(*about: object) -> None:
            raise AssertionError("a checkpoint rewrites a large run")

        patch.setattr(compaction, "left_of", never)
        patch.setattr(segment_run, "left_of", never)
        due(served)
        served.checkpoint()
    assert stored(served) == 70
    merger(served).run_once()
    assert stored(served) == 70
    served.checkpoint()
    assert stored(served) == 40
    assert files(tmp_path) == named(served)
    figures = served.server.upkeep.checkpointer.compactions
    assert (figures.segments, figures.rows) == (2, 30)
    values = expected((range(40), 0), (range(30), 1))
    assert rows(served) == values
    served.checkpoint()
    assert not merger(served)._rewrites, "what is left is no longer due"
    served.server.close(checkpoint=False)
    served.start()
    assert rows(served) == values


def test_what_is_left_is_not_rewritten_again_by_the_checkpoint_that_names_it(served: Served) -> None:
    """It knows the rows that went as dead until it is done."""
    due(served)
    merger(served).run_once()
    checkpointer = served.server.upkeep.checkpointer
    checkpointer._compactor._beside_bytes = 1 << 30
    served.checkpoint()
    assert (checkpointer.compactions.segments, checkpointer.compactions.rows) == (2, 30)
    assert stored(served) == 40


def test_rows_that_die_meanwhile_go_with_the_next_rewrite(served: Served) -> None:
    due(served)
    write(served, range(10, 38), 2)
    merger(served).run_once()
    move_log_start(served.server.engine, NAME)
    served.checkpoint()
    values = expected((range(40), 0), (range(30), 1), (range(10, 38), 2))
    assert rows(served) == values
    assert stored(served) == 68, "what died meanwhile stays as of then"
    compact(served.server)
    assert stored(served) == 40
    assert rows(served) == values


def test_nothing_stays_of_a_run_whose_rows_are_all_dead(served: Served, tmp_path: Path) -> None:
    write(served, range(40), 0)
    served.checkpoint()
    write(served, range(45), 1)  # too many for one segment with others
    move_log_start(served.server.engine, NAME)
    served.checkpoint()
    merger(served).run_once()
    served.checkpoint()
    assert [(chunk.start, chunk.rows) for chunk in log(served).chunks] == [(40, 45)]
    assert files(tmp_path) == named(served)
    assert rows(served) == expected((range(45), 1))


def test_what_a_failed_checkpoint_would_have_named_the_next_one_names(served: Served, disk: SimDisk) -> None:
    due(served)
    merger(served).run_once()
    disk.fail("rename checkpoint-")
    with pytest.raises(OSError, match="planted"):
        served.checkpoint()
    assert served.server.upkeep.checkpointer.compactions.rows == 0
    write(served, range(5), 7)
    served.checkpoint()
    assert stored(served) == 45
    assert served.server.upkeep.checkpointer.compactions.rows == 30
    assert rows(served) == expected((range(40), 0), (range(30), 1), (range(5), 7))


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_run_of_a_table_that_is_emptied_meanwhile_goes(served: Served, tmp_path: Path, *, is_begun: bool) -> None:
    due(served)
    if is_begun:
        merger(served).run_once()
    served.lake.table(NAME).truncate()
    write(served, range(3), 9)
    if not is_begun:
        merger(served).run_once()
    for _ in range(3):
        served.checkpoint()
        merger(served).run_once()
    assert rows(served) == expected((range(3), 9))
    assert files(tmp_path) == named(served)


def test_a_run_that_cannot_be_read_stays_and_is_not_tried_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    due(served)
    tries = []

    def corrupt(*about: object) -> None:
        tries.append(about)
        raise Corrupt("planted")

    monkeypatch.setattr(segment_run, "left_of", corrupt)
    for _ in range(3):
        merger(served).run_once()
        served.checkpoint()
    assert len(tries) == 1
    assert stored(served) == 70
    assert files(tmp_path) == named(served)


def test_remembered_deletes_that_go_are_forgotten_by_the_index(served: Served) -> None:
    options: dict[str, Any] = {"merge": "versioned(v)", "tombstone_ttl": "1h"}
    table = served.lake.create_table("t.versioned", SCHEMA, primary_key=["id"], buckets=1, **options)
    table.upsert([{"id": i, "v": 1} for i in range(40)])
    table.delete([{"id": i, "v": 2} for i in range(35)])
    served.clock.advance(3_600)
    table.upsert([{"id": i, "v": 1} for i in range(100, 150)])
    move_log_start(served.server.engine, "t.versioned", served.server.engine.view.lsn - 1)
    index, asked = served.server.engine.index, encoded([pa.array(range(35))], table_prefix(1 + 1))
    served.checkpoint()
    assert (index.find(asked) & FLAG).all()
    merger(served).run_once()
    served.checkpoint()
    assert index.find(asked).tolist() == [ABSENT] * 35
    table.upsert([{"id": 0, "v": 1}])
    assert {row["id"] for row in table.scan().to_arrow().to_pylist()} == {0, *range(35, 40), *range(100, 150)}


def test_a_run_out_of_shared_files_goes_into_a_folder_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "beside_bytes", lambda limits: 0)
    limits = replace(LIMITS, shared_segment_bytes=1 << 20)
    with Served(tmp_path / "data", limits=limits) as served:
        served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
        other = served.lake.create_table("t.other", SCHEMA, primary_key=["id"], buckets=1)
        for ids, value in ((range(40), 0), (range(30), 1)):  # of several tables segments lie in one file
            other.upsert([{"id": value, "v": value}])
            write(served, ids, value)
            move_log_start(served.server.engine, NAME)
            served.checkpoint()
        merger(served).run_once()
        served.checkpoint()
        assert stored(served) == 40
        served.server.close(checkpoint=False)
        served.start()
        assert rows(served) == expected((range(40), 0), (range(30), 1))


def test_a_disk_with_little_left_gets_room_by_the_rows_that_go(
    served: Served, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a full disk would stay full: nobody but compaction removes rows that are dead."""
    due(served)
    monkeypatch.setattr(disk, "free_bytes", lambda _: LIMITS.disk_free_bytes - 1)
    merger(served).run_once()
    served.checkpoint()
    assert stored(served) == 40
    assert rows(served) == expected((range(40), 0), (range(30), 1))


def test_a_run_that_has_no_room_even_so_stays(served: Served, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    due(served)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "free_bytes", lambda _: 10)
        merger(served).run_once()
        served.checkpoint()
        assert stored(served) == 70
    merger(served).run_once()
    served.checkpoint()
    assert stored(served) == 40


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Two tables, each with a run that is due; beside one checkpoint there is room for one of them."""
    monkeypatch.setattr(compaction, "beside_bytes", lambda limits: 0)
    with Served(tmp_path / "data", limits=replace(LIMITS, compaction_bytes=1)) as served:
        for name in ("t.a", "t.b"):
            served.lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
            make_due(served, name, 0)
        yield served


def make_due(served: Served, name: str, value: int) -> None:
    """A segment of 40 rows, 30 of them dead."""
    for ids in (range(40), range(30)):
        served.lake.table(name).upsert([{"id": i, "v": value} for i in ids])
        served.checkpoint()
    move_log_start(served.server.engine, name)


def dead(served: Served, name: str) -> int:
    (held,) = served.state(name).logs
    return sum(chunk.rows for chunk in held.chunks) - 40


def test_a_bucket_that_is_always_due_leaves_others_a_turn(two: Served) -> None:
    order = [state.table.name for state in two.server.engine.view.kept.values()]
    for value in range(1, 5):
        make_due(two, order[0], value)
        two.checkpoint()
        merger(two).run_once()
        two.checkpoint()
    assert dead(two, order[1]) == 0


def test_a_bucket_that_cannot_be_read_takes_no_room_of_others(two: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list(two.server.engine.view.kept)
    left = segment_run.Rewrite.left

    def corrupt(rewrite: segment_run.Rewrite, *about: Any) -> object:
        if rewrite.key[0] == order[0]:
            raise Corrupt("planted")
        return left(rewrite, *about)

    monkeypatch.setattr(segment_run.Rewrite, "left", corrupt)
    for _ in range(4):
        two.checkpoint()
        merger(two).run_once()
    two.checkpoint()
    names = [two.server.engine.view.tables[uuid].table.name for uuid in order]
    assert (dead(two, names[0]), dead(two, names[1])) == (30, 0)


def test_a_rewrite_does_not_wait_for_the_merges_of_all_buckets(two: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for while segments are being merged."""
    order: list[str] = []
    bucket = Merger._bucket

    def begun(merger: Merger, state: Any, *about: Any) -> None:
        if not order:
            two.checkpoint()
        order.append("merge")
        bucket(merger, state, *about)

    def rewritten(*_: object) -> None:
        order.append("rewrite")
        raise Corrupt("planted")

    merger(two)._rewrites = []
    monkeypatch.setattr(Merger, "_bucket", begun)
    monkeypatch.setattr(segment_run.Rewrite, "left", rewritten)
    merger(two).run_once()
    assert order[:2] == ["merge", "rewrite"]
