"""Offset indexes as files: what is read back is the same, and damage is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Corrupt, NewerFormat
from lakestore.lake.offset_index import FileOffsets
from tests.support.seeds import seeded

KEYS = st.sets(st.integers(0, (1 << 62) - 1), max_size=50)


def index(keys: set[int], *, shuffled: bool = True) -> FileOffsets:
    held = np.array(sorted(keys), dtype=np.int64)
    order = np.random.default_rng(len(keys)).permutation(len(keys)).astype(np.int32)
    return FileOffsets(held, order if shuffled else None)


@given(KEYS, st.booleans())
def test_an_index_comes_back(keys: set[int], shuffled: bool) -> None:
    made = index(keys, shuffled=shuffled)
    found = FileOffsets.decode(made.encode(), "x")
    assert found.keys.tolist() == made.keys.tolist()
    assert found.keys.dtype == np.int64
    assert (found.order is None) == (made.order is None)
    if found.order is not None and made.order is not None:
        assert found.order.tolist() == made.order.tolist()
        assert found.order.dtype == np.int32


def test_an_index_of_rows_in_order_is_small() -> None:
    assert len(FileOffsets(np.arange(100_000, dtype=np.int64), None).encode()) < 50_000


def test_damage_is_found() -> None:
    random, data = seeded("damage"), index(set(range(0, 900, 3))).encode()
    for _ in range(300):
        at = random.randrange(len(data))
        held = data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
        with pytest.raises(Corrupt, match=r"a\.index is "):
            FileOffsets.decode(held, "a.index")
        with pytest.raises(Corrupt, match=r"a\.index is "):
            FileOffsets.decode(data[:at], "a.index")


def test_a_newer_version_is_named() -> None:
    import google_crc32c

    data = bytearray(index({1, 2}).encode()[:-4])
    data[4] = 2
    with pytest.raises(NewerFormat, match=r"a\.index is an offset index of version 2, and this release reads 1"):
        FileOffsets.decode(bytes(data) + google_crc32c.value(bytes(data)).to_bytes(4, "little"), "a.index")
