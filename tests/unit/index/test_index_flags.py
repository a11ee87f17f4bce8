"""Flagged entries of the key index: remembered offsets of deleted rows, which are no live rows to anyone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from lakestore.rows.live_sum import live_sum
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import ABSENT, FLAG, is_live, live, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import encoded
from lakestore_server.index.pipe import Op, Walked
from lakestore_server.index.worker_client import IndexProcess


def test_flagged_values_are_absent_to_readers() -> None:
    values = np.array([7, ABSENT, 7 | FLAG, 0 | FLAG, 0])
    assert is_live(values).tolist() == [True, False, False, False, True]
    assert live(values).tolist() == [7, ABSENT, ABSENT, ABSENT, 0]


def test_flagged_entries_survive_a_merge_and_count_in_no_sum(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    keys = encoded([pa.array(range(4))], table_prefix(1))
    index = Index(folder, RealDisk())
    index.finish_rebuild(0, {})
    index.put(keys, np.array([10, 11 | FLAG, 12, ABSENT]))
    index.freeze(1)
    index.merge(1)
    index.merged()
    assert index.find(keys).tolist() == [10, 11 | FLAG, 12, ABSENT]
    index.close()
    process = IndexProcess(folder)
    _, data = process.ask(Op.FIND, keys.packed())
    assert np.frombuffer(data, dtype=np.int64).tolist() == [10, 11 | FLAG, 12, ABSENT]
    _, walked = process.ask(Op.WALK, [keys.prefix], number=100)
    process.close()
    assert Walked.decode(walked) == Walked(2, live_sum(np.array([10, 12])), 0, b"")
