"""The verb `copy_checkpoint`: a checkpoint and its segment files for a new server of the shared journal.

- The bytes come from the open maps of the segments, so checkpoints, merges and retention go on meanwhile.
- The journal keeps the messages after the checkpoint while the stream is open, and for an hour more.
- The caller says what it has of each file, by size and checksum. Only the rest is sent.
- The index is not copied: the new server rebuilds it.
- While commits come, the copy is not faster than `limits.copy_bytes`, so clients keep most of the machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping

from lakestore.errors import Exhausted
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.checkpoint import Checkpointer, CheckpointFile
from lakestore_server.host import event_log
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate.peers import journal_for

log = logging.getLogger("lakestore.copy")
COPIES_MAX = 2
"""Copies at once. A third server asks another one, or later."""
BUSY_SECONDS = 5.0
PIECE_BYTES = 2 << 20
GIVEN_SECONDS = 0.005
"""The longest wait for small commits before each piece."""
BUSY_PERIOD = 1.0
"""Seconds after a commit in which the copy is slow."""
MADE_UP_SECONDS = 0.1
"""The most lost time that a copy makes up."""


class CopyPace:
    """The rate of one copy, for one thread."""

    def __init__(self, bytes_per_second: int, now: float, lsn: int) -> None:
        self._rate, self._lsn = bytes_per_second, lsn
        self._due, self._busy_until = now, now + BUSY_PERIOD
        """When the next piece may go, and how long clients are assumed to be writing."""

    def wait(self, sent: int, now: float, lsn: int) -> float:
        """Seconds to wait after a piece of `sent` bytes, with the server's LSN."""
        if lsn != self._lsn:
            self._lsn, self._busy_until = lsn, now + BUSY_PERIOD
        if not self._rate or now >= self._busy_until:
            self._due = now
            return 0.0
        self._due = max(self._due + sent / self._rate, now - MADE_UP_SECONDS)
        return max(self._due - now, 0.0)


class CopyVerbs:
    """The verb `copy_checkpoint`. Thread-safe."""

    def __init__(self, engine: Engine, checkpointer: Checkpointer) -> None:
        self._engine, self._checkpointer = engine, checkpointer
        self._room = threading.Semaphore(COPIES_MAX)

    def copy_checkpoint(self, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        """A list of files, then their bytes. `Invalid` for a journal in files, `Exhausted` if others copy."""
        journal = journal_for(self._engine, request.address, request.timeline, "the new server")
        if not self._room.acquire(blocking=False):
            raise Exhausted(f"{COPIES_MAX} servers copy from this one: ask another one", retry_after=BUSY_SECONDS)
        try:
            yield from self._copied(journal, request)
        finally:
            self._room.release()

    def _copied(self, journal: SharedJournal, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        with self._checkpointer.held() as made:
            hold = journal.hold(request.address, made.content.place)
        sources = list(made.contents())
        lsn = made.lsn
        size = sum(source.data.size for source in sources)
        about = {"to": request.address, "lsn": lsn, "files": len(sources), "bytes": size}
        event_log.event(log, logging.INFO, "is copied", **about)
        is_whole = False
        try:
            yield pb.CopyPiece(files=[pb.CopyFile(path=source.path, size=source.data.size) for source in sources])
            known = {file.path: file for file in request.files}
            pace = CopyPace(self._engine.limits.copy_bytes, time.monotonic(), self._engine.view.lsn)
            for number, source in enumerate(sources):
                yield from self._pieces(number, source, known, pace)
            is_whole = True
        finally:
            journal.release(hold)
            event_log.event(log, logging.INFO, "copy ended", to=request.address, lsn=lsn, whole=is_whole)

    def _pieces(
        self, number: int, source: CheckpointFile, known: Mapping[str, pb.CopyFile], pace: CopyPace
    ) -> Iterator[pb.CopyPiece]:
        """The bytes of a file that the caller lacks. The last piece has the checksum of all of them."""
        for segment in source.segments:
            segment.check_all()
        at, crc = _begin(source, known.get(source.path))
        while True:
            data = source.data.slice(at, min(PIECE_BYTES, source.data.size - at))
            crc, is_last = crc32c(data, crc), at + data.size == source.data.size
            piece = pb.CopyPiece(file=number, offset=at, data=data.to_pybytes(), is_last=is_last)
            if is_last:
                piece.crc32c = crc
            yield piece
            if is_last:
                return
            at += data.size
            self._engine.refuse_when_draining()
            self._engine.loop.priority.answered(GIVEN_SECONDS)
            time.sleep(pace.wait(data.size, time.monotonic(), self._engine.view.lsn))


def _begin(source: CheckpointFile, known: pb.CopyFile | None) -> tuple[int, int]:
    """(number of bytes that the caller has, their checksum)."""
    if known is None or not 0 < known.size <= source.data.size:
        return 0, 0
    crc = 0
    for at in range(0, known.size, PIECE_BYTES):
        crc = crc32c(source.data.slice(at, min(PIECE_BYTES, known.size - at)), crc)
    return (known.size, crc) if crc == known.crc32c else (0, 0)
