"""Merges of steps: neighbours of one size become one, in a thread beside the answers, so that a table has a handful.

A merged step shows what its parts show, so it takes their place whenever it is ready; one that is not wanted any more
by then is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import LakestoreError
from lakestore.lake.offset_cache import OffsetCache
from lakestore.lake.places import place
from lakestore_server.present.hot_files import HotFile, put_aside, write_pieces
from lakestore_server.present.kept_files import remove
from lakestore_server.present.steps import Ints, Kills, Step

log = logging.getLogger("lakestore.present")
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge that is on its way, or done."""

    owner: str
    """Folder of the table."""
    parts: tuple[Step, ...]
    paths: list[str]
    """Files that were begun."""
    files: Future[list[HotFile]]


class Merger:
    """One merge at a time. For one thread, but for the merge itself."""

    def __init__(self, indexes: OffsetCache, numbers: Iterator[int]) -> None:
        """`numbers` name the run's files and steps."""
        self._indexes, self._numbers = indexes, numbers
        self._pool = ThreadPoolExecutor(1, "merge")
        self._running: Merge | None = None

    def begin(self, owner: str, folder: str, parts: tuple[Step, ...]) -> None:
        """Begin a merge, unless one is on its way; `folder` is the one for its files."""
        if self._running is not None or not parts:
            return
        paths: list[str] = []

        def name(ending: str) -> str:
            paths.append(f"{folder}/{next(self._numbers)}-{ending}")
            return paths[-1]

        keys = [self._indexes.of(file).keys for step in parts for file in step.files]
        self._running = Merge(owner, parts, paths, self._pool.submit(_merged, parts, keys, name))

    def done(self) -> tuple[Merge, Step] | None:
        """The merge that is complete by now, and its step; one that failed is told of and forgotten."""
        merge = self._running
        if merge is None or not merge.files.done():
            return None
        self._running = None
        try:
            files = merge.files.result()
        except (LakestoreError, OSError, MemoryError, pa.ArrowException) as error:
            log.warning("presented files of %s are not merged: %s", merge.owner, error)
            self.discard(merge)
            return None
        for each in files:
            self._indexes.put(each.file.path, each.offsets)
        first, last = merge.parts[0], merge.parts[-1]
        step = Step(
            next(self._numbers),
            first.start,
            last.end,
            first.shape,
            tuple(each.file for each in files),
            put_aside(Kills.joined([part.kills for part in merge.parts])),
            _added([part.born for part in merge.parts]),
            _added([part.died for part in merge.parts]),
        )
        return merge, step

    def abandon(self, owner: str) -> None:
        """Give up the merge of a table of which nothing is kept any more; its files go when it has ended."""
        merge = self._running
        if merge is not None and merge.owner == owner:
            self._running = None
            merge.files.add_done_callback(lambda _: _remove_all(merge.paths))

    def discard(self, merge: Merge) -> None:
        """Remove the files of a merge that nobody wants."""
        self._indexes.drop(merge.paths)
        _remove_all(merge.paths)

    def close(self) -> None:
        """Wait for the merge that runs."""
        self._pool.shutdown(cancel_futures=True)


def _merged(parts: Sequence[Step], keys: Sequence[Ints], name: Callable[[str], str]) -> list[HotFile]:
    """The rows of all parts, in the order of bucket and offset, as new files."""
    shape = parts[0].shape
    read = [_rows(file.path, shape.arrow) for step in parts for file in step.files]
    both = np.concatenate(keys) if keys else np.empty(0, np.int64)
    order = np.argsort(both, kind="stable")
    rows = pa.concat_tables(read).take(pa.array(order)) if read else shape.arrow.empty_table()
    return write_pieces(rows, both[order], shape, name)


def _remove_all(paths: Sequence[str]) -> None:
    for path in paths:
        remove(path)


def _rows(location: str, schema: pa.Schema) -> pa.Table:
    filesystem, path = place(location)
    return pq.read_table(path, filesystem=filesystem, partitioning=None, use_threads=False).cast(schema)


def _added(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(each) & _MASK for each in zip(*parts, strict=True))
