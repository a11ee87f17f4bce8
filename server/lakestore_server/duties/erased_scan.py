"""The scan of every file for erased rows, by their numbers: the certificate of an erasure is made of it.

- A row version has one number (table, bucket, offset) for ever, in memory, journal, segment and data file. So the scan
  needs no value of the row: it decodes each file and compares offsets.
- A file that nothing names cannot be vouched for: it is a finding too, whatever is in it. A file that is being written,
  replaced or removed is none.
- Every file is read whole. Its size and SHA-256 go into the certificate.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakestore.errors import LakestoreError
from lakestore_server.catalog import locations
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.metadata_store import local_folder
from lakestore_server.commit.engine import Engine
from lakestore_server.duties import erased_lake
from lakestore_server.duties.checkpoint import Checkpointer
from lakestore_server.duties.scanned_object import HAS_ROWS, Gone, ScannedObject, unread
from lakestore_server.files import checkpoint as checkpoint_format
from lakestore_server.files import journal, shared_file
from lakestore_server.files.backup_manifest import WAREHOUSE
from lakestore_server.files.data_folder import INDEX, SEGMENTS, SUFFIX
from lakestore_server.files.extent import SUFFIX as KEPT
from lakestore_server.files.journal_file import NEXT
from lakestore_server.files.journal_file import PREFIX as JOURNAL
from lakestore_server.files.segment import Segment, SegmentBytes
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import Disk
from lakestore_server.index.run import SUFFIX as RUN
from lakestore_server.state.chunk import Chunk
from lakestore_server.state.erasure import Erasure
from lakestore_server.state.view import TableState, View

_KNOWN = re.compile(
    r"lock|release|parts/[^/]+|erasures/[0-9a-f]+\.json|erasures/[0-9a-f]+\.json\.tmp|cache/.*|index/rebuilding|segments"
    r"|index"
)
"""Files without rows of tables: the lock, the release, uploads that no commit has taken, certificates, caches that
were emptied."""


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


def scan(
    engine: Engine, checkpointer: Checkpointer, catalog: Catalog, gone: Gone, pause: Callable[[], None] = lambda: None
) -> Scan:
    """Read the data folder, and the lake of each table with erased rows. `pause` is called after each file."""
    folder = _Folder(engine, checkpointer, gone, local_folder(catalog.warehouse))
    return Scan([*folder.scanned(pause), *erased_lake.scan(engine, catalog, gone, pause)])


def of_backup(engine: Engine, catalog: Catalog, folder: Path, gone: Gone) -> Iterator[ScannedObject]:
    """The files of a backup that hold erased rows, with the data files of the lake in it."""
    for uuid, offsets in gone.items():
        location = erased_lake.lake_of(engine.view, catalog, uuid) if uuid in engine.view.tables else ""
        if location and locations.inside(location, catalog.warehouse):
            below = erased_lake.plain(location)[len(erased_lake.plain(catalog.warehouse)) :].strip("/")
            for path in _walked(engine.disk, folder / WAREHOUSE / below, None):
                finding = erased_lake.in_parquet(engine.disk.read(path), offsets) if path.suffix == ".parquet" else ""
                if finding:
                    place = f"data/{path.relative_to(folder).as_posix()}"
                    yield ScannedObject(place, "lake", *_digest(engine.disk, path), finding)
    for path in _walked(engine.disk, folder, folder / WAREHOUSE):
        found = _object(engine.disk, folder, path, engine.view, gone)
        if found.finding and found.kind not in ("other", "index"):
            yield found


# The server's folder.


@dataclass(slots=True)
class _Folder:
    """The server's folder, in which checkpoints and merges make and remove files while it is read."""

    engine: Engine
    checkpointer: Checkpointer
    gone: Gone
    warehouse: Path | None
    objects: dict[Path, ScannedObject] = field(default_factory=dict)

    def scanned(self, pause: Callable[[], None]) -> Iterable[ScannedObject]:
        """All files. A finding may be a file that a checkpoint or a merge was about to name or to remove. So the files
        with findings are read again while no checkpoint runs."""
        self._read(_Names(self.engine, self.checkpointer), pause)
        doubted = [path for path, each in self.objects.items() if each.finding]
        if doubted:
            with self.checkpointer.resting() as names:
                for path in doubted:
                    del self.objects[path]
                self._read(_Names(self.engine, self.checkpointer, frozenset(names)), pause)
        return self.objects.values()

    def _read(self, names: _Names, pause: Callable[[], None]) -> None:
        """Read every file that was not read, until a listing has no new one: a new file may have the rows of files
        that are gone."""
        disk, data = self.engine.disk, self.engine.folder
        while new := [path for path in _walked(disk, data, self.warehouse) if path not in self.objects]:
            for path in new:
                with contextlib.suppress(FileNotFoundError):  # a checkpoint has removed it
                    found = _object(disk, data, path, self.engine.view, self.gone)
                    self.objects[path] = found if found.finding else replace(found, finding=names.problem(path, found))
                pause()


@dataclass(slots=True)
class _Names:
    """The files that the view, the index, their merges and the newest checkpoint need."""

    engine: Engine
    checkpointer: Checkpointer
    checkpoint: frozenset[Path] = frozenset()
    """The files that the newest checkpoint names, while no other one runs."""
    paths: set[Path] = field(default_factory=set)

    def problem(self, path: Path, found: ScannedObject) -> str:
        """The finding for a file that nothing needs."""
        disk = self.engine.disk
        if found.kind == "checkpoint":
            is_last = path.name >= (checkpoint_format.names(disk, self.engine.folder) or [""])[-1]
            return "" if is_last or disk.size(path) is None else "a newer checkpoint has replaced it"
        if found.kind not in ("segments", "index") or path in self.paths:
            return ""
        self.paths = self._needed()
        return "" if path in self.paths or disk.size(path) is None else "no checkpoint names it"

    def _needed(self) -> set[Path]:
        # The merger first: a checkpoint takes a merged file from it to the view.
        engine, needed = self.engine, {*self.checkpoint, *self.checkpointer.merger.unnamed()}
        needed |= {engine.folder / INDEX / name for name in engine.index.file_names()}
        for state in engine.view.kept.values():
            needed |= {chunk.path for log in state.logs for chunk in log.chunks if isinstance(chunk, Segment)}
        return needed


def _object(disk: Disk, data: Path, path: Path, view: View, gone: Gone) -> ScannedObject:
    """A file that was read whole, judged by its content. Raises `FileNotFoundError`."""
    name = path.relative_to(data).as_posix()
    try:
        kind, finding = _judged(disk, path, name, view, gone)
    except FileNotFoundError:
        raise
    except (LakestoreError, pa.ArrowException, ValueError, OSError) as error:
        kind, finding = "unread", unread(error)
    return ScannedObject(f"data/{name}", kind, *_digest(disk, path), finding)


def _judged(disk: Disk, path: Path, name: str, view: View, gone: Gone) -> tuple[str, str]:
    """(kind, finding) of a file."""
    if name.startswith(JOURNAL) or name.endswith(KEPT) or name == NEXT:
        return "journal", _in_journal(disk, path, gone)
    if name.startswith(checkpoint_format.PREFIX):
        checkpoint_format.decode(disk.read(path), name)
        return "checkpoint", ""
    if name.endswith(SUFFIX) and name.startswith(SEGMENTS):
        return "segments", _in_segments(disk, path, view, gone)
    if name.endswith(RUN):
        return "index", ""
    if _KNOWN.fullmatch(name):
        return "known", ""
    return "other", "it is no file of Lakestore"


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
