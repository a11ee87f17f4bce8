"""The checksums of bytes in blocks of 64 KB, each compared with its block before something in that is first read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.files.block_crcs import BLOCK
from lakestore_server.host.mapped_crc import crc32c_of_mapped
from lakestore_server.host.mapping import will_need

Ints = npt.NDArray[np.int64]
ASKED = 64
"""Blocks that the disk is asked for ahead of the one that is compared."""


class BlockChecks:
    """Bytes, and which blocks of them are known to be whole. Thread-safe: two may compare the same block."""

    __slots__ = ("_all_known", "_crcs", "_damaged", "_data", "_known", "_next")

    def __init__(
        self,
        data: pa.Buffer,
        crcs: npt.NDArray[np.uint32],
        damaged: Callable[[int], Corrupt],
        *,
        is_known: bool,
    ) -> None:
        """`damaged` makes the error of a block; `is_known` for bytes that were made and written by this process."""
        self._data, self._crcs, self._damaged = data, crcs, damaged
        self._known = np.full(len(crcs), is_known, dtype=np.bool_)
        self._all_known = is_known
        self._next = 0
        """The block from which on one that nobody has read is looked for."""

    @property
    def is_needless(self) -> bool:
        """Whether every block is known to be whole."""
        return self._all_known

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self._crcs)

    def block_bytes(self, block: int) -> int:
        """The size of a block: the last one may be shorter."""
        return min(BLOCK, int(self._data.size) - block * BLOCK)

    def check(self, offset: int, size: int) -> None:
        """Compare the blocks under a range of bytes, or `Corrupt`; other threads run meanwhile."""
        if size and not self._all_known:
            self._compare(np.arange(offset // BLOCK, (offset + size - 1) // BLOCK + 1), crc32c_of_mapped)

    def check_all(self) -> None:
        """Compare every block, or `Corrupt`."""
        self.check(0, int(self._data.size))

    def touch(self, first: Ints, last: Ints) -> None:
        """Compare the blocks under ranges of bytes, or `Corrupt`.

        Where that was done before, a block is compared that nobody has read: in the end nothing has to be looked at.
        """
        if self._all_known or not len(first):
            return
        low, high = first // BLOCK, last // BLOCK
        if not (self._known[low].all() and self._known[high].all()):
            self._compare(np.unique(np.concatenate([low, high])))
        else:
            self._ahead()
        wide = np.flatnonzero(high - low > 1)
        for at in wide.tolist():  # rows of more than a block
            self._compare(np.arange(low[at] + 1, high[at]))

    def _ahead(self) -> None:
        """Compare the next block that nobody has read; one that is damaged stays for those who read it."""
        block = self._next + int(self._known[self._next :].argmin())
        self._next = (block + 1) % len(self._known)
        if not self._known[block]:
            self._known[block] = self._is_whole(block)
        self._all_known = bool(self._known.all())

    def ahead(self, goes_on: Callable[[], bool]) -> None:
        """Compare the blocks that nobody has read, as long as it goes on; one that is damaged stays for its readers.

        Other threads run meanwhile.
        """
        unknown = np.flatnonzero(~self._known)
        for n, block in enumerate(unknown.tolist()):
            if not goes_on():
                return
            if n % ASKED == 0:
                self._ask(unknown[n + ASKED if n else 0 : n + 2 * ASKED])
            self._known[block] = self._is_whole(block, crc32c_of_mapped)
        self._all_known = bool(self._known.all())

    def _compare(self, blocks: Ints, crc_of: Callable[[pa.Buffer], int] = crc32c) -> None:
        unknown = blocks[~self._known[blocks]]
        self._ask(unknown)
        for block in unknown.tolist():
            if not self._is_whole(block, crc_of):
                raise self._damaged(block)
            self._known[block] = True
        if len(unknown):
            self._all_known = bool(self._known.all())

    def _ask(self, blocks: Ints) -> None:
        """Have the disk read these ascending blocks, all at once: a touch waits for a few pages each."""
        if len(blocks) > 1:
            for several in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
                first, last = int(several[0]), int(several[-1])
                will_need(self._data.slice(first * BLOCK, (last - first) * BLOCK + self.block_bytes(last)))

    def again(self, block: int) -> str:
        """Compare a block again; its damage, and then it is not served any more, or nothing."""
        is_whole = self._is_whole(block)
        self._known[block] = is_whole
        self._all_known = is_whole and bool(self._known.all())
        return "" if is_whole else self._damaged(block).message

    def _is_whole(self, block: int, crc_of: Callable[[pa.Buffer], int] = crc32c) -> bool:
        return bool(crc_of(self._data.slice(block * BLOCK, self.block_bytes(block))) == self._crcs[block])
