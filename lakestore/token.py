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
class Token:
    """A point in a server's history."""

    timeline: str
    lsn: int
    tables: tuple[str, ...] = ()
    """Uuids of a stream's tables."""
    place: Place | None = None
    """Only while a stream reads its snapshot at `lsn`."""

    def __str__(self) -> str:
        data: list[object] = [self.timeline, self.lsn]
        if self.tables or self.place:
            data.append(list(self.tables))
        if self.place:
            data.append([self.place.table, self.place.bucket, self.place.offset])
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
            place = Place(*data[3]) if len(data) > 3 else None
            return Token(data[0], data[1], tuple(data[2]) if len(data) > 2 else (), place)
        except (ValueError, TypeError, IndexError, binascii.Error) as error:
            raise Invalid(f"{text!r} is not a position token") from error
