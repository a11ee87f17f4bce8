"""A journal file is checked piece by piece, with the verdict that reading it as a whole has."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Corrupt
from lakestore_server.files import journal, journal_file
from lakestore_server.host.disk import PIECE_BYTES, RealDisk
from lakestore_server.segments import integrity
from lakestore_server.segments.integrity import Integrity
from tests.unit.files.test_journal import HEAD, frame

WHOLE = (HEAD, HEAD + frame(1, 3), HEAD + frame(1, 0) + frame(2, 9))


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def is_whole(data: bytes, size: int) -> bool:
    try:
        integrity.check_frames(cut(data, size), "journal-1")
    except Corrupt as error:
        assert "journal-1" in error.message
        return False
    return True


def can_be_read(data: bytes) -> bool:
    try:
        return list(journal.frames(data, "journal-1", last=False)) is not None
    except Corrupt:
        return False


@given(st.sampled_from(WHOLE), st.integers(1, 3_000))
def test_whole_files_are_whole_however_they_are_cut(data: bytes, size: int) -> None:
    assert is_whole(data, size)


@given(st.sampled_from(WHOLE), st.integers(1, 3_000), st.integers(0), st.integers(0, 7), st.integers(0))
def test_damage_is_found_where_reading_finds_it(data: bytes, size: int, place: int, bit: int, end: int) -> None:
    damaged = bytearray(data)
    damaged[place % len(data)] ^= 1 << bit
    for told in (bytes(damaged), data[: end % (len(data) + 1)]):
        assert is_whole(told, size) == can_be_read(told)


def test_a_scrub_holds_few_bytes_of_a_large_journal(tmp_path: Path) -> None:
    pieces = 24
    parts = journal_file.framed(1, [b'{"t":1}', bytes(pieces * PIECE_BYTES)], 7).parts
    (tmp_path / journal_file.name_of(1)).write_bytes(journal.file_header(7) + b"".join(bytes(part) for part in parts))
    nobody: Any = SimpleNamespace(tables={}, kept={}, runs=())
    integrity = Integrity(tmp_path, RealDisk(), nobody, lambda: nobody, lambda: (journal_file.name_of(9), 0))
    pauses: list[int] = []
    tracemalloc.start()
    found = integrity.shared(pauses.append)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not found.damage
    assert found.bytes_checked == sum(pauses) > pieces * PIECE_BYTES
    assert max(pauses) == PIECE_BYTES
    assert peak < 6 * PIECE_BYTES
    with (tmp_path / journal_file.name_of(1)).open("r+b") as file:
        file.seek(pieces * PIECE_BYTES // 2)
        file.write(b"x")
    assert "damaged at byte 64" in integrity.shared(pauses.append).damage[0]


def test_a_file_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(RealDisk().pieces(tmp_path / "gone", 1))
