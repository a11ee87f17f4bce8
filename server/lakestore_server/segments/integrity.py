"""Checks of every stored byte against its checksum, and of the key index against the live sums, for verify and
scrub.

Damage is a list of sentences that each name a file. `pause` is called with the bytes read, so that a scrub keeps its
rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore_server.files import checkpoint, journal, journal_file, shared_file
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import Disk
from lakestore_server.host.uncached_file import BLOCK
from lakestore_server.index.entry import DamagedIndex, table_prefix
from lakestore_server.index.key_index import Index
from lakestore_server.state.view import TableState, View


class _Bytes:
    """The bytes of a file in order, one piece in memory."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece, self._used = pieces, b"", 0
        self.at = 0
        """Position of the next byte."""

    def parts(self, size: int) -> Iterator[bytes]:
        while size:
            if self._used == len(self._piece):
                self._piece, self._used = next(self._pieces, b""), 0
                if not self._piece:
                    return
            part = self._piece[self._used : self._used + size]
            self._used, self.at, size = self._used + len(part), self.at + len(part), size - len(part)
            yield part

    def take(self, size: int) -> bytes:
        return b"".join(self.parts(size))

    def crc(self, size: int, crc: int) -> int:
        for part in self.parts(size):
            crc = crc32c(part, crc)
        return crc


def check_frames(pieces: Iterator[bytes], name: str) -> None:
    """`Corrupt` unless the bytes are whole frames of a journal file after its header, then zeros up to a block's
    end."""
    file = _Bytes(pieces)
    first = file.take(journal.FILE_HEADER_BYTES)
    head = journal.head_of(first, name)
    if head is None:
        if first:
            raise journal.damaged(name, 0)
        return
    while opening := file.take(journal.HEADER_BYTES):
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


ENTRIES_AT_ONCE = 20_000
ENTRY_BYTES = 32
"""Bytes of the scrub's rate that an index entry counts as."""
_MASK = (1 << 64) - 1


class WrongIndex(Corrupt):
    """The index differs from the log and must be rebuilt."""


@dataclass(slots=True)
class Findings:
    """The number of bytes that a check has read, and the damage."""

    damage: list[str] = field(default_factory=list)
    bytes_checked: int = 0
    index_damage: str = ""
    """Also in `damage`; a rebuild repairs it."""
    index_generation: int = -1
    """The generation of the index that has this damage."""


def _passed(found: Findings, pause: Callable[[int], None], size: int) -> None:
    found.bytes_checked += size
    pause(size)


class Integrity:
    """Checks of one server's files while it serves."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        index: Index,
        view: Callable[[], View],
        open_journal: Callable[[], tuple[str, int]],
    ) -> None:
        """`open_journal` returns the name and the bytes of the current journal file."""
        self._folder, self._disk, self._index = folder, disk, index
        self._view, self._open_journal = view, open_journal

    def table(self, state: TableState, pause: Callable[[int], None]) -> Findings:
        """Check the segments of a table, block by block, and its part of the index."""
        found = Findings()
        for log in state.logs:
            for chunk in log.chunks:
                if isinstance(chunk, Segment):
                    for size, damage in chunk.scrub():
                        found.bytes_checked += size
                        found.damage += [damage] if damage else []
                        pause(size)
        if state.table.keyed and self._index.ready:
            generation = self._index.generation
            try:
                found.bytes_checked += self._walk(state, pause)
            except WrongIndex as error:
                if generation == self._index.generation:  # else nobody reads these runs any more
                    self._note(found, error.message)
        return found

    def shared(self, pause: Callable[[int], None]) -> Findings:
        """Check the files that all tables share: checkpoints, journal and index runs."""
        found = Findings()
        for name in self._disk.list(self._folder):
            with suppress(FileNotFoundError):  # a checkpoint ended meanwhile, and the file is not needed any more
                try:
                    self._file(name, found, pause)
                except Corrupt as error:
                    found.damage.append(error.message)
        for path, data in self._shared_segments().items():
            if damage := shared_file.damage_of(data, path):
                found.damage.append(damage)
        for run in self._index.runs:
            for size, damage in run.scrub():
                if run not in self._index.runs:
                    break  # a merge or a rebuild replaced it, and nobody reads it any more
                _passed(found, pause, size)
                if damage and self._index.ready:
                    self._note(found, f"{damage}: the server rebuilds it")
        return found

    def _note(self, found: Findings, damage: str) -> None:
        found.index_damage, found.index_generation = damage, self._index.generation
        found.damage.append(damage)

    def _shared_segments(self) -> dict[Path, pa.Buffer]:
        """The shared files that the view reads; their segments are checked with their tables."""
        every = (chunk for state in self._view().kept.values() for log in state.logs for chunk in log.chunks)
        held = (chunk for chunk in every if isinstance(chunk, Segment) and chunk.part.at is not None)
        return {each.path: each.part.file for each in held}

    def _file(self, name: str, found: Findings, pause: Callable[[int], None]) -> None:
        if name.endswith(".tmp"):
            return
        path = self._folder / name
        if name.startswith(checkpoint.PREFIX):
            data = self._disk.read(path)
            checkpoint.decode(data, name)
            _passed(found, pause, len(data))
        elif name.startswith(journal_file.PREFIX):
            open_name, written = self._open_journal()
            size = written if name == open_name else self._disk.size(path)
            if size is None or name > open_name:
                return

            def pieces(end: int) -> Iterator[bytes]:
                for piece in self._disk.pieces(path, end):
                    _passed(found, pause, len(piece))
                    yield piece

            check_frames(pieces(size), name)

    def _walk(self, state: TableState, pause: Callable[[int], None]) -> int:
        """Sum a table's index entries and compare with the log at the LSN of the runs."""
        lsn, rows, total, damaged = self._summed(state, pause)
        if not self._index.ready:
            return 0
        if damaged:
            raise WrongIndex(
                f"the key index has {damaged} damaged entries of table {state.table.name}: the server rebuilds it"
            )
        now = self._view()
        held = now.tables.get(state.table.uuid)
        if held is None or held.table.number != state.table.number:
            return 0  # the table was dropped or truncated
        if lsn < held.log_start_lsn:
            return 0  # the log start is beyond the runs' LSN; the checkpoint that this asks for moves them forward
        at = [log.at_lsn(lsn) for log in held.logs]
        if (rows, total) == (sum(p.live_rows for p in at), sum(p.live_sum for p in at) & _MASK):
            return rows * ENTRY_BYTES
        raise WrongIndex(
            f"the key index holds {rows} rows of table {state.table.name} with sum {total:016x}, the log "
            f"{sum(p.live_rows for p in at)} with sum {sum(p.live_sum for p in at) & _MASK:016x}: "
            "the server rebuilds it"
        )

    def _summed(self, state: TableState, pause: Callable[[int], None]) -> tuple[int, int, int, int]:
        """(LSN, rows, sum, damaged entries) of a table's entries in runs."""
        rows = total = damaged = 0
        lsn, walked = self._index.walk(table_prefix(state.table.number), ENTRIES_AT_ONCE)
        try:
            for part in walked:
                rows, total, damaged = rows + part.live, (total + part.total) & _MASK, damaged + part.damaged
                pause(part.live * ENTRY_BYTES)
        except DamagedIndex as error:
            raise WrongIndex(f"the key index cannot be read: {error.message}") from error
        return lsn, rows, total, damaged
