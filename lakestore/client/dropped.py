"""Dropped tables as the server keeps them, and what drop, truncate and a delete by a condition did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lakestore.model import times
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A dropped table that is still kept."""

    name: str
    uuid: str
    dropped: datetime
    until: datetime | None
    """The time up to which `undrop` has it back; None: its files are being removed."""
    left: timedelta
    """The time until then, by the server's clock."""
    rows: int
    bytes: int
    """Bytes of the server's own files; those in the lake are not counted."""

    @staticmethod
    def of(entry: pb.DroppedTable) -> DroppedTable:
        """The table that the server tells of."""
        until = None if entry.going else times.moment_of(entry.until_us)
        dropped = times.moment_of(entry.dropped_us)
        left = timedelta(microseconds=entry.left_us)
        return DroppedTable(entry.table, entry.table_uuid, dropped, until, left, entry.rows, entry.bytes)


@dataclass(frozen=True, slots=True)
class Truncated:
    """The cost of a truncate."""

    token: str
    """The commit; empty if it was only asked what it would take away."""
    rows: int
    """Rows that were live."""
    subscriptions: tuple[str, ...]
    """Subscriptions of the table, whose readers are told and begin anew after a reset."""


@dataclass(frozen=True, slots=True)
class DeleteProgress:
    """The progress of a delete by a condition."""

    matched: int
    """Live rows that met the condition so far."""
    deleted: int
    looked_at: int
    offsets: int
    """Offsets that there are to look at."""
