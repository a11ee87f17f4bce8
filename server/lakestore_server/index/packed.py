"""Index keys in one buffer: the form in which keys travel through the pipe and are sorted for LMDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.index.entry import PREFIX_BYTES, Ints

Matrix = npt.NDArray[np.uint8]
_SORTED_MIN = 256
"""Keys from which on an order pays."""


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """Keys in one buffer."""

    blob: bytes
    count: int
    width: int
    """Bytes of each key; 0: the lengths differ, and keys are padded to whole words."""
    lengths: bytes = b""
    """The bytes of each key, as uint32; empty with a width."""

    @staticmethod
    def of(keys: Sequence[bytes]) -> PackedKeys:
        """Keys that are there one by one."""
        blob = b"".join(keys)
        width = len(keys[0]) if keys else 0
        if not keys or (width and len(blob) == len(keys) * width and len(max(keys, key=len)) == width):
            return PackedKeys(blob, len(keys), width)
        return PackedKeys.of_padded(PaddedBytes.of(keys))

    @staticmethod
    def of_padded(keys: PaddedBytes) -> PackedKeys:
        """Keys whose lengths may differ."""
        return PackedKeys(keys.packed(), len(keys), 0, keys.lengths.tobytes())

    def padded(self) -> PaddedBytes:
        """Keys whose lengths may differ."""
        return PaddedBytes.of_buffer(self.blob, np.frombuffer(self.lengths, dtype=np.uint32))

    def __len__(self) -> int:
        return self.count

    def listed(self) -> list[bytes]:
        """The keys one by one."""
        if not self.count:
            return []
        if self.width:
            keys: list[bytes] = np.frombuffer(self.blob, dtype=f"V{self.width}").tolist()
            return keys
        return self.padded().listed()

    def matrix(self) -> Matrix:
        """Keys of one width as rows of bytes."""
        return np.frombuffer(self.blob, dtype=np.uint8).reshape(-1, self.width)

    def ascending(self) -> tuple[list[bytes], Ints]:
        """(keys in order, unless they are few: neighbours lie on one page; the place of each)."""
        if self.count < _SORTED_MIN:
            return self.listed(), np.arange(self.count)
        if not self.width:
            padded = self.padded()
            order = padded.order()
            return padded.take(order).listed(), order
        matrix = self.matrix()
        order = order_of(matrix)
        return rows_of(matrix[order]), order


def rows_of(matrix: Matrix) -> list[bytes]:
    """The rows of a matrix one by one."""
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}").ravel().tolist()
    return rows


def order_of(matrix: Matrix) -> Ints:
    """The order of rows, compared as numbers of eight bytes; equal rows stay as they came."""
    rows, width = matrix.shape
    is_one_table = width > PREFIX_BYTES and (matrix[:, :PREFIX_BYTES] == matrix[:1, :PREFIX_BYTES]).all()
    words = []
    for at in range(PREFIX_BYTES if is_one_table else 0, width, 8):
        word = np.zeros((rows, 8), dtype=np.uint8)
        word[:, : min(8, width - at)] = matrix[:, at : at + 8]
        words.append(word.view(">u8").ravel().astype(np.uint64))
    return np.lexsort(words[::-1])
