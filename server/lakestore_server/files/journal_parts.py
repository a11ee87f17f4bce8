"""Places of large parts in a journal file that is closed: found by its frames' headers, and only in whole frames.

The file is mapped. A frame too small to have such a part costs a look at its header; the others are checked whole
before their bytes are relied upon. Behind a damaged frame nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lakestore_server.files import journal
from lakestore_server.state.journal import JournalFile, PartPlace


def file_of(path: Path, data: pa.Buffer, bytes_min: int) -> JournalFile:
    """A journal file with the places of its parts of so many bytes or more."""
    return JournalFile(path, data, tuple(_places(path.name, data, bytes_min)))


def _places(name: str, data: pa.Buffer, bytes_min: int) -> Iterator[PartPlace]:
    view = memoryview(data)
    head = journal.head_of(bytes(view[: journal.FILE_HEADER_BYTES]), name)
    at = head.frames_at if head is not None and head.version == journal.VERSION else len(view)
    while at < len(view):
        frame = journal.frame_head(bytes(view[at : at + journal.HEADER_BYTES]), 0)
        if frame is None or head is None or (frame.salt, frame.version) != (head.salt, head.version):
            return
        body_at = at + journal.HEADER_BYTES + frame.meta_bytes + frame.padding
        end = body_at + frame.body_bytes
        if frame.body_bytes >= bytes_min:
            whole = journal.frame_at(data, view, at)
            if whole is None:
                return
            for rows in whole.rows():
                if rows.nbytes >= bytes_min:
                    yield PartPlace(rows.table, rows.bucket, rows.start, rows.count, body_at + rows.at, rows.nbytes)
        at = end
