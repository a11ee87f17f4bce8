"""A running rescale or replay, and the swap that ends it, as values.

- A rescale fills a copy of a table (the source) under another number of buckets. Each commit to the copy moves `done`.
- A replay fills a copy too, its branch. Users may write to it once it is filled, and it swaps only on request.
- A swap gives the copy the name of the source in one commit. The source becomes a dropped table in its grace.
- The new table remembers the tables that it replaced (`former`), so that positions from before the swap find them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CopyKind(StrEnum):
    """The use of a copy."""

    RESCALE = ""
    BRANCH = "branch"
    """A replay: it follows its source."""
    BRANCH_AT = "at"
    """A replay: it has the rows of one position and follows nothing."""


@dataclass(frozen=True, slots=True)
class Rescale:
    """A copy that follows its source."""

    source: str
    """The source's uuid."""
    copy: str
    """The copy's uuid."""
    ends: tuple[int, ...]
    """The heads of the source when the copy began: rows that were live there are copied first, then the changes after
    it."""
    done: tuple[int, ...]
    """Per bucket of the source, the offset below which everything is in the copy."""
    kind: CopyKind = CopyKind.RESCALE

    @property
    def is_replay(self) -> bool:
        """Whether the copy is the branch of a replay."""
        return self.kind is not CopyKind.RESCALE

    @property
    def is_filled(self) -> bool:
        """Whether all rows that were live when the copy began, or at its position, are copied."""
        return all(done >= end for done, end in zip(self.done, self.ends, strict=True))


@dataclass(frozen=True, slots=True)
class RescaleEnd:
    """The end of a rescale, by a swap or without one."""

    source: str


RescaleChange = Rescale | RescaleEnd


@dataclass(frozen=True, slots=True)
class Swap:
    """A copy takes the place of its source."""

    source: str
    copy: str
    until_us: int
    """The end of the time in which the source can be read and undropped; 0: its files are removed at once."""
    apart: bool = False
    """Whether the rows of the two may differ, so that no change stream leads from one to the other."""


@dataclass(frozen=True, slots=True)
class FormerTable:
    """A table that had the place of another one until a swap."""

    uuid: str
    """Empty once it was undropped: it is a table of its own then."""
    lsn: int
    """The commit of the swap."""
    time_us: int
    """The stamp of this commit."""
    apart: bool = False
    """Equal to `Swap.apart` of the swap."""
