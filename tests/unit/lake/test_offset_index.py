"""Offset indexes as files: what is read back is the same, and damage is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Corrupt, NewerFormat
from lakestore.iceberg.offset_cache import FileOffsets
from lakestore.iceberg.row_search import BUCKET_SHIFT, OFFSET_MASK, Bounds, BoundsTable, RowSearch, by_bucket, packed
from lakestore.rows.ranges import OffsetSet
from tests.support.seeds import seeded

KEYS = st.sets(st.integers(0, (1 << 62) - 1), max_size=50)


def index(keys: set[int], *, shuffled: bool = True) -> FileOffsets:
    held = np.array(sorted(keys), dtype=np.int64)
    order = np.random.default_rng(len(keys)).permutation(len(keys)).astype(np.int32)
    return FileOffsets(held, order if shuffled else None)


@given(KEYS, st.booleans())
def test_an_index_comes_back(keys: set[int], shuffled: bool) -> None:
    made = index(keys, shuffled=shuffled)
    found = FileOffsets.decode(memoryview(made.encode()), "x")
    assert found.keys.tolist() == made.keys.tolist()
    assert found.keys.dtype == np.int64
    assert (found.order is None) == (made.order is None)
    if found.order is not None and made.order is not None:
        assert found.order.tolist() == made.order.tolist()
        assert found.order.dtype == np.int32


def test_damage_is_found() -> None:
    random, data = seeded("damage"), index(set(range(0, 900, 3))).encode()
    for _ in range(300):
        at = random.randrange(len(data))
        held = data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
        with pytest.raises(Corrupt, match=r"a\.index is "):
            FileOffsets.decode(memoryview(held), "a.index")
        with pytest.raises(Corrupt, match=r"a\.index is "):
            FileOffsets.decode(memoryview(data[:at]), "a.index")


def test_a_newer_version_is_named() -> None:
    import google_crc32c

    data = bytearray(index({1, 2}).encode()[:-4])
    data[4] = 3
    with pytest.raises(NewerFormat, match=r"a\.index is an offset index of version 3, and this release reads 2"):
        FileOffsets.decode(memoryview(data + google_crc32c.value(bytes(data)).to_bytes(4, "little")), "a.index")


class OneFile:
    """A file with bounds, or without."""

    def __init__(self, keys: set[int], *, bounded: bool) -> None:
        self.keys = np.array(sorted(keys), np.int64)
        buckets, offsets = self.keys >> BUCKET_SHIFT, self.keys & OFFSET_MASK
        known = bounded and len(keys) > 0
        self.bounds = Bounds(*((int(part.min()), int(part.max())) for part in (buckets, offsets))) if known else None


ROWS = st.sets(
    st.builds(lambda bucket, offset: bucket << BUCKET_SHIFT | offset, st.integers(0, 3), st.integers(0, 300))
)


@given(
    files=st.lists(st.builds(OneFile, ROWS, bounded=st.booleans()), max_size=5),
    wide=st.sets(st.integers(0, 3 << BUCKET_SHIFT)),
    sought=ROWS,
)
def test_every_row_that_is_sought_is_found(files: list[OneFile], wide: set[int], sought: set[int]) -> None:
    wanted = np.array(sorted(sought | wide), np.int64)
    search, table = RowSearch(wanted), BoundsTable.of(files)
    numbers = search.files(table)
    for number, file in enumerate(files):
        held = [place for place, key in enumerate(file.keys.tolist()) if key in sought | wide]
        assert search.places(file.keys).tolist() == held
        assert number in numbers or not held
        if number in numbers and file.bounds is not None:
            assert any(
                file.bounds.bucket[0] <= key >> BUCKET_SHIFT <= file.bounds.bucket[1]
                and file.bounds.offset[0] <= key & OFFSET_MASK <= file.bounds.offset[1]
                for key in wanted.tolist()
            )
    by = {bucket: OffsetSet(offsets) for bucket, offsets in by_bucket([wanted]).items()}
    assert packed(by).tolist() == wanted.tolist()
