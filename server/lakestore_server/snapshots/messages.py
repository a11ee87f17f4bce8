"""The dialog between the server and the presenter's process: messages as frames on a pipe.

A frame is its length u32 (of all that follows), a kind u8 and a payload. The server sends PRESENT or FORGET; the
process answers PRESENT with FETCH (to which the server gives ROWS frames and END, or FAILED), any number of WORKING,
and at last PRESENTED or ERROR, and FORGET with DONE.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from lakestore.errors import LakestoreError, error_of
from lakestore.iceberg.offset_cache import DISK_BYTES, MEMORY_BYTES
from lakestore.limits import Limits
from lakestore_server.host.bounded_pipe import Readable, exactly

Json = dict[str, Any]
MANIFEST_BYTES = 256 << 20
"""Memory of manifests that are kept for the next snapshot's sake."""
_HEAD = struct.Struct("<IB")
_TEXT = struct.Struct("<I")
FRAME_BYTES_MAX = (1 << 32) - 1


class Kind(IntEnum):
    """The kinds of frames: below 16 the server's, from 16 on the process's."""

    PRESENT = 1
    FORGET = 2
    ROWS = 3
    END = 4
    FAILED = 5
    FETCH = 16
    PRESENTED = 17
    DONE = 18
    ERROR = 19
    WORKING = 20


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on the pipe."""

    kind: Kind
    payload: bytes = b""

    def encode(self) -> bytes:
        """The frame's bytes."""
        return _HEAD.pack(len(self.payload) + 1, self.kind) + self.payload

    @staticmethod
    def read(pipe: Readable) -> Frame:
        """The next frame; EOFError at the pipe's end."""
        size, kind = _HEAD.unpack(exactly(pipe, _HEAD.size))
        return Frame(Kind(kind), exactly(pipe, size - 1))


@dataclass(frozen=True, slots=True)
class Room:
    """The room that the process may take for what it keeps."""

    offsets_folder: str = ""
    """The folder of index files; empty for none."""
    offsets_disk: int = DISK_BYTES
    """Bytes of index files."""
    offsets_memory: int = MEMORY_BYTES
    """Bytes of indexes that are not mapped."""
    manifests_memory: int = MANIFEST_BYTES

    @staticmethod
    def of(folder: Path, limits: Limits) -> Room:
        """The room that limits give, with a folder for index files."""
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

    def encode(self) -> Frame:
        """The request as a frame."""
        said = {name: value for name, value in asdict(self).items() if name != "plan"}
        text = json.dumps(said, separators=(",", ":")).encode()
        return Frame(Kind.PRESENT, _TEXT.pack(len(text)) + text + self.plan)

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
    """Delete files and vectors beside those of the base."""
    deleted_rows: int = 0
    """Rows that these hide, in the base and in hot data files."""
    file_bytes: int = 0
    """Bytes of all files that the cut has beside those of the base."""
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

    def encode(self) -> Frame:
        """The answer as a frame."""
        return Frame(Kind.PRESENTED, json.dumps(asdict(self), separators=(",", ":")).encode())

    @staticmethod
    def decode(payload: bytes) -> BuiltFiles:
        """The answer that `encode` wrote."""
        return BuiltFiles(**json.loads(payload))


def forget(cut_ids: Sequence[int]) -> Frame:
    """The request to let go of cuts whose leases are over."""
    return Frame(Kind.FORGET, json.dumps(list(cut_ids)).encode())


def forgotten(payload: bytes) -> list[int]:
    """The cuts that `forget` named."""
    return [int(cut_id) for cut_id in json.loads(payload)]


def error_frame(kind: Kind, error: LakestoreError) -> Frame:
    """An error as the frame of that kind, FAILED or ERROR."""
    said = [error.kind, error.message, error.applied, error.retry_after]
    return Frame(kind, json.dumps(said).encode())


def error_in(payload: bytes) -> LakestoreError:
    """The error that `error_frame` wrote."""
    kind, message, applied, retry_after = json.loads(payload)
    return error_of(kind, message, applied, float(retry_after))
