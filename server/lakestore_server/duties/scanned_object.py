"""One file that the scan of an erasure has read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

Gone = Mapping[str, Sequence[BitMap64]]
"""Table uuid to the erased offsets of each bucket."""
HAS_ROWS = "it has erased rows"


@dataclass(frozen=True, slots=True)
class ScannedObject:
    """A file that was read whole."""

    place: str
    """`data/…` in the server's folder, or its location in the lake."""
    kind: str
    size: int
    sha256: str
    finding: str = ""
    """Why the file may not be there; empty if it holds nothing that was erased."""
    is_unnamed: bool = False
    """Whether no snapshot of the lake names it."""
    may_grow: bool = False
    """Whether the file cannot be read and was written a moment ago: its writer may be at work."""


def unread(error: Exception) -> str:
    """The finding for a file that cannot be read."""
    return f"it cannot be read, so it cannot be vouched for ({error})"
