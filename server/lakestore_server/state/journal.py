"""The seam to the journal: the one log of a server's commits, in order and durable.

The commit loop owns the numbers of records (LSNs); a journal owns where they lie (`Place`), the claim that only one
server appends, and the word that a record stands. It splits a record that is too long for it (a Kafka topic takes 1 MB
at once; a file takes any). `append` does not wait, so the next records can be made while others are on their way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Exhausted


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
