"""The undo log: all that a shim has seen done to files and names, in order, with the bytes that were there before."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

from jepsen.system.shim import MAGIC

_HEADER = struct.Struct("<IIQHHHHQQQQQQ")


class Kind(IntEnum):
    """The deeds that a log tells of."""

    WRITE = 1
    SYNC = 2
    NO_SYNC = 3
    NAME = 4
    REMOVE = 5
    RENAME = 6
    SYNC_FOLDER = 7
    DURABLE = 8
    """The last write was to a file that syncs every one."""


class Flag(IntFlag):
    """The details of a deed."""

    FOLDER = 1
    NEW = 2
    CUT = 4
    """A write that sets the file's size to its place."""
    TARGET = 8
    """A rename that replaces something."""


@dataclass(frozen=True, slots=True)
class Record:
    """One deed. Files and folders are told by the numbers of their inodes."""

    sequence: int
    kind: Kind
    flags: Flag
    node: int
    folder: int
    """The folder of the name; of the new one, for a rename."""
    at: int
    """A write's place, or the file that a rename replaces."""
    count: int
    size: int
    """The file's size before a write."""
    since: int
    """When a sync began, or the folder that a rename takes the file from."""
    name: str
    old_name: str
    old: bytes
    """A write's place as it was before, as far as the file went."""


def records(side: Path) -> list[Record]:
    """The deeds of all processes, in order. A log that ends within a record was cut off before its deed."""
    found = [record for file in side.glob("log-*") for record in _of(file.read_bytes())]
    return sorted(found, key=lambda each: each.sequence)


def _of(data: bytes) -> Iterator[Record]:
    at = 0
    while at + _HEADER.size <= len(data):
        head = _HEADER.unpack_from(data, at)
        magic, nbytes, sequence, kind, flags, name_bytes, more_bytes, node, folder, place, count, size, since = head
        if magic != MAGIC:
            raise ValueError(f"the undo log has no record at byte {at}")
        if at + nbytes > len(data):
            return
        name_at = at + _HEADER.size
        more_at = name_at + name_bytes
        old_at = more_at + more_bytes
        name, more = os.fsdecode(data[name_at:more_at]), os.fsdecode(data[more_at:old_at])
        said = name, more, data[old_at : at + nbytes]
        yield Record(sequence, Kind(kind), Flag(flags), node, folder, place, count, size, since, *said)
        at += nbytes
