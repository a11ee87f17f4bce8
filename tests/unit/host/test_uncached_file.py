"""Files that are written past the page cache: their bytes are those that were appended, whatever came between."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lakestore_server.host.uncached_file import BLOCK, PIECE_BYTES, UncachedFile


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content(path: Path, size: int) -> bytes:
    """The first bytes of a file that is closed: all but the zeros that fill its last block up."""
    stored = path.read_bytes()
    assert len(stored) == size + -size % BLOCK
    assert not any(stored[size:])
    return stored[:size]


@pytest.mark.parametrize("seed", range(4))
def test_any_parts_are_appended_as_they_are(tmp_path: Path, seed: int) -> None:
    chance, path = random.Random(seed), tmp_path / "file"
    file, wanted = UncachedFile(path, 0o640), b""
    for _ in range(60):
        sizes = [chance.choice((0, 1, 64, 1_000, BLOCK - 1, BLOCK, BLOCK + 1, 70_000)) for _ in range(3)]
        parts = [chance.randbytes(size) for size in sizes]
        assert file.write(parts) == sum(sizes)
        wanted += b"".join(parts)
        if chance.random() < 0.3:
            file.sync()
        stored = path.read_bytes()
        assert stored[: len(wanted)] == wanted
        assert len(stored) == len(wanted) + -len(wanted) % BLOCK
        assert not any(stored[len(wanted) :]), "zeros fill the last block up"
    file.close()
    assert content(path, len(wanted)) == wanted


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, PIECE_BYTES, PIECE_BYTES + 5])
def test_a_file_that_has_ended_has_its_bytes_alone(tmp_path: Path, size: int) -> None:
    file, data = UncachedFile(tmp_path / "file", 0o640), random.Random(size).randbytes(size)
    file.write([data])
    file.end()
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("extra", [-1, 0, 1, BLOCK, PIECE_BYTES])
def test_a_part_may_be_longer_than_the_memory(tmp_path: Path, extra: int) -> None:
    data, file = random.Random(extra).randbytes(PIECE_BYTES + extra), UncachedFile(tmp_path / "file", 0o640)
    file.write([b"head", data])
    file.write([b"tail"])
    file.close()
    assert content(tmp_path / "file", len(data) + 8) == b"head" + data + b"tail"


@pytest.mark.parametrize("before", [0, 100, BLOCK, 3 * BLOCK + 7])
def test_it_goes_on_behind_a_cut_of_a_write_that_failed(tmp_path: Path, before: int) -> None:
    path = tmp_path / "file"
    file, first = UncachedFile(path, 0o640), random.Random(before).randbytes(before)
    file.write([first])
    with full_at(64 << 10), pytest.raises(OSError, match="too large"):
        file.write([random.Random(1).randbytes(3 * PIECE_BYTES)])
    file.truncate(before)
    assert path.read_bytes()[:before] == first
    assert not any(path.read_bytes()[before:])
    file.write([b"again"])
    file.close()
    assert content(path, before + 5) == first + b"again"


def test_it_is_cut_to_any_size(tmp_path: Path) -> None:
    data, file = random.Random(7).randbytes(5 * BLOCK + 11), UncachedFile(tmp_path / "file", 0o640)
    file.write([data])
    for size in (5 * BLOCK + 3, 5 * BLOCK, BLOCK + 1, 5, 0):
        file.truncate(size)
        assert (tmp_path / "file").read_bytes()[:size] == data[:size]
    file.write([b"x"])
    file.close()
    assert content(tmp_path / "file", 1) == b"x"


def test_a_file_system_that_refuses_such_writes_gets_them_through_its_cache(tmp_path: Path) -> None:
    real, refused = os.pwrite, []

    def pwrite(fd: int, data: Any, at: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(at)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, data, at)

    file = UncachedFile(tmp_path / "file", 0o640)
    with mock.patch.object(os, "pwrite", pwrite):
        file.write([b"a" * 5_000])
        file.write([b"b"])
    file.close()
    assert content(tmp_path / "file", 5_001) == b"a" * 5_000 + b"b"
    assert refused == [0], "it is asked once"


def test_a_file_system_that_does_not_open_so_gets_a_cached_file(tmp_path: Path) -> None:
    real = os.open

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            os.close(real(path, flags & ~os.O_DIRECT, mode))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, mode)

    with mock.patch.object(os, "open", opened):
        file = UncachedFile(tmp_path / "file", 0o640)
    file.write([b"rows"])
    file.close()
    assert content(tmp_path / "file", 4) == b"rows"


def test_a_refusal_that_is_none_of_alignment_is_raised(tmp_path: Path) -> None:
    def full(*_: Sequence[Any]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = UncachedFile(tmp_path / "file", 0o640)
    with mock.patch.object(os, "pwrite", full), pytest.raises(OSError, match="No space"):
        file.write([b"rows"])
    file.close()
    file.close()
    assert (tmp_path / "file").read_bytes() == b""
