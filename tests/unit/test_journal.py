"""The journal's format: what is written is read back; damage is told from a torn tail."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Corrupt
from lakestore.server import journal
from lakestore.server.journal import Frame, RowsPart

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def frame(lsn: int, rows: int) -> bytes:
    batch = pa.record_batch([list(range(rows)), [f"row {i}" for i in range(rows)]], schema=SCHEMA)
    part = RowsPart("table", 3, 100, batch, 2**64 - 1, rows)
    parts = journal.encode(Frame(lsn, 1_000 + lsn, [part], producers=[["p", 1, lsn, [], ""]]))
    return b"".join(bytes(part) for part in parts)


@given(st.lists(st.integers(0, 50), max_size=5))
def test_frames_are_read_back(counts: list[int]) -> None:
    data = b"".join(frame(lsn, rows) for lsn, rows in enumerate(counts, start=1))
    found = list(journal.frames(data, "journal", last=True))
    assert [raw.lsn for raw in found] == list(range(1, len(counts) + 1))
    for raw, rows in zip(found, counts, strict=True):
        (row,) = raw.meta["rows"]
        assert row[:4] == ["table", 3, 100, rows]
        assert row[6] == 2**64 - 1
        assert raw.batch(row, SCHEMA).num_rows == rows


@given(st.integers(0, 10_000))
def test_a_torn_tail_ends_the_last_file(cut: int) -> None:
    whole, torn = frame(1, 3), frame(2, 20)
    data = whole + torn[: cut % len(torn)]
    assert [raw.lsn for raw in journal.frames(data, "journal", last=True)] == [1]


def test_a_torn_tail_in_an_earlier_file_is_damage() -> None:
    with pytest.raises(Corrupt, match="damaged at byte"):
        list(journal.frames(frame(1, 3) + b"torn", "journal-1", last=False))


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_before_a_whole_frame_is_never_served(place: int, bit: int) -> None:
    first, second = frame(1, 10), frame(2, 10)
    damaged = bytearray(first)
    at = place % len(first)
    damaged[at] ^= 1 << bit
    try:
        found = list(journal.frames(bytes(damaged) + second, "journal-1", last=True))
    except Corrupt:
        return
    assert [raw.lsn for raw in found] == [1, 2]
    (row,) = found[0].meta["rows"]
    assert found[0].batch(row, SCHEMA).column(0).to_pylist() == list(range(10)), "only padding may change unseen"
