"""Offset indexes of data files in bounded memory, those of base files on disk too.

A restart finds the indexes of base files again under `indexes/`, named after their data files; a file there that is
missing or damaged is read anew from the data file.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from lakestore.errors import Corrupt
from lakestore.lake import places
from lakestore.lake.manifests import Entry, File
from lakestore.lake.offset_index import INDEX_BYTES_MAX, FileOffsets, read_offsets

log = logging.getLogger("lakestore.present")
KEPT_ROWS_MIN = 1 << 14
"""Rows of a data file from which on its index is worth a file: smaller ones are read as fast from the data file."""
AHEAD = 4
"""Indexes that are read before they are needed."""
FOLDER = "indexes"


class Indexes:
    """Offset indexes by data file, the least recently used let go first."""

    def __init__(self, working: Callable[[], None], pool: Executor, bytes_max: int = INDEX_BYTES_MAX) -> None:
        """`working` is called before an index is read, which takes its time; several are read at once in the pool."""
        self._working, self._pool, self._bytes_max = working, pool, bytes_max
        self.nbytes = 0
        """Memory of the kept indexes in bytes."""
        self._kept: OrderedDict[str, FileOffsets] = OrderedDict()

    def put(self, path: str, offsets: FileOffsets) -> None:
        """Keep the index of a file that was just written."""
        self.drop([path])
        self._kept[path] = offsets
        self.nbytes += offsets.nbytes
        while self.nbytes > self._bytes_max and len(self._kept) > 1:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes

    def drop(self, paths: Iterable[str]) -> None:
        """Forget the indexes of files that are gone."""
        for path in paths:
            gone = self._kept.pop(path, None)
            self.nbytes -= gone.nbytes if gone else 0

    def of(self, file: File, folder: str = "") -> FileOffsets:
        """The index of a data file; of one of the base it is kept in the table's folder, too."""
        kept = self._kept.get(file.path)
        if kept is not None:
            self._kept.move_to_end(file.path)
            return kept
        self._working()
        made = _loaded(file, folder)
        self.put(file.path, made)
        return made

    def each(self, entries: Iterable[Entry], folder: str) -> Iterator[tuple[Entry, FileOffsets]]:
        """Data files with their indexes; those that are not in memory are read some files ahead."""
        ahead: deque[tuple[Entry, Future[FileOffsets] | None]] = deque()
        for entry in entries:
            known = entry.file.path in self._kept
            ahead.append((entry, None if known else self._pool.submit(_loaded, entry.file, folder)))
            if len(ahead) > AHEAD:
                yield self._first(ahead, folder)
        while ahead:
            yield self._first(ahead, folder)

    def _first(self, ahead: deque[tuple[Entry, Future[FileOffsets] | None]], folder: str) -> tuple[Entry, FileOffsets]:
        entry, loading = ahead.popleft()
        if loading is None:
            return entry, self.of(entry.file, folder)
        self._working()
        made = loading.result()
        self.put(entry.file.path, made)
        return entry, made


def _loaded(file: File, folder: str) -> FileOffsets:
    """An index from disk, or else read from the data file and kept on disk if it is worth it."""
    worth = bool(folder) and file.rows >= KEPT_ROWS_MIN
    made = _stored(file, folder) if worth else None
    if made is None:
        made = read_offsets(file)
        if worth:
            _store(file, folder, made)
    return made


def location_of(folder: str, path: str) -> str:
    """The file of the index of a data file."""
    return f"{folder}/{FOLDER}/{hashlib.sha256(path.encode()).hexdigest()[:32]}.offsets"


def sweep(folder: str, files: Iterable[File]) -> int:
    """Remove the indexes that a table keeps of other data files than these; their number."""
    wanted = {location_of(folder, file.path).rpartition("/")[2] for file in files}
    filesystem, path = places.place(f"{folder}/{FOLDER}")
    gone = 0
    for found in filesystem.get_file_info(FileSelector(path, allow_not_found=True)):
        if found.type == FileType.File and found.base_name not in wanted:
            filesystem.delete_file(found.path)
            gone += 1
    return gone


def _stored(file: File, folder: str) -> FileOffsets | None:
    """The index on disk; None if there is none that is whole."""
    location = location_of(folder, file.path)
    try:
        found = FileOffsets.decode(places.read(location), location)
    except FileNotFoundError:
        return None
    except (Corrupt, OSError, pa.ArrowException) as error:
        log.warning("offset index %s cannot be read and is made anew: %s", location, error)
        return None
    return found if len(found.keys) == file.rows else None


def _store(file: File, folder: str, made: FileOffsets) -> None:
    try:
        places.write(location_of(folder, file.path), made.encode())
    except (OSError, pa.ArrowException) as error:
        log.warning("the offset index of %s is not kept: %s", file.path, error)
