"""The live data files of a lake table's main, kept from round to round.

Each round applies the changes of the snapshots since the last one. All manifests are listed only at first, or if the
history was cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from lakestore_tiering import snapshot_files
from lakestore_tiering.iceberg_java import Iceberg, LakeDelete, LakeFile
from lakestore_tiering.snapshot_files import Changes


class LiveFiles:
    """Data files by path, with their deletes, as of one snapshot of main."""

    def __init__(self) -> None:
        self._files: dict[str, LakeFile] = {}
        self._snapshot: int | None = None
        self._manifests: set[str] = set()
        """Manifests of the snapshot; Java is asked for files by them."""
        self._left: list[str] = []

    def removed_paths(self) -> list[str]:
        """Paths of data files that left main since the last call."""
        found, self._left = self._left, []
        return found

    def at_main(self, lake: Iceberg) -> dict[str, LakeFile]:
        current = lake.current_id()
        if current == self._snapshot:
            return self._files
        between = list(takewhile(lambda s: int(s.snapshotId()) != self._snapshot, lake.ancestry()))
        known = self._snapshot is not None and between and between[-1].parentId() == self._snapshot
        applied = known and all(self._apply(snapshot_files.changes(lake, snapshot)) for snapshot in reversed(between))
        if not applied or len(self._files) != snapshot_files.total(lake, default=len(self._files)):
            # A truncate drops whole manifests and names no removed file. Only the total shows it.
            files = {file.path: file for file in snapshot_files.files(lake)}
            self._left += self._files.keys() - files.keys()
            self._files = files
            self._manifests = snapshot_files.manifests(lake) if current else set()
        else:
            self._manifests = snapshot_files.read_manifests(lake, self._files, self._manifests)
        self._snapshot = current
        return self._files

    def _apply(self, changes: Changes) -> bool:
        """Apply the changes. False if a delete file covers a whole partition, because it names no data file."""
        for path in changes.removed:
            self._left.append(path)
            self._files.pop(path, None)
        for file in changes.added:
            self._files[file.path] = file
        if changes.removed_deletes:
            for file in self._files.values():
                for key in changes.removed_deletes & file.deletes.keys():
                    del file.deletes[key]
        # A list, not a generator: every delete file must be applied, also after a failure.
        return all([self._cover(*each) for each in changes.added_deletes])

    def _cover(self, path: str | None, key: tuple[str, int], delete: LakeDelete) -> bool:
        if path is None or path not in self._files:
            return False
        self._files[path].deletes[key] = delete
        return True


def covered_files(files: Iterable[LakeFile]) -> dict[tuple[str, int], set[str]]:
    """Each delete file with the data files that it covers."""
    found: dict[tuple[str, int], set[str]] = {}
    for file in files:
        for key in file.deletes:
            found.setdefault(key, set()).add(file.path)
    return found
