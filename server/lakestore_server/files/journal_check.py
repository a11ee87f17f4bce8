"""A journal file held against its checksums piece by piece: however large it is, few of its bytes are in memory."""

from __future__ import annotations

from collections.abc import Iterator

from lakestore.rows.ipc import crc32c
from lakestore_server.files import journal
from lakestore_server.host.uncached_file import BLOCK


class _Bytes:
    """The bytes of a file in their order, one piece of them held."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece, self._used = pieces, b"", 0
        self.at = 0
        """Place of the next byte in the file."""

    def parts(self, size: int) -> Iterator[bytes]:
        """The next bytes, so many or as many as there are."""
        while size:
            if self._used == len(self._piece):
                self._piece, self._used = next(self._pieces, b""), 0
                if not self._piece:
                    return
            part = self._piece[self._used : self._used + size]
            self._used, self.at, size = self._used + len(part), self.at + len(part), size - len(part)
            yield part

    def take(self, size: int) -> bytes:
        """The next few bytes together; fewer at the end."""
        return b"".join(self.parts(size))

    def crc(self, size: int, crc: int) -> int:
        """A checksum with the next bytes added to it."""
        for part in self.parts(size):
            crc = crc32c(part, crc)
        return crc


def check(pieces: Iterator[bytes], name: str) -> None:
    """`Corrupt` unless these are whole frames of a journal file behind its header, and zeros that fill up a block."""
    file = _Bytes(pieces)
    first = file.take(journal.FILE_HEADER_BYTES)
    head = journal.head_of(first, name)
    if head is None:
        if first:
            raise journal.damaged(name, 0)
        return
    opening = first[head.frames_at :]  # a file of version 1 begins with its first frame
    while opening := opening or file.take(journal.HEADER_BYTES):
        start = file.at - len(opening)
        frame = journal.frame_head(opening, 0)
        if frame is None or (frame.salt, frame.version) != (head.salt, head.version):
            rest = opening + file.take(BLOCK)
            if journal.is_filling(rest, start + len(rest)):
                return
            raise journal.damaged(name, start)
        crc = file.crc(frame.meta_bytes, frame.crc)
        is_cut = len(file.take(frame.padding)) < frame.padding
        if is_cut or file.crc(frame.body_bytes, crc) != frame.stored_crc:
            raise journal.damaged(name, start)
        opening = b""
