"""Bytes that are written back have come to the disk, whatever the system knows for that."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakestore_server.host import write_back as written
from lakestore_server.host.disk import AppendFile, RealDisk
from lakestore_server.host.write_back import write_back


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    os.write(opened, bytes(100_000))
    yield opened
    os.close(opened)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found = list[int]()
    monkeypatch.setattr(os, "fdatasync", found.append)
    return found


def answering(*numbers: int) -> Any:
    """A call of the system that fails with these errors, one after the other, and then no more."""
    left = [*numbers]

    def call(_fd: int, at: int, size: int, flags: int) -> int:
        assert (at, size, flags) == (0, 0, 7)
        ctypes.set_errno(left[0] if left else 0)
        return -1 if left and left.pop(0) else 0

    return call


def test_nothing_is_synced(fd: int, synced: list[int]) -> None:
    write_back(fd)
    assert synced == []
    with pytest.raises(OSError) as refused:
        write_back(1_000_000)
    assert refused.value.errno == errno.EBADF


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, None])
def test_a_system_without_the_call_syncs(
    number: int | None, fd: int, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = SimpleNamespace() if number is None else SimpleNamespace(sync_file_range=answering(number))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: system)
    written._call.cache_clear()
    try:
        write_back(fd)
        assert synced == [fd]
    finally:
        written._call.cache_clear()


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM, errno.ENOSPC])
def test_what_cannot_be_written_is_an_error(
    number: int, fd: int, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = answering(errno.EINTR, number)
    monkeypatch.setattr(written, "_call", lambda: call)
    with pytest.raises(OSError) as failed:
        write_back(fd)
    assert (failed.value.errno, synced) == (number, []), "a sync behind it would say that all is well"


@pytest.mark.parametrize("is_cached", [True, False])
def test_files_of_the_disk_are_written_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cached: bool
) -> None:
    file: AppendFile = RealDisk().create(tmp_path / "x", is_cached=is_cached)
    file.write([b"abc"])
    file.write_back()
    monkeypatch.setattr(written, "_call", lambda: answering(errno.EIO))
    with pytest.raises(OSError):
        file.write_back()
    file.close()
