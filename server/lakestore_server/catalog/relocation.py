"""The files of a lake: list the files that a table's metadata names, and rewrite them for another place. Only reading
does I/O.

Iceberg writes absolute paths into metadata, manifest lists, manifests, rows of position deletes and footers of deletion
vectors. For another folder all of these are rewritten, the leaves first, because sizes change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Invalid
from lakestore.iceberg import metadata_files, puffin
from lakestore.iceberg.avro import AvroFile
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import read_list
from lakestore.iceberg.position_deletes import PATH, PATH_ID
from lakestore_server.catalog import locations

Read = Callable[[str], bytes]
"""Returns the bytes of the file at a location."""
Save = Callable[[str, bytes], None]
_DELETED = 2
"""The status of a manifest entry whose file left the table."""
_POSITION_DELETES = 1


def named(location: str, read: Read) -> Iterator[str]:
    """Every file that metadata names, including itself, each before the files it names; repetitions are possible."""
    yield location
    doc = metadata_files.parsed(read(location))
    for part in (*doc.get("statistics", ()), *doc.get("partition-statistics", ())):
        yield part["statistics-path"]
    seen: set[str] = set()
    for snapshot in doc.get("snapshots", ()):
        yield snapshot["manifest-list"]
        listed = snapshot["manifest-list"]
        for manifest in read_list(read(listed), listed):
            if manifest.path not in seen:
                seen.add(manifest.path)
                yield manifest.path
                entries = Entries(read(manifest.path), manifest)
                yield from entries.paths(np.arange(len(entries)))


class Relocation:
    """A lake's move from one folder to another, table by table."""

    def __init__(self, old: str, new: str, read: Read, save: Save) -> None:
        """`read` takes old locations, `save` new ones. Files that are not saved are copied unchanged by the caller."""
        self._old, self._new, self._read, self._save = locations.plain(old), new.rstrip("/"), read, save
        self._sizes: dict[str, int] = {}
        """Sizes of the rewritten files by old location."""

    def place(self, location: str) -> str:
        """The new location of a file or folder; unchanged outside the lake."""
        plain = locations.plain(location)
        if plain == self._old:
            return self._new
        return self._new + plain[len(self._old) :] if plain.startswith(self._old + "/") else location

    def move(self, location: str) -> str:
        """Rewrite a table's metadata and all its files; returns the new location."""
        before = self._read(location)
        doc = metadata_files.parsed(before)
        for snapshot in doc.get("snapshots", ()):
            self._manifest_list(snapshot["manifest-list"])
            snapshot["manifest-list"] = self.place(snapshot["manifest-list"])
        for part in (*doc.get("statistics", ()), *doc.get("partition-statistics", ())):
            part["statistics-path"] = self.place(part["statistics-path"])
        doc["location"] = self.place(doc["location"])
        doc["metadata-log"] = []  # the older files are not copied
        doc["properties"] = {
            key: self.place(value) if locations.is_path(key) else value for key, value in doc["properties"].items()
        }
        made = self.place(location)
        self._save(made, metadata_files.same_form(orjson.dumps(doc), before))
        return made

    def _manifest_list(self, location: str) -> None:
        if location in self._sizes:
            return
        file = AvroFile.decode(self._read(location), location)
        for manifest in file.records:
            manifest["manifest_length"] = self._manifest(manifest["manifest_path"])
            manifest["manifest_path"] = self.place(manifest["manifest_path"])
        self._written(location, file.encode())

    def _manifest(self, location: str) -> int:
        if location not in self._sizes:
            file = AvroFile.decode(self._read(location), location)
            for entry in file.records:
                self._entry(entry)
            self._written(location, file.encode())
        return self._sizes[location]

    def _entry(self, entry: Any) -> None:
        data = entry["data_file"]
        path = data["file_path"]
        if data.get("content", 0) == _POSITION_DELETES:
            if entry["status"] != _DELETED:
                data["file_size_in_bytes"] = self._deletes(path, str(data["file_format"]).upper())
            for bounds in ("lower_bounds", "upper_bounds"):
                if data.get(bounds):
                    moved = {key: self._bound(key, value) for key, value in data[bounds].items()}
                    data[bounds] = {key: value for key, value in moved.items() if value is not None}
        if data.get("referenced_data_file"):
            data["referenced_data_file"] = self.place(data["referenced_data_file"])
        data["file_path"] = self.place(path)

    def _bound(self, number: int, bound: bytes) -> bytes | None:
        """A bound for the new place; None for a bound that was truncated inside the old place and means nothing any
        more."""
        if number != PATH_ID:
            return bound
        before = bound.decode("utf-8", "replace")
        moved = self.place(before)
        return None if moved == before else moved.encode()

    def _deletes(self, location: str, kind: str) -> int:
        if location not in self._sizes:
            data = self._read(location)
            if kind == "PARQUET":
                self._written(location, self._position_deletes(data))
            elif kind == "PUFFIN":
                self._written(location, puffin.moved(data, location, self.place))
            else:
                raise Invalid(f"{location} has position deletes as {kind}, which cannot be moved: restore where it was")
        return self._sizes[location]

    def _position_deletes(self, data: bytes) -> bytes:
        table = pq.read_table(pa.BufferReader(data))
        at = table.schema.get_field_index(PATH)
        paths = table.column(at).combine_chunks().dictionary_encode()
        paths = paths.combine_chunks() if isinstance(paths, pa.ChunkedArray) else paths
        moved = pa.array([self.place(path) for path in paths.dictionary.to_pylist()], table.schema.field(at).type)
        out = pa.BufferOutputStream()
        with pq.ParquetWriter(out, table.schema, compression="zstd") as writer:
            writer.write_table(table.set_column(at, table.schema.field(at), moved.take(paths.indices)))
        return bytes(out.getvalue().to_pybytes())

    def _written(self, location: str, data: bytes) -> None:
        self._sizes[location] = len(data)
        self._save(self.place(location), data)
