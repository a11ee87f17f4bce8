"""The checksums of bytes in blocks, each compared with its block before something in that is first read.

Who reads few bytes compares the blocks under them alone; who reads all compares pieces of 64 KB, or many of them at
once, whose checksum follows from those of their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.files.block_crcs import BLOCK, blocks_of
from lakestore_server.host.folded_crc import Crcs, folded
from lakestore_server.host.mapped_crc import crc32c_of_mapped
from lakestore_server.host.mapping import will_need

Ints = npt.NDArray[np.int64]
AHEAD = 64
"""Pieces that a look ahead compares at once, and asks the disk for before: few turns, beside threads that compute."""


class BlockChecks:
    """Bytes, and which blocks of them are known to be whole. Thread-safe: two may compare the same block."""

    __slots__ = ("_all_known", "_block", "_crcs", "_damaged", "_data", "_known", "_next", "_per_piece", "_piece_crcs")

    def __init__(
        self,
        data: pa.Buffer,
        crcs: Crcs,
        damaged: Callable[[int], Corrupt],
        *,
        is_known: bool,
        block: int = BLOCK,
    ) -> None:
        """`damaged` makes the error of a block; `is_known` for bytes that were made and written by this process."""
        self._data, self._crcs, self._damaged = data, crcs, damaged
        self._block, self._per_piece = block, BLOCK // block
        self._known = np.full(len(crcs), is_known, dtype=np.bool_)
        self._all_known = is_known
        self._piece_crcs = crcs if block == BLOCK else None
        self._next = 0
        """The block from which on one that nobody has read is looked for; a piece begins with it."""

    @property
    def is_needless(self) -> bool:
        """Whether every block is known to be whole."""
        return self._all_known

    def check(self, offset: int, size: int) -> None:
        """Compare the blocks under a small range of bytes, or all pieces around a large one, or `Corrupt`.

        Other threads run while pieces are compared.
        """
        if not size or self._all_known:
            return
        first, last = offset // self._block, (offset + size - 1) // self._block + 1
        if last - first < self._per_piece:
            self._compare(first + np.flatnonzero(~self._known[first:last]))
            return
        pieces = self._unknown_pieces(offset // BLOCK, (offset + size - 1) // BLOCK + 1)
        self._ask(pieces, BLOCK)
        for piece in pieces.tolist():
            if damage := self._again(piece):
                raise self._damaged(damage - 1)
        self._all_known = bool(self._known.all())

    def check_all(self) -> None:
        """Compare every block, or `Corrupt`."""
        self.check(0, int(self._data.size))

    def touch(self, first: Ints, last: Ints) -> None:
        """Compare the blocks under ranges of bytes, or `Corrupt`.

        Where that was done before, a piece is compared that nobody has read: in the end nothing has to be looked at.
        """
        if self._all_known or not len(first):
            return
        low, high = first // self._block, last // self._block
        blocks = np.concatenate([low, high]) if (high - low < 2).all() else _between(low, high)
        unknown = blocks[~self._known[blocks]]
        if len(unknown):
            self._compare(np.unique(unknown))
        else:
            self._next_one()

    def _next_one(self) -> None:
        """Compare the next piece that nobody has read; a block that is damaged stays for those who read it."""
        block = self._next + int(self._known[self._next :].argmin())
        piece = block // self._per_piece
        self._next = (piece + 1) % len(self._pieces) * self._per_piece
        if not self._known[block]:
            self._again(piece)
        self._all_known = bool(self._known.all())

    def ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Compare what nobody has read, as long as it goes on, which is asked with the bytes to come.

        A block that is damaged stays for its readers. Other threads run meanwhile.
        """
        wanted = folded(self._pieces[: self._data.size // BLOCK], AHEAD, BLOCK).tolist()
        for at in range(0, len(self._pieces), AHEAD):
            pieces = self._unknown_pieces(at, min(at + AHEAD, len(self._pieces)))
            if not len(pieces):
                continue
            if not goes_on(len(pieces) * BLOCK):
                return
            self._ask(np.arange(at + AHEAD if at else 0, min(at + 2 * AHEAD, len(self._pieces))), BLOCK)
            if at // AHEAD < len(wanted) and self._crc(at, AHEAD, BLOCK) == wanted[at // AHEAD]:
                self._known[at * self._per_piece : (at + AHEAD) * self._per_piece] = True
            else:
                for piece in pieces.tolist():
                    self._again(piece)
        self._all_known = bool(self._known.all())

    def scrub(self) -> Iterator[tuple[int, str]]:
        """(bytes, damage or nothing) of each piece, compared again; a damaged block is not served any more."""
        for piece in range(len(self._pieces)):
            damage = self._again(piece)
            self._all_known = not damage and bool(self._known.all())
            said = self._damaged(damage - 1).message if damage else ""
            yield int(self._bytes(piece, 1, BLOCK).size), said

    @property
    def _pieces(self) -> Crcs:
        """The checksum of each 64 KB; 0 for those of several blocks of which the last one is cut short."""
        if self._piece_crcs is None:
            found = np.zeros(blocks_of(self._data.size), dtype=np.uint32)
            whole = folded(self._crcs[: self._data.size // self._block], self._per_piece, self._block)
            found[: len(whole)] = whole
            self._piece_crcs = found
        return self._piece_crcs

    def _unknown_pieces(self, first: int, last: int) -> Ints:
        """Pieces of [first, last) that have an unknown block."""
        begins = np.arange(first * self._per_piece, min(last * self._per_piece, len(self._known)), self._per_piece)
        known = np.logical_and.reduceat(self._known[: last * self._per_piece], begins)
        return first + np.flatnonzero(~known)

    def _again(self, piece: int) -> int:
        """Compare a piece and note what is known by that; its first damaged block counted from 1, or 0."""
        first = piece * self._per_piece
        last = min(first + self._per_piece, len(self._crcs))
        if self._crc(piece, 1, BLOCK) == int(self._pieces[piece]):
            self._known[first:last] = True
            return 0
        blocks = [self._is_whole(block) for block in range(first, last)]
        self._known[first:last] = blocks
        return 0 if all(blocks) else first + blocks.index(False) + 1

    def _compare(self, unknown: Ints) -> None:
        self._ask(unknown, self._block)
        for block in unknown.tolist():
            if not self._is_whole(block):
                raise self._damaged(block)
            self._known[block] = True
        self._all_known = bool(self._known.all())

    def _ask(self, parts: Ints, size: int) -> None:
        """Have the disk read these ascending parts of one size, all at once: a touch waits for a few pages each."""
        if len(parts) > 1:
            for several in np.split(parts, np.flatnonzero(np.diff(parts) > 1) + 1):
                will_need(self._bytes(int(several[0]), len(several), size))

    def _bytes(self, first: int, count: int, size: int) -> pa.Buffer:
        return self._data.slice(first * size, min(count * size, self._data.size - first * size))

    def _crc(self, first: int, count: int, size: int) -> int:
        return crc32c_of_mapped(self._bytes(first, count, size))

    def _is_whole(self, block: int) -> bool:
        return crc32c(self._bytes(block, 1, self._block)) == int(self._crcs[block])


def _between(low: Ints, high: Ints) -> Ints:
    """All numbers of ranges, the last one of each included."""
    counts = high - low + 1
    begins = np.cumsum(counts) - counts
    return np.repeat(low - begins, counts) + np.arange(counts.sum())
