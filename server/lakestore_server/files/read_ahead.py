"""Parts of a file that the disk is asked for before they are read: those behind the one that a reader has come to.

A reader is known by the part that follows its last one. Who begins anywhere but at the first part has nothing read
before it went on to the next.
"""

from __future__ import annotations

from collections.abc import Callable

AHEAD_BYTES = 4 << 20
"""Bytes that are asked for behind the part that is read."""
READERS_MAX = 16
"""Readers that are known at once; one more, and all are new ones again."""


class ReadAhead:
    """The parts that readers come to next. Thread-safe: at worst one is asked for twice, or by nobody."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: dict[int, tuple[int, int]] = {}
        """The part that each reader will come to next, with the first one not asked for, and the bytes up to there."""

    def read(self, part: int, nbytes: int, ask: Callable[[int], int]) -> None:
        """A part of so many bytes is about to be read: `ask` for what follows, which gives a part's bytes or 0."""
        known = self._readers.pop(part, None if part else (0, 0))
        unasked, ahead = known or (part, 0)
        if unasked > part:
            ahead -= nbytes
        unasked = max(unasked, part + 1)
        while known and ahead < AHEAD_BYTES and (size := ask(unasked)):
            unasked, ahead = unasked + 1, ahead + size
        if len(self._readers) >= READERS_MAX:
            self._readers.clear()
        self._readers[part + 1] = unasked, ahead
