"""A snapshot of the lake as its files: data files, each with the delete files that may name rows of it.

A manifest never changes, and neighbouring snapshots share most of theirs: its entries are kept, laid out as arrays, in
bounded memory. So planning a snapshot anew reads the manifests that it added, and a read looks at the files it opens.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lakestore.errors import Corrupt, Invalid, PlanExpired
from lakestore.lake import manifests, places
from lakestore.lake.delete_index import DeleteIndex
from lakestore.lake.kept import Kept
from lakestore.lake.manifest_entries import Entries
from lakestore.lake.manifest_lists import DELETES, Manifest, read_list
from lakestore.lake.manifests import File
from lakestore.union.plan import TableScan

METADATA_KEPT = 32
MANIFESTS_BYTES_MAX = 256 << 20
"""Memory of manifests that were read: some 300,000 files with statistics of six columns."""
LISTED_BYTES = 600
"""Memory of one row of a manifest list."""
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

    @property
    def schema(self) -> Mapping[str, Any]:
        """The current schema."""
        current = self.document.get("current-schema-id")
        return next((each for each in self.document["schemas"] if each["schema-id"] == current), {})

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's manifests, of which a read opens as many as it needs."""

    data: tuple[Manifest, ...]
    deletes: DeleteIndex
    """The deletes of all data files."""
    nbytes: int

    def planned(self, entries: Entries, places: Iterable[int]) -> Iterator[PlannedFile]:
        """Data files at these places of a manifest."""
        for place in places:
            entry = entries.read(place)
            yield PlannedFile(entry.file, tuple(each.file for each in self.deletes.of(entry)))


_MANIFESTS: Kept[Entries] = Kept(MANIFESTS_BYTES_MAX)
_SNAPSHOTS: Kept[Snapshot] = Kept(MANIFESTS_BYTES_MAX)


def snapshot(scan: TableScan) -> Snapshot:
    """A plan's snapshot; `Invalid` for one whose deletes are not read here."""
    listed = metadata(scan.metadata_location).snapshot(scan.snapshot_id)["manifest-list"]
    known = _SNAPSHOTS.get(listed)
    if known is None:
        known = _opened(listed, scan.table.name)
        _SNAPSHOTS.put(listed, known)
    return known


def _opened(listed: str, name: str) -> Snapshot:
    """A snapshot with its deletes, by the data files that they name and by sequence number, as the format says."""
    found, deletes, size = _manifests(listed), DeleteIndex(), 0
    for manifest in found:
        if manifest.content == DELETES:
            held = entries_of(manifest)
            _refuse_equality(held, name)
            deletes.add_all(held)
            size += held.nbytes
    return Snapshot(tuple(each for each in found if each.content != DELETES), deletes, size + LISTED_BYTES * len(found))


def _refuse_equality(held: Entries, name: str) -> None:
    found = np.flatnonzero(held.contents == manifests.EQUALITY_DELETES)
    if len(found):
        raise Invalid(
            f"lake table {name} cannot be read: {held.paths(found[:1])[0]}, of another engine, deletes rows by values"
            " (equality deletes): let that engine rewrite its table without them"
        )


def forget() -> None:
    """Forget everything that was read: a measure begins so."""
    metadata.cache_clear()
    _MANIFESTS.clear()
    _SNAPSHOTS.clear()


def planned(scan: TableScan) -> tuple[PlannedFile, ...]:
    """All data files of a plan's snapshot."""
    found = snapshot(scan)
    return tuple(
        each
        for manifest in found.data
        for entries in [entries_of(manifest)]
        for each in found.planned(entries, range(len(entries)))
    )


def _manifests(listed: str) -> list[Manifest]:
    with named(listed):
        return read_list(places.read(listed), listed)


def entries_of(manifest: Manifest) -> Entries:
    """The living entries of a manifest."""
    known = _MANIFESTS.get(manifest.path)
    if known is None:
        with named(manifest.path):
            known = Entries(places.read(manifest.path), manifest)
        _MANIFESTS.put(manifest.path, known)
    return known


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
    held = sorted(_manifests(listed), key=lambda each: each.content == DELETES)
    found = (entry.file for manifest in held for entry in entries_of(manifest))
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
