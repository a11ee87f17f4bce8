"""The key of a presented cut. Equal keys mean equal rows, files and metadata. Gives the snapshot id and the ETag.
Pure.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

ID_MAX = (1 << 63) - 1
_ETAG_BYTES = 12


@dataclass(frozen=True, slots=True)
class CutKey:
    """A table at a cut, on top of one snapshot of its lake table."""

    timeline: str
    """The timeline of the offsets: a restored server assigns them again."""
    table_uuid: str
    schema_id: int
    """The schema version at the cut."""
    base_snapshot_id: int
    """The lake snapshot below; 0 if there is none."""
    heads: tuple[int, ...]
    """For each bucket, the offset after the cut."""
    format_version: int
    """The Iceberg format version of the document: 2 or 3."""

    @property
    def snapshot_id(self) -> int:
        """The id of the cut's snapshot, from 1 to 2^63 - 1."""
        return int.from_bytes(self._hash(8), "big") % ID_MAX + 1

    def etag(self, made_of: str) -> str:
        """The ETag of the document, with its quotes. `made_of` identifies everything else that the document shows."""
        said = hashlib.blake2b(made_of.encode(), key=self._hash(16), digest_size=_ETAG_BYTES)
        return f'"{said.hexdigest()}"'

    def _hash(self, size: int) -> bytes:
        parts = (
            self.timeline,
            self.table_uuid,
            self.schema_id,
            self.base_snapshot_id,
            self.format_version,
            self.heads,
        )
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=size).digest()


def is_same(etags: str, etag: str) -> bool:
    """Whether an If-None-Match header names the ETag. `*` and weak forms count."""
    said = [part.strip().removeprefix("W/") for part in etags.split(",")]
    return etag in said or "*" in said
