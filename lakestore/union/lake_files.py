"""Rows of a lake snapshot that are alive at the cut, read by a few threads side by side.

Statistics of files and row groups say what need not be read: what the condition rules out, and, when rows are only
counted, what meets it as a whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from lakestore.lake.manifest_entries import Entries, Longs
from lakestore.rows.condition import RowFilter
from lakestore.rows.offsets import OffsetsFrom
from lakestore.union import lake_pruning
from lakestore.union.data_file import DataFile, Wanted
from lakestore.union.figures import Figures
from lakestore.union.file_list import FileList
from lakestore.union.lake_deletes import Deletes
from lakestore.union.lake_ranges import Fields, Hidden
from lakestore.union.lake_snapshot import PlannedFile
from lakestore.union.lake_tests import FileTests, Mask
from lakestore.union.plan import TableScan
from lakestore.union.side_by_side import merged

THREADS_MAX = 4
"""Threads that read one table, at most: as many as there are cores."""
AHEAD = 2
"""Batches that wait for the reader, for each thread."""
PART_BYTES = 32 << 20
"""A file is read in parts by several threads where there are too few files, and a part is not smaller."""


def planned(scan: TableScan, condition: RowFilter | None) -> list[tuple[str, int]]:
    """Path and size, in bytes, of each data file that a read opens: the condition leaves out what cannot meet it."""
    return lake_pruning.chosen(scan, condition)[0].sizes()


@dataclass(frozen=True, slots=True)
class LakeRead:
    """The files of a snapshot that a read needs."""

    scan: TableScan
    condition: RowFilter | None
    figures: Figures
    files: FileList
    hidden: Hidden

    @staticmethod
    def of(scan: TableScan, condition: RowFilter | None, figures: Figures) -> LakeRead:
        """The files whose statistics do not rule the condition out."""
        with figures.timed("plan_seconds"):
            kept, count = lake_pruning.chosen(scan, condition)
        figures.add(files_pruned=count - len(kept))
        return LakeRead(scan, condition, figures, kept, _hidden(scan) if kept else {})

    def counted(self) -> tuple[LakeRead, int]:
        """(the files that must be read to count their rows, the rows of the others), by statistics alone."""
        whole, left = self.files.split_whole(self._sure(), self.hidden)
        self.figures.add(files_counted=len(whole))
        return LakeRead(self.scan, self.condition, self.figures, left, self.hidden), whole.rows

    def _sure(self) -> Callable[[Entries, Longs], Mask]:
        """Whether every row of files at places of a manifest meets the condition."""
        if self.condition is None:
            return lambda _, places: np.ones(len(places), np.bool_)
        skip, tests = self.condition.skip, FileTests(Fields.of(self.scan.table, self.condition.columns))

        def sure(entries: Entries, places: Longs) -> Mask:
            among = np.zeros(len(entries), np.bool_)
            among[places] = True
            return tests.must(skip, entries, among)[places]

        return sure

    def batches(
        self, columns: Sequence[str], tick: Callable[[], None], *, threads: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The living rows that meet the condition, in any order; `tick` is called about once a second while none comes.

        No columns at all give batches that only have a number of rows.
        """
        if not self.files:
            return
        read = tuple(dict.fromkeys([*columns, *(self.condition.columns if self.condition else ())]))
        wanted = Wanted(self.scan.table, read, self.hidden, self.condition, self.figures)
        deletes = Deletes(self.files, self.figures)
        most = threads or min(os.cpu_count() or 1, THREADS_MAX)
        parts, count = self._parts(most)
        sources = (
            partial(self._batches, each, columns, deletes, wanted, part, of, threads=most == 1 or count == 1)
            for each, part, of in parts
        )
        if count == 1:
            yield from next(sources)()
        else:
            few = min(most, count)
            yield from merged(sources, threads=few, ahead=AHEAD * few, tick=tick)

    def _parts(self, threads: int) -> tuple[Iterable[tuple[PlannedFile, int, int]], int]:
        """(file, part of it, number of its parts) of all that is read, and their number; made as threads come to it."""
        if len(self.files) >= 2 * threads:
            return ((each, 0, 1) for each in self.files), len(self.files)
        found = [
            (each, part, count) for each in self.files for count in [_parts_of(each, threads)] for part in range(count)
        ]
        return found, len(found)

    def _batches(
        self,
        each: PlannedFile,
        columns: Sequence[str],
        deletes: Deletes,
        wanted: Wanted,
        part: int,
        parts: int,
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        reader = DataFile(each.file, wanted, part=part, parts=parts, threads=threads)
        for batch in _timed(self.figures, lambda: reader.batches(deletes.of(each))):
            kept = self.condition.apply(batch) if self.condition else batch
            if kept.num_rows:
                yield kept.select(list(columns)) if self.condition else kept


def _parts_of(each: PlannedFile, threads: int) -> int:
    """In how many parts one of few files is read; one with deletes in one, which are asked for once."""
    return 1 if each.deletes else max(min(threads, each.file.bytes // PART_BYTES), 1)


def _timed(figures: Figures, items: Callable[[], Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The items; the time until each of them came is added to the figures, the time of who takes them is not."""
    began = time.perf_counter()
    for item in items():
        figures.add(lake_seconds=time.perf_counter() - began)
        yield item
        began = time.perf_counter()
    figures.add(lake_seconds=time.perf_counter() - began)


def _hidden(scan: TableScan) -> Hidden:
    """Lake rows that do not belong to the cut: they died before it, or a log table's snapshot is newer than it."""
    ends = scan.lake_ends()
    return scan.cold_dead() if ends is None else {bucket: OffsetsFrom(end) for bucket, end in enumerate(ends)}
