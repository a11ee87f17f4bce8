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
"""Memory for manifests that are kept for later snapshots."""
_TEXT = struct.Struct("<I")


class Verb(IntEnum):
    """The questions: PRESENT and FORGET are the server's, FETCH is the process's."""

    PRESENT = 1
    FORGET = 2
    FETCH = 3


@dataclass(frozen=True, slots=True)
class Room:
    """Limits of the process's caches."""

    cache_folder: str = ""
    """The folder of the derived cache; empty for none."""
    cache_bytes: int = DISK_BYTES
    """Bytes of the derived cache."""
    offsets_memory: int = MEMORY_BYTES
    """The most bytes of indexes in memory."""
    manifests_memory: int = MANIFEST_BYTES
    free_bytes_min: int = 0
    """Bytes that the derived cache leaves free on the disk, because commits need them."""

    @staticmethod
    def of(folder: Path, limits: Limits) -> Room:
        """The room that limits give, with a folder for the derived cache."""
        disk, memory = limits.lake_offsets_disk_bytes, limits.lake_offsets_bytes
        return Room(str(folder), disk, memory, limits.lake_manifests_bytes, limits.disk_free_bytes)

    def encode(self) -> str:
        """The limits as a command-line argument."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Room:
        """Decodes `encode`."""
        return Room(**json.loads(text))


DEFAULT_ROOM = Room()


@dataclass(frozen=True, slots=True)
class Base:
    """The lake snapshot below a presented cut."""

    manifest_list: str = ""
    """URI of the snapshot's manifest list; empty for a table that was never tiered."""
    snapshot_id: int = 0
    format: int = 2
    """Format version of the base's document."""
    sequence: int = 0
    """`last-sequence-number` of the document. Hot files and deletes get the next number."""
    next_row_id: int = 0
    """`next-row-id` of the document; 0 in format version 2."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Asks for the files of one table at one cut."""

    cut_id: int
    """The snapshot id of the presented cut."""
    folder: str
    """URI of the folder of the table's presented files."""
    schema: Json
    """The Iceberg schema of the cut, with the document's `schema-id`."""
    specs: Sequence[Json]
    """All partition specs of the document."""
    default_spec_id: int
    flat_spec_id: int
    """An unpartitioned spec of the document, for hot files with many partitions."""
    format: int
    """Format version to present, 2 or 3; at least the base's."""
    plan: bytes
    """A `PlanAnswer` of the one table at the cut, without dead sets: each row says what it superseded."""
    base: Base = Base()

    def encode(self) -> bytes:
        """The question of PRESENT."""
        said = {name: value for name, value in asdict(self).items() if name != "plan"}
        text = json.dumps(said, separators=(",", ":")).encode()
        return _TEXT.pack(len(text)) + text + self.plan

    @staticmethod
    def decode(payload: bytes) -> BuildRequest:
        """Decodes `encode`."""
        (size,) = _TEXT.unpack_from(payload)
        said = json.loads(payload[_TEXT.size : _TEXT.size + size])
        return BuildRequest(**{**said, "base": Base(**said["base"])}, plan=payload[_TEXT.size + size :])


@dataclass(frozen=True, slots=True)
class BuiltFiles:
    """The files of the table at the cut, for its metadata document."""

    manifest_list: str
    """URI of the snapshot's manifest list."""
    rows: int = 0
    """Rows in hot data files, including dead ones: the snapshot's `added-rows`."""
    data_files: int = 0
    """Hot data files."""
    delete_files: int = 0
    """Delete files and vectors that the base does not have."""
    deleted_rows: int = 0
    """Rows that these delete, in the base and in hot data files."""
    file_bytes: int = 0
    """Bytes of all files of the cut that the base does not have."""
    written_bytes: int = 0
    """Bytes that were written for this request."""
    first_row_id: int = 0
    """The snapshot's `first-row-id`."""
    next_row_id: int = 0
    """The document's `next-row-id`."""
    flat: bool = False
    """Whether a file has the unpartitioned spec, so that the document must list it."""
    offsets_read: int = 0
    """Offset indexes built from data files since the last answer."""
    offsets_evicted: int = 0
    """Offset indexes dropped for lack of space since the last answer."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests to the object store since the last answer, by kind."""
    took: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of fetch, hot, dead, deletes, manifests and merge."""

    def encode(self) -> bytes:
        """The answer to PRESENT."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: bytes) -> BuiltFiles:
        """Decodes `encode`."""
        return BuiltFiles(**json.loads(payload))
