"""A commit as a record: everything that one LSN changes, as values.

`State.apply` is the meaning of a record, at commit and at recovery alike; `files/journal.py` is its bytes. A record is
filled by the step that plans the commit, and never changed once it is appended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Exhausted
from lakestore.model.table import Table
from lakestore_server.state.catalog_change import CatalogChange
from lakestore_server.state.chunk import CommitIndex, LazyFlat, MemoryChunk
from lakestore_server.state.subscription import Subscription, SubscriptionDrop, SubscriptionMove


@dataclass(frozen=True, slots=True)
class RowsMessage:
    """Rows as one Arrow message, with the checksums that were found when they came."""

    data: pa.Buffer
    crcs: npt.NDArray[np.uint32] | None = None
    """The checksum of each 64 KB of them; None if that has to be found out."""

    def __len__(self) -> int:
        return int(self.data.size)


Plain: TypeAlias = bytes | memoryview | pa.Buffer
Buffer: TypeAlias = Plain | RowsMessage


def plain(part: Buffer) -> Plain:
    """The bytes of a part of a record."""
    return part.data if isinstance(part, RowsMessage) else part


Place = NewType("Place", str)
"""A position in a journal, which only that journal reads. A checkpoint goes on at one."""


class Deposed(Exception):
    """Another server has claimed the journal. Records beyond `durable` may stand or not; this one appends no more."""


class Unknown(Exception):
    """Whether the records beyond `durable` stand cannot be told; opening the journal again tells."""


class NotWritten(Exhausted):
    """No record from `lsn` on is in the journal, and none of them will be: the journal goes on at that LSN."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that counts."""

    lsn: int
    record: Sequence[Buffer]
    """The record as it was appended, perhaps in other pieces behind the first one."""
    place: Place


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The rows that one commit added to one bucket, where the journal wrote them."""

    table: str
    """The table's uuid."""
    bucket: int
    start: int
    """Offset of the first row."""
    rows: int
    at: int
    """The first byte in the file, of one Arrow record batch."""
    size: int
    """In bytes."""
    crcs: npt.NDArray[np.uint32] | None = None
    """The checksum of each 64 KB of them as they were written; None if that has to be found out."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file of a journal that nothing is appended to any more."""

    path: Path
    data: pa.Buffer
    """All of it, mapped."""
    parts: Sequence[PartPlace]
    """Large parts, in the order of their commits."""


class Journal(Protocol):
    """A journal of whole commits. The commit loop appends; one thread at a time settles; any may ask for the rest."""

    @property
    def settles_in_place(self) -> bool:
        """Whether `settle` does the work itself, so that a caller without other work loses nothing by calling it."""

    def read(self, after: Place) -> Iterator[Entry]:
        """The records behind a place, in order; `Corrupt` where one is damaged."""

    def lead(self, address: str) -> Iterator[Entry]:
        """Claim the journal: the records that were appended before the claim and not read yet; or `Deposed`."""

    def place_after(self, lsn: int) -> Place:
        """The place at which a checkpoint of that LSN goes on."""

    def append(self, lsn: int, record: Sequence[Buffer]) -> None:
        """Take the record behind the last one, without waiting. `NotWritten` if an earlier one was given back."""

    def durable(self) -> int:
        """The last LSN that stands. Raises `Deposed` or `Unknown` once and for good, `NotWritten` once."""

    def settle(self, beyond: int) -> int:
        """Wait until a record beyond an LSN stands; returns and raises as `durable`."""

    def prepare(self) -> None:
        """Do what `roll` can do before it: commits go on meanwhile. `Exhausted` if there is no room."""

    def roll(self, first_lsn: int) -> Place:
        """Begin the part that `trim` leaves: `first_lsn` is the next record's. Nothing is under way."""

    def trim(self, below: Place) -> None:
        """Forget the records before a place: a durable checkpoint holds them."""

    def close(self) -> None:
        """Let go of the journal."""


class LocalJournal(Journal, Protocol):
    """A journal whose records lie in files of the data folder."""

    @property
    def written(self) -> tuple[str, int]:
        """(name of the file that is appended to, bytes of it that stand)."""

    def files(self, below: Place, bytes_min: int) -> Iterator[JournalFile]:
        """The files before a place, each with its parts of so many bytes or more; none where rows cannot stay."""


@dataclass(frozen=True, slots=True)
class KeySlot:
    """The index slot of one stored row whose key shares its hash with another key."""

    row: int
    """In the part's batch."""
    slot: int
    is_link: bool
    """Whether a delete leaves a flagged entry, for a further slot is in use."""


@dataclass(frozen=True, slots=True)
class RowsPart:
    """The rows that one commit adds to one bucket."""

    table: str
    """The table's uuid."""
    bucket: int
    start: int
    """Offset of the first row."""
    batch: pa.RecordBatch
    live_sum: int
    """The bucket's live sum after these rows."""
    live_rows: int
    """The bucket's live rows after these rows."""
    schema_id: int = 0
    """The table's version that the batch is in."""
    slots: Sequence[KeySlot] = ()
    """Index entries that the keys alone do not tell."""
    memory: pa.Buffer | None = field(default=None, compare=False)
    """All bytes of the batch in one piece, where they lie so."""
    message: RowsMessage | None = field(default=None, compare=False)
    """The batch as the Arrow message that the journal is to have; None: it is yet to be made."""

    @property
    def end(self) -> int:
        """Offset after the last row."""
        return self.start + int(self.batch.num_rows)

    def chunk(self, lsn: int, time_us: int) -> MemoryChunk:
        """The rows as a chunk of the bucket's log."""
        index = CommitIndex.one(lsn, time_us, self.end, self.live_sum, self.live_rows)
        flat = None if self.memory is None else LazyFlat(self.batch, self.memory)
        return MemoryChunk(self.start, self.batch, index, self.schema_id, flat)


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The counts that a client is told of one change. Each row sent is counted once."""

    table: str
    """The table's name."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    not_found: int = 0
    schema_id: int = 0
    """The version that the rows were stored in."""
    ignored: int = 0
    """By the merge engine, by the table's rule for deletes, or because the key is there."""
    unchanged: int = 0
    """Equal to the live row, where the table skips such rows."""
    folded: int = 0
    """Became one change with a later row of the same key."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A producer's commit that happened; kept for retries."""

    lsn: int
    results: tuple[ChangeResult, ...]
    """One for each change of the request."""
    is_repeated: bool = False
    """Whether the commit is one of before whose registers have moved already; then it has no results."""


@dataclass(frozen=True, slots=True)
class ProducerCommit:
    """A producer's request in a commit, or its opening."""

    producer: str
    epoch: int
    sequence: int = 0
    """0: the producer was opened with a new epoch, and wrote nothing."""
    results: tuple[ChangeResult, ...] = ()
    progress: str = ""
    """The producer's own note; empty leaves the last one."""
    owner: str = ""
    """The principal that sent it; empty in a process of its own."""
    is_named: bool = True
    """Whether a user named the producer; False for a name that a client drew at random."""


@dataclass(frozen=True, slots=True)
class ProducerDrop:
    """The end of a producer: its sequences, answers and progress are forgotten."""

    producer: str


ProducerChange = ProducerCommit | ProducerDrop


@dataclass(frozen=True, slots=True)
class RegistersOpen:
    """New epoch of registers; those that are not there begin empty."""

    names: tuple[str, ...]
    epoch: int
    owner: str = ""
    """The principal of new ones; empty in a process of its own."""


@dataclass(frozen=True, slots=True)
class RegistersMove:
    """New values of registers, by one request."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    mark: int
    """Checksum of the request."""


@dataclass(frozen=True, slots=True)
class RegistersDrop:
    """The end of registers."""

    names: tuple[str, ...]


RegisterChange = RegistersOpen | RegistersMove | RegistersDrop


@dataclass(frozen=True, slots=True)
class TiererClaim:
    """A new tierer: every lower epoch is fenced from here on."""

    epoch: int
    holder: str


@dataclass(frozen=True, slots=True)
class LogStart:
    """A table's new log start: its commits up to an LSN leave the log."""

    table: str
    """The table's uuid."""
    lsn: int


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name of a table."""

    table: str
    """The table's uuid."""
    name: str


@dataclass(frozen=True, slots=True)
class Shelving:
    """The drop of a table that is kept for a time, in which it can be undropped."""

    table: str
    """The table's uuid."""
    until_us: int
    """The end of that time; 0: its files go at once."""


@dataclass(frozen=True, slots=True)
class Undrop:
    """A dropped table is there again."""

    table: str
    """The table's uuid."""
    name: str
    """The name that it has from then on."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The end of all rows of a table: its log starts at its heads, and nothing lies below."""

    table: str
    """The table's uuid."""
    number: int
    """The table's new number, under which the key index has nothing."""


SubscriptionChange = Subscription | SubscriptionMove | SubscriptionDrop
"""A whole subscription as it is now, new marks of one, or the end of one."""


@dataclass(slots=True)
class CommitRecord:
    """One commit."""

    lsn: int
    time_us: int
    rows: list[RowsPart] = field(default_factory=list)
    producers: list[ProducerChange] = field(default_factory=list)
    create: list[Table] = field(default_factory=list)
    alter: list[Table] = field(default_factory=list)
    """Definitions that replace those of the same uuid."""
    drop: list[str] = field(default_factory=list)
    """Uuids of tables, also dropped ones: nothing is kept of them."""
    catalog: list[CatalogChange] = field(default_factory=list)
    tierer: TiererClaim | None = None
    starts: list[LogStart] = field(default_factory=list)
    subscriptions: list[SubscriptionChange] = field(default_factory=list)
    beside_us: int = 0
    """The time of the commit where its stamp `time_us` is far ahead of it; else 0."""

    in_doubt: bool = False
    """Whether nothing may be forgotten because of its age."""

    registers: list[RegisterChange] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """Ids of the parts whose rows are in it: none of them is committed again."""
    rename: list[Rename] = field(default_factory=list)
    truncate: list[Truncation] = field(default_factory=list)
    shelve: list[Shelving] = field(default_factory=list)
    """Also of dropped tables, whose time changes."""
    undrop: list[Undrop] = field(default_factory=list)

    @property
    def clock_us(self) -> int:
        """The time of the commit, which ages are told by."""
        return self.beside_us or self.time_us
