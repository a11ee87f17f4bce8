"""Which presented files are still needed: those of cuts under a lease, and those that the next cut is made of.

A run is one life of the presenter's process: a folder of its own under the table's, of whose files it alone knows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa
from pyarrow.fs import FileType

from lakestore.lake.places import place

log = logging.getLogger("lakestore.present")


class KeptFiles:
    """The files that one table has in this run."""

    def __init__(self, folder: str, numbers: Iterator[int]) -> None:
        """`folder` is the run's; `numbers` are the run's, too: readers keep files by path, so none is used twice."""
        self.folder = folder
        self._numbers = numbers
        self._there: set[str] = set()
        self._new: set[str] = set()
        self._cuts: dict[int, tuple[str, ...]] = {}
        self._uses: Counter[str] = Counter()

    def begin(self) -> None:
        """Make the run's folder, before anything is written."""
        filesystem, path = place(self.folder)
        filesystem.create_dir(path, recursive=True)

    def is_gone(self) -> bool:
        """Whether somebody removed the run's folder."""
        filesystem, path = place(self.folder)
        return bool(filesystem.get_file_info(path).type != FileType.Directory)

    def name(self, ending: str) -> str:
        """The URI of a file that is about to be written."""
        location = f"{self.folder}/{next(self._numbers)}-{ending}"
        self._there.add(location)
        self._new.add(location)
        return location

    def adopt(self, paths: Iterable[str]) -> None:
        """Take over files that were written beside the answers."""
        self._there.update(paths)

    def written_bytes(self, sizes: Mapping[str, int]) -> int:
        """The bytes of the files among these that were written since the last `keep`."""
        return sum(size for path, size in sizes.items() if path in self._new)

    def keep(self, cut_id: int, paths: Iterable[str]) -> None:
        """Note the files that a cut is made of; those of the base are nobody's here."""
        own = tuple(path for path in paths if path in self._there)
        self._cuts[cut_id] = own
        self._uses.update(own)
        self._new.clear()

    def forget(self, cut_ids: Iterable[int]) -> None:
        """Let go of cuts."""
        for cut_id in cut_ids:
            self._uses.subtract(self._cuts.pop(cut_id, ()))
        self._uses = +self._uses

    def discard_new(self) -> list[str]:
        """Remove what was written since the last `keep`: a presenting has failed. The files that are gone."""
        gone = list(self._new)
        self._new.clear()
        return self._removed(gone)

    def sweep(self, current: Collection[str]) -> list[str]:
        """Remove what neither a kept cut nor the current state needs. The files that are gone."""
        needed = self._uses.keys()
        return self._removed([path for path in self._there if path not in needed and path not in current])

    def _removed(self, paths: Iterable[str]) -> list[str]:
        gone = []
        for path in paths:
            if remove(path):
                self._there.discard(path)
                gone.append(path)
        return gone


def remove(location: str) -> bool:
    """Remove a file: whether it is gone; one that is not is tried again with the next sweep."""
    filesystem, path = place(location)
    try:
        filesystem.delete_file(path)
    except FileNotFoundError:
        return True
    except (OSError, pa.ArrowException) as error:
        log.warning("presented file %s cannot be removed: %s", location, error)
        return False
    return True
