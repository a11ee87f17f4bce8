"""The scan of a table's lake for erased rows.

- Data files are searched for erased offsets, whether or not a snapshot names them. A file that no snapshot names, such
  as one of a killed round, may have versions that the log has forgotten: they are dead, and nobody knows whether they
  were erased.
- The folder is listed before the metadata is read, and again until no file is new. So a commit or an expiry beside the
  scan makes no finding, and no file escapes because rows moved from a file to a new one.
- A manifest or a list that no snapshot names may belong to a commit under way. Its bounds are values of the files in
  it: it is a finding unless every one of these files was read and has no erased row.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyroaring import BitMap64

from lakestore.errors import Corrupt
from lakestore.iceberg import places
from lakestore.iceberg.avro import Container
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import read_list
from lakestore.iceberg.manifests import entry_names
from lakestore.iceberg.puffin import Footer
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.metadata_store import local_folder
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.scanned_object import HAS_ROWS, Gone, ScannedObject, unread
from lakestore_server.state.view import View

WRITING_SECONDS = 600.0
"""Age below which a file that cannot be read may still be written."""
SETTLE_SECONDS, SETTLE_POLL_SECONDS = 30.0, 0.5
"""Time for which the scan waits for the writers of such files, and the time between two looks."""
FORGOTTEN = "no snapshot names it, and it has dead rows that the log has forgotten"
UNNAMED = "no snapshot names it, and its kind may hold values"
BATCH_ROWS = 65_536
_DOCUMENT = re.compile(r"\d+-[^/]*\.metadata\.json|version-hint\.text|\.[^/]*\.crc")
_DELETES = {"file_path", "pos"}
_LIST_FIELD = b"manifest_path"


def lake_of(view: View, catalog: Catalog, uuid: str) -> str:
    """The location of a table's lake; empty if there is none."""
    doc = _document(view, catalog, uuid)
    return str(doc["location"]) if doc else ""


def prune(location: str) -> None:
    """Remove the empty folders of partitions of a lake: their names are values. An object store has no folders."""
    root = local_folder(location) if location else None
    if root is None:
        return
    for folder, _, _ in os.walk(root / "data", topdown=False):
        if "=" in os.path.basename(folder):
            with contextlib.suppress(OSError):  # it has files
                os.rmdir(folder)


def scan(engine: Engine, catalog: Catalog, gone: Gone, pause: Callable[[], None]) -> Iterator[ScannedObject]:
    """Read the lake of each table with erased rows."""
    for uuid, offsets in gone.items():
        if uuid in engine.view.tables and (location := lake_of(engine.view, catalog, uuid)):
            lake = _Lake(location, offsets, _Forgotten(engine, uuid))
            until = time.monotonic() + SETTLE_SECONDS
            lake.read(pause)
            found = list(lake.judged(named(engine, catalog, uuid)))
            while any(each.finding and each.may_grow for each in found) and time.monotonic() < until:
                time.sleep(SETTLE_POLL_SECONDS)
                lake.forget_growing()
                lake.read(pause)
                found = list(lake.judged(named(engine, catalog, uuid)))
            yield from found


class _Forgotten:
    """The versions of rows that a table's log has forgotten. A log table forgets no version: it has no deletes."""

    def __init__(self, engine: Engine, uuid: str) -> None:
        self._state = engine.view.tables[uuid]
        self._kept: dict[int, BitMap64] = {}
        """The offsets below the log start that the log has, by bucket."""

    def meets(self, data: bytes) -> bool:
        """Whether a data file has a version below the log start that the log has forgotten."""
        file = pq.ParquetFile(pa.BufferReader(data))
        if not self._state.table.keyed or not {LAKE_BUCKET, LAKE_OFFSET} <= set(file.schema_arrow.names):
            return False
        table = file.read([LAKE_BUCKET, LAKE_OFFSET])
        buckets, offsets = (table.column(name).to_numpy() for name in (LAKE_BUCKET, LAKE_OFFSET))
        for bucket, start in enumerate(self._state.starts()):
            held = BitMap64(offsets[(buckets == bucket) & (offsets < start)])
            if held and not held <= self._of(bucket):
                return True
        return False

    def _of(self, bucket: int) -> BitMap64:
        if bucket not in self._kept:
            log, kept = self._state.logs[bucket], BitMap64()
            for offsets, _, _ in log.stored(0, self._state.starts()[bucket], BATCH_ROWS):
                kept |= BitMap64(offsets)
            self._kept[bucket] = kept
        return self._kept[bucket]


def in_parquet(data: bytes, gone: Sequence[BitMap64]) -> str:
    """The finding for a Parquet file."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        if LAKE_OFFSET not in names or LAKE_BUCKET not in names:
            return "" if set(names) >= _DELETES else "it has no row numbers, so it cannot be vouched for"
        table = file.read([LAKE_BUCKET, LAKE_OFFSET])
    except (pa.ArrowException, OSError) as error:
        return unread(error)
    buckets, offsets = (table.column(name).to_numpy() for name in (LAKE_BUCKET, LAKE_OFFSET))
    for bucket, held in enumerate(gone):
        if held and BitMap64(offsets[buckets == bucket]) & held:
            return HAS_ROWS
    return ""


def plain(location: str) -> str:
    """The path of a location in its file system."""
    return str(places.place(location)[1])


def _document(view: View, catalog: Catalog, uuid: str) -> Mapping[str, object] | None:
    table = view.tables[uuid].table
    pointer = view.pointers.get((table.namespace, table.short_name))
    return catalog.stored(pointer).doc if pointer else None


def named(engine: Engine, catalog: Catalog, uuid: str) -> set[str]:
    """The paths of a lake that its newest metadata names."""
    while True:
        view = engine.view
        try:
            doc = _document(view, catalog, uuid) if uuid in view.tables else None
            return _named_files(doc) if doc else set()
        except FileNotFoundError as error:  # an expiry removed it, if there is newer metadata
            if engine.view.pointers == view.pointers:
                raise Corrupt(f"the lake misses a file that its metadata names: {error}") from error


def _named_files(doc: Mapping[str, object]) -> set[str]:
    """The plain paths of all files that a table's metadata names, but for the metadata itself."""
    found: set[str] = set()
    snapshots = doc.get("snapshots") or []
    assert isinstance(snapshots, list)
    read: set[str] = set()
    for snapshot in snapshots:
        listed = str(snapshot["manifest-list"])
        found.add(plain(listed))
        for manifest in read_list(places.read(listed), listed):
            found.add(plain(manifest.path))
            if manifest.path not in read:
                read.add(manifest.path)
                found |= {plain(entry.file.path) for entry in Entries(places.read(manifest.path), manifest)}
    for key in ("statistics", "partition-statistics"):
        entries = doc.get(key) or []
        assert isinstance(entries, list)
        found |= {plain(str(entry["statistics-path"])) for entry in entries}
    return found


@dataclass(slots=True)
class _Lake:
    """The files of one table's lake."""

    location: str
    gone: Sequence[BitMap64]
    forgotten: _Forgotten
    objects: dict[str, ScannedObject] = field(default_factory=dict)
    files: dict[str, frozenset[str]] = field(default_factory=dict)
    """The files that a manifest, a list or a file of deletes tells about, by its path. Files of other kinds are not
    here."""

    def read(self, pause: Callable[[], None]) -> None:
        """Read every file, until a listing has no new one."""
        while new := [path for path in self._listed() if path not in self.objects]:
            for path in new:
                with contextlib.suppress(FileNotFoundError):  # an expiry has removed it
                    self.objects[path] = self._read(path)
                pause()

    def forget_growing(self) -> None:
        """Read the files again whose writers may have been at work."""
        self.objects = {path: each for path, each in self.objects.items() if not each.may_grow}

    def judged(self, named: set[str]) -> Iterator[ScannedObject]:
        """All files with their findings. `named` are the paths that newer metadata names."""
        clean = {path for path, each in self.objects.items() if path in named or not each.finding}
        for path, each in self.objects.items():
            if each.kind == "metadata" or path in named:
                yield each if each.kind == "metadata" or path.endswith(".parquet") else replace(each, finding="")
                continue
            finding = each.finding or ("" if self._is_vouched(path, clean, named) else UNNAMED)
            with contextlib.suppress(FileNotFoundError):  # an expiry has removed it
                if not finding and path.endswith(".parquet") and self.forgotten.meets(self._data(path)):
                    finding, each = FORGOTTEN, replace(each, may_grow=self._is_young(path))
            if not finding or self._is_there(path):
                yield replace(each, finding=finding, is_unnamed=True)

    def _is_vouched(self, path: str, clean: set[str], named: set[str]) -> bool:
        """Whether all files that an unnamed file tells about were read and are clean."""
        if path.endswith(".parquet") and path not in self.files:
            return True
        told = self.files.get(path)
        return told is not None and all(
            each in named or (each in clean and self._is_vouched(each, clean, named)) for each in told
        )

    def _listed(self) -> list[str]:
        filesystem, root = places.place(self.location)
        with places.store_errors(self.location):
            infos = filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(str(info.path) for info in infos if info.type == FileType.File)

    def _is_there(self, path: str) -> bool:
        return bool(self._info(path).type == FileType.File)

    def _info(self, path: str) -> pa.fs.FileInfo:
        filesystem, _ = places.place(self.location)
        with places.store_errors(self.location):
            return filesystem.get_file_info(path)

    def _data(self, path: str) -> bytes:
        filesystem, _ = places.place(self.location)
        with places.store_errors(self.location), filesystem.open_input_file(path) as stream:
            data: bytes = stream.readall()
        return data

    def _read(self, path: str) -> ScannedObject:
        data = self._data(path)
        size, digest, name = len(data), hashlib.sha256(data).hexdigest(), path.rsplit("/", 1)[-1]
        if _DOCUMENT.fullmatch(name):
            return ScannedObject(path, "metadata", size, digest)
        finding = ""
        try:
            finding = in_parquet(data, self.gone) if name.endswith(".parquet") else ""
            told = _told(data, name)
            if told is not None:
                self.files[path] = frozenset(map(plain, told))
        except (Corrupt, KeyError, TypeError, pa.ArrowException, OSError) as error:
            finding = finding or unread(error)
        made = ScannedObject(path, "lake", size, digest, finding)
        return replace(made, may_grow=self._is_young(path)) if finding not in ("", HAS_ROWS) else made

    def _is_young(self, path: str) -> bool:
        made = self._info(path).mtime
        return made is not None and time.time() - made.timestamp() < WRITING_SECONDS


def _told(data: bytes, name: str) -> set[str] | None:
    """The locations of the files that a file tells about; None for a data file, and for what has values of its own.

    A manifest tells about its files, also removed ones, because their bounds are in it; a list tells about its
    manifests; deletes tell about data files in folders whose names are values.
    """
    if name.endswith(".avro"):
        container = Container.opened(data, name)
        if _LIST_FIELD in container.meta["avro.schema"]:
            return {manifest.path for manifest in read_list(data, name)}
        return {record["data_file"]["file_path"] for record in container.records(entry_names(container))}
    if name.endswith(".puffin"):
        return _with_values(Footer.read(data, name).references)
    if name.endswith(".parquet"):
        file = pq.ParquetFile(pa.BufferReader(data))
        if set(file.schema_arrow.names) >= _DELETES:
            return _with_values(file.read(["file_path"]).column(0).unique().to_pylist())
    return None


def _with_values(paths: Collection[str] | None) -> set[str] | None:
    """The paths in folders of partitions, whose names are values."""
    return None if paths is None else {path for path in paths if "=" in path}
