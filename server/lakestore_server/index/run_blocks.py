"""The blocks of a mapped run. Each is checked before anything in it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from lakestore_server.host.mapped_crc import crc32c_of_mapping, folded
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.entry import DamagedIndex, Ints
from lakestore_server.index.run_filter import Numbers

Bytes = npt.NDArray[np.uint8]
"""Shared bytes. The CRC32C package accepts no `memoryview`."""
BLOCK_BYTES = 64 << 10
BLOCK_WORDS = BLOCK_BYTES // 8
AHEAD = 64
"""Blocks that `ahead` checks at once: many, so that it takes few turns beside computing threads."""


class SectionPlace(NamedTuple):
    """The position of a table's entries in a run."""

    number: int
    """The table's number."""
    width: int
    """Bytes of its keys after the prefix; 0 for keys of any length."""
    at: int
    """First byte of the searched part; `samples_at` and `filter_at` begin the samples and the filter."""
    entries: int
    samples_at: int
    filter_at: int
    filter_words: int
    chunks_at: int = 0
    """Position of the table of chunks (first rank u64, first word u64). Byte keys only, like the following."""
    chunks: int = 0
    rank_bits: int = 0
    """Bits of a word that are a rank."""
    entries_at: int = 0
    """Position of the first chunk."""

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.filter_at + 8 * self.filter_words - (self.entries_at if self.is_of_bytes else self.at)

    @property
    def guides_at(self) -> int:
        """Position of samples and filter, which are used without a check; they reach to the end."""
        return self.chunks_at if self.is_of_bytes else self.samples_at

    @property
    def is_of_bytes(self) -> bool:
        """Whether its keys are bytes, not numbers."""
        return not self.width


class Blocks:
    """The content of a run except its directory."""

    def __init__(self, name: str, data: Any, crcs: npt.NDArray[np.uint32], *, is_checked: bool = False) -> None:
        """`data`, a view or an Arrow buffer, ends with the last block. `is_checked`: this process wrote it."""
        self._name, self._crcs = name, crcs
        self._data: Bytes = np.frombuffer(data, np.uint8)
        self._words: Numbers = np.frombuffer(data, dtype=np.uint64, count=len(self._data) // 8)
        self._checked = np.full(len(crcs), is_checked, dtype=np.bool_)
        self.is_checked = is_checked
        """Whether every block has been checked."""

    @property
    def all_words(self) -> Numbers:
        """The words of all blocks."""
        return self._words

    def words(self, at: int, count: int) -> Numbers:
        """`count` words from a position on."""
        return self._words[at // 8 : at // 8 + count]

    def check(self, words: Ints) -> None:
        """Check the blocks of these words. Raises `DamagedIndex`."""
        if self.is_checked:
            return
        blocks = words // BLOCK_WORDS
        waiting = blocks[~self._checked[blocks]]
        if len(waiting):
            self._check_blocks(np.unique(waiting).tolist())

    def check_bytes(self, first: int, last: int) -> None:
        """Check the blocks of [first, last)."""
        if not self.is_checked:
            end = -(-last // BLOCK_BYTES)
            for block in range(first // BLOCK_BYTES, end, AHEAD):
                yield_point()
                self._check_blocks(range(block, min(block + AHEAD, end)))

    def ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Check unused blocks while `goes_on` returns True. It is called with the number of bytes of the next check.

        A damaged block is reported later, to its user. Other threads can run meanwhile.
        """
        wanted = folded(self._crcs[: len(self._data) // BLOCK_BYTES], AHEAD, BLOCK_BYTES).tolist()
        for at in range(0, len(self._crcs), AHEAD):
            blocks = at + np.flatnonzero(~self._checked[at : at + AHEAD])
            if not len(blocks):
                continue
            if not goes_on(len(blocks) * BLOCK_BYTES):
                return
            if at // AHEAD < len(wanted) and self._crc(at, AHEAD) == wanted[at // AHEAD]:
                self._checked[at : at + AHEAD] = True
            else:
                for block in blocks.tolist():
                    self._checked[block] = self.is_whole(block, crc32c_of_mapping)
        self.is_checked = bool(self._checked.all())

    def _crc(self, first: int, count: int) -> int:
        return crc32c_of_mapping(self._data[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES])

    def _check_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not self._checked[block]:
                if not self.is_whole(block):
                    raise DamagedIndex(self._damage(block))
                self._checked[block] = True
        self.is_checked = bool(self._checked.all())

    def is_whole(self, block: int, crc_of: Callable[[Bytes], int] = google_crc32c.value) -> bool:
        """Whether a block matches its checksum now."""
        return crc_of(self._data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]) == int(self._crcs[block])

    def _size(self, block: int) -> int:
        return min(BLOCK_BYTES, len(self._data) - block * BLOCK_BYTES)

    def _damage(self, block: int) -> str:
        return f"run {self._name} of the index is damaged in block {block}"

    def scrub(self) -> Iterator[tuple[int, str]]:
        """Check each block again: yields (bytes, damage or "")."""
        for block in range(len(self._crcs)):
            yield self._size(block), "" if self.is_whole(block) else self._damage(block)
