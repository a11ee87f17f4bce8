"""Position tokens: opaque strings that name a point in a server's history.

A commit token is the timeline and the LSN. A stream token adds, per table, its uuid and next offset of
each bucket and, while its snapshot is being read, the cut and the place in it.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass

from lakestore.errors import Invalid


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream stands inside the snapshot it is reading."""

    table: str
    """Table uuid; tables before it in the stream are done."""
    bucket: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch of a shared subscription acknowledges of one bucket."""

    table: int
    """Place of the table in the token's list."""
    bucket: int
    begin: int
    """Where this reader began: whoever else has acknowledged more since is the bucket's reader."""
    end: int
    """Offset behind the batch."""
    cut: int = -1
    """The LSN of the snapshot that is still read behind it."""
    run: int = 0
    """Higher than that of another part if somebody else has read the bucket in between; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class Token:
    """A point in a server's history."""

    timeline: str
    lsn: int
    tables: tuple[str, ...] = ()
    """Uuids of a stream's tables."""
    place: Place | None = None
    """Only while a stream reads its snapshot at `lsn`."""
    parts: tuple[Part, ...] | None = None
    """Only of batches of a shared subscription, which are acknowledged bucket by bucket."""

    def __str__(self) -> str:
        data: list[object] = [self.timeline, self.lsn]
        if self.tables or self.place or self.parts is not None:
            data.append(list(self.tables))
        if self.place or self.parts is not None:
            data.append([self.place.table, self.place.bucket, self.place.offset] if self.place else None)
        if self.parts is not None:
            data.append([[part.table, part.bucket, part.begin, part.end, part.cut, part.run] for part in self.parts])
        text = json.dumps(data, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4, "big") + text).rstrip(b"=").decode()

    @staticmethod
    def parse(text: str) -> Token:
        """The token that `str` wrote, or `Invalid`."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
                raise ValueError("checksum")
            data = json.loads(raw[4:])
            place = Place(*data[3]) if len(data) > 3 and data[3] else None
            parts = tuple(Part(*part) for part in data[4]) if len(data) > 4 else None
            return Token(data[0], data[1], tuple(data[2]) if len(data) > 2 else (), place, parts)
        except (ValueError, TypeError, IndexError, binascii.Error) as error:
            raise Invalid(f"{text!r} is not a position token") from error
