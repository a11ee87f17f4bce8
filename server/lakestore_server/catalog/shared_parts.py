"""Uploaded parts of the servers of one journal: files in the warehouse that they share.

- The folder is `.lakestore/parts/<timeline of the journal>`. No namespace has a name with a leading dot, and the search
  for orphans looks into tables' folders only.
- An object is written once, by put-if-absent. Its name is drawn at random, so a late put of a paused server replaces
  nothing.
- In a mounted folder a file is written aside, synced, and renamed, as on a server's own disk.
"""

from __future__ import annotations

from collections.abc import Collection

from lakestore_server.catalog.locations import SERVERS_FOLDER
from lakestore_server.catalog.metadata_store import ObjectStorage, local_folder, storage_for
from lakestore_server.files import part_file
from lakestore_server.files.part_file import PartFiles, PartFolder, PartHead
from lakestore_server.host.disk import RealDisk

PLACE = f"{SERVERS_FOLDER}/parts"
HEAD_BYTES = 4096
"""Bytes that one request asks for a head. Few heads are longer."""
AT_ONCE = 8
"""Objects of one commit that are read at the same time: with 16 MB each, 128 MB."""


class PartObjects:
    """`PartFiles` in an object store."""

    is_shared, at_once = True, AT_ONCE

    def __init__(self, storage: ObjectStorage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def _location(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def sizes(self) -> dict[str, int]:
        return self._storage.sizes(self._folder)

    def put(self, head: PartHead, rows: bytes) -> None:
        """Put a new object. If an answer was lost, the object that is there has the same bytes."""
        data = b"".join(part_file.data_of(head, rows))
        self._storage.write_new(self._location(part_file.name_of(head.id)), data)

    def head(self, part: str) -> PartHead:
        location = self._location(part_file.name_of(part))
        data, size = self._storage.read_first(location, HEAD_BYTES)
        if part_file.head_bytes(data) > len(data):
            data, size = self._storage.read_first(location, part_file.head_bytes(data))
        return part_file.head_of(part, data, size)

    def read(self, part: str) -> bytes:
        return self._storage.read(self._location(part_file.name_of(part)))

    def remove(self, names: Collection[str]) -> None:
        self._storage.remove_all([self._location(name) for name in names])


def shared_parts(warehouse: str, timeline: str) -> PartFiles:
    """The uploaded parts of the servers of one journal in their warehouse."""
    root = local_folder(warehouse)
    if root is not None:
        return PartFolder(RealDisk(), root / PLACE / timeline, is_shared=True)
    place = warehouse.rstrip("/")
    storage = storage_for(place)
    assert isinstance(storage, ObjectStorage)
    return PartObjects(storage, f"{place}/{PLACE}/{timeline}")
