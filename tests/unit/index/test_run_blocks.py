"""Blocks of a run: all of them are compared a few in one go, and a damaged one is told to its users alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakestore_server.files.segment import block_crcs
from lakestore_server.index import run_blocks
from lakestore_server.index.entry import DamagedIndex
from lakestore_server.index.run_blocks import BLOCK_BYTES, BLOCK_WORDS, Blocks

SIZE = 5 * BLOCK_BYTES + 512


def blocks_of(damaged: int | None = None) -> Blocks:
    """Blocks of a run whose byte `damaged` has changed since."""
    data = bytearray(np.random.default_rng(1).bytes(SIZE))
    crcs = block_crcs(pa.py_buffer(bytes(data)))
    if damaged is not None:
        data[damaged] ^= 1
    return Blocks("r.run", pa.py_buffer(bytes(data)), crcs)


@pytest.fixture(autouse=True)
def two_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_blocks, "AHEAD", 2)


def test_whole_blocks_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []
    is_whole = Blocks.is_whole

    def told(blocks: Blocks, block: int, *how: object) -> bool:
        alone.append(block)
        return is_whole(blocks, block)

    monkeypatch.setattr(Blocks, "is_whole", told)
    blocks = blocks_of()
    blocks.ahead(lambda _: True)
    assert blocks.is_checked
    assert alone == [4, 5], "there are no two whole ones at the end"


@pytest.mark.parametrize("block", range(6))
def test_a_damaged_one_stays_for_its_users(block: int) -> None:
    blocks = blocks_of(min((block + 1) * BLOCK_BYTES, SIZE) - 1)
    blocks.ahead(lambda _: True)
    assert not blocks.is_checked
    blocks.check(np.array([each for each in range(6) if each != block]) * BLOCK_WORDS)
    with pytest.raises(DamagedIndex, match=f"block {block}"):
        blocks.check(np.array([block * BLOCK_WORDS]))


def test_it_ends_in_between_and_goes_on_later() -> None:
    blocks, left = blocks_of(), iter([True, False])
    blocks.ahead(lambda _: next(left))
    assert blocks._checked.tolist() == [True, True, False, False, False, False]
    blocks.ahead(lambda _: True)
    assert blocks.is_checked
