"""The first start of a server of a shared journal, or its start after it was away for too long: it copies a checkpoint
and its segments from another server.

- Each file is checked by size and checksum and synced. The checkpoint comes last, so the file `restoring` and an
  incomplete folder go together, and no power cut leaves a folder that looks complete.
- Files that are there already, whole or in part, are not sent again. A server that answers no more is replaced by
  another one, whose checkpoint may be newer: files that are equal stay.
- The store of checkpoints is asked before other servers.
- The copied server holds the journal for this one. This one sends nothing to the journal before it serves.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from lakestore.errors import (
    Corrupt,
    Denied,
    Exhausted,
    Invalid,
    LakestoreError,
    NewerFormat,
    NotAuthenticated,
    OtherTimeline,
    Unavailable,
)
from lakestore.limits import Limits
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import checkpoint, data_folder, journal_file
from lakestore_server.files.data_folder import COPY_MARK, RESTORING, SEGMENTS
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock
from lakestore_server.host.disk import AppendFile, Disk
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate.backup import write_file
from lakestore_server.state.judge import ForeignLog

log = logging.getLogger("lakestore.copy")
RETRY_SECONDS = 2.0
PEERLESS_SECONDS = 15.0
"""Time in which another server must have reported in the journal: followers report every ten seconds."""
LOG_SECONDS = 5.0
FILES_MAX = 100_000
"""Files that a request names; further ones are sent again."""
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_SEGMENT_FILE = re.compile(rf"{SEGMENTS}/{_NAME}/{_NAME}")
_CHECKPOINT_FILE = re.compile(rf"{checkpoint.PREFIX}[0-9]{{20}}")
_REFUSALS = (Denied, NotAuthenticated, Invalid, OtherTimeline, NewerFormat)
"""Errors of a peer that do not pass."""
Pieces: TypeAlias = Callable[[str, pb.CopyCheckpointRequest], Iterator[pb.CopyPiece]]
"""Asks the server at an address for a copy."""


@dataclass(slots=True)
class CopyProgress:
    """The progress of a copy. One thread changes it, any may read it."""

    peer: str = ""
    done: int = 0
    total: int = 0
    """Bytes, with those that were there before; 0 as long as no peer has answered."""
    received: int = 0
    """Bytes that came over the network from this peer."""
    seconds: float = 0.0
    """Time since this peer began to send."""
    problem: str = ""
    """Why the copy stands still; empty while it runs."""

    @property
    def percent(self) -> float:
        return round(100 * self.done / self.total, 1) if self.total else 0.0

    @property
    def mb_per_second(self) -> float:
        return round(self.received / self.seconds / 1e6, 1) if self.seconds else 0.0


@dataclass(slots=True)
class _Target:
    """One file of the copy."""

    path: Path
    size: int
    file: AppendFile | None = None
    at: int = 0
    crc: int = 0


class CopyStore(Protocol):
    """A store of checkpoints that is no server."""

    url: str

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to copy; `Unavailable` without an answer."""

    def pieces(self, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        """The stream that a server would send."""


def is_due(disk: Disk, folder: Path, journal: SharedJournal, store: CopyStore | None = None) -> bool:
    """Whether a server on this folder needs a checkpoint from elsewhere to follow the journal: it has none, or the
    messages after its newest one are gone. With a checkpoint in the store no empty folder reads all of the journal."""
    if data_folder.is_half_copied(folder):
        return True
    if journal_file.names(disk, folder):
        return False
    held = checkpoint.newest(disk, folder)
    if held is not None:
        return journal.lacks_beginning() and journal.lacks(held.place)
    return journal.lacks_beginning() or (store is not None and _has_checkpoint(store))


def _has_checkpoint(store: CopyStore) -> bool:
    """Whether the store has a checkpoint. A store that gives none is not needed, as the journal has all."""
    try:
        return store.has_checkpoint()
    except (Unavailable, Corrupt) as error:
        log.warning("the start reads the journal from its first message: %s", error.message)
        return False


@dataclass(slots=True)
class FirstCopy:
    """The copy into one folder."""

    folder: Path
    disk: Disk
    limits: Limits
    journal: SharedJournal
    address: str
    """Where this server will be reached."""
    pieces: Pieces
    """The streams of other servers."""
    clock: Clock
    sleep: Callable[[float], None]
    store: CopyStore | None = None
    peerless_seconds: float = PEERLESS_SECONDS
    progress: CopyProgress = field(default_factory=CopyProgress)
    _logged_at: float = 0.0
    _began: float = 0.0

    def run(self) -> None:
        """Copy until the folder is complete, from whichever server answers. Raises if all of them refuse, if there is
        no other server, or if this machine has no room."""
        timeline = self.journal.timeline()
        lonely_since = self.clock.monotonic()
        while True:
            if self._is_copied_from_store(timeline):
                return
            peers = self.journal.peers(self.address)
            if peers or (self.store is not None and self.progress.problem):
                lonely_since = self.clock.monotonic()
            elif self.clock.monotonic() - lonely_since >= self.peerless_seconds:
                raise ForeignLog(
                    "the journal's beginning is gone, and no other server has reported in it: start another server, or"
                    f" begin with a backup of one (lakestore restore SRC --data {self.folder} --replica)"
                )
            if self._is_copied(peers, timeline):
                return
            self.sleep(RETRY_SECONDS)

    def _mark(self) -> None:
        """Note durably that the folder is incomplete, before anything in it is changed."""
        if not data_folder.is_half_copied(self.folder):
            write_file(self.disk, self.folder / RESTORING, [COPY_MARK])
            self.disk.sync_folder(self.folder)
        self.disk.make_folder(self.folder / SEGMENTS)

    def _is_copied_from_store(self, timeline: str) -> bool:
        """Try the store. If it has no checkpoint or does not answer, other servers are asked."""
        store = self.store
        if store is None:
            return False
        self.progress.peer = store.url
        try:
            if not store.has_checkpoint():
                self.progress.problem = ""
                return False
            self._copy(store.url, timeline, lambda _, request: store.pieces(request))
        except OSError as error:
            raise self._told(error) from error
        except _NoRoom as error:
            raise Exhausted(str(error)) from error
        except LakestoreError as error:
            if isinstance(error, _REFUSALS):
                raise
            self._note(store.url, error)
            return False
        return True

    def _note(self, peer: str, error: LakestoreError) -> None:
        self.progress.problem = f"{peer}: {error.message}"
        event_log.event(log, logging.WARNING, "copy broke off", peer=peer, why=error.message)

    def _is_copied(self, peers: Sequence[str], timeline: str) -> bool:
        """Try one server after the other. The last refusal is raised if all of them refuse."""
        refusals: list[LakestoreError] = []
        for peer in peers:
            self.progress.peer = peer
            try:
                self._copy(peer, timeline, self.pieces)
            except OSError as error:
                raise self._told(error) from error
            except _NoRoom as error:
                raise Exhausted(str(error)) from error
            except LakestoreError as error:
                self._note(peer, error)
                if isinstance(error, _REFUSALS):
                    refusals.append(error)
            else:
                return True
        if peers and len(refusals) == len(peers):
            raise refusals[-1]
        return False

    def _told(self, error: OSError) -> LakestoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Exhausted(f"{self.folder} is full: free space and start again, the copy goes on where it is")
        return Unavailable(f"{self.folder} cannot be written ({error.strerror}): the copy goes on at the next start")

    def _copy(self, peer: str, timeline: str, stream: Pieces) -> None:
        own = list(self._own_files())
        request = pb.CopyCheckpointRequest(timeline=timeline, address=self.address, files=own[:FILES_MAX])
        pieces = stream(peer, request)
        try:
            first = next(pieces, None)
            if first is None:
                raise Corrupt(f"the server at {peer} sent no list of files")
            targets = self._targets(first.files, peer)
            self._mark()
            self._make_room(targets, own)
            known = {file.path: file for file in request.files}
            self._began, self.progress.received, self.progress.problem = self.clock.monotonic(), 0, ""
            self._receive(pieces, targets, known, peer)
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        self._complete(targets)

    def _own_files(self) -> Iterator[pb.CopyFile]:
        """The segment files that are there, with the checksum of what the disk has of them."""
        for folder in self.disk.list(self.folder / SEGMENTS):
            for name in self.disk.list(self.folder / SEGMENTS / folder):
                path = f"{SEGMENTS}/{folder}/{name}"
                size = crc = 0
                for piece in self.disk.pieces(self.folder / path):
                    size, crc = size + len(piece), crc32c(piece, crc)
                yield pb.CopyFile(path=path, size=size, crc32c=crc)

    def _targets(self, files: Sequence[pb.CopyFile], peer: str) -> list[_Target]:
        """The files to copy, the checkpoint last; `Corrupt` if one would lie elsewhere."""
        names = [file.path for file in files]
        is_fine = bool(names) and _CHECKPOINT_FILE.fullmatch(names[-1]) is not None
        if not is_fine or not all(map(_SEGMENT_FILE.fullmatch, names[:-1])) or len(set(names)) != len(names):
            raise Corrupt(f"the server at {peer} sent a list of files that is not a checkpoint with its segments")
        targets = [_Target(self.folder / file.path, file.size) for file in files]
        targets[-1].path = self.folder / f"{names[-1]}.tmp"
        return targets

    def _make_room(self, targets: Sequence[_Target], own: Sequence[pb.CopyFile]) -> None:
        """Remove what this checkpoint does not name. `_NoRoom` if the rest does not fit on the disk."""
        wanted = {target.path for target in targets[:-1]}
        there = 0
        for file in own:
            path = self.folder / file.path
            if path in wanted:
                there += file.size
            else:
                self.disk.remove(path)
        for name in self.disk.list(self.folder):
            if name.startswith(checkpoint.PREFIX):
                self.disk.remove(self.folder / name)
        for folder in sorted({path.parent for path in wanted}):
            self.disk.make_folder(folder)
        total = sum(target.size for target in targets)
        self.progress.done, self.progress.total = 0, total
        lacks = total - there + self.limits.disk_free_bytes - self.disk.free_bytes(self.folder)
        if lacks > 0:
            raise _NoRoom(
                f"the copy of {total >> 20:,} MB needs {max(lacks >> 20, 1):,} MB more on the disk of {self.folder}:"
                " free space and start again, the copy goes on where it is"
            )

    def _receive(
        self, pieces: Iterator[pb.CopyPiece], targets: Sequence[_Target], known: dict[str, pb.CopyFile], peer: str
    ) -> None:
        number = 0
        target: _Target | None = None
        try:
            for piece in pieces:
                if piece.file != number or number >= len(targets):
                    raise Corrupt(f"the server at {peer} sent its files out of order")
                if target is None:
                    target = targets[number]
                    self._open(target, piece, known)
                self._write(target, piece, peer)
                if piece.is_last:
                    target, number = None, number + 1
        finally:
            if target is not None and target.file is not None:
                target.file.close()
        if number != len(targets):
            raise Unavailable(f"the server at {peer} ended the copy early")

    def _open(self, target: _Target, piece: pb.CopyPiece, known: dict[str, pb.CopyFile]) -> None:
        """Begin a file, with the bytes that are there if the peer has the same."""
        if not piece.offset:
            if self.disk.size(target.path) is not None:
                self.disk.remove(target.path)
            target.file = self.disk.create(target.path)
            return
        have = known.get(target.path.relative_to(self.folder).as_posix())
        if have is None or have.size != piece.offset:
            raise Corrupt(f"a piece of {target.path.name} begins at {piece.offset}, which was not asked for")
        if piece.offset == target.size:
            target.at, target.crc = have.size, have.crc32c
        else:
            self._begin_again(target)
        self.progress.done += target.at

    def _begin_again(self, target: _Target) -> None:
        """Write the bytes that are there into a new file, because a file is only written from its beginning."""
        aside = target.path.with_name(f"{target.path.name}.tmp")
        self.disk.rename(target.path, aside)
        target.file = self.disk.create(target.path)
        for part in self.disk.pieces(aside):
            target.at += target.file.write([part])
            target.crc = crc32c(part, target.crc)
        self.disk.remove(aside)

    def _write(self, target: _Target, piece: pb.CopyPiece, peer: str) -> None:
        end = target.at + len(piece.data)
        if piece.offset != target.at or end > target.size or piece.is_last != (end == target.size):
            raise Corrupt(f"the server at {peer} sent another piece of {target.path.name} than the next")
        if piece.data:
            assert target.file is not None, "a file that is complete gets no bytes"
            target.file.write([piece.data])
            target.at, target.crc = end, crc32c(piece.data, target.crc)
            self._advance(len(piece.data))
        if not piece.is_last:
            return
        if target.file is not None:
            target.file.sync()
            target.file.close()
        if target.crc != piece.crc32c:
            self.disk.remove(target.path)
            raise Corrupt(f"{target.path.name} differs from the file of {peer}: it is copied again")

    def _advance(self, received: int) -> None:
        progress, now = self.progress, self.clock.monotonic()
        progress.done += received
        progress.received += received
        progress.seconds = now - self._began
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            self._tell("copies")

    def _tell(self, event: str) -> None:
        progress = self.progress
        rate, mb = progress.mb_per_second, progress.total >> 20
        event_log.event(
            log, logging.INFO, event, peer=progress.peer, percent=progress.percent, total_mb=mb, mb_per_second=rate
        )

    def _complete(self, targets: Sequence[_Target]) -> None:
        """Give the checkpoint its name once all of it is durable, then remove the mark."""
        last = targets[-1].path
        content = checkpoint.decode(self.disk.read(last), last.name)
        there = {target.path for target in targets}
        lacks = [
            f"{folder}/{name}"
            for folder, names in content.segment_names().items()
            for name in names
            if self.folder / SEGMENTS / folder / name not in there
        ]
        if lacks or not self.journal.has_place(content.place):
            raise Corrupt(f"the checkpoint of {self.progress.peer} lacks {lacks[0] if lacks else 'this journal'}")
        for folder in sorted({path.parent for path in there}):
            self.disk.sync_folder(folder)
        self.disk.sync_folder(self.folder / SEGMENTS)
        self.disk.rename(last, last.with_name(last.name.removesuffix(".tmp")))
        self.disk.sync_folder(self.folder)
        self.disk.remove(self.folder / RESTORING)
        self.disk.sync_folder(self.folder)
        self._tell("copy is complete")


class _NoRoom(Exception):
    """This machine cannot take the copy, whoever sends it."""
