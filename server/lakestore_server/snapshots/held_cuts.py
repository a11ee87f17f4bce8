"""Presented cuts with readers: which files and snapshots are kept, and until when.

- A cut is held from its first load to the end of the longest lease that a load of it got.
- Besides its files it holds the lake snapshot below, by one lease for each table and snapshot. It holds no part of the
  log.
- The list is in memory. After a restart, the grace time of `Leases` protects readers of the earlier run.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow.fs import FileType

from lakestore.errors import PlanExpired
from lakestore.iceberg import store_counts
from lakestore.iceberg.places import is_in_store, place
from lakestore_server.host.clock import Clock
from lakestore_server.read.leases import Leases
from lakestore_server.snapshots.cut_key import CutKey
from lakestore_server.snapshots.document import BaseSnapshot
from lakestore_server.snapshots.messages import BuiltFiles
from lakestore_server.snapshots.removal import remove_file

log = logging.getLogger("lakestore.present")


class RunFiles:
    """The files of one table that this run of the builder has written."""

    def __init__(self, folder: str, numbers: Iterator[int]) -> None:
        """`folder` is the run's folder of this table. `numbers` belong to the run: readers cache files by path, so
        no path may be used twice.
        """
        self.folder = folder
        self._numbers = numbers
        self._there: set[str] = set()
        self._new: set[str] = set()
        self._cuts: dict[int, tuple[str, ...]] = {}
        self._uses: Counter[str] = Counter()

    def begin(self) -> None:
        """Create the folder. An object store has none: a name with slashes is enough."""
        if not is_in_store(self.folder):
            filesystem, path = place(self.folder)
            filesystem.create_dir(path, recursive=True)

    def is_gone(self) -> bool:
        """Whether somebody removed the folder. Of a store one file is asked for, in place of all."""
        if not is_in_store(self.folder):
            filesystem, path = place(self.folder)
            return bool(filesystem.get_file_info(path).type != FileType.Directory)
        kept = next((path for path in self._uses if not path.endswith(".json")), None)
        if kept is None:
            return False
        store_counts.of_process().add(store_counts.HEAD)
        filesystem, path = place(kept)
        return bool(filesystem.get_file_info(path).type != FileType.File)

    def name(self, ending: str) -> str:
        """The URI for a new file."""
        location = f"{self.folder}/{next(self._numbers)}-{ending}"
        self._there.add(location)
        self._new.add(location)
        return location

    def adopt(self, paths: Iterable[str]) -> None:
        """Add files that a merge has written."""
        self._there.update(paths)

    def written_bytes(self, sizes: Mapping[str, int]) -> int:
        """The total size of those files among `sizes` that were written since the last `keep`."""
        return sum(size for path, size in sizes.items() if path in self._new)

    def keep(self, cut_id: int, paths: Iterable[str]) -> None:
        """Record the files of a cut. The base's files are ignored: they do not belong to the run."""
        own = tuple(path for path in paths if path in self._there)
        self._cuts[cut_id] = own
        self._uses.update(own)
        self._new.clear()

    def forget(self, cut_ids: Iterable[int]) -> None:
        """Forget cuts."""
        for cut_id in cut_ids:
            self._uses.subtract(self._cuts.pop(cut_id, ()))
        self._uses = +self._uses

    def discard_new(self) -> list[str]:
        """Remove the files written since the last `keep`, because a build has failed. Returns the removed files."""
        gone = list(self._new)
        self._new.clear()
        return self._removed(gone)

    def sweep(self, current: Collection[str]) -> list[str]:
        """Remove files that neither a kept cut nor `current` needs. Returns the removed files."""
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
    """Remove a file. False if that failed; the next sweep tries again."""
    try:
        remove_file(location)
    except FileNotFoundError:
        return True
    except (OSError, pa.ArrowException) as error:
        log.warning("presented file %s cannot be removed: %s", location, error)
        return False
    return True


@dataclass(slots=True)
class HeldCut:
    """One presented cut whose files are kept."""

    key: CutKey
    files: BuiltFiles
    base: BaseSnapshot
    lsn: int
    """The commit that the cut's token names."""
    run: str
    """The run of the builder that wrote the files."""
    documents: set[str] = field(default_factory=set)
    """The metadata files that were written for the cut."""
    expires: float = 0.0
    """Seconds of the monotonic clock."""


@dataclass(slots=True)
class _BaseLease:
    lease: str
    expires: float


class HeldCuts:
    """All cuts in lease. Thread-safe."""

    def __init__(self, clock: Clock, leases: Leases) -> None:
        self._clock, self._leases = clock, leases
        self._lock = threading.Lock()
        self._cuts: dict[int, HeldCut] = {}
        self._bases: dict[tuple[str, int], _BaseLease] = {}

    def __len__(self) -> int:
        return len(self._cuts)

    def cuts(self) -> list[HeldCut]:
        with self._lock:
            return list(self._cuts.values())

    def add(self, cut: HeldCut, seconds: int) -> None:
        """Hold a newly built cut. The caller holds its base until this returns."""
        with self._lock:
            self._hold_base(cut.key, seconds)
            cut.expires = self._clock.monotonic() + seconds
            self._cuts[cut.key.snapshot_id] = cut

    def renewed(self, cut_id: int, seconds: int) -> HeldCut | None:
        """Extend a cut's lease to at least `seconds` from now. None if the cut is no longer held."""
        with self._lock:
            cut, now = self._cuts.get(cut_id), self._clock.monotonic()
            if cut is None or cut.expires <= now:
                return None
            try:
                self._hold_base(cut.key, seconds)
            except PlanExpired:
                return None
            cut.expires = max(cut.expires, now + seconds)
            return cut

    def document_written(self, cut: HeldCut, location: str) -> None:
        """Record a metadata file of the cut."""
        with self._lock:
            cut.documents.add(location)

    def _hold_base(self, key: CutKey, seconds: int) -> None:
        """Hold the base snapshot for at least `seconds` from now."""
        if not key.base_snapshot_id:
            return
        place, now = (key.table_uuid, key.base_snapshot_id), self._clock.monotonic()
        held = self._bases.get(place)
        if held is None or held.expires <= now:
            lease = self._leases.grant({key.table_uuid: key.base_snapshot_id}, seconds)
            self._bases[place] = _BaseLease(lease, now + seconds)
        elif held.expires < now + seconds:
            self._leases.renew(held.lease, math.ceil(seconds))
            held.expires = now + seconds

    def dropped(self, is_lost: Callable[[HeldCut], bool]) -> list[int]:
        """Stop holding cuts whose files are lost. Returns their ids."""
        with self._lock:
            lost = [cut_id for cut_id, cut in self._cuts.items() if is_lost(cut)]
            for cut_id in lost:
                del self._cuts[cut_id]
            return lost

    def take_over(self) -> list[HeldCut]:
        """Stop holding cuts whose leases have expired. Returns them."""
        with self._lock:
            now = self._clock.monotonic()
            over = [cut for cut in self._cuts.values() if cut.expires <= now]
            for cut in over:
                del self._cuts[cut.key.snapshot_id]
            for place in [place for place, held in self._bases.items() if held.expires <= now]:
                del self._bases[place]
            return over
