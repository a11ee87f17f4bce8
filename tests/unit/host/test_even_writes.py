"""Files that others map are written in pieces of one size, each at a multiple of it and written back by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore_server.host import even_writes
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import AppendFile, RealDisk
from lakestore_server.host.even_writes import PIECE_BYTES, EvenWrites, write

POINTS = CrashPoint.SEGMENT_WRITTEN, CrashPoint.SEGMENT_SYNCED


class NotingFile:
    """A file that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[int | str] = []
        self.data = b""

    def write(self, parts: Sequence[Any]) -> int:
        """Note how much is written at once."""
        data = b"".join(parts)
        self.asked.append(len(data))
        self.data += data
        return len(data)

    def sync(self) -> None:
        """Note it."""
        self.asked.append("sync")

    def write_back(self) -> None:
        """Note it."""
        self.asked.append("write back")

    def truncate(self, size: int) -> None:
        """Nobody asks for it."""
        raise AssertionError

    def end(self) -> None:
        """Note it."""
        self.asked.append("end")

    def close(self) -> None:
        """Nothing."""


class NotingDisk(RealDisk):
    """A disk that notes files and crash points."""

    def __init__(self) -> None:
        self.file = NotingFile()
        self.is_cached: bool | None = None

    def create(self, path: Path, *, is_cached: bool = True) -> AppendFile:
        """The one file."""
        self.is_cached = is_cached
        return self.file

    def reach(self, point: CrashPoint) -> None:
        """Note it."""
        self.file.asked.append(point.name)


@pytest.mark.parametrize("sizes", [[0], [5], [10], [3, 0, 3, 30, 1, 4, 4], [9, 2, 10, 19, 41], [1] * 47])
def test_pieces_begin_at_multiples_and_are_written_back(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even_writes, "PIECE_BYTES", 10)
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    file, paused = NotingFile(), list[int]()
    writes = EvenWrites(file, paused.append)
    for first in range(0, len(parts), 2):
        writes.write([pa.py_buffer(part) for part in parts[first : first + 2]])
    writes.flush()
    assert file.data == b"".join(parts)
    assert writes.size == len(file.data)
    whole, rest = divmod(len(file.data), 10)
    assert file.asked == [10, "write back"] * whole + [rest] * (rest > 0)
    assert paused == [10] * whole


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_file_is_synced_after_its_last_piece_and_before_it_counts(tmp_path: Path, *, is_cached: bool) -> None:
    disk = NotingDisk()
    parts, note = [b"head", bytes(PIECE_BYTES)], disk.file.asked.append
    assert write(disk, tmp_path / "x", parts, POINTS, note, is_cached=is_cached) == PIECE_BYTES + 4
    one = [PIECE_BYTES, "write back", PIECE_BYTES]
    last = [4, "end", "SEGMENT_WRITTEN", "sync", "SEGMENT_SYNCED", 4]
    assert disk.file.asked == one + last, "and a merge pauses for each, however small"
    assert disk.is_cached is is_cached


def test_what_a_pause_raises_ends_the_work(tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise InterruptedError

    disk = NotingDisk()
    with pytest.raises(InterruptedError):
        write(disk, tmp_path / "x", [bytes(3 * PIECE_BYTES)], POINTS, stop)
    assert disk.file.asked == [PIECE_BYTES, "write back"]
