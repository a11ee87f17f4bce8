"""The scan of every file for erased rows, by their numbers: the certificate of an erasure is made of it.

- A row version has one number (table, bucket, offset) for ever, in memory, journal, segment and data file. So the scan
  needs no value of the row: it decodes each file and compares offsets.
- A file that nothing names cannot be vouched for: it is a finding too, whatever is in it.
- Every file is read whole. Its size and SHA-256 go into the certificate.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyroaring import BitMap64

from lakestore.errors import Corrupt, LakestoreError
from lakestore.iceberg import places
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import read_list
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore_server.catalog import locations
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.metadata_store import local_folder
from lakestore_server.commit.engine import Engine
from lakestore_server.files import checkpoint, journal, shared_file
from lakestore_server.files.backup_manifest import WAREHOUSE
from lakestore_server.files.data_folder import SEGMENTS, SUFFIX
from lakestore_server.files.extent import SUFFIX as KEPT
from lakestore_server.files.journal_file import PREFIX as JOURNAL
from lakestore_server.files.segment import Segment, SegmentBytes
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import Disk
from lakestore_server.index.run import SUFFIX as RUN
from lakestore_server.state.chunk import Chunk
from lakestore_server.state.erasure import Erasure
from lakestore_server.state.view import TableState, View

Gone = Mapping[str, Sequence[BitMap64]]
"""Table uuid to the erased offsets of each bucket."""
HAS_ROWS = "it has erased rows"
_KNOWN = re.compile(r"lock|release|parts/[^/]+|erasures/[0-9a-f]+\.json|cache/.*|index/rebuilding|segments|index")
"""Files without rows of tables: the lock, the release, uploads that no commit has taken, certificates, caches that
were emptied."""
_DOCUMENT = re.compile(r"\d+-[^/]*\.metadata\.json|version-hint\.text|\.[^/]*\.crc")


@dataclass(frozen=True, slots=True)
class ScannedObject:
    """A file that was read whole."""

    place: str
    """`data/…` in the server's folder, or its location in the lake."""
    kind: str
    size: int
    sha256: str
    finding: str = ""
    """Why the file may not be there; empty if it holds nothing that was erased."""
    is_unnamed: bool = False
    """Whether no snapshot of the lake names it."""


@dataclass(slots=True)
class Scan:
    """All files."""

    objects: list[ScannedObject] = field(default_factory=list)

    @property
    def findings(self) -> list[str]:
        return [f"{each.place}: {each.finding}" for each in self.objects if each.finding]

    @property
    def nbytes(self) -> int:
        return sum(each.size for each in self.objects)


def gone_of(held: Erasure) -> Gone:
    """The erased offsets of an erasure that is not finished."""
    return {table.uuid: table.offsets for table in held.tables}


def scan(engine: Engine, catalog: Catalog, gone: Gone, pause: Callable[[], None] = lambda: None) -> Scan:
    """Read the data folder, and the lake of each table with erased rows. `pause` is called after each file."""
    found = Scan()
    folder = _folder(engine, engine.folder, gone, local_folder(catalog.warehouse))
    for each in (*folder, *_lakes(engine.view, catalog, gone)):
        found.objects.append(each)
        pause()
    return found


def of_backup(engine: Engine, catalog: Catalog, folder: Path, gone: Gone) -> Iterator[ScannedObject]:
    """The files of a backup that hold erased rows, with the data files of the lake in it."""
    for uuid, offsets in gone.items():
        location = lake_of(engine.view, catalog, uuid) if uuid in engine.view.tables else ""
        if location and locations.inside(location, catalog.warehouse):
            below = _plain(location)[len(_plain(catalog.warehouse)) :].strip("/")
            for path in _walked(engine.disk, folder / WAREHOUSE / below, None):
                finding = _in_parquet(engine.disk.read(path), offsets) if path.suffix == ".parquet" else ""
                if finding:
                    place = f"data/{path.relative_to(folder).as_posix()}"
                    yield ScannedObject(place, "lake", *_digest(engine.disk, path), finding)
    held = _folder(engine, folder, gone, folder / WAREHOUSE, is_backup=True)
    yield from (each for each in held if each.finding)


# The server's folder.


def _folder(
    engine: Engine, data: Path, gone: Gone, warehouse: Path | None, *, is_backup: bool = False
) -> Iterator[ScannedObject]:
    disk = engine.disk
    for path in _walked(disk, data, warehouse):
        name = path.relative_to(data).as_posix()
        try:
            kind, finding = _judged(disk, path, name, engine.view, gone)
            size, digest = _digest(disk, path)
        except FileNotFoundError:
            continue  # a checkpoint has removed it: the files that replace it are read too
        except (Corrupt, LakestoreError, pa.ArrowException, ValueError) as error:
            kind, finding = "unread", f"it cannot be read, so it cannot be vouched for ({error})"
            size, digest = _digest(disk, path)
        if is_backup:
            finding = "" if kind in ("other", "index") else finding
        elif kind in ("segments", "index") and not finding and path not in _named(engine):
            finding = "no checkpoint names it" if disk.size(path) is not None else ""
        elif kind == "checkpoint" and name < (checkpoint.names(disk, data) or [""])[-1]:
            finding = "a newer checkpoint has replaced it" if disk.size(path) is not None else ""
        yield ScannedObject(f"data/{name}", kind, size, digest, finding)


def _judged(disk: Disk, path: Path, name: str, view: View, gone: Gone) -> tuple[str, str]:
    """(kind, finding) of a file."""
    if name.startswith(JOURNAL) or name.endswith(KEPT):
        return "journal", _in_journal(disk, path, gone)
    if name.startswith(checkpoint.PREFIX):
        checkpoint.decode(disk.read(path), name)
        return "checkpoint", ""
    if name.endswith(SUFFIX) and name.startswith(SEGMENTS):
        return "segments", _in_segments(disk, path, view, gone)
    if name.endswith(RUN):
        return "index", ""
    if _KNOWN.fullmatch(name):
        return "known", ""
    return "other", "it is no file of Lakestore"


def _named(engine: Engine) -> set[Path]:
    """The files of segments and of the key index that the server reads."""
    chunks = (chunk for state in engine.view.kept.values() for log in state.logs for chunk in log.chunks)
    return {chunk.path for chunk in chunks if isinstance(chunk, Segment)} | {run.path for run in engine.index.runs}


def _in_journal(disk: Disk, path: Path, gone: Gone) -> str:
    for frame in journal.frames(disk.read(path), path.name, last=True):
        for part in frame.rows():
            if part.table in gone and _meets(gone[part.table][part.bucket], range(part.start, part.start + part.count)):
                return f"commit {frame.lsn} in it has erased rows"
    return ""


def _in_segments(disk: Disk, path: Path, view: View, gone: Gone) -> str:
    if not shared_file.is_shared(disk.map(path)):
        uuid, bucket = path.parent.name, int(path.name.partition("-")[0])
        return _in_segment(disk, path, None, gone[uuid][bucket], view.kept.get(uuid)) if uuid in gone else ""
    held = SharedFile(disk, path)
    for at, entry in held.entries.items():
        if entry.table in gone:
            offsets = gone[entry.table][entry.bucket]
            found = _in_segment(disk, path, held.part(at, entry.size), offsets, view.kept.get(entry.table))
            if found:
                return found
    return ""


def _in_segment(disk: Disk, path: Path, part: SegmentBytes | None, gone: BitMap64, state: TableState | None) -> str:
    if state is None:
        return "its table is gone, so its rows cannot be read"
    segment: Chunk = Segment(disk, path, state.versions.stored, keyed=state.table.keyed, part=part)
    held = [piece.offsets() for piece in segment.batches()]
    stored = BitMap64(np.concatenate(held)) if held else BitMap64()
    return HAS_ROWS if stored & gone else ""


def _meets(gone: BitMap64, offsets: range) -> bool:
    return gone.range_cardinality(offsets.start, offsets.stop) > 0


def _walked(disk: Disk, folder: Path, warehouse: Path | None) -> Iterator[Path]:
    """The files below a folder, without the warehouse, which may lie in it."""
    for name in sorted(disk.list(folder)):
        if folder / name == warehouse:
            continue
        if disk.size(folder / name) is None:
            yield from _walked(disk, folder / name, warehouse)
        else:
            yield folder / name


def _digest(disk: Disk, path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for piece in disk.pieces(path):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


# The lake.


def lake_of(view: View, catalog: Catalog, uuid: str) -> str:
    """The location of a table's lake; empty if there is none."""
    table = view.tables[uuid].table
    pointer = view.pointers.get((table.namespace, table.short_name))
    return str(catalog.stored(pointer).doc["location"]) if pointer else ""


def prune(location: str) -> None:
    """Remove the empty folders of partitions of a lake: their names are values. An object store has no folders."""
    root = local_folder(location) if location else None
    if root is None:
        return
    for folder, _, _ in os.walk(root / "data", topdown=False):
        if "=" in os.path.basename(folder):
            with contextlib.suppress(OSError):  # it has files
                os.rmdir(folder)


def _lakes(view: View, catalog: Catalog, gone: Gone) -> Iterator[ScannedObject]:
    for uuid, offsets in gone.items():
        if uuid not in view.tables:
            continue
        table = view.tables[uuid].table
        pointer = view.pointers.get((table.namespace, table.short_name))
        if pointer is None:
            continue
        doc = catalog.stored(pointer).doc
        named = _named_files(doc) | {_plain(pointer.location)}
        for path in _listed(str(doc["location"])):
            try:
                yield _lake_object(path, str(doc["location"]), offsets, is_named=path in named)
            except FileNotFoundError:
                continue  # an expiry has removed it


def _listed(location: str) -> list[str]:
    filesystem, root = places.place(location)
    with places.store_errors(location):
        infos = filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    return sorted(str(info.path) for info in infos if info.type == FileType.File)


def _named_files(doc: Mapping[str, object]) -> set[str]:
    """The plain paths of all files that a table's metadata names."""
    found: set[str] = set()
    snapshots = doc.get("snapshots") or []
    assert isinstance(snapshots, list)
    read: set[str] = set()
    for snapshot in snapshots:
        listed = str(snapshot["manifest-list"])
        found.add(_plain(listed))
        for manifest in read_list(places.read(listed), listed):
            found.add(_plain(manifest.path))
            if manifest.path not in read:
                read.add(manifest.path)
                found |= {_plain(entry.file.path) for entry in Entries(places.read(manifest.path), manifest)}
    for key in ("statistics", "partition-statistics"):
        entries = doc.get(key) or []
        assert isinstance(entries, list)
        found |= {_plain(str(entry["statistics-path"])) for entry in entries}
    return found


def _plain(location: str) -> str:
    return str(places.place(location)[1])


def _lake_object(path: str, location: str, gone: Sequence[BitMap64], *, is_named: bool) -> ScannedObject:
    filesystem, _ = places.place(location)
    with places.store_errors(location), filesystem.open_input_file(path) as stream:
        data = stream.readall()
    name = path.rsplit("/", 1)[-1]
    size, digest = len(data), hashlib.sha256(data).hexdigest()
    if _DOCUMENT.fullmatch(name):
        return ScannedObject(path, "metadata", size, digest)
    finding = ""
    if name.endswith(".parquet"):
        finding = _in_parquet(data, gone)
    elif not is_named:
        finding = "no snapshot names it, and its kind may hold values"
    return ScannedObject(path, "lake", size, digest, finding, is_unnamed=not is_named)


def _in_parquet(data: bytes, gone: Sequence[BitMap64]) -> str:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        return f"it cannot be read, so it cannot be vouched for ({error})"
    names = file.schema_arrow.names
    if LAKE_OFFSET not in names or LAKE_BUCKET not in names:
        is_deletes = {"file_path", "pos"} <= set(names)
        return "" if is_deletes else "it has no row numbers, so it cannot be vouched for"
    table = file.read([LAKE_BUCKET, LAKE_OFFSET])
    buckets, offsets = (table.column(name).to_numpy() for name in (LAKE_BUCKET, LAKE_OFFSET))
    for bucket, held in enumerate(gone):
        if held and BitMap64(offsets[buckets == bucket]) & held:
            return HAS_ROWS
    return ""
