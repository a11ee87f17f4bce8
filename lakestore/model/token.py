"""Position tokens: opaque texts that name a point in a server's history.

A token is one of three positions: after a commit, inside the snapshot that a stream reads, or after a batch of a shared
subscription. The text is base64 of a checksum and a JSON list: timeline, LSN, then as needed uuids of tables, place,
parts, shard.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import KW_ONLY, dataclass
from typing import Any

from lakestore.errors import Invalid
from lakestore.model import outside_values

CHARS_MAX = 16 << 20
"""Longest token. A token of a shared subscription names every bucket of a batch."""
UUID_CHARS_MAX = 64
SHARD = 0
"""The only shard of this release. It is not written into tokens."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place inside the snapshot that a stream reads."""

    table: str
    """Table uuid. Earlier tables of the stream are done."""
    bucket: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """The acknowledgement of one bucket by a batch of a shared subscription."""

    table: int
    """Index of the table in the token's list."""
    bucket: int
    begin: int
    """Offset where this reader began. If another consumer has acknowledged more since, it owns the bucket."""
    end: int
    cut: int = -1
    """LSN of the snapshot that is still being read after it."""
    run: int = 0
    """Grows whenever somebody else has read the bucket in between; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """After a commit: everything up to its LSN is done."""

    timeline: str
    lsn: int
    tables: tuple[str, ...] = ()
    _: KW_ONLY
    shard: int = SHARD

    def __str__(self) -> str:
        return _text(self, [list(self.tables)] if self.tables else [])


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """Inside the snapshot at an LSN that a stream reads."""

    timeline: str
    lsn: int
    tables: tuple[str, ...]
    place: Place
    _: KW_ONLY
    shard: int = SHARD

    def __str__(self) -> str:
        place = [self.place.table, self.place.bucket, self.place.offset]
        return _text(self, [list(self.tables), place])


@dataclass(frozen=True, slots=True)
class SharedPosition:
    """After a batch of a shared subscription, which is acknowledged by bucket."""

    timeline: str
    lsn: int
    """A commit at which the batch's schema version is valid."""
    tables: tuple[str, ...]
    parts: tuple[Part, ...]
    _: KW_ONLY
    shard: int = SHARD

    def __str__(self) -> str:
        parts = [[part.table, part.bucket, part.begin, part.end, part.cut, part.run] for part in self.parts]
        return _text(self, [list(self.tables), None, parts])


StreamPosition = LogPosition | SnapshotPosition
"""The position of one consumer of a stream."""
Token = LogPosition | SnapshotPosition | SharedPosition
"""A point in a server's history. `str` returns its text, `position_of` parses it."""


def stream_position(timeline: str, lsn: int, tables: tuple[str, ...], place: Place | None) -> StreamPosition:
    """The position at an LSN; inside its snapshot if `place` is given."""
    return LogPosition(timeline, lsn, tables) if place is None else SnapshotPosition(timeline, lsn, tables, place)


def place_of(position: Token) -> Place | None:
    """The place inside a snapshot, if there is one."""
    return position.place if isinstance(position, SnapshotPosition) else None


def parts_of(position: Token) -> tuple[Part, ...]:
    """The buckets that a position acknowledges; empty outside a shared subscription."""
    return position.parts if isinstance(position, SharedPosition) else ()


def position_of(text: str) -> Token:
    """Parse a token. Raises `Invalid`."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if len(text) > CHARS_MAX or zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("checksum")
        position = _decoded(outside_values.json_of(raw[4:], "the token"))
    except (Invalid, ValueError, TypeError) as error:
        raise Invalid(f"{outside_values.excerpt(text)} is not a position token") from error
    if position.shard != SHARD:
        raise Invalid(f"the position is one of shard {position.shard}, which this release does not know")
    return position


def _text(position: Token, rest: list[object]) -> str:
    if position.shard != SHARD:
        rest = [*rest, *[None] * (3 - len(rest)), position.shard]
    text = json.dumps([position.timeline, position.lsn, *rest], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4, "big") + text).rstrip(b"=").decode()


_UUID, _NUMBER = outside_values.text(UUID_CHARS_MAX), outside_values.integer(0)
_TABLES = outside_values.list_of(_UUID, CHARS_MAX)
_FROM_NONE = outside_values.integer(-1)


def _decoded(value: Any) -> Token:
    """The position of a token's list. Raises `Invalid` for types and ranges that no server writes."""
    if type(value) is not list or not 2 <= len(value) <= 6:
        raise Invalid("a token is a list of 2 to 6 entries")
    entries: list[Any] = [*value, None, None, None, None]
    timeline, lsn = _UUID(entries[0], "timeline"), _NUMBER(entries[1], "LSN")
    tables, place, parts, shard = entries[2:6]
    uuids = tuple(_TABLES([] if tables is None else tables, "tables"))
    number = SHARD if shard is None else _NUMBER(shard, "shard")
    if parts is not None:
        read = outside_values.list_of(_part, CHARS_MAX)(parts, "parts")
        for part in read:
            _entry(part.table, len(uuids))
        return SharedPosition(timeline, lsn, uuids, tuple(read), shard=number)
    if place is not None:
        return SnapshotPosition(timeline, lsn, uuids, _place(place), shard=number)
    return LogPosition(timeline, lsn, uuids, shard=number)


def _place(value: Any) -> Place:
    if type(value) is not list or len(value) != 3:
        raise Invalid("a place is a table, a bucket and an offset")
    return Place(_UUID(value[0], "table"), _NUMBER(value[1], "bucket"), _NUMBER(value[2], "offset"))


def _part(said: Any, place: str) -> Part:
    if type(said) is not list or not 4 <= len(said) <= 6:
        raise Invalid(f"{place} is 4 to 6 numbers")
    table, bucket, begin, end = (_NUMBER(value, place) for value in said[:4])
    cut = _FROM_NONE(said[4], place) if len(said) > 4 else -1
    run = _NUMBER(said[5], place) if len(said) > 5 else 0
    if begin > end:
        raise Invalid(f"{place} ends before it begins")
    return Part(table, bucket, begin, end, cut, run)


def _entry(number: int, entries: int) -> None:
    if number >= entries:
        raise Invalid(f"there is no table {number} in the token")
