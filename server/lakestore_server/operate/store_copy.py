"""The copy of a checkpoint from a store: the stream of pieces that another server would send.

- Parts are fetched several at once and given in order.
- A file that the disk has whole, by size and checksum, is not fetched. One that it has in part is fetched again.
- If the newest checkpoint cannot be read, the one before it is taken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lakestore.errors import Corrupt, NotFound, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.journals.checkpoint_store import PART_BYTES, CheckpointStore, StoredCheckpoint, StoredFile

log = logging.getLogger("lakestore.copy")
READS = 8
"""Parts on their way at once."""


class StoreCopy:
    """`CopyStore` for the journal of one timeline."""

    def __init__(self, store: CheckpointStore, timeline: str) -> None:
        self._store, self._timeline, self.url = store, timeline, store.url

    def has_checkpoint(self) -> bool:
        head = self._store.newest_head(self._timeline)
        return head is not None and head.checkpoint is not None

    def pieces(self, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        """A list of files, then their bytes. `Unavailable` if a newer checkpoint has replaced this one meanwhile."""
        files = self._newest_files()
        yield pb.CopyPiece(files=[pb.CopyFile(path=file.path, size=file.size) for file in files])
        known = {file.path: file for file in request.files}
        try:
            yield from self._parts(files, known)
        except NotFound as error:
            raise Unavailable(f"{error.message}: a newer checkpoint has replaced this one") from error

    def _newest_files(self) -> list[StoredFile]:
        """The files of the newest checkpoint that can be read."""
        damage: Corrupt | None = None
        for checkpoint in self._checkpoints():
            try:
                return self._store.files_of(checkpoint)
            except NotFound as error:
                log.info("%s", error.message)
            except Corrupt as error:
                log.warning("%s: the checkpoint before it is taken", error.message)
                damage = error
        raise damage or Unavailable(f"{self.url} has no checkpoint any more")

    def _checkpoints(self) -> Iterator[StoredCheckpoint]:
        """The checkpoints, the newest first, each once."""
        seen = set[str]()
        for head in reversed(self._store.heads(self._timeline).heads):
            if head.checkpoint is not None and head.checkpoint.manifest not in seen:
                seen.add(head.checkpoint.manifest)
                yield head.checkpoint

    def _parts(self, files: Sequence[StoredFile], known: Mapping[str, pb.CopyFile]) -> Iterator[pb.CopyPiece]:
        flights: deque[tuple[pb.CopyPiece, Future[bytes] | None]] = deque()
        pool = ThreadPoolExecutor(READS, thread_name_prefix="checkpoint-reads")
        try:
            for number, file in enumerate(files):
                have = known.get(file.path)
                if have is not None and have.size == file.size and have.crc32c == file.crc and file.size:
                    whole = pb.CopyPiece(file=number, offset=file.size, is_last=True, crc32c=file.crc)
                    flights.append((whole, None))
                    continue
                for part in range(len(file.crcs)):
                    piece = pb.CopyPiece(file=number, offset=part * PART_BYTES, is_last=part + 1 == len(file.crcs))
                    if piece.is_last:
                        piece.crc32c = file.crc
                    flights.append((piece, pool.submit(self._store.part, file, part)))
                    if len(flights) >= READS:
                        yield _landed(*flights.popleft())
            while flights:
                yield _landed(*flights.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _landed(piece: pb.CopyPiece, data: Future[bytes] | None) -> pb.CopyPiece:
    if data is not None:
        piece.data = data.result()
    return piece
