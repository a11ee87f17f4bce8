"""The part file's format and the place of part files: uploaded rows of a commit that comes later. The file is removed
when the commit is durable.

Header: magic u32 · version u16 · flags u16 · meta bytes u32 · row bytes u64 · crc32c u32 of header and meta, padding to
64. Then the meta (JSON: owner, time in µs, rows, and the change without its rows), then the rows as they were sent: an
Arrow IPC stream whose crc32c is in the meta. A file gets its name after it is complete and synced.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host import versions
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk

FOLDER = "parts"
SUFFIX = ".part"
ASIDE = ".tmp"
"""The end of the name of a file that is being written."""
MAGIC = 0x4C535055
VERSION = 1
_HEADER = struct.Struct("<IHHIQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class PartHead:
    """A part without its rows."""

    id: str
    owner: str
    """The principal that uploaded it; empty on an embedded server."""
    time_us: int
    """Time of the upload."""
    rows: int
    nbytes: int
    """Size of the rows as they were sent."""
    crc32c: int
    """Checksum of those bytes."""
    table: str
    """The table's name at the time of the upload."""
    table_uuid: str
    kind: int
    """Kind of the change, as `pb.ChangeKind`."""
    schema_id: int
    """The schema version of the rows' column names."""
    keep: tuple[str, ...] = ()
    as_of: bool = False
    damage: str = ""
    """An error sentence if the head is damaged; empty otherwise."""

    def change(self, rows: bytes) -> pb.Change:
        """The change that was uploaded."""
        return pb.Change(
            table=self.table,
            kind=pb.ChangeKind.ValueType(self.kind),
            rows=rows,
            crc32c=self.crc32c,
            schema_id=self.schema_id,
            table_uuid=self.table_uuid,
            keep=self.keep,
            as_of=self.as_of,
        )


def name_of(part: str) -> str:
    """The file name."""
    return f"{part}{SUFFIX}"


def data_of(head: PartHead, rows: bytes) -> Sequence[bytes]:
    """The file's bytes, in pieces."""
    return [*_header(head), rows]


def _header(head: PartHead) -> Sequence[bytes]:
    meta = orjson.dumps(
        {
            "owner": head.owner,
            "t": head.time_us,
            "rows": head.rows,
            "crc32c": head.crc32c,
            "table": head.table,
            "uuid": head.table_uuid,
            "kind": head.kind,
            "version": head.schema_id,
            "keep": head.keep,
            "as_of": head.as_of,
        }
    )
    header = _HEADER.pack(MAGIC, VERSION, 0, len(meta), head.nbytes)
    return (header + _CRC.pack(crc32c(meta, crc32c(header)))).ljust(_HEADER_BYTES, b"\0"), meta


def head_bytes(header: bytes) -> int:
    """The length of header and meta, by the first bytes of a file; 0 if they are too few."""
    return _HEADER_BYTES + int(_HEADER.unpack_from(header)[3]) if len(header) >= _HEADER_BYTES else 0


def head_of(part: str, data: bytes, size: int) -> PartHead:
    """The head of a part by the beginning of its file of `size` bytes. Raises `Corrupt` if it is damaged."""
    if len(data) < _HEADER_BYTES:
        raise damaged(part)
    magic, version, _, meta_bytes, nbytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise damaged(part)
    versions.check(version, (VERSION,), f"part {name_of(part)}")
    meta = data[_HEADER_BYTES : _HEADER_BYTES + meta_bytes]
    if size != _HEADER_BYTES + meta_bytes + nbytes or len(meta) != meta_bytes:
        raise damaged(part)
    if _CRC.unpack_from(data, _HEADER.size) != (crc32c(meta, crc32c(data[: _HEADER.size])),):
        raise damaged(part)
    said = orjson.loads(meta)
    return PartHead(
        part,
        said["owner"],
        said["t"],
        said["rows"],
        nbytes,
        said["crc32c"],
        said["table"],
        said["uuid"],
        said["kind"],
        said["version"],
        tuple(said["keep"]),
        said["as_of"],
    )


def rows_of(head: PartHead, data: bytes) -> bytes:
    """The rows of a part in the bytes of its file. Raises `Corrupt` if they are damaged."""
    rows = data[len(data) - head.nbytes :]
    if crc32c(rows) != head.crc32c:
        raise damaged(head.id)
    return rows


def damaged(part: str) -> Corrupt:
    """The error for a damaged part."""
    return Corrupt(f"the part file {name_of(part)} is damaged: upload its rows again; nothing was committed")


class PartFiles(Protocol):
    """Part files in one place. Thread-safe. Each method raises `OSError` if the place does not answer."""

    is_shared: bool
    """Whether other servers have the same files."""
    at_once: int
    """The number of reads that one commit makes at the same time."""

    def sizes(self) -> dict[str, int]:
        """File name to bytes, for all files."""

    def put(self, head: PartHead, rows: bytes) -> None:
        """Store a part durably."""

    def head(self, part: str) -> PartHead:
        """The head of a part. `FileNotFoundError` without it, `Corrupt` if it is damaged."""

    def read(self, part: str) -> bytes:
        """The bytes of a part's file. `FileNotFoundError` without it."""

    def remove(self, names: Collection[str]) -> None:
        """Remove files by name, durably. Some of them may be absent."""


class PartFolder:
    """`PartFiles` in a folder of this machine, or in one that several servers have mounted."""

    def __init__(self, disk: Disk, folder: Path, *, is_shared: bool = False) -> None:
        self._disk, self._folder, self.is_shared = disk, folder, is_shared
        self.at_once = 4 if is_shared else 1

    def sizes(self) -> dict[str, int]:
        found = ((name, self._disk.size(self._folder / name)) for name in self._disk.list(self._folder))
        return {name: size for name, size in found if size is not None}

    def put(self, head: PartHead, rows: bytes) -> None:
        """Write the file aside, sync it, then give it its name."""
        disk, folder = self._disk, self._folder
        disk.make_folder(folder)
        path = folder / name_of(head.id)
        aside = folder / f"{path.name}{ASIDE}"
        file = disk.create(aside)
        try:
            file.write(data_of(head, rows))
            disk.reach(CrashPoint.PART_WRITTEN)
            file.sync()
        except OSError:
            disk.remove(aside)
            raise
        finally:
            file.close()
        disk.reach(CrashPoint.PART_SYNCED)
        disk.rename(aside, path)
        disk.reach(CrashPoint.PART_RENAMED)
        disk.sync_folder(folder)
        disk.reach(CrashPoint.PART_DURABLE)

    def head(self, part: str) -> PartHead:
        path = self._folder / name_of(part)
        size = self._disk.size(path)
        if size is None:
            raise FileNotFoundError(path)
        header = b"".join(self._disk.pieces(path, _HEADER_BYTES))
        return head_of(part, b"".join(self._disk.pieces(path, head_bytes(header))), size)

    def read(self, part: str) -> bytes:
        return self._disk.read(self._folder / name_of(part))

    def remove(self, names: Collection[str]) -> None:
        if not names or self._folder.name not in self._disk.list(self._folder.parent):  # a backup has no such folder
            return
        for name in sorted(set(self._disk.list(self._folder)).intersection(names)):
            with suppress(FileNotFoundError):  # another server may remove it, too
                self._disk.remove(self._folder / name)
            self._disk.reach(CrashPoint.PART_REMOVED)
        self._disk.sync_folder(self._folder)
