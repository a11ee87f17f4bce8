"""One key of the index, found without arrays: as arrays find it, damage included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakestore_server.index.entry import ABSENT, DAMAGED, FLAG, STORED_STRUCT, check_of, check_of_one
from lakestore_server.index.keys import ByteKeys
from lakestore_server.index.lmdb_store import LmdbStore
from lakestore_server.index.packed import PackedKeys
from tests.support import older_index


@given(st.binary(max_size=40), st.integers(0, 2**63 - 1))
def test_the_check_of_one_entry_is_that_of_many(key: bytes, value: int) -> None:
    assert check_of_one(key, value) == check_of([key], np.array([value]))[0]


def test_one_key_is_found_as_many_are(tmp_path: Path) -> None:
    keys = [b"\0\0\0\1there", b"\0\0\0\1flagged", b"\0\0\0\1long" + b"x" * 300, b"\0\0\0\1wrong", b"\0\0\0\1short"]
    older_index.put(tmp_path, [(ByteKeys(keys), np.array([7, 8 | FLAG, 9, 10, 11]))], 5)
    store = LmdbStore(str(tmp_path), 1 << 20)
    with store._env.begin(write=True) as txn:
        txn.put(keys[3], STORED_STRUCT.pack(10, 1))
    asked = [*keys[:4], b"\0\0\0\1absent"]
    lsn, many = store.find(PackedKeys.of(asked))
    one = [store.find(PackedKeys.of([key])) for key in asked]
    assert [found.tolist() for _, found in one] == [[value] for value in many.tolist()]
    assert many.tolist() == [7, 8 | FLAG, 9, DAMAGED, ABSENT]
    assert {found for found, _ in one} == {lsn}
    with store._env.begin(write=True) as txn:
        txn.put(keys[4], b"cut")
    assert store.find(PackedKeys.of([keys[4]]))[1].tolist() == [DAMAGED]
    store.close()
