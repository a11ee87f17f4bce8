"""A commit as a record: everything that one LSN changes, as values.

`State.apply` is the meaning of a record, at commit and at recovery; `files/journal.py` has its bytes. The step that
plans the commit fills the record; it never changes after it is appended.

`Journal` is the interface to the one log of a server's commits, in order and durable.

- The commit loop owns the numbers of records (LSNs). A journal owns their places (`Place`), the claim that only one
  server appends, and the confirmation that a record is durable.
- A journal splits a record that is too long for it (a Kafka topic takes 1 MB; a file takes any).
- `append` does not wait, so records can be built while others are in flight.
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
from lakestore_server.state.erasure import Erasure
from lakestore_server.state.rescale import RescaleChange, Swap
from lakestore_server.state.subscription import Subscription, SubscriptionDrop, SubscriptionMove


@dataclass(frozen=True, slots=True)
class RowsMessage:
    """Rows as one Arrow message, with the checksums from their receipt."""

    data: pa.Buffer
    crcs: npt.NDArray[np.uint32] | None = None
    """The checksum of each 64 KB; None if it must be computed."""

    def __len__(self) -> int:
        return int(self.data.size)


Plain: TypeAlias = bytes | memoryview | pa.Buffer
Buffer: TypeAlias = Plain | RowsMessage


def plain(part: Buffer) -> Plain:
    """The bytes of a part of a record."""
    return part.data if isinstance(part, RowsMessage) else part


Place = NewType("Place", str)
"""A position in a journal, which only this journal interprets. A checkpoint continues from one."""
BEGINNING = Place("")
"""The place in the first checkpoint of a folder."""


class Deposed(Exception):
    """Another server has claimed the journal. Records after `durable` may or may not be in it; this server appends no
    more."""


class Unknown(Exception):
    """It is unknown whether the records after `durable` are in the journal; opening it again tells."""


class NotWritten(Exhausted):
    """No record from `lsn` on is or will be in the journal; it continues at this LSN."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn


@dataclass(frozen=True, slots=True)
class Leader:
    """The server that appends, as far as a journal has read."""

    address: str = ""
    """Where clients reach it; empty if nobody has ever led."""
    epoch: int = 0
    """The number of claims up to its own."""
    heard: float = 0.0
    """The monotonic time at which its last message was read."""
    has_left: bool = False
    """Whether it said that it leads no more, so that nobody waits for its lease."""


COPIES = -1
"""In place of an LSN: the server has no commit yet."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A server of a shared journal as it reported itself."""

    address: str
    lsn: int
    """The newest commit that it had applied; `COPIES` for a server that copies the checkpoint of another one."""
    needs: int
    """The position of the first message that its newest checkpoint does not have."""
    heard: float
    """The monotonic time at which the report was read."""
    http: str = ""
    """Where other servers reach its HTTP port."""
    process: str = ""
    """The random id of its process; empty in a report by another server, or by an older release."""
    warehouse: str = ""
    """The random id of the mark in its warehouse; empty before it has seen one with an id."""
    lease: float | None = None
    """The lease in seconds on which its reads rely while it leads; 0 if they do not. None at an earlier release, which
    does not say it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that counts."""

    lsn: int
    record: Sequence[Buffer]
    """The record as appended; pieces after the first may be cut differently."""
    place: Place


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The rows that one commit added to one bucket, at their place in the journal."""

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
    """The checksum of each 64 KB as written; None if it must be computed."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A closed file of a journal."""

    path: Path
    data: pa.Buffer
    parts: Sequence[PartPlace]
    """Large parts, in the order of their commits."""


class Journal(Protocol):
    """A journal of whole commits. The commit loop appends, one thread at a time settles, any thread may call the
    rest.

    A file journal belongs to one server. Into a shared one several servers can write: one leads, the others follow.
    """

    @property
    def kind(self) -> str:
        """`file`, `kafka` or `object`."""

    @property
    def is_shared(self) -> bool:
        """Whether another server may lead."""

    @property
    def lease_seconds(self) -> float:
        """Followers claim after so long a silence of the leader; the leader beats three times as often."""

    @property
    def silence_seconds(self) -> float:
        """The silence after which this server may claim: not shorter than the lease of any server that relies on it."""

    @property
    def leader(self) -> Leader:
        """The server that leads, by what was read so far."""

    @property
    def warehouse(self) -> str:
        """The id of the mark in this server's warehouse, which its reports name. Empty before it is known."""

    @warehouse.setter
    def warehouse(self, mark: str) -> None: ...

    @property
    def leaders_warehouse(self) -> str:
        """The id that the last other leader has named; empty if none has."""

    @property
    def heard(self) -> float:
        """The monotonic time at which the log last gave a message, of whatever server. A server that follows cannot
        know what was written since."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """The servers that were heard not long ago, by address."""

    @property
    def void(self) -> int:
        """Number of messages of others that do not count, since the start; 0 for a journal in files."""

    @property
    def gaps(self) -> int:
        """Number of times that messages of others lay between this leader's own; 0 for a journal in files."""

    @property
    def settles_in_place(self) -> bool:
        """Whether `settle` does the work itself, so that a caller without other work should call it."""

    def timeline(self) -> str:
        """The timeline of a folder that begins with this journal's first record."""

    def read(self, lsn: int, place: Place = BEGINNING) -> Iterator[Entry]:
        """The records after a checkpoint's LSN and place, in order, to the end of what is there; `Corrupt` for a
        damaged one."""

    def follow(self, seconds: float) -> Iterator[Entry]:
        """The records of the messages that are there; waits at most so long for the first message."""

    def lead(self, address: str, http: str = "") -> Iterator[Entry]:
        """Claim the journal: returns the unread records from before the claim; or `Deposed`."""

    def follow_again(self) -> None:
        """After `Deposed` or `Unknown`: forget what was appended. `follow` returns the part of it that counts."""

    def beat(self, address: str, http: str = "") -> None:
        """Say that this server leads, or that it follows at an address, if it has said nothing for a while. Raises like
        `durable` if it leads."""

    def confirm(self) -> None:
        """Return once a message counts that was sent after this call: then nobody else led before. Raises like
        `durable`."""

    def leave(self) -> None:
        """Say that this server leads no more, so that others claim at once."""

    def append(self, lsn: int, record: Sequence[Buffer]) -> None:
        """Append the next record without waiting. `NotWritten` if an earlier one was given back."""

    def durable(self) -> int:
        """The last durable LSN. Raises `Deposed` or `Unknown` until `follow_again`, `NotWritten` once."""

    def settle(self, beyond: int) -> int:
        """Wait until a record after `beyond` is durable; returns and raises like `durable`."""

    def prepare(self) -> None:
        """Do the part of `roll` that can run while commits continue. `Exhausted` without room."""

    def roll(self, first_lsn: int) -> Place:
        """Begin the part that `trim` leaves: `first_lsn` is the next record's. Nothing is in flight."""

    def trim(self, below: Place) -> None:
        """Remove the records before a place, which a durable checkpoint holds."""

    def close(self) -> None:
        """Close the journal."""


class LocalJournal(Journal, Protocol):
    """A journal whose records are in files of the data folder."""

    @property
    def written(self) -> tuple[str, int]:
        """(name of the current file, durable bytes of it)."""

    def files(self, below: Place, bytes_min: int) -> Iterator[JournalFile]:
        """The files before a place, each with its parts of at least `bytes_min`; empty if rows cannot stay in them."""


@dataclass(frozen=True, slots=True)
class KeySlot:
    """The index slot of one stored row whose key shares its hash with another key."""

    row: int
    """Row number in the part's batch."""
    slot: int
    is_link: bool
    """Whether a delete leaves a flagged entry, because a further slot is in use."""


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
    """The table's version of the batch."""
    slots: Sequence[KeySlot] = ()
    """Index entries that do not follow from the keys alone."""
    memory: pa.Buffer | None = field(default=None, compare=False)
    """All bytes of the batch, if they are in one piece."""
    message: RowsMessage | None = field(default=None, compare=False)
    """The batch as the Arrow message for the journal; None if it must be encoded."""

    @property
    def end(self) -> int:
        return self.start + int(self.batch.num_rows)

    def chunk(self, lsn: int, time_us: int) -> MemoryChunk:
        index = CommitIndex.one(lsn, time_us, self.end, self.live_sum, self.live_rows)
        flat = None if self.memory is None else LazyFlat(self.batch, self.memory)
        return MemoryChunk(self.start, self.batch, index, self.schema_id, flat)


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The counts of one change for the client. Each sent row is counted once."""

    table: str
    """The table's name."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    not_found: int = 0
    schema_id: int = 0
    """The version in which the rows were stored."""
    ignored: int = 0
    """Rows ignored by the merge engine, by the table's rule for deletes, because the key exists, or dropped as late."""
    unchanged: int = 0
    """Rows equal to the live row, in a table that skips them."""
    folded: int = 0
    """Rows folded into a later row of the same key."""
    dead_letters: int = 0
    """Rows that broke a rule of the contract and became dead letters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a producer's commit; kept for retries."""

    lsn: int
    results: tuple[ChangeResult, ...]
    is_repeated: bool = False
    """Whether the commit is a repeat, whose registers have moved already; then it has no results."""


@dataclass(frozen=True, slots=True)
class ProducerCommit:
    """A producer's request in a commit, or its opening."""

    producer: str
    epoch: int
    sequence: int = 0
    """0: the producer was opened with a new epoch and wrote nothing."""
    results: tuple[ChangeResult, ...] = ()
    progress: str = ""
    """The producer's own note; empty keeps the last one."""
    owner: str = ""
    """The principal that sent it; empty in an embedded server."""
    is_named: bool = True
    """Whether a user chose the name; False for a name that a client drew at random."""


@dataclass(frozen=True, slots=True)
class ProducerDrop:
    """The end of a producer with its sequences, answers and progress."""

    producer: str


ProducerChange = ProducerCommit | ProducerDrop


@dataclass(frozen=True, slots=True)
class RegistersOpen:
    """A new epoch of registers; new registers begin empty."""

    names: tuple[str, ...]
    epoch: int
    owner: str = ""
    """The principal of new registers; empty in an embedded server."""


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
    """The drop of a table, which can be undropped for a time."""

    table: str
    """The table's uuid."""
    until_us: int
    """The end of this time; 0: its files are removed at once."""


@dataclass(frozen=True, slots=True)
class Undrop:
    """The undrop of a table."""

    table: str
    """The table's uuid."""
    name: str
    """The table's name from then on."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The end of all rows of a table: its log starts at its heads."""

    table: str
    """The table's uuid."""
    number: int
    """The table's new number, under which the key index has nothing."""


SubscriptionChange = Subscription | SubscriptionMove | SubscriptionDrop
"""A whole subscription, new marks of one, or the end of one."""


@dataclass(slots=True)
class CommitRecord:
    """One commit."""

    lsn: int
    time_us: int
    rows: list[RowsPart] = field(default_factory=list)
    producers: list[ProducerChange] = field(default_factory=list)
    create: list[Table] = field(default_factory=list)
    alter: list[Table] = field(default_factory=list)
    """Definitions; each replaces the definition with its uuid."""
    drop: list[str] = field(default_factory=list)
    """Uuids of tables, dropped ones included, that are forgotten for good."""
    catalog: list[CatalogChange] = field(default_factory=list)
    tierer: TiererClaim | None = None
    starts: list[LogStart] = field(default_factory=list)
    subscriptions: list[SubscriptionChange] = field(default_factory=list)
    beside_us: int = 0
    """The time of the commit if its stamp `time_us` is far ahead of it; else 0."""

    in_doubt: bool = False
    """Whether nothing may be removed by age."""

    registers: list[RegisterChange] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """Ids of the parts with its rows: they are not committed again."""
    rename: list[Rename] = field(default_factory=list)
    truncate: list[Truncation] = field(default_factory=list)
    shelve: list[Shelving] = field(default_factory=list)
    """Also of dropped tables whose time changes."""
    undrop: list[Undrop] = field(default_factory=list)
    rescale: list[RescaleChange] = field(default_factory=list)
    swap: list[Swap] = field(default_factory=list)
    """Applied after everything else, also after rows of the copies."""
    erase: list[Erasure] = field(default_factory=list)
    """Each replaces the erasure with its id."""

    @property
    def clock_us(self) -> int:
        """The time of the commit, from which ages are computed."""
        return self.beside_us or self.time_us
