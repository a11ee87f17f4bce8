"""Which presented files are still needed: those of cuts under a lease, and those that the next cut is made of.

A run is one life of the presenter's process: a folder of its own under the table's. A process knows the files of its
own run; runs of earlier lives go as a whole when their leases must be over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from lakestore.lake.places import place
from lakestore_server.present.indexes import FOLDER

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

    def name(self, ending: str) -> str:
        """The URI of a file that is about to be written."""
        location = f"{self.folder}/{next(self._numbers)}-{ending}"
        self._there.add(location)
        self._new.add(location)
        return location

    def adopt(self, paths: Iterable[str]) -> None:
        """Take over files that were written beside the answers."""
        self._there.update(paths)

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


def runs(folder: str) -> list[str]:
    """The names of the runs that a table's folder has."""
    filesystem, path = place(folder)
    found = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
    return [each.base_name for each in found if each.type == FileType.Directory and each.base_name != FOLDER]


def remove_runs(folder: str, wanted: Callable[[str], bool]) -> list[str]:
    """Remove the runs of a table that are no longer wanted; their names. One that cannot be removed is left."""
    gone = []
    for run in runs(folder):
        if not wanted(run):
            filesystem, path = place(f"{folder}/{run}")
            try:
                filesystem.delete_dir(path)
            except (OSError, pa.ArrowException) as error:
                log.warning("presented files %s/%s cannot be removed: %s", folder, run, error)
                continue
            gone.append(run)
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
