"""Parts: rows uploaded for a later commit, durable and invisible until a commit names them.

- A part is committed once. The commit record has its id. Its file stays until a checkpoint, which removes it before the
  journal with the record, so a committed part is known after every crash.
- A part that no commit has named is removed by age while the clock is not in doubt.
- A part belongs to the principal that uploaded it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from lakestore.errors import Conflict, Corrupt, Exhausted, Invalid, NotFound
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import part_file
from lakestore_server.files.part_file import PartHead
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.quota import share_of

log = logging.getLogger("lakestore.parts")
RETRY_SECONDS = 5.0
IDS_SHOWN = 8
"""Characters of an id in an error."""


class PartStore:
    """The parts of a data folder. Thread-safe; the lock protects memory only."""

    def __init__(self, disk: Disk, folder: Path, limits: Limits, committed: Collection[str], now_us: int) -> None:
        """`committed` are the parts of commits that the newest checkpoint does not hold."""
        self._disk, self._folder, self._limits = disk, folder / part_file.FOLDER, limits
        self._lock = threading.Lock()
        self._heads: dict[str, PartHead] = {}
        """Parts that no commit has named, including parts of pending commits."""
        self._taken: set[str] = set()
        """Parts of pending commits."""
        self._committed = set(committed)
        """Parts of durable commits whose files may still exist."""
        self._reserved: Counter[str] = Counter()
        """Owner to the number of stored parts and parts being written."""
        self._reserved_bytes: Counter[str] = Counter()
        self._load(now_us)

    def _load(self, now_us: int) -> None:
        for name in self._disk.list(self._folder):
            part, path = name.removesuffix(part_file.SUFFIX), self._folder / name
            if name.endswith(".tmp"):
                self._disk.remove(path)
            elif part not in self._committed:
                try:
                    head = part_file.read_head(self._disk, path)
                except Corrupt as error:
                    log.error("%s", error)
                    size = self._disk.size(path) or 0
                    head = PartHead(part, "", now_us, 0, size, 0, "", "", 0, 0, damage=error.message)
                self._heads[part] = head
                self._count(head, 1)

    def _count(self, head: PartHead, sign: int) -> None:
        for counts, amount in ((self._reserved, 1), (self._reserved_bytes, head.nbytes)):
            counts[head.owner] += sign * amount
            if not counts[head.owner]:
                del counts[head.owner]

    @property
    def count(self) -> int:
        """The number of parts that no commit has named."""
        return len(self._heads)

    @property
    def nbytes(self) -> int:
        """Bytes of these parts."""
        with self._lock:
            return self._reserved_bytes.total()

    def store(self, change: pb.Change, rows: int, owner: str, time_us: int) -> PartHead:
        """Store a checked change, durably; `Exhausted` without room."""
        head = PartHead(
            secrets.token_hex(16),
            owner,
            time_us,
            rows,
            len(change.rows),
            change.crc32c,
            change.table,
            change.table_uuid,
            change.kind,
            change.schema_id,
            tuple(change.keep),
            change.as_of,
        )
        with self._lock:
            self._check_room(head)
            self._count(head, 1)
        try:
            self._disk.make_folder(self._folder)
            part_file.write(self._disk, self._folder, head, change.rows)
        except BaseException as error:
            with self._lock:
                self._count(head, -1)
            if isinstance(error, OSError):
                raise Exhausted(f"the part cannot be written ({error.strerror}): free space on the disk") from error
            raise
        with self._lock:
            self._heads[head.id] = head
        return head

    def _check_room(self, head: PartHead) -> None:
        limits, owner = self._limits, head.owner
        bounds = (
            (self._reserved, 1, limits.parts, "parts"),
            (self._reserved_bytes, head.nbytes, limits.parts_bytes, "bytes of parts"),
        )
        for counts, more, most, what in bounds:
            share = share_of(most, limits)
            if owner and counts[owner] + more > share:
                raise self._exhausted(f"{owner} would have more than {share} {what}, one principal's part of the limit")
            if counts.total() + more > most:
                raise self._exhausted(f"there would be more than {most} {what}, the limit")

    def _exhausted(self, what: str) -> Exhausted:
        return Exhausted(
            f"{what}: commit or drop the uploaded parts; without a commit the server drops them after"
            f" {self._limits.part_seconds} s",
            retry_after=RETRY_SECONDS,
        )

    def bytes_of(self, parts: Collection[str]) -> int:
        with self._lock:
            return sum(self._heads[part].nbytes for part in parts if part in self._heads)

    def reserve(self, parts: Sequence[str], owner: str) -> dict[str, PartHead]:
        """Reserve parts for a commit: nobody else commits, drops or expires them until `release`."""
        if not parts:
            return {}
        if len(set(parts)) < len(parts):
            raise Invalid("a commit names a part twice: name each part once")
        with self._lock:
            found = {part: self._found(part, owner) for part in parts}
            self._taken.update(parts)
            return found

    def _found(self, part: str, owner: str) -> PartHead:
        shown = repr(part[:IDS_SHOWN])
        if part in self._committed:
            raise Conflict(f"part {shown} was committed before, and a part is committed once: upload its rows again")
        head = self._heads.get(part)
        if head is None or (not head.damage and head.owner != owner):
            raise NotFound(
                f"there is no part {shown}: it was committed or dropped, or waited longer than"
                f" {self._limits.part_seconds} s for its commit, or the server was restored: upload its rows again"
            )
        if head.damage:
            raise Corrupt(head.damage)
        if part in self._taken:
            raise Conflict(f"part {shown} belongs to another pending commit: wait for its answer")
        return head

    def release(self, parts: Collection[str]) -> None:
        """Release reserved parts: their commit happened or never will."""
        with self._lock:
            self._taken.difference_update(parts)

    def change(self, named: pb.Change, table_uuid: str, head: PartHead) -> pb.Change:
        """The change that a commit names by its part; or the reason why the part does not match."""
        shown = repr(head.id[:IDS_SHOWN])
        if head.table_uuid != table_uuid:
            raise NotFound(
                f"part {shown} is of a table {head.table!r} that was dropped, or of another table than"
                f" {named.table!r}: upload its rows again"
            )
        if named.kind != head.kind or named.crc32c != head.crc32c or named.rows:
            raise Invalid(
                f"part {shown} has other rows, or another kind of change, than the commit says: name it as the upload"
                " was made"
            )
        change = head.change(part_file.read_rows(self._disk, self._folder, head))
        change.table = named.table
        return change

    def committed(self, parts: Sequence[str]) -> None:
        """Note that a commit with these parts is durable."""
        with self._lock:
            self._committed.update(parts)
            for part in parts:
                head = self._heads.pop(part, None)
                if head is not None:
                    self._count(head, -1)

    def clear(self) -> None:
        """Remove the files of parts of durable commits, durably. A checkpoint calls this before it is written."""
        with self._lock:
            done = set(self._committed)
        if not done:
            return
        if self._folder.name in self._disk.list(self._folder.parent):  # a backup has no such folder
            self._remove(done)
            self._disk.sync_folder(self._folder)
        with self._lock:
            self._committed -= done

    def _remove(self, parts: Collection[str]) -> None:
        there = set(self._disk.list(self._folder))
        for part in parts:
            name = part_file.name_of(part)
            if name in there:
                self._disk.remove(self._folder / name)
                self._disk.reach(CrashPoint.PART_REMOVED)

    def drop(self, parts: Collection[str], owner: str) -> int:
        """Remove parts of an owner, except parts of pending commits; returns their number."""
        with self._lock:
            gone = self._popped([p for p in parts if p in self._heads and self._heads[p].owner == owner])
        self._remove(gone)
        return len(gone)

    def expire(self, now_us: int) -> int:
        """Remove parts that waited too long for a commit; returns their number."""
        oldest_us = now_us - self._limits.part_seconds * 1_000_000
        with self._lock:
            gone = self._popped([part for part, head in self._heads.items() if head.time_us <= oldest_us])
        self._remove(gone)
        if gone:
            log.info("%d parts that no commit named were removed", len(gone))
        return len(gone)

    def _popped(self, parts: Collection[str]) -> list[str]:
        gone = [part for part in dict.fromkeys(parts) if part not in self._taken]
        for part in gone:
            self._count(self._heads.pop(part), -1)
        return gone
