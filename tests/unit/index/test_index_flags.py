"""Flagged entries of the key index: remembered offsets of deleted rows, which are no live rows to anyone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakestore.rows.live_sum import live_sum
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import ABSENT, FLAG, is_live, live, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import encoded


def test_flagged_values_are_absent_to_readers() -> None:
    values = np.array([7, ABSENT, 7 | FLAG, 0 | FLAG, 0])
    assert is_live(values).tolist() == [True, False, False, False, True]
    assert live(values).tolist() == [7, ABSENT, ABSENT, ABSENT, 0]


@pytest.mark.parametrize("ids", [range(4), list("abcd")], ids=["numbers", "bytes"])
def test_flagged_entries_survive_a_merge_and_count_in_no_sum(tmp_path: Path, ids: Sequence[object]) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    keys = encoded([pa.array(ids)], table_prefix(1))
    index = Index(folder=folder, disk=RealDisk())
    index.put(keys, np.array([10, 11 | FLAG, 12, ABSENT]))
    index.freeze(1)
    index.merge(1)
    index.merged()
    assert index.find(keys).tolist() == [10, 11 | FLAG, 12, ABSENT]
    index = Index(folder=folder, disk=RealDisk(), runs=index.to_name().files, checkpoint_lsn=1, index_lsn=1)
    assert index.find(keys).tolist() == [10, 11 | FLAG, 12, ABSENT], "nothing of it is in memory now"
    lsn, parts = index.walk(keys.prefix, 100)
    walked = list(parts)
    assert lsn == 1
    assert sum(part.live for part in walked) == 2
    assert sum(part.total for part in walked) == live_sum(np.array([10, 12]))
    assert not any(part.damaged for part in walked)
