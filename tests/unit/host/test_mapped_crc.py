"""Checksums of mapped files: the same as of memory, and other threads run while their pages are read."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lakestore.rows.ipc import crc32c
from lakestore_server.host import mapped_crc
from lakestore_server.host.mapped_crc import crc32c_of_mapping
from tests.support.waiting import until


@pytest.fixture
def nobody_is_stopped() -> Iterator[None]:
    """A thread keeps the interpreter until it gives it up by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["C library", "package alone"], autouse=True)
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library, which is here, or a package without one."""
    if request.param == "C library":
        assert mapped_crc._EXTEND is not None
    else:
        monkeypatch.setattr(mapped_crc, "_EXTEND", None)


@pytest.mark.parametrize("size", [0, 1, 499, 64 << 10])
def test_it_is_that_of_the_bytes(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c_of_mapping(pa.py_buffer(data)) == crc32c(data)


def test_others_run_meanwhile(nobody_is_stopped: None) -> None:
    """On a busy machine another thread gets no core for a while, so there are several tries."""
    data = pa.py_buffer(bytes(64 << 20))

    def ran_meanwhile() -> bool:
        begins, ran = threading.Event(), list[bool]()

        def other() -> None:
            begins.wait()
            ran.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        begins.set()
        crc32c_of_mapping(data)
        found = bool(ran)
        thread.join()
        return found

    until(ran_meanwhile, "a thread that runs meanwhile")
