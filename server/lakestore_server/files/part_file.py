"""The part file's format: uploaded rows of a commit that comes later. The file is removed when the commit is
durable.

Header: magic u32 · version u16 · flags u16 · meta bytes u32 · row bytes u64 · crc32c u32 of header and meta, padding to
64. Then the meta (JSON: owner, time in µs, rows, and the change without its rows), then the rows as they were sent: an
Arrow IPC stream whose crc32c is in the meta. A file gets its name after it is complete and synced.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from lakestore.errors import Corrupt
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host import versions
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk

FOLDER = "parts"
SUFFIX = ".part"
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


def write(disk: Disk, folder: Path, head: PartHead, rows: bytes) -> None:
    """Write a part durably: first the file, then its name."""
    path = folder / name_of(head.id)
    aside = folder / f"{path.name}.tmp"
    file = disk.create(aside)
    try:
        file.write([*_header(head), rows])
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


def read_head(disk: Disk, path: Path) -> PartHead:
    """The head of a part. Raises `Corrupt` if it is damaged."""
    header = b"".join(disk.pieces(path, _HEADER_BYTES))
    if len(header) < _HEADER_BYTES:
        raise damaged(path.name)
    magic, version, _, meta_bytes, nbytes = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise damaged(path.name)
    versions.check(version, (VERSION,), f"part {path.name}")
    size = disk.size(path)
    if size != _HEADER_BYTES + meta_bytes + nbytes:
        raise damaged(path.name)
    meta = b"".join(disk.pieces(path, _HEADER_BYTES + meta_bytes))[_HEADER_BYTES:]
    if _CRC.unpack_from(header, _HEADER.size) != (crc32c(meta, crc32c(header[: _HEADER.size])),):
        raise damaged(path.name)
    said = orjson.loads(meta)
    return PartHead(
        path.name.removesuffix(SUFFIX),
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


def read_rows(disk: Disk, folder: Path, head: PartHead) -> bytes:
    """The rows of a part. Raises `Corrupt` if they are damaged."""
    data = disk.read(folder / name_of(head.id))
    rows = data[len(data) - head.nbytes :]
    if crc32c(rows) != head.crc32c:
        raise damaged(name_of(head.id))
    return rows


def damaged(name: str) -> Corrupt:
    """The error for a damaged part."""
    return Corrupt(f"the part file {name} is damaged: upload its rows again; nothing was committed")
