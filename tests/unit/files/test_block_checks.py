"""Checksums of blocks: what is read is compared first, once; what is not read is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore_server.files import new_segment, segment
from lakestore_server.files.segment import BLOCK, FINE_BLOCK, BlockChecks, Segment, block_crcs
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CHANGE, PREV, CommitIndex, MemoryChunk

ROWS = 50_000
SCHEMA = pa.schema([(CHANGE, pa.int8()), (PREV, pa.int64()), ("id", pa.int64()), ("text", pa.string())])


BOTH = pytest.mark.parametrize("block", [BLOCK, FINE_BLOCK])


def checks_of(
    data: bytes | pa.Buffer, block: int, damaged: int | None = None, *, is_known: bool = False
) -> BlockChecks:
    """Checks of data whose byte `damaged` has changed since; an error names the first byte of its block."""
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    crcs, held = block_crcs(whole, block=block), whole
    if damaged is not None:
        bad = bytearray(whole)
        bad[damaged] ^= 1
        held = pa.py_buffer(bytes(bad))
    return BlockChecks(held, crcs, lambda at: Corrupt(f"byte {at * block}"), is_known=is_known, block=block)


def random_bytes(size: int) -> bytes:
    return np.random.default_rng(1).bytes(size)


@BOTH
def test_ranges_are_compared_with_all_blocks_between(block: int) -> None:
    data = random_bytes(4 * block + 9)
    begins, ends = np.array([0, 2 * block]), np.array([7, 4 * block + 8])
    checks_of(data, block, block + 5).touch(begins, ends)
    with pytest.raises(Corrupt, match=f"byte {block}$"):
        checks_of(data, block, block + 5).touch(np.array([0]), np.array([3 * block]))
    with pytest.raises(Corrupt, match=f"byte {2 * block}$"):
        checks_of(data, block, 3 * block - 1).touch(np.array([4 * block, 0]), np.array([4 * block, 3 * block]))
    with pytest.raises(Corrupt, match=f"byte {block}$"):
        checks_of(data, block, block + 5).check_all()
    checks_of(data, block, block + 5, is_known=True).check_all()


@BOTH
@pytest.mark.parametrize("size", [1, FINE_BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1, 3 * BLOCK + 5 * FINE_BLOCK + 7, 9 << 20])
def test_a_changed_byte_anywhere_is_found_by_whoever_reads_all(block: int, size: int) -> None:
    data = random_bytes(size)
    places = {0, size // 2, size - 1, *(at for at in (BLOCK - 1, BLOCK, 3 * BLOCK) if at < size)}
    for at in places:
        named = f"byte {at // block * block}$"
        with pytest.raises(Corrupt, match=named):
            checks_of(data, block, at).check_all()
        with pytest.raises(Corrupt, match=named):
            checks_of(data, block, at).check(at, 1)
        looked_ahead = checks_of(data, block, at)
        looked_ahead.ahead(lambda _: True)
        assert not looked_ahead.is_needless
        with pytest.raises(Corrupt, match=named):
            looked_ahead.touch(np.array([at]), np.array([at]))
        found = [said for _, said in checks_of(data, block, at, is_known=True).scrub()]
        assert [said for said in found if said] == [named[:-1]]
        assert found[at // BLOCK]
    whole = checks_of(data, block)
    whole.ahead(lambda _: True)
    assert whole.is_needless
    assert sum(count for count, _ in whole.scrub()) == size
    assert whole.is_needless


def asked_for(data: pa.Buffer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(first byte, bytes) of each part of some data that the disk is asked for from now on."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(segment, "will_need", lambda part: asked.append((part.address - data.address, part.size)))
    return asked


@BOTH
def test_the_disk_is_asked_for_all_blocks_before_one_is_compared(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pa.py_buffer(random_bytes(9 * block + 9))
    asked = asked_for(data, monkeypatch)
    checks_of(data, block).touch(np.array([0, 5 * block, 9 * block]), np.array([block + 7, 5 * block, 9 * block + 8]))
    assert asked == [(0, 2 * block), (5 * block, block), (9 * block, 9)]


def test_who_reads_few_bytes_compares_no_more_than_the_blocks_under_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    whole = BlockChecks._is_whole

    def told(checks: BlockChecks, block: int) -> bool:
        compared.append(block)
        return whole(checks, block)

    monkeypatch.setattr(BlockChecks, "_is_whole", told)
    checks = checks_of(random_bytes(4 * BLOCK), FINE_BLOCK)
    checks.touch(np.array([7, 9 * FINE_BLOCK - 1]), np.array([8, 9 * FINE_BLOCK]))
    assert compared == [0, 8, 9]
    checks.check(FINE_BLOCK - 1, 2 * FINE_BLOCK)
    assert compared == [0, 8, 9, 1, 2]


def test_who_reads_all_asks_for_what_is_unknown_and_compares_it_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pa.py_buffer(random_bytes(9 * BLOCK + 9))
    checks = checks_of(data, FINE_BLOCK)
    checks.check(2 * BLOCK, BLOCK)
    asked = asked_for(data, monkeypatch)
    monkeypatch.setattr(BlockChecks, "_is_whole", lambda _, block: block == 9 * BLOCK // FINE_BLOCK)
    checks.check_all()
    assert asked == [(0, 2 * BLOCK), (3 * BLOCK, 6 * BLOCK + 9)]


@BOTH
def test_a_look_ahead_asks_for_what_it_will_compare_and_ends_in_between(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "AHEAD", 2)
    data = pa.py_buffer(random_bytes(7 * BLOCK))
    asked = asked_for(data, monkeypatch)
    checks = checks_of(data, block)
    left = iter([True] * 2)
    checks.ahead(lambda _: next(left, False))
    assert asked == [(0, 4 * BLOCK), (4 * BLOCK, 2 * BLOCK)]
    monkeypatch.setattr(BlockChecks, "_is_whole", lambda *_: pytest.fail("a block is compared by itself"))
    checks.ahead(lambda _: True)
    assert checks.is_needless


def test_in_the_end_nothing_is_looked_at_but_what_is_damaged() -> None:
    data = random_bytes(4 * BLOCK + 9)
    here = np.array([3 * BLOCK])
    whole, damaged = checks_of(data, BLOCK), checks_of(data, BLOCK, BLOCK + 5)
    for _ in range(20):
        whole.touch(here, here)
        damaged.touch(here, here)
    assert whole.is_needless
    assert not damaged.is_needless
    with pytest.raises(Corrupt, match=f"byte {BLOCK}$"):
        damaged.touch(np.array([BLOCK]), np.array([BLOCK]))


@pytest.mark.parametrize("count", [16, 19, 33])
def test_a_block_that_was_read_wrongly_once_is_looked_at_again(count: int) -> None:
    data = bytearray(random_bytes(count * FINE_BLOCK))
    held = pa.py_buffer(data)
    checks = checks_of(held, FINE_BLOCK)
    here = np.array([len(data) - 1])
    data[5 * FINE_BLOCK] ^= 1
    for _ in range(8):
        checks.touch(here, here)
    assert not checks.is_needless
    data[5 * FINE_BLOCK] ^= 1
    for _ in range(8):
        checks.touch(here, here)
    assert checks.is_needless


@BOTH
def test_a_block_found_damaged_later_is_not_served(block: int) -> None:
    checks = checks_of(random_bytes(2 * BLOCK), block, BLOCK, is_known=True)
    assert list(checks.scrub()) == [(BLOCK, ""), (BLOCK, f"byte {BLOCK}")]
    assert not checks.is_needless
    checks.touch(np.array([0]), np.array([BLOCK - 1]))
    with pytest.raises(Corrupt, match=f"byte {BLOCK}$"):
        checks.check(0, 2 * BLOCK)


def _stored(path: Path) -> BucketLog:
    numbers = np.arange(ROWS)
    texts = pa.array([f"text {i:010d}" for i in range(ROWS)])
    changes, prevs = pa.array(np.zeros(ROWS, dtype=np.int8)), pa.array(np.full(ROWS, -1))
    batch = pa.record_batch([changes, prevs, pa.array(numbers), texts], schema=SCHEMA)
    chunk = MemoryChunk(0, batch, CommitIndex.one(1, 1, ROWS, 0, ROWS))
    new_segment.write_segment(RealDisk(), path, new_segment.encoded([chunk], keyed=True))
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
