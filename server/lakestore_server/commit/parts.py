"""Parts: rows uploaded for a later commit, durable and invisible until a commit names them.

- A part is committed once. The commit record has its id. A checkpoint of the leader removes the file before the journal
  with the record. A checkpoint names the committed parts whose files may still be there, so a committed part is known
  after every crash, at every server.
- A part that no commit has named is removed by age while the clock is not in doubt.
- A part belongs to the principal that uploaded it.
- With a shared journal the files are in the warehouse. A server that begins to lead lists them and reads the head of a
  part when a commit names it. The id has the owner's digest and the time, so a list is enough for quota and age.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lakestore.errors import Conflict, Corrupt, Exhausted, Invalid, LakestoreError, NotFound, Unavailable
from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import part_file
from lakestore_server.files.part_file import PartFiles, PartHead
from lakestore_server.host.quota import share_of
from lakestore_server.journals.store_errors import StoreRefusal

log = logging.getLogger("lakestore.parts")
T = TypeVar("T")
RETRY_SECONDS = 5.0
IDS_SHOWN = 8
"""Characters of an id in an error."""
LIST_SECONDS = 3600.0
"""A leader lists shared parts this often: a server that led before may have stored some late."""
ASKED_ONE_BY_ONE = 50
"""Up to this number of unknown parts of a commit are looked for by name. For more of them a list is quicker."""
_OWNER_DIGITS, _TIME_DIGITS, _CHANCE_BYTES = 12, 16, 12
_SHARED_ID = re.compile(r"([0-9a-f]{12})([0-9a-f]{16})[0-9a-f]{24}")
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Part:
    """A part that no commit has named."""

    owner: str
    """The digest of its owner; empty for an embedded server."""
    time_us: int
    nbytes: int
    head: PartHead | None = None
    """None until a commit names it, for a part that another server stored."""

    @staticmethod
    def of(head: PartHead) -> _Part:
        return _Part(_digest(head.owner), head.time_us, head.nbytes, head)


def _digest(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:_OWNER_DIGITS] if owner else ""


def _shared_id(owner: str, time_us: int) -> str:
    chance = secrets.token_hex(_CHANCE_BYTES)
    return f"{_digest(owner):0>{_OWNER_DIGITS}}{time_us:0{_TIME_DIGITS}x}{chance}"


def _listed(part: str, nbytes: int) -> _Part | None:
    """The owner and the time in the id of a shared part; None for other names."""
    match = _SHARED_ID.fullmatch(part)
    if match is None:
        return None
    owner = match[1] if match[1].strip("0") else ""
    return _Part(owner, int(match[2], 16), nbytes)


class PartStore:
    """The parts of a data folder, or of all servers of a journal. Thread-safe; the lock protects memory only."""

    def __init__(self, files: PartFiles, limits: Limits, committed: Collection[str], now_us: int) -> None:
        """`committed` are the parts of durable commits whose files may still exist."""
        self._files, self._limits = files, limits
        self._lock = threading.Lock()
        self._parts: dict[str, _Part] = {}
        """Parts that no commit has named, including parts of pending commits."""
        self._taken: set[str] = set()
        """Parts of pending commits."""
        self._committed = set(committed)
        """Parts of durable commits whose files may still exist."""
        self._reserved: Counter[str] = Counter()
        """Owner to the number of stored parts and parts being written."""
        self._reserved_bytes: Counter[str] = Counter()
        self._listed_us: int | None = None
        """The time of the last list of shared files; None if it is due."""
        if not files.is_shared:
            self._load(now_us)

    def _load(self, now_us: int) -> None:
        sizes = self._files.sizes()
        self._files.remove([name for name in sizes if name.endswith(part_file.ASIDE)])
        for name, size in sizes.items():
            part = name.removesuffix(part_file.SUFFIX)
            if part not in self._committed and not name.endswith(part_file.ASIDE):
                head = self._read_head(part)
                if head is not None:
                    held = _Part.of(head)
                    if head.damage:
                        held.time_us, held.nbytes = now_us, size
                    self._add(part, held)

    def _read_head(self, part: str) -> PartHead | None:
        """The head of a stored part; None if there is none."""
        try:
            return self._files.head(part)
        except FileNotFoundError:
            return None
        except Corrupt as error:
            log.error("%s", error)
            return PartHead(part, "", 0, 0, 0, 0, "", "", 0, 0, damage=error.message)

    def _add(self, part: str, held: _Part) -> None:
        self._parts[part] = held
        self._count(held, 1)

    def _forget(self, part: str) -> None:
        held = self._parts.pop(part, None)
        if held is not None:
            self._count(held, -1)

    def _count(self, held: _Part, sign: int) -> None:
        for counts, amount in ((self._reserved, 1), (self._reserved_bytes, held.nbytes)):
            counts[held.owner] += sign * amount
            if not counts[held.owner]:
                del counts[held.owner]

    @property
    def count(self) -> int:
        """The number of parts that no commit has named."""
        return len(self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes of these parts."""
        with self._lock:
            return self._reserved_bytes.total()

    # Shared files, which other servers write and remove, too.

    def relist(self) -> None:
        """Have shared files listed before the next upload: this server begins to lead."""
        self._listed_us = None

    def _list(self, now_us: int) -> None:
        """Take in the parts of other servers, and forget those that are gone."""
        with self._lock:
            before = set(self._parts)
        sizes = self._files.sizes()
        with self._lock:
            for name, size in sizes.items():
                part = name.removesuffix(part_file.SUFFIX)
                held = _listed(part, size)
                if held is not None and part not in self._parts and part not in self._committed:
                    self._add(part, held)
            for part in before - self._taken:
                if part_file.name_of(part) not in sizes:
                    self._forget(part)
            self._listed_us = now_us
        oldest_us = now_us - self._limits.part_seconds * 1_000_000
        aside = [name for name in sizes if name.endswith(part_file.ASIDE)]
        self._files.remove([name for name in aside if _is_older(name, oldest_us)])

    def _find(self, parts: Iterable[str]) -> None:
        """Read the heads of parts that another server stored. Absent parts stay unknown."""
        if not self._files.is_shared:
            return
        with self._lock:
            unread = {part: self._parts.get(part) for part in parts if self._is_unread(part)}
        try:
            if sum(held is None for held in unread.values()) > ASKED_ONE_BY_ONE:
                self._list(self._listed_us or 0)
                with self._lock:
                    unread = {part: held for part in unread if (held := self._parts.get(part)) is not None}
            heads = list(self._at_once([partial(self._read_head, part) for part in unread]))
        except OSError as error:
            raise self._unavailable(error) from error
        with self._lock:
            for part, head in zip(unread, heads, strict=True):
                if head is None:
                    self._forget(part)
                elif part not in self._committed:
                    held = _listed(part, 0) if head.damage else _Part.of(head)
                    assert held is not None, "an unread part has the id of a shared one"
                    held.head = head
                    self._forget(part)
                    self._add(part, held)

    def _is_unread(self, part: str) -> bool:
        held = self._parts.get(part)
        return (held is None or held.head is None) and part not in self._committed and bool(_SHARED_ID.fullmatch(part))

    def _at_once(self, calls: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
        """The results of calls in their order. Some calls are made ahead."""
        width = min(self._files.at_once, len(calls))
        if width < 2:
            yield from (call() for call in calls)
            return
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(width, thread_name_prefix="parts") as pool:
            for call in calls:
                waiting.append(pool.submit(call))
                if len(waiting) >= width:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    @staticmethod
    def _unavailable(error: OSError) -> LakestoreError:
        if isinstance(error, StoreRefusal):
            return Invalid(f"the store of the warehouse refuses uploaded parts: {error}")
        return Unavailable(
            f"the warehouse, which has the uploaded parts, does not answer: {error}", retry_after=RETRY_SECONDS
        )

    def store(self, change: pb.Change, rows: int, owner: str, time_us: int) -> PartHead:
        """Store a checked change, durably; `Exhausted` without room, `Unavailable` if the warehouse does not answer."""
        head = PartHead(
            _shared_id(owner, time_us) if self._files.is_shared else secrets.token_hex(16),
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
        held = _Part.of(head)
        try:
            if self._files.is_shared and self._listed_us is None:
                self._list(time_us)
        except OSError as error:
            raise self._unavailable(error) from error
        with self._lock:
            self._check_room(head)
            self._count(held, 1)
        try:
            self._files.put(head, change.rows)
        except BaseException as error:
            with self._lock:
                self._count(held, -1)
            if isinstance(error, OSError):
                if self._files.is_shared and error.errno not in _FULL:
                    raise self._unavailable(error) from error
                raise Exhausted(f"the part cannot be written ({error.strerror}): free space on the disk") from error
            raise
        with self._lock:
            self._forget(head.id)  # a list may have seen it already
            self._parts[head.id] = held
        return head

    def _check_room(self, head: PartHead) -> None:
        limits, owner = self._limits, head.owner
        bounds = (
            (self._reserved, 1, limits.parts, "parts"),
            (self._reserved_bytes, head.nbytes, limits.parts_bytes, "bytes of parts"),
        )
        for counts, more, most, what in bounds:
            share = share_of(most, limits)
            if owner and counts[_digest(owner)] + more > share:
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
        self._find(parts)
        with self._lock:
            return sum(self._parts[part].nbytes for part in parts if part in self._parts)

    def reserve(self, parts: Sequence[str], owner: str) -> dict[str, PartHead]:
        """Reserve parts for a commit: nobody else commits, drops or expires them until `release`."""
        if not parts:
            return {}
        if len(set(parts)) < len(parts):
            raise Invalid("a commit names a part twice: name each part once")
        self._find(parts)
        with self._lock:
            found = {part: self._found(part, owner) for part in parts}
            self._taken.update(parts)
            return found

    def _found(self, part: str, owner: str) -> PartHead:
        if part in self._committed:
            raise _committed_before(part)
        held = self._parts.get(part)
        head = held.head if held is not None else None
        if head is None or (not head.damage and head.owner != owner):
            raise self._absent(part)
        if head.damage:
            raise Corrupt(head.damage)
        if part in self._taken:
            raise Conflict(f"part {_shown(part)} belongs to another pending commit: wait for its answer")
        return head

    def _absent(self, part: str) -> NotFound:
        return NotFound(
            f"there is no part {_shown(part)}: it was committed or dropped, or waited longer than"
            f" {self._limits.part_seconds} s for its commit, or the server was restored: upload its rows again"
        )

    def release(self, parts: Collection[str]) -> None:
        """Release reserved parts: their commit happened or never will."""
        with self._lock:
            self._taken.difference_update(parts)

    def check_uncommitted(self, parts: Collection[str]) -> None:
        """`Conflict` if another server has committed reserved parts meanwhile."""
        with self._lock:
            done = self._committed.intersection(parts)
        if done:
            raise _committed_before(min(done))

    def check_named(self, named: pb.Change, table: Table, head: PartHead) -> None:
        """Raise the reason why a part does not match the change that names it."""
        shown = _shown(head.id)
        if head.table_uuid not in (table.uuid, *table.former):
            raise NotFound(
                f"part {shown} is of a table {head.table!r} that was dropped, or of another table than"
                f" {named.table!r}: upload its rows again"
            )
        if named.kind != head.kind or named.crc32c != head.crc32c or named.rows:
            raise Invalid(
                f"part {shown} has other rows, or another kind of change, than the commit says: name it as the upload"
                " was made"
            )

    def rows(self, heads: Sequence[PartHead]) -> Generator[bytes, None, None]:
        """The rows of reserved parts, in order. Some are read ahead."""
        return self._at_once([partial(self._rows, head) for head in heads])

    def _rows(self, head: PartHead) -> bytes:
        try:
            return part_file.rows_of(head, self._files.read(head.id))
        except OSError as error:
            if not self._files.is_shared:
                raise
            if not isinstance(error, FileNotFoundError):
                raise self._unavailable(error) from error
            with self._lock:  # another server has removed it
                self._forget(head.id)
            raise self._absent(head.id) from error

    def committed(self, parts: Sequence[str]) -> None:
        """Note that a commit with these parts is durable."""
        with self._lock:
            self._committed.update(parts)
            for part in parts:
                self._forget(part)

    def clear(self, *, removes: bool) -> Sequence[str]:
        """Forget parts of durable commits whose files are gone; with `removes` their files are removed first, durably.
        Returns the parts that the checkpoint must name, because their files may still be there. A store that is away
        stops no checkpoint."""
        with self._lock:
            done = set(self._committed)
        if not done:
            return ()
        try:
            if removes or not self._files.is_shared:
                self._files.remove([part_file.name_of(part) for part in done])
            there = {name.removesuffix(part_file.SUFFIX) for name in self._files.sizes()} & done
        except OSError as error:
            if not self._files.is_shared:
                raise
            log.warning("%d committed parts stay in the warehouse until the next checkpoint: %s", len(done), error)
            return tuple(sorted(done))
        with self._lock:
            self._committed -= done - there - self._taken  # a request that took one of them learns that it is too late
        return tuple(sorted(there))

    def drop(self, parts: Collection[str], owner: str) -> int:
        """Remove parts of an owner, except parts of pending commits; returns their number."""
        self._find(parts)
        with self._lock:
            heads = {part: held.head for part in parts if (held := self._parts.get(part)) is not None}
            gone = self._popped([part for part, head in heads.items() if head is not None and head.owner == owner])
        try:
            self._remove(gone)
        except OSError as error:
            if not self._files.is_shared:
                raise
            raise self._unavailable(error) from error
        return len(gone)

    def waiting(self, tables: Collection[str], until_us: int) -> list[str]:
        """Parts of tables, by uuid, that were uploaded by a time and that no commit has taken."""
        with self._lock:
            heads = [held.head for held in self._parts.values() if held.head is not None]
        return [head.id for head in heads if head.table_uuid in tables and head.time_us <= until_us]

    def remove(self, parts: Collection[str]) -> None:
        """Remove parts of anybody, except parts of pending commits."""
        with self._lock:
            gone = self._popped(parts)
        self._remove(gone)

    def expire(self, now_us: int) -> int:
        """Remove parts that waited too long for a commit; returns their number."""
        oldest_us = now_us - self._limits.part_seconds * 1_000_000
        try:
            if self._files.is_shared and (
                self._listed_us is None or now_us - self._listed_us >= LIST_SECONDS * 1_000_000
            ):
                self._list(now_us)
            with self._lock:
                gone = self._popped([part for part, held in self._parts.items() if held.time_us <= oldest_us])
            self._remove(gone)
        except OSError as error:
            if not self._files.is_shared:
                raise
            self.relist()
            log.warning("old parts stay in the warehouse, which does not answer: %s", error)
            return 0
        if gone:
            log.info("%d parts that no commit named were removed", len(gone))
        return len(gone)

    def _remove(self, parts: Collection[str]) -> None:
        self._files.remove([part_file.name_of(part) for part in parts])

    def _popped(self, parts: Collection[str]) -> list[str]:
        gone = [part for part in dict.fromkeys(parts) if part not in self._taken]
        for part in gone:
            self._forget(part)
        return gone


def _is_older(aside: str, oldest_us: int) -> bool:
    held = _listed(aside.removesuffix(part_file.ASIDE).removesuffix(part_file.SUFFIX), 0)
    return held is not None and held.time_us <= oldest_us


def _shown(part: str) -> str:
    return repr(part[:IDS_SHOWN])


def _committed_before(part: str) -> Conflict:
    return Conflict(f"part {_shown(part)} was committed before, and a part is committed once: upload its rows again")
