"""Places of large parts in a journal file that is closed: found by its frames' headers, and only in whole frames.

The file is mapped. A frame too small to have such a part costs a look at its header. Of one that this process wrote the
checksums are known, so its rows are not read for that; another one is checked whole before its bytes are relied upon.
Behind a damaged frame nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.rows.ipc import crc32c
from lakestore_server.files import journal
from lakestore_server.files.journal import FrameHead, RawFrame
from lakestore_server.state.journal import JournalFile, PartPlace


@dataclass(frozen=True, slots=True)
class KnownFrame:
    """A large frame that was written by this process."""

    opening_crc: int
    """The checksum of header and meta."""
    crcs: Mapping[int, npt.NDArray[np.uint32]]
    """The checksum of each block of large batches, by their places in the body."""


def file_of(path: Path, data: pa.Buffer, bytes_min: int, known: Mapping[int, KnownFrame]) -> JournalFile:
    """A journal file with the places of its parts of so many bytes or more."""
    return JournalFile(path, data, tuple(_places(path.name, data, bytes_min, known)))


def _places(name: str, data: pa.Buffer, bytes_min: int, known: Mapping[int, KnownFrame]) -> Iterator[PartPlace]:
    view = memoryview(data)
    head = journal.head_of(bytes(view[: journal.FILE_HEADER_BYTES]), name)
    at = head.frames_at if head is not None and head.version == journal.VERSION else len(view)
    while at < len(view):
        frame = journal.frame_head(bytes(view[at : at + journal.HEADER_BYTES]), 0)
        if frame is None or head is None or (frame.salt, frame.version) != (head.salt, head.version):
            return
        body_at = at + journal.HEADER_BYTES + frame.meta_bytes + frame.padding
        if frame.body_bytes >= bytes_min:
            found = _known(data, at, frame, known.get(at), bytes_min)
            whole, crcs = (journal.frame_at(data, view, at), {}) if found is None else found
            if whole is None:
                return
            for rows in whole.rows():
                if rows.nbytes >= bytes_min:
                    about = rows.table, rows.bucket, rows.start, rows.count
                    yield PartPlace(*about, body_at + rows.at, rows.nbytes, crcs.get(rows.at))
        at = body_at + frame.body_bytes


def _known(
    data: pa.Buffer, at: int, head: FrameHead, known: KnownFrame | None, bytes_min: int
) -> tuple[RawFrame, Mapping[int, npt.NDArray[np.uint32]]] | None:
    """A frame whose meta is whole, with the checksums of all its large parts; None if it has to be read."""
    if known is None:
        return None
    meta = data.slice(at + journal.HEADER_BYTES, head.meta_bytes)
    if crc32c(meta, head.crc) != known.opening_crc:
        return None
    frame = RawFrame(head.lsn, meta, data.slice(0, 0))
    large = (rows for rows in frame.rows() if rows.nbytes >= bytes_min)
    return (frame, known.crcs) if all(rows.at in known.crcs for rows in large) else None
