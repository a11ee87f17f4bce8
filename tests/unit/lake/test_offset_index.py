"""Offset indexes: rows are found in the files that hold them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakestore.iceberg.offset_cache import FileOffsets
from lakestore.iceberg.row_search import BUCKET_SHIFT, OFFSET_MASK, Bounds, BoundsTable, RowSearch, by_bucket, packed
from lakestore.rows.ranges import OffsetSet

KEYS = st.sets(st.integers(0, (1 << 62) - 1), max_size=50)


def index(keys: set[int], *, shuffled: bool = True) -> FileOffsets:
    held = np.array(sorted(keys), dtype=np.int64)
    order = np.random.default_rng(len(keys)).permutation(len(keys)).astype(np.int32)
    return FileOffsets(held, order if shuffled else None)


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
