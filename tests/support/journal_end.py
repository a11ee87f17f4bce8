"""The end of the rows of a journal file: zeros fill its last block."""

from __future__ import annotations


def rows_end(data: bytes) -> int:
    """The place behind the last byte that a frame wrote there and that is no zero."""
    return len(data.rstrip(b"\0"))
