"""The values that cross the pipe between the server and the process that builds snapshots."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from lakestore.iceberg.cache import DISK_BYTES
from lakestore.iceberg.offset_cache import MEMORY_BYTES
from lakestore.limits import Limits

Json = dict[str, Any]
MANIFEST_BYTES = 256 << 20
"""Memory of manifests that are kept for the next snapshot's sake."""
_TEXT = struct.Struct("<I")


class Verb(IntEnum):
    """The questions: PRESENT and FORGET are the server's, FETCH is the process's."""

    PRESENT = 1
    FORGET = 2
    FETCH = 3


@dataclass(frozen=True, slots=True)
class Room:
    """The room that the process may take for what it keeps."""

    cache_folder: str = ""
    """The folder of the derived cache; empty for none."""
    cache_bytes: int = DISK_BYTES
    """Bytes of the derived cache."""
    offsets_memory: int = MEMORY_BYTES
    """Bytes of indexes that are not mapped."""
    manifests_memory: int = MANIFEST_BYTES

    @staticmethod
    def of(folder: Path, limits: Limits) -> Room:
        """The room that limits give, with a folder for the derived cache."""
        disk, memory = limits.lake_offsets_disk_bytes, limits.lake_offsets_bytes
        return Room(str(folder), disk, memory, limits.lake_manifests_bytes)

    def encode(self) -> str:
        """The room as an argument of the process."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Room:
        """The room that `encode` wrote."""
        return Room(**json.loads(text))


DEFAULT_ROOM = Room()


@dataclass(frozen=True, slots=True)
class Base:
    """The lake snapshot under a presented cut."""

    manifest_list: str = ""
    """URI of the snapshot's manifest list; empty for a table that was never tiered."""
    snapshot_id: int = 0
    format: int = 2
    """Format version of the base's metadata document."""
    sequence: int = 0
    """`last-sequence-number` of the document: hot files and deletes have the next one."""
    next_row_id: int = 0
    """`next-row-id` of the document; 0 of a document of version 2."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The request for the files of one table at one cut."""

    cut_id: int
    """The snapshot id that the cut is presented as."""
    folder: str
    """URI of the folder of the table's presented files."""
    schema: Json
    """The Iceberg schema of the cut with the `schema-id` that the document gives it."""
    specs: Sequence[Json]
    """Every partition spec of the document."""
    default_spec_id: int
    flat_spec_id: int
    """An unpartitioned spec of the document, for hot files of many partitions."""
    format: int
    """Format version to present, 2 or 3; never below the base's."""
    plan: bytes
    """A `PlanAnswer` of the one table at the cut. Its dead sets are not needed: rows tell what they supersede."""
    base: Base = Base()

    def encode(self) -> bytes:
        """The question of PRESENT."""
        said = {name: value for name, value in asdict(self).items() if name != "plan"}
        text = json.dumps(said, separators=(",", ":")).encode()
        return _TEXT.pack(len(text)) + text + self.plan

    @staticmethod
    def decode(payload: bytes) -> BuildRequest:
        """The request that `encode` wrote."""
        (size,) = _TEXT.unpack_from(payload)
        said = json.loads(payload[_TEXT.size : _TEXT.size + size])
        return BuildRequest(**{**said, "base": Base(**said["base"])}, plan=payload[_TEXT.size + size :])


@dataclass(frozen=True, slots=True)
class BuiltFiles:
    """The files that make the table at the cut, for the metadata document around them."""

    manifest_list: str
    """URI of the snapshot's manifest list."""
    rows: int = 0
    """Rows in hot data files, dead ones included: the snapshot's `added-rows`."""
    data_files: int = 0
    """Hot data files."""
    delete_files: int = 0
    """Delete files and vectors that the base does not have."""
    deleted_rows: int = 0
    """Rows that these hide, in the base and in hot data files."""
    file_bytes: int = 0
    """Bytes of all files of the cut that the base does not have."""
    written_bytes: int = 0
    """Bytes that were written for this very request."""
    first_row_id: int = 0
    """The snapshot's `first-row-id`."""
    next_row_id: int = 0
    """The document's `next-row-id`."""
    flat: bool = False
    """Whether any file is under the unpartitioned spec, which the document has to show then."""
    offsets_read: int = 0
    """Offset indexes that were read from data files since the answer before."""
    offsets_evicted: int = 0
    """Offset indexes that went for lack of room since then."""
    took: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of fetch, hot, dead, deletes, manifests and merge."""

    def encode(self) -> bytes:
        """The answer to PRESENT."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: bytes) -> BuiltFiles:
        """The answer that `encode` wrote."""
        return BuiltFiles(**json.loads(payload))
