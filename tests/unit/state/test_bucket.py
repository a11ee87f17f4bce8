"""A bucket's log: any cut of it reads the same, from memory, joined chunks and segment files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Corrupt
from lakestore.model.columns import Column
from lakestore.model.table import Table
from lakestore.rows.live_sum import live_sum, moved
from lakestore_server.files import new_segment
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import Chunk, CommitIndex, MemoryChunk, Position
from lakestore_server.state.view import log_of as stored_log
from tests.support.flips import flipped
from tests.support.seeds import examples

SCHEMA = pa.schema([("value", pa.int64())])


def log_of(counts: list[int]) -> BucketLog:
    """One commit per count; the value of a row is its offset, the LSN is ten times the commit's number."""
    log, start = BucketLog(SCHEMA), 0
    for i, count in enumerate(counts, start=1):
        batch = pa.record_batch([np.arange(start, start + count)], schema=SCHEMA)
        start += count
        log = log.append(MemoryChunk(log.head, batch, CommitIndex.one(10 * i, 1_000 * i, start, i, start)))
    return log


def values(log: BucketLog, start: int, end: int) -> list[int]:
    return [value for _, batch, _ in log.rows(start, end) for value in batch.column(0).to_pylist()]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.data())
def test_any_range_reads_its_offsets(counts: list[int], data: st.DataObject) -> None:
    log = log_of(counts)
    start = data.draw(st.integers(0, log.head))
    end = data.draw(st.integers(start, log.head))
    assert values(log, start, end) == list(range(start, end))
    wanted = data.draw(st.lists(st.integers(0, log.head - 1)))
    assert log.take(np.array(wanted, dtype=np.int64)).column(0).to_pylist() == wanted


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.data())
def test_an_lsn_finds_its_commit_end(counts: list[int], data: st.DataObject) -> None:
    log = log_of(counts)
    commit = data.draw(st.integers(0, len(counts)))
    lsn = 10 * commit + data.draw(st.integers(0, 9))
    end = sum(counts[:commit])
    assert log.at_lsn(lsn).end == end
    found = log.at_end(end)
    assert found is not None
    assert found[0] == 10 * commit
    inside = [offset for offset in range(log.head) if offset not in np.cumsum([0, *counts])]
    assert all(log.at_end(offset) is None for offset in inside)


@settings(max_examples=examples(20))
@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), st.booleans())
def test_segments_hold_what_memory_held(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], keyed: bool
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    log = log_of(counts).freeze()
    path = folder / "a.seg"
    new_segment.write_segment(RealDisk(), path, new_segment.encoded(log.chunks, keyed=keyed))
    read = log.install([Segment(RealDisk(), path, lambda _: SCHEMA, keyed=keyed)])
    assert values(read, 0, read.head) == list(range(log.head))
    assert [read.at_lsn(10 * i) for i in range(len(counts) + 1)] == [log.at_lsn(10 * i) for i in range(len(counts) + 1)]


def test_appends_go_on_while_a_checkpoint_cuts(tmp_path: Path) -> None:
    log = log_of([5] * 20).freeze()
    frozen: tuple[Chunk, ...] = log.chunks
    for i in range(21, 60):
        batch = pa.record_batch([np.arange(log.head, log.head + 5)], schema=SCHEMA)
        log = log.append(MemoryChunk(log.head, batch, CommitIndex.one(10 * i, 0, log.head + 5, 0, 0)))
    new_segment.write_segment(RealDisk(), tmp_path / "a.seg", new_segment.encoded(frozen, keyed=True))
    log = log.install([Segment(RealDisk(), tmp_path / "a.seg", lambda _: SCHEMA, keyed=True)])
    assert values(log, 0, log.head) == list(range(59 * 5))


@pytest.mark.parametrize("keyed", [True, False])
def test_a_flipped_bit_in_a_segment_is_never_served(tmp_path: Path, keyed: bool) -> None:
    path = tmp_path / "a.seg"
    new_segment.write_segment(RealDisk(), path, new_segment.encoded(log_of([50] * 10).chunks, keyed=keyed))
    for other in flipped(path, 200, seed=7):
        try:
            read = BucketLog(SCHEMA).install([Segment(RealDisk(), other, lambda _: SCHEMA, keyed=keyed)])
            assert values(read, 0, 500) == list(range(500))
        except Corrupt as error:
            assert other.name in error.message


@pytest.mark.parametrize("percent", [80, 0])
def test_rows_are_compressed_if_that_pays(percent: int) -> None:
    schema = pa.schema([("v", pa.binary())])
    chance = np.random.default_rng(1)
    for value, is_small in [(chance.bytes(100_000), False), (b"x" * 100_000, percent > 0)]:
        chunk = MemoryChunk(0, pa.record_batch([[value]], schema=schema), CommitIndex.one(1, 1, 1, 0, 1))
        whole = new_segment.encoded([chunk], keyed=False, percent=percent).whole()
        assert (whole.size < 50_000) == is_small
        assert (value in whole.to_pybytes()) == (not is_small), "as they are"


def test_rows_without_any_column_cost_one_column(tmp_path: Path) -> None:
    """What a count asks for: offsets alone, of a log table whose columns are packed."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    batch = pa.record_batch([range(7), ["x" * 100] * 7], schema=schema)
    log = BucketLog(schema).append(MemoryChunk(0, batch, CommitIndex.one(1, 1, 7, 0, 7)))
    new_segment.write_segment(RealDisk(), tmp_path / "a.seg", new_segment.encoded(log.chunks, keyed=False))
    log = log.freeze().install([Segment(RealDisk(), tmp_path / "a.seg", lambda _: schema, keyed=False)])
    assert [(b.num_rows, b.num_columns) for _, b, _ in log.rows(0, 7, needed=lambda _: [])] == [(7, 1)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.data())
def test_a_pruned_commit_index_still_tells_the_commit_of_each_row(counts: list[int], data: st.DataObject) -> None:
    whole = CommitIndex.joined([chunk.index for chunk in log_of(counts).chunks])
    kept = np.array(sorted(data.draw(st.sets(st.integers(0, sum(counts) - 1)))), dtype=np.int64)
    pruned = whole.of(kept)
    times = [index.time_us[np.searchsorted(index.end, kept, side="right")].tolist() for index in (whole, pruned)]
    assert times[0] == times[1]
    assert set(pruned.time_us.tolist()) == {*times[0], int(whole.time_us[-1])}


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowInvalid("offset overflow"), pa.ArrowMemoryError("no room")])
def test_an_append_never_fails_and_unjoined_rows_are_read_as_well(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: object) -> pa.RecordBatch:
        raise error

    whole = log_of([3] * 40)
    with monkeypatch.context() as patch:
        patch.setattr(pa, "concat_batches", fails)
        log = log_of([3] * 40)
    assert len(log.chunks) == 40 > len(whole.chunks)
    assert values(log, 0, log.head) == values(whole, 0, whole.head)
    assert [log.at_lsn(lsn) for lsn in range(0, 400, 7)] == [whole.at_lsn(lsn) for lsn in range(0, 400, 7)]
    assert len(log_of([3] * 40 + [3] * 16).chunks) < 40, "joined again with what comes later"


@given(st.lists(st.integers(1, 1_500_000), min_size=1, max_size=300), st.data())
def test_what_is_joined_in_memory_is_bounded_in_bytes(sizes: list[int], data: st.DataObject) -> None:
    """A column of 2 GB would have no offsets; the batches here only say how large they are."""
    log, start = BucketLog(SCHEMA), 0
    joined: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pa, "concat_batches", lambda batches: _Sized(*_sums(batches, joined)))
        for i, size in enumerate(sizes, start=1):
            rows = data.draw(st.integers(1, 5))
            start += rows
            index = CommitIndex.one(10 * i, 1_000 * i, start, i, start)
            log = log.append(MemoryChunk(log.head, _Sized(rows, size), index))
    assert log.head == start
    assert sum(chunk.size for chunk in log.chunks) == sum(sizes)
    assert max(joined, default=0) <= 16 << 20


class _Sized:
    """A record batch that has no rows to read."""

    def __init__(self, num_rows: int, nbytes: int) -> None:
        self.num_rows, self.nbytes = num_rows, nbytes


def _sums(batches: list[_Sized], noted: list[int]) -> tuple[int, int]:
    noted.append(sum(batch.nbytes for batch in batches))
    return sum(batch.num_rows for batch in batches), noted[-1]


class CountedChunk(MemoryChunk):
    """A chunk that counts how often its end is asked for."""

    asked = 0

    @property
    def end(self) -> int:
        type(self).asked += 1
        return super().end


def test_a_message_looks_at_few_of_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = []
    for i in range(2000):
        batch = pa.record_batch([np.arange(i, i + 1)], schema=SCHEMA)
        chunks.append(CountedChunk(i, batch, CommitIndex.one(10 * (i + 1), 1_000 * i, i + 1, 0, i + 1)))
    log = BucketLog(SCHEMA, tuple(chunks), at_head=chunks[-1].index.position(-1))
    monkeypatch.setattr(CountedChunk, "asked", 0)
    commits = log.commits(1000, 1010)
    assert commits.lsn.tolist() == [10 * (i + 1) for i in range(1000, 1010)]
    reach = log.end_within(1000, 10, 1 << 30)
    assert (reach, log.lsn_reaching(1000, reach), log.lsn_beyond(1000)) == (1010, 10_100, 10_010)
    assert log.at_lsn(10_000).end == 1000
    assert CountedChunk.asked < 300


def appended(log: BucketLog, count: int, lsn: int) -> BucketLog:
    """A commit of so many rows, with the sums that the loop computes from the head."""
    offsets = np.arange(log.head, log.head + count, dtype=np.int64)
    total, live = moved(log.at_head.live_sum, offsets, offsets[:0]), log.at_head.live_rows + count
    batch = pa.record_batch([offsets], schema=SCHEMA)
    return log.append(MemoryChunk(log.head, batch, CommitIndex.one(lsn, lsn, log.head + count, total, live)))


COUNTS = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@given(st.lists(COUNTS, min_size=2, max_size=4), st.data())
def test_positions_lose_erased_rows(rounds: list[list[int]], data: st.DataObject) -> None:
    """Of several erasures, at each commit that can be read, also in the log that a checkpoint brings back."""
    log, ends, gone, lsn = BucketLog(SCHEMA), {0: 0}, set[int](), 0
    for counts in rounds:
        first = lsn
        for count in counts:
            lsn += 1
            log = appended(log, count, lsn)
            ends[lsn] = log.head
        floor = data.draw(st.integers(first, lsn))
        log = log.from_lsn(floor)
        left = sorted(set(range(ends[floor])) - gone)
        dying = data.draw(st.sets(st.sampled_from(left))) if left else set()
        lsn += 1
        ends[lsn] = log.head
        lost = np.array(sorted(dying), dtype=np.int64)
        log = log.without(Position(0, live_sum(lost), len(lost), 0, lsn))
        gone |= dying
        segment = log.chunks
        table = Table(name="a.b", columns=(Column(1, "value", "int64"),))
        for each in (log, stored_log(table, segment, log.base, log.erased)):
            assert (each.at_head.end, each.at_head.live_rows) == (log.head, log.head - len(gone))
            for at in range(floor, lsn + 1):
                found, end = each.at_lsn(at), ends[at]
                live = np.array(sorted(set(range(end)) - gone), dtype=np.int64)
                assert (found.end, found.live_rows, found.live_sum) == (end, len(live), live_sum(live))
                at_end = each.at_end(end)
                assert at_end is not None
                assert at_end[1].live_sum == live_sum(live)
