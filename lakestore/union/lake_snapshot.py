"""A snapshot of the lake as its files: data files, each with the delete files that may name rows of it.

A manifest never changes, and neighbouring snapshots share most of theirs: what was read of it is kept, as many files as
the bound says, so planning a snapshot anew reads what it added.
"""

from __future__ import annotations

import gzip
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import orjson
import pyarrow as pa

from lakestore.errors import Corrupt, Invalid, PlanExpired
from lakestore.lake import manifests, places
from lakestore.lake.delete_index import DeleteIndex
from lakestore.lake.manifest_lists import DELETES, Manifest, read_list
from lakestore.lake.manifests import Entry, File
from lakestore.union.plan import TableScan

METADATA_KEPT = 32
FILES_KEPT = 20_000
"""Files of manifests, and of snapshots, that are kept planned; each takes some kilobytes."""
_GZIP = b"\x1f\x8b"


@contextmanager
def named(path: str) -> Iterator[None]:
    """Errors of files as errors of ours that name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise PlanExpired(f"file {path} is gone: the read took longer than its lease, so read again") from error
    except (pa.ArrowInvalid, struct.error) as error:
        raise Corrupt(f"file {path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class LakeTable:
    """An Iceberg table as one metadata file says; such files never change."""

    location: str
    """The metadata file's own."""
    document: Mapping[str, Any]

    @property
    def specs(self) -> Mapping[int, Mapping[str, Any]]:
        """The partition specs by their ids."""
        return {spec["spec-id"]: spec for spec in self.document.get("partition-specs", ())}

    def snapshot(self, number: int) -> Mapping[str, Any]:
        """A snapshot, or `Invalid`."""
        for snapshot in self.document.get("snapshots", ()):
            if snapshot["snapshot-id"] == number:
                found: Mapping[str, Any] = snapshot
                return found
        raise Invalid(f"{self.location} has no snapshot {number}")


@lru_cache(maxsize=METADATA_KEPT)
def metadata(location: str) -> LakeTable:
    """The table as one metadata file says."""
    with named(location):
        data = places.read(location)
        try:
            return LakeTable(location, orjson.loads(gzip.decompress(data) if data.startswith(_GZIP) else data))
        except (ValueError, OSError, EOFError) as error:
            raise Corrupt(f"file {location} is no metadata of a table: {error}") from error


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file of a snapshot."""

    file: File
    deletes: tuple[File, ...] = ()
    """Delete files and vectors that may name rows of it."""


T = TypeVar("T", bound=Sized)


class _Kept(Generic[T]):
    """Lists that were made last, as many of their items as the bound lets stay. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str) -> T | None:
        with self._lock:
            if key in self._lists:
                self._lists.move_to_end(key)
            return self._lists.get(key)

    def put(self, key: str, items: T) -> None:
        with self._lock:
            before = self._lists.pop(key, None)
            self._count += len(items) - (0 if before is None else len(before))
            self._lists[key] = items
            while self._count > self._most:
                self._count -= len(self._lists.popitem(last=False)[1])


_MANIFESTS: _Kept[list[Entry]] = _Kept(FILES_KEPT)
_SNAPSHOTS: _Kept[tuple[PlannedFile, ...]] = _Kept(FILES_KEPT)


def planned(scan: TableScan) -> tuple[PlannedFile, ...]:
    """The data files of a plan's snapshot; `Invalid` for one whose deletes are not read here."""
    listed = metadata(scan.metadata_location).snapshot(scan.snapshot_id)["manifest-list"]
    known = _SNAPSHOTS.get(listed)
    if known is None:
        known = _with_deletes(_entries_of(listed), scan.table.name)
        _SNAPSHOTS.put(listed, known)
    return known


def _entries_of(listed: str) -> Iterator[Entry]:
    """The living files of a snapshot, data files first."""
    with named(listed):
        found = read_list(places.read(listed), listed)
    for manifest in sorted(found, key=lambda each: each.content == DELETES):
        yield from _entries(manifest)


def _entries(manifest: Manifest) -> list[Entry]:
    known = _MANIFESTS.get(manifest.path)
    if known is None:
        with named(manifest.path):
            known = manifests.read_manifest(places.read(manifest.path), manifest)
        _MANIFESTS.put(manifest.path, known)
    return known


def _with_deletes(entries: Iterable[Entry], name: str) -> tuple[PlannedFile, ...]:
    """Data files with their deletes, by what these name and by sequence number, as the format says."""
    data, deletes = [], DeleteIndex()
    for entry in entries:
        if entry.file.content == manifests.DATA:
            data.append(entry)
        elif entry.file.content == manifests.POSITION_DELETES:
            deletes.add(entry)
        else:
            raise Invalid(
                f"lake table {name} cannot be read: {entry.file.path}, of another engine, deletes rows by values"
                " (equality deletes): let that engine rewrite its table without them"
            )
    return tuple(PlannedFile(entry.file, tuple(each.file for each in deletes.of(entry))) for entry in data)


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One file of a lake snapshot."""

    content: str
    """data, position deletes or equality deletes."""
    path: str
    format: str
    rows: int
    bytes: int


_CONTENT = {manifests.DATA: "data", manifests.POSITION_DELETES: "position deletes"}


def files(metadata_location: str, snapshot_id: int) -> list[LakeFile]:
    """The files that a snapshot consists of."""
    listed = metadata(metadata_location).snapshot(snapshot_id)["manifest-list"]
    found = (entry.file for entry in _entries_of(listed))
    return [
        LakeFile(_CONTENT.get(each.content, "equality deletes"), each.path, each.format, each.rows, each.bytes)
        for each in found
    ]


def history(metadata_location: str) -> list[str]:
    """The operations of main's kept snapshots, oldest first: append, overwrite, replace (a compaction), delete."""
    document = metadata(metadata_location).document
    known = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots", ())}
    kept = [known[entry["snapshot-id"]] for entry in document.get("snapshot-log", ()) if entry["snapshot-id"] in known]
    return [snapshot["summary"]["operation"] for snapshot in kept if "summary" in snapshot]
