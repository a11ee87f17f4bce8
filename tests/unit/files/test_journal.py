"""The journal's format: what is written is read back; damage is told from a torn tail."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Corrupt, Invalid
from lakestore.rows.ipc import crc32c
from lakestore_server.files import checkpoint, journal, journal_file
from lakestore_server.host.uncached_file import BLOCK
from lakestore_server.segments import integrity
from lakestore_server.state.commit_record import ChangeResult, CommitRecord, ProducerCommit, RowsPart

SALT = 0x1122334455667788
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


HEAD = journal.file_header(SALT)


def frame(lsn: int, rows: int, salt: int = SALT, unsynced: int = 0) -> bytes:
    batch = pa.record_batch([list(range(rows)), [f"row {i}" for i in range(rows)]], schema=SCHEMA)
    part = RowsPart("table", 3, 100, batch, 2**64 - 1, rows)
    record = CommitRecord(lsn, 1_000 + lsn, [part], producers=[ProducerCommit("p", 1, lsn)])
    parts = journal_file.framed(lsn, journal.encode(record), salt, unsynced).parts
    return b"".join(bytes(part) for part in parts)


@given(st.lists(st.integers(0, 50), max_size=5))
def test_frames_are_read_back(counts: list[int]) -> None:
    data = HEAD + b"".join(frame(lsn, rows) for lsn, rows in enumerate(counts, start=1))
    found = list(journal.frames(data, "journal", last=True))
    assert [raw.lsn for raw in found] == list(range(1, len(counts) + 1))
    for raw, rows in zip(found, counts, strict=True):
        (head,) = raw.rows()
        assert (head.table, head.bucket, head.start, head.count) == ("table", 3, 100, rows)
        assert head.live_sum == 2**64 - 1
        assert raw.batch(head, SCHEMA).num_rows == rows


@given(st.integers(0, 10_000))
def test_a_torn_tail_ends_the_last_file(cut: int) -> None:
    whole, torn = frame(1, 3), frame(2, 20)
    data = HEAD + whole + torn[: cut % len(torn)]
    assert [raw.lsn for raw in journal.frames(data, "journal", last=True)] == [1]


def test_a_torn_tail_in_an_earlier_file_is_damage() -> None:
    with pytest.raises(Corrupt, match="damaged at byte"):
        list(journal.frames(HEAD + frame(1, 3) + b"torn", "journal-1", last=False))


@pytest.mark.parametrize("last", [False, True])
def test_zeros_that_fill_the_last_block_up_end_any_file(last: bool) -> None:
    data = HEAD + frame(1, 3)
    filled = data + bytes(-len(data) % BLOCK)
    assert [raw.lsn for raw in journal.frames(filled, "journal-1", last=last)] == [1]
    integrity.check_frames(iter([filled]), "journal-1")


@pytest.mark.parametrize("zeros", [64, BLOCK, 3 * BLOCK])
def test_other_zeros_behind_a_file_are_damage(zeros: int) -> None:
    """They may be all that is left of a frame."""
    whole = HEAD + frame(1, 3)
    data = whole + bytes(-len(whole) % BLOCK + zeros)
    with pytest.raises(Corrupt, match="damaged at byte"):
        list(journal.frames(data, "journal-1", last=False))
    with pytest.raises(Corrupt, match="damaged at byte"):
        integrity.check_frames(iter([data]), "journal-1")


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_before_a_whole_frame_is_never_served(place: int, bit: int) -> None:
    first, second = frame(1, 10), frame(2, 10)
    damaged = bytearray(first)
    at = place % len(first)
    damaged[at] ^= 1 << bit
    try:
        found = list(journal.frames(HEAD + bytes(damaged) + second, "journal-1", last=True))
    except Corrupt:
        return
    assert [raw.lsn for raw in found] == [1, 2]
    (head,) = found[0].rows()
    assert found[0].batch(head, SCHEMA).column(0).to_pylist() == list(range(10)), "only padding may change unseen"


@pytest.mark.parametrize("behind", [(1,), (1, 2), (1, 2, 3)])
def test_a_torn_frame_before_whole_ones_of_the_same_sync_is_a_torn_tail(behind: tuple[int, ...]) -> None:
    """Frame 2 is torn, and those behind it say that it was not durable when they were written."""
    torn = bytes(512) + frame(2, 20)[512:]
    later = [frame(lsn, 3, unsynced=unsynced) for lsn, unsynced in enumerate(behind, start=3)]
    data = HEAD + frame(1, 3) + torn + b"".join(later)
    assert [raw.lsn for raw in journal.frames(data, "journal-1", last=True)] == [1]
    with pytest.raises(Corrupt, match="damaged at byte"):
        list(journal.frames(data + frame(3 + len(behind), 3, unsynced=len(behind)), "journal-1", last=True))


def test_headers_of_frames_in_the_rows_of_a_torn_one_are_not_compared_with_their_checksums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would cost all bytes behind it: 2 MB of them took 21 seconds, and 64 MB some hours."""
    header = journal.HEADER.pack(journal.MAGIC, journal.VERSION, 0, 1 << 40, 0, 4_096, 12345).ljust(64, b"\0")
    torn = carrying(2, bytes(8).join([header * 1_000 + bytes(8_192)] * 8))  # one of the eight begins where frames do
    summed: list[int] = []

    def counted(data: Any, crc: int = 0) -> int:
        summed.append(len(data))
        return crc32c(data, crc)

    monkeypatch.setattr(journal, "crc32c", counted)
    data = HEAD + frame(1, 3) + torn[:-128]
    assert [raw.lsn for raw in journal.frames(data, "journal-1", last=True)] == [1]
    assert sum(summed) < 4_096


def carrying(lsn: int, inner: bytes) -> bytes:
    """A frame whose only row is these bytes."""
    batch = pa.record_batch([pa.array([inner])], names=["bytes"])
    parts = journal_file.framed(
        lsn, journal.encode(CommitRecord(lsn, 1, [RowsPart("table", 0, 0, batch, 0, 1)])), SALT
    ).parts
    return b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("inner", [frame(9, 3, salt=7), HEAD + frame(1, 3) + frame(2, 3)], ids=["other", "own copy"])
def test_a_torn_frame_that_carries_whole_frames_as_user_bytes_is_a_torn_tail(inner: bytes) -> None:
    """Frames of another file have another salt, and a copy of this file has older LSNs."""
    whole = HEAD + frame(1, 3)
    torn = carrying(2, inner)
    for size in (len(torn) - 1, len(torn) - 70):
        assert [raw.lsn for raw in journal.frames(whole + torn[:size], "journal-1", last=True)] == [1]
    zeroed = bytes(512) + torn[512:]
    assert [raw.lsn for raw in journal.frames(whole + zeroed, "journal-1", last=True)] == [1]


@given(st.integers(0, len(HEAD) - 1), st.integers(0, 7))
def test_a_damaged_file_header_before_a_frame_is_never_a_torn_tail(place: int, bit: int) -> None:
    damaged = bytearray(HEAD)
    damaged[place] ^= 1 << bit
    try:
        found = list(journal.frames(bytes(damaged) + frame(1, 3), "journal-1", last=True))
    except Corrupt as error:
        assert "journal-1" in error.message
    else:
        assert [raw.lsn for raw in found] == [1], "only padding may change unseen"


@given(st.integers(0, len(HEAD) - 1))
def test_a_file_header_that_was_never_finished_holds_nothing(size: int) -> None:
    assert not list(journal.frames(HEAD[:size], "journal-1", last=True))


def test_a_file_of_the_first_release_and_one_of_no_release_are_refused_by_name() -> None:
    """Release 0.1 wrote frames without a header; version 3 was written between two releases."""
    first = struct.pack("<IHHQIQI", journal.MAGIC, 1, 0, 1, 7, 0, 0).ljust(64, b"\0") + b'{"t":5}'.ljust(64, b"\0")
    with pytest.raises(Invalid, match=r"journal-1 was written by release 0\.1: open its folder once with release 0\.2"):
        list(journal.frames(first, "journal-1", last=True))
    header = journal._FILE.pack(journal.FILE_MAGIC, 3, 0, 7)
    between = (header + journal.CRC.pack(crc32c(header))).ljust(64, b"\0")
    with pytest.raises(Invalid, match=r"journal-1 has format version 3, which no release wrote: .* reads 2 and 4"):
        list(journal.frames(between, "journal-1", last=True))


def test_entries_that_a_later_release_adds_are_left_out() -> None:
    """A release that is run again after a later one reads the files that the later one wrote."""
    (raw,) = journal.frames(HEAD + frame(1, 3), "journal-1", last=True)
    (head,) = raw.rows()
    raw.meta["rows"][0].append("later")
    assert raw.rows() == [head]
    result = ChangeResult("a.b", inserted=3, folded=1)
    assert checkpoint.result_of([*checkpoint.result_list(result), 0, 7, 8]) == result
