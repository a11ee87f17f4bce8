"""A run of the key index as a checkpoint names it."""

from __future__ import annotations

from dataclasses import dataclass

EMPTY_LSN = -1
"""The LSN of an index that is empty or being rebuilt."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """The file's name in the index's folder, with its size and checksum."""

    name: str
    size: int
    """In bytes."""
    entries: int
    crc: int
    """The checksum of its directory, and so of all its content: an earlier run may have had the same name."""


@dataclass(frozen=True, slots=True)
class NamedRuns:
    """The runs that one checkpoint names."""

    files: tuple[RunFile, ...] = ()
    """Newest first."""
    generation: int = -1
    """The generation of the index."""
    lsn: int = EMPTY_LSN
    """The commit at which the index stands. `EMPTY_LSN`: it is incomplete, and the next start rebuilds it."""


NO_RUNS = NamedRuns()
"""The runs that a checkpoint names for an incomplete index."""
