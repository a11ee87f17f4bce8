"""A frame that is to be written: a commit record as bytes of a journal file, and the checksums of its large batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.rows.ipc import crc32c
from lakestore_server.files import journal
from lakestore_server.files.block_crcs import BLOCK, extended, joined
from lakestore_server.state.journal import Buffer, Plain, RowsMessage, plain

UNSYNCED_MAX = (1 << 16) - 1


class Frame(NamedTuple):
    """A frame to write."""

    parts: list[Plain]
    """One after the other."""
    body_at: int
    """Place of the body, from the frame's first byte."""
    crcs: dict[int, npt.NDArray[np.uint32]]
    """Checksums of the blocks of large batches, by the place of their first byte in the body."""


def framed(lsn: int, record: Sequence[Buffer], salt: int, unsynced: int = 0) -> Frame:
    """A record's frame, to write into a file with that salt behind so many frames that are not durable yet."""
    meta, *parts = record
    sizes = len(meta), journal.nbytes_of(parts)
    header = journal.HEADER.pack(journal.MAGIC, journal.VERSION, min(unsynced, UNSYNCED_MAX), lsn, *sizes, salt)
    crc = crc32c(meta, crc32c(header))
    crcs: dict[int, npt.NDArray[np.uint32]] = {}
    body: list[Plain] = []
    at = 0
    for part in parts:
        data = plain(part)
        if isinstance(data, pa.Buffer) and data.size >= BLOCK:
            known = part.crcs if isinstance(part, RowsMessage) else None
            crc, crcs[at] = extended(data, crc) if known is None else (joined(crc, data, known), known)
        else:
            crc = crc32c(data, crc)
        body.append(data)
        at += journal.nbytes_of((data,))
    head = (header + journal.CRC.pack(crc)).ljust(journal.HEADER_BYTES, b"\0")
    padding = journal.PADDING[: -len(meta) % 64]
    return Frame([head, plain(meta), padding, *body], len(head) + len(meta) + len(padding), crcs)
