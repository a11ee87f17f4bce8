"""Bytes of messages that are damaged, or that no writer of ours makes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

FIELDS = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 7), st.binary(max_size=6)), max_size=6)
"""Fields by number and wire type: rows twice, rows that are a number, unknown fields and groups, false lengths."""


def damaged(data: bytes, place: int, byte: int, *, cut: bool) -> bytes:
    """The message with another byte at a place, or cut off there. The place counts within both ends of the message."""
    ends = [*range(80), *range(len(data) - 80, len(data))]
    at = ends[place % len(ends)]
    return data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]


def encoded_fields(found: Sequence[tuple[int, int, bytes]]) -> bytes:
    """The bytes of `FIELDS`."""
    return b"".join(bytes([number << 3 & 127 | kind]) + value for number, kind, value in found)
