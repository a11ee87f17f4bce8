"""The blocks of a mapped run: each is compared with its checksum before anything in it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from lakestore_server.host.mapped_crc import crc32c_of_mapped, folded
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.entry import DamagedIndex, Ints
from lakestore_server.index.run_filter import Numbers

Bytes = npt.NDArray[np.uint8]
"""Bytes that several share; the package that has CRC32C takes no `memoryview`."""
BLOCK_BYTES = 64 << 10
BLOCK_WORDS = BLOCK_BYTES // 8
AHEAD = 64
"""Blocks that a look ahead compares at once: few turns, beside threads that compute."""


class SectionPlace(NamedTuple):
    """The place of a table's entries in a run."""

    number: int
    """The table's."""
    width: int
    """Bytes of its keys behind the prefix; 0: they are bytes, of any length."""
    at: int
    """First byte of the searched part; `samples_at` and `filter_at` begin the samples and the filter."""
    entries: int
    samples_at: int
    filter_at: int
    filter_words: int
    chunks_at: int = 0
    """First byte of the table of chunks (first rank u64, first word u64), if keys are bytes; so with what follows."""
    chunks: int = 0
    rank_bits: int = 0
    """Bits of a word that are a rank."""
    entries_at: int = 0
    """First byte of the first chunk."""

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.filter_at + 8 * self.filter_words - (self.entries_at if self.is_of_bytes else self.at)

    @property
    def guides_at(self) -> int:
        """First byte of what leads to the entries and is used uncompared: up to the end."""
        return self.chunks_at if self.is_of_bytes else self.samples_at

    @property
    def is_of_bytes(self) -> bool:
        """Whether its keys are no numbers."""
        return not self.width


class Blocks:
    """The content of a run but for its directory."""

    def __init__(self, name: str, data: Any, crcs: npt.NDArray[np.uint32], *, is_checked: bool = False) -> None:
        """`data`, a view or an Arrow buffer, ends with the last block; `is_checked`: this process wrote it."""
        self._name, self._crcs = name, crcs
        self._data: Bytes = np.frombuffer(data, np.uint8)
        self._words: Numbers = np.frombuffer(data, dtype=np.uint64, count=len(self._data) // 8)
        self._checked = np.full(len(crcs), is_checked, dtype=np.bool_)
        self.is_checked = is_checked
        """Whether every block has been compared."""

    @property
    def all_words(self) -> Numbers:
        """The words of all blocks."""
        return self._words

    def words(self, at: int, count: int) -> Numbers:
        """Words from a byte on."""
        return self._words[at // 8 : at // 8 + count]

    def check(self, words: Ints) -> None:
        """Compare the blocks of these words with their checksums, or `DamagedIndex`."""
        if self.is_checked:
            return
        blocks = words // BLOCK_WORDS
        waiting = blocks[~self._checked[blocks]]
        if len(waiting):
            self._check_blocks(np.unique(waiting).tolist())

    def check_bytes(self, first: int, last: int) -> None:
        """`check` of [first, last)."""
        if not self.is_checked:
            end = -(-last // BLOCK_BYTES)
            for block in range(first // BLOCK_BYTES, end, AHEAD):
                yield_point()
                self._check_blocks(range(block, min(block + AHEAD, end)))

    def ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Compare the blocks that nobody has used, as long as it goes on, which is asked with the bytes to come.

        A block that is damaged stays for its users. Other threads run meanwhile.
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
                    self._checked[block] = self.is_whole(block, crc32c_of_mapped)
        self.is_checked = bool(self._checked.all())

    def _crc(self, first: int, count: int) -> int:
        return crc32c_of_mapped(self._data[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES])

    def _check_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not self._checked[block]:
                if not self.is_whole(block):
                    raise DamagedIndex(self._damage(block))
                self._checked[block] = True
        self.is_checked = bool(self._checked.all())

    def is_whole(self, block: int, crc_of: Callable[[Bytes], int] = google_crc32c.value) -> bool:
        """Whether a block has its checksum now."""
        return crc_of(self._data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]) == int(self._crcs[block])

    def _size(self, block: int) -> int:
        return min(BLOCK_BYTES, len(self._data) - block * BLOCK_BYTES)

    def _damage(self, block: int) -> str:
        return f"run {self._name} of the index is damaged in block {block}"

    def scrub(self) -> Iterator[tuple[int, str]]:
        """(bytes, damage or nothing) of each block, read again."""
        for block in range(len(self._crcs)):
            yield self._size(block), "" if self.is_whole(block) else self._damage(block)
