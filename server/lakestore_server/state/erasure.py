"""An erasure, as a value: the request to remove the bytes of some rows, and how far it is.

- The request has the condition until no live row meets it. Then the journal drops the condition too: it may name the
  person.
- `floors` are the heads of each table when all of its rows to erase were dead. The journal, the log and the lake lose
  every dead row below them.
- Rows of a log table die in one commit, the one in which the lake loses them: `dead_lsn`. Their log is gone by then.
- A finished erasure stays, without offsets, so that a position before it is refused with its reason.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from pyroaring import BitMap64

from lakestore.rows.live_sum import live_sum
from lakestore_server.state.chunk import Position

FINISHED_MAX = 1_000
"""Finished erasures that are remembered. The oldest go first."""


class ErasureStep(StrEnum):
    """The step that comes next."""

    ROWS = "rows"
    """The rows are found and deleted."""
    LAKE = "lake"
    """The tierer rewrites files of the lake and expires its old snapshots."""
    LOG = "log"
    """The log start moves up, and segments, journal and index are rewritten."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ErasedTable:
    """A table of an erasure: the one that was named, or its dead letters."""

    uuid: str
    floors: tuple[int, ...] = ()
    """The head of each bucket when the last row was dead; empty before."""
    lsn: int = 0
    """The commit of these heads."""
    gone: tuple[str, ...] = ()
    """For each bucket the erased offsets, as a Roaring bitmap in base64; empty before and afterwards."""
    keys: int = 0
    rows: int = 0
    """Versions of rows, with the deletes."""
    dead_lsn: int = 0
    """The commit from which on a log table no longer has the rows; 0 before, and for a table with a key."""

    @property
    def offsets(self) -> list[BitMap64]:
        """The erased offsets of each bucket."""
        return offsets_of(self.gone)

    def lost(self, lsn: int) -> list[Position]:
        """By bucket: what a log table loses in a commit."""
        parts = [np.asarray(part.to_array(), np.int64) for part in self.offsets]
        return [Position(0, live_sum(part), len(part), 0, lsn) for part in parts]


@dataclass(frozen=True, slots=True)
class Erasure:
    """One request."""

    id: str
    name: str
    """The table's name at the request."""
    tables: tuple[ErasedTable, ...]
    """The named table first."""
    where: str
    """The condition; empty once no live row meets it."""
    where_hash: str
    """SHA-256 of the condition, hexadecimal."""
    by: str
    why: str
    at_us: int
    until_us: int
    """The deadline. From then on readers and subscriptions hold nothing back."""
    step: ErasureStep = ErasureStep.ROWS
    done_us: int = 0
    letters_left: int = 0
    """Dead letters of the table that the condition cannot judge."""
    backups: tuple[str, ...] = ()
    """Folders of backups that the certificate names."""

    def is_past(self, now_us: int, *, may_delete: bool) -> bool:
        """Whether the deadline is over. A clock in doubt ends no deadline, except one that was over at the request."""
        return self.until_us <= self.at_us or (may_delete and now_us >= self.until_us)

    def part(self, uuid: str) -> ErasedTable:
        """The part of one of its tables."""
        return next(each for each in self.tables if each.uuid == uuid)

    @property
    def is_done(self) -> bool:
        return self.step is ErasureStep.DONE


Erasures = Mapping[str, Erasure]
"""By id, oldest first."""


def offsets_of(texts: Sequence[str]) -> list[BitMap64]:
    """The offsets from their texts."""
    return [BitMap64.deserialize(b64decode(text)) for text in texts]


def dead_since(held: Erasure, uuid: str, lsn: int) -> Erasure:
    """The erasure whose rows of a log table die in a commit."""
    tables = (replace(each, dead_lsn=lsn) if each.uuid == uuid else each for each in held.tables)
    return replace(held, tables=tuple(tables))


def erased_lsn(erasures: Erasures, uuid: str, log_start: int) -> int:
    """The newest log start of a table that an erasure asked for, up to the present one; 0 for none."""
    every = (table for each in erasures.values() for table in each.tables)
    return max((table.lsn for table in every if table.uuid == uuid and table.lsn <= log_start), default=0)


def noted(before: Erasures, changes: Sequence[Erasure]) -> dict[str, Erasure]:
    """The erasures after some changes. The oldest finished ones are forgotten."""
    after = dict(before) | {each.id: each for each in changes}
    finished = [each.id for each in after.values() if each.is_done]
    for number in finished[: max(len(finished) - FINISHED_MAX, 0)]:
        del after[number]
    return after
