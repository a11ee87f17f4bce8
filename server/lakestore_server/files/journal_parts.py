"""Places of large parts in a journal file that is closed: found by its frames' headers, and only in whole frames.

Of a frame that this process wrote, what is needed is known, so that nothing is read of a file that went past the page
cache. Otherwise the file is mapped; a frame too small to have such a part costs a look at its header, another one is
checked whole before its bytes are relied upon. Behind a damaged frame nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakestore_server.files import journal
from lakestore_server.files.journal import FileHead, RowsHead
from lakestore_server.state.journal import JournalFile, PartPlace


@dataclass(frozen=True, slots=True)
class KnownFrame:
    """A frame with large batches that was written by this process."""

    body_at: int
    """Place of its body in the file."""
    end: int
    """Place of the next frame."""
    meta: bytes
    crcs: Mapping[int, npt.NDArray[np.uint32]]
    """The checksum of each block of large batches, by their places in the body."""

    def rows(self) -> list[RowsHead]:
        """Its batches."""
        return journal.rows_of(orjson.loads(self.meta))


def file_of(path: Path, data: pa.Buffer, bytes_min: int, known: Mapping[int, KnownFrame]) -> JournalFile:
    """A journal file with the places of its parts of so many bytes or more."""
    return JournalFile(path, data, tuple(_places(path.name, data, bytes_min, known)))


def _places(name: str, data: pa.Buffer, bytes_min: int, known: Mapping[int, KnownFrame]) -> Iterator[PartPlace]:
    view = memoryview(data)
    head = journal.head_of(bytes(view[: journal.FILE_HEADER_BYTES]), name)
    at = head.frames_at if head is not None and head.version == journal.VERSION else len(view)
    while head is not None and at < len(view):
        frame = known.get(at) or _read(data, view, at, bytes_min, head)
        if frame is None:
            return
        for rows in frame.rows():
            if rows.nbytes >= bytes_min:
                about = rows.table, rows.bucket, rows.start, rows.count
                yield PartPlace(*about, frame.body_at + rows.at, rows.nbytes, frame.crcs.get(rows.at))
        at = frame.end


def _read(data: pa.Buffer, view: memoryview, at: int, bytes_min: int, file: FileHead) -> KnownFrame | None:
    """A frame of a mapped file, without its meta if it cannot have a part of so many bytes; None if it is not whole."""
    head = journal.frame_head(bytes(view[at : at + journal.HEADER_BYTES]), 0)
    if head is None or (head.salt, head.version) != (file.salt, file.version):
        return None
    body_at = at + journal.HEADER_BYTES + head.meta_bytes + head.padding
    if head.body_bytes < bytes_min:
        return KnownFrame(body_at, body_at + head.body_bytes, b"{}", {})
    whole = journal.frame_at(data, view, at)
    return None if whole is None else KnownFrame(body_at, whole.end, bytes(whole.head), {})
