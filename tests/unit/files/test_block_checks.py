"""Checksums of blocks: what is read is compared first, once; what is not read is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore_server.files import block_checks, new_segment
from lakestore_server.files.block_checks import BlockChecks
from lakestore_server.files.block_crcs import BLOCK, block_crcs
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CHANGE, PREV, MemoryChunk
from lakestore_server.state.commit_index import CommitIndex

ROWS = 50_000
SCHEMA = pa.schema([(CHANGE, pa.int8()), (PREV, pa.int64()), ("id", pa.int64()), ("text", pa.string())])


def _checks(data: bytes, *, is_known: bool = False) -> BlockChecks:
    crcs = block_crcs(pa.py_buffer(data))
    bad = bytearray(data)
    bad[BLOCK + 5] ^= 1
    return BlockChecks(pa.py_buffer(bytes(bad)), crcs, lambda block: Corrupt(f"block {block}"), is_known=is_known)


def test_ranges_are_compared_with_all_blocks_between() -> None:
    data = np.random.default_rng(1).bytes(4 * BLOCK + 9)
    _checks(data).touch(np.array([0, 2 * BLOCK]), np.array([7, 4 * BLOCK + 8]))
    with pytest.raises(Corrupt, match="block 1"):
        _checks(data).touch(np.array([0]), np.array([3 * BLOCK]))
    with pytest.raises(Corrupt, match="block 1"):
        _checks(data).check_all()
    _checks(data, is_known=True).check_all()


def asked_for(data: pa.Buffer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(first byte, bytes) of each part of some data that the disk is asked for from now on."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(block_checks, "will_need", lambda part: asked.append((part.address - data.address, part.size)))
    return asked


def test_the_disk_is_asked_for_all_blocks_before_one_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pa.py_buffer(np.random.default_rng(1).bytes(9 * BLOCK + 9))
    asked = asked_for(data, monkeypatch)
    checks = BlockChecks(data, block_crcs(data), lambda block: Corrupt(f"block {block}"), is_known=False)
    checks.touch(np.array([0, 5 * BLOCK, 9 * BLOCK]), np.array([BLOCK + 7, 5 * BLOCK, 9 * BLOCK + 8]))
    assert asked == [(0, 2 * BLOCK), (5 * BLOCK, BLOCK), (9 * BLOCK, 9)]
    checks.check_all()
    assert asked[3:] == [(2 * BLOCK, 3 * BLOCK), (6 * BLOCK, 3 * BLOCK)]


def test_a_look_ahead_asks_for_what_it_will_compare_and_ends_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_checks, "ASKED", 2)
    data = pa.py_buffer(np.random.default_rng(1).bytes(7 * BLOCK))
    asked = asked_for(data, monkeypatch)
    checks = BlockChecks(data, block_crcs(data), lambda block: Corrupt(f"block {block}"), is_known=False)
    left = iter([True] * 3)
    checks.ahead(lambda: next(left, False))
    assert asked == [(0, 4 * BLOCK), (4 * BLOCK, 2 * BLOCK)]
    checks.ahead(lambda: True)
    assert checks.is_needless


def test_in_the_end_nothing_is_looked_at_but_what_is_damaged() -> None:
    data = np.random.default_rng(1).bytes(4 * BLOCK + 9)
    here = np.array([3 * BLOCK])
    whole = BlockChecks(pa.py_buffer(data), block_crcs(pa.py_buffer(data)), lambda _: Corrupt(""), is_known=False)
    damaged = _checks(data)
    for _ in range(20):
        whole.touch(here, here)
        damaged.touch(here, here)
    assert whole.is_needless
    assert not damaged.is_needless
    with pytest.raises(Corrupt, match="block 1"):
        damaged.touch(np.array([BLOCK]), np.array([BLOCK]))


def test_a_block_found_damaged_later_is_not_served() -> None:
    data = np.random.default_rng(1).bytes(2 * BLOCK)
    checks = _checks(data, is_known=True)
    assert [checks.again(block) for block in range(checks.count)] == ["", "block 1"]
    assert not checks.is_needless
    with pytest.raises(Corrupt, match="block 1"):
        checks.check(0, 2 * BLOCK)


def _stored(path: Path) -> BucketLog:
    numbers = np.arange(ROWS)
    texts = pa.array([f"text {i:010d}" for i in range(ROWS)])
    changes, prevs = pa.array(np.zeros(ROWS, dtype=np.int8)), pa.array(np.full(ROWS, -1))
    batch = pa.record_batch([changes, prevs, pa.array(numbers), texts], schema=SCHEMA)
    chunk = MemoryChunk(0, batch, CommitIndex.one(1, 1, ROWS, 0, ROWS))
    new_segment.write(RealDisk(), path, [chunk], keyed=True)
    return BucketLog(SCHEMA).append(chunk).freeze()


@pytest.mark.parametrize("column", ["id", "text"])
def test_damage_is_found_by_those_who_read_it_alone(tmp_path: Path, column: str) -> None:
    log = _stored(tmp_path / "a.seg")
    data = bytearray((tmp_path / "a.seg").read_bytes())
    row = 40_000
    wanted = {"id": row.to_bytes(8, "little"), "text": f"text {row:010d}".encode()}[column]
    at = data.rindex(wanted)
    data[at] ^= 1
    (tmp_path / "b.seg").write_bytes(data)
    read = log.install([Segment(RealDisk(), tmp_path / "b.seg", lambda _: SCHEMA, keyed=True)])
    assert read.take(np.array([7]), needed=lambda _: ["id", "text"]).to_pylist() == [
        {"id": 7, "text": "text 0000000007"}
    ]
    with pytest.raises(Corrupt, match="block"):
        read.take(np.array([row]), needed=lambda _: [column])
    known = Segment(RealDisk(), tmp_path / "b.seg", lambda _: SCHEMA, keyed=True, is_known=True)
    assert log.install([known]).take(np.array([row])).num_rows == 1
