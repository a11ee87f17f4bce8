"""Mapped files: their bytes, for as long as a buffer holds them, and nothing else of them."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import pytest

from lakestore_server.host import mapping
from lakestore_server.host.mapping import mapped, read_in, will_need
from tests.support.page_cache import forget, pages_in_memory
from tests.support.waiting import until

DATA = random.Random(1).randbytes(300_000)


def maps(path: Path) -> int:
    """The mappings of a file in this process."""
    return sum(line.endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def same_file(number: str, path: Path) -> bool:
    """Whether a descriptor of this process is a file; one that another thread has closed is not."""
    try:
        return os.path.samestat(os.fstat(int(number)), path.stat())
    except OSError:
        return False


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def test_a_mapped_file_is_not_kept_open(file: Path) -> None:
    """A server maps 100,000 segments."""
    held = [mapped(file) for _ in range(50)]
    assert not [number for number in os.listdir("/proc/self/fd") if same_file(number, file)]
    assert all(buffer.to_pybytes() == DATA for buffer in held)


def test_a_part_of_it_holds_it_and_the_last_one_lets_it_go(file: Path) -> None:
    part = mapped(file).slice(100_000, 1_000)
    assert part.to_pybytes() == DATA[100_000:101_000]
    assert maps(file) == 1
    del part
    assert maps(file) == 0


def test_a_file_that_is_gone_can_still_be_read(file: Path) -> None:
    buffer = mapped(file)
    file.unlink()
    assert buffer.to_pybytes() == DATA


def test_an_empty_file_is_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert mapped(tmp_path / "empty").to_pybytes() == b""


def test_it_is_not_read_until_it_is_touched(file: Path) -> None:
    """A disk may be asked for many megabytes around what is touched: the file is larger than any asks for."""
    size = 1 << 30
    os.truncate(file, size)
    forget(file)
    buffer = mapped(file)
    assert pages_in_memory(buffer) == 0
    assert buffer[size // 2] is not None
    assert 0 < pages_in_memory(buffer) < size // mmap.PAGESIZE // 2


def test_what_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mapped(tmp_path / "none")
    with pytest.raises(OSError, match=r"directory|device"):
        mapped(tmp_path)


def test_what_is_needed_is_read(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(random.Random(2).randbytes(8 << 20))
    forget(file)
    buffer = mapped(file)
    will_need(buffer.slice(5_000_001, 1 << 20))
    until(lambda: pages_in_memory(buffer.slice(5_000_001, 1 << 20)) >= 256, "the part")
    assert pages_in_memory(buffer.slice(0, 1 << 20)) == 0


@pytest.mark.parametrize("advice", [mapping._POPULATE_READ, -1], ids=["at once", "a system that cannot do that"])
def test_what_is_read_next_is_read_in(file: Path, advice: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_POPULATE_READ", advice)
    with file.open("r+b") as opened:
        opened.write(random.Random(2).randbytes(8 << 20))
    forget(file)
    buffer = mapped(file)
    part = buffer.slice(5_000_001, 1 << 20)
    read_in(part)
    if advice == -1:
        until(lambda: pages_in_memory(part) >= 256, "the part")
    assert pages_in_memory(part) >= 256
    assert pages_in_memory(buffer.slice(0, 1 << 20)) < 256, "the disk may read somewhat more, but not all"
