"""A run of the key index as a checkpoint names it."""

from __future__ import annotations

from dataclasses import dataclass

EMPTY_LSN = -1
"""The LSN of an index that holds nothing, or that is being rebuilt."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """The file's name in the index's folder, and what it must be."""

    name: str
    size: int
    """In bytes."""
    entries: int
    crc: int
    """The checksum of its directory, and so of all its content: a run of the same name may have been there before."""


@dataclass(frozen=True, slots=True)
class NamedRuns:
    """The runs that one checkpoint names."""

    files: tuple[RunFile, ...] = ()
    """Newest first."""
    generation: int = -1
    """The generation of the index."""
    lsn: int = EMPTY_LSN
    """The commit at which the index stands. `EMPTY_LSN`: it is not whole, and the next start rebuilds it."""


NO_RUNS = NamedRuns()
"""The runs that a checkpoint names of an index that is not whole."""
