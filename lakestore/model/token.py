"""Position tokens: opaque texts that name a point in a server's history.

A token is one of three positions, told apart by what the text holds: behind a commit, inside the snapshot that a
stream reads, or behind a batch of a shared subscription. The text is base64 of a checksum and a JSON list: timeline,
LSN, then, as far as needed, uuids of tables, place, parts, shard.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import KW_ONLY, dataclass
from typing import Any

from lakestore.errors import Invalid

SHARD = 0
"""The only shard that this release knows; a position in it does not write the number."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place inside the snapshot that a stream reads."""

    table: str
    """Table uuid; tables before it in the stream are done."""
    bucket: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """The acknowledgement of one bucket by a batch of a shared subscription."""

    table: int
    """Place of the table in the token's list."""
    bucket: int
    begin: int
    """Offset where this reader began: another consumer that has acknowledged more since is the bucket's reader."""
    end: int
    """Offset behind the batch."""
    cut: int = -1
    """The LSN of the snapshot that is still read behind it."""
    run: int = 0
    """Higher than that of another part if somebody else has read the bucket in between; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Behind a commit: everything up to its LSN is done."""

    timeline: str
    lsn: int
    tables: tuple[str, ...] = ()
    """Uuids of a stream's tables; empty for a commit."""
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
    """Uuids of the stream's tables."""
    place: Place
    _: KW_ONLY
    shard: int = SHARD

    def __str__(self) -> str:
        place = [self.place.table, self.place.bucket, self.place.offset]
        return _text(self, [list(self.tables), place])


@dataclass(frozen=True, slots=True)
class SharedPosition:
    """Behind a batch of a shared subscription, which is acknowledged bucket by bucket."""

    timeline: str
    lsn: int
    """A commit at which the batch's schema version holds."""
    tables: tuple[str, ...]
    """Uuids of the subscription's tables."""
    parts: tuple[Part, ...]
    _: KW_ONLY
    shard: int = SHARD

    def __str__(self) -> str:
        parts = [[part.table, part.bucket, part.begin, part.end, part.cut, part.run] for part in self.parts]
        return _text(self, [list(self.tables), None, parts])


StreamPosition = LogPosition | SnapshotPosition
"""The position of one consumer of a stream."""
Token = LogPosition | SnapshotPosition | SharedPosition
"""A point in a server's history; `str` gives its text, `position_of` reads it."""


def stream_position(timeline: str, lsn: int, tables: tuple[str, ...], place: Place | None) -> StreamPosition:
    """The position at an LSN: inside the snapshot there if a place is named."""
    return LogPosition(timeline, lsn, tables) if place is None else SnapshotPosition(timeline, lsn, tables, place)


def place_of(position: Token) -> Place | None:
    """The place inside a snapshot, if the position is in one."""
    return position.place if isinstance(position, SnapshotPosition) else None


def parts_of(position: Token) -> tuple[Part, ...]:
    """The buckets that a position acknowledges; none outside a shared subscription."""
    return position.parts if isinstance(position, SharedPosition) else ()


def position_of(text: str) -> Token:
    """The position that a token names, or `Invalid`."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("checksum")
        position = _decoded(*json.loads(raw[4:]))
    except (ValueError, TypeError, IndexError, binascii.Error) as error:
        raise Invalid(f"{text!r} is not a position token") from error
    if position.shard != SHARD:
        raise Invalid(f"the position is one of shard {position.shard}, which this release does not know")
    return position


def _text(position: Token, rest: list[object]) -> str:
    """The token's text; `rest` is what follows the LSN."""
    if position.shard != SHARD:
        rest = [*rest, *[None] * (3 - len(rest)), position.shard]
    text = json.dumps([position.timeline, position.lsn, *rest], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4, "big") + text).rstrip(b"=").decode()


def _decoded(
    timeline: str,
    lsn: int,
    tables: list[str] | None = None,
    place: list[Any] | None = None,
    parts: list[list[int]] | None = None,
    shard: int = SHARD,
) -> Token:
    uuids = tuple(tables or ())
    if parts is not None:
        return SharedPosition(timeline, lsn, uuids, tuple(Part(*part) for part in parts), shard=shard)
    if place:
        return SnapshotPosition(timeline, lsn, uuids, Place(*place), shard=shard)
    return LogPosition(timeline, lsn, uuids, shard=shard)
