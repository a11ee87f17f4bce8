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

import pyarrow as pa

from lakestore.rows.condition import RowFilter
from lakestore.rows.offsets import OffsetsFrom
from lakestore.rows.ranges import all_meet
from lakestore.union.data_file import DataFile, Wanted
from lakestore.union.figures import Figures
from lakestore.union.lake_deletes import Deletes
from lakestore.union.lake_pruning import Chosen
from lakestore.union.lake_ranges import Fields, Hidden, RowNumbers
from lakestore.union.lake_snapshot import PlannedFile
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
    return Chosen.of(scan, condition).sizes()


@dataclass(frozen=True, slots=True)
class LakeRead:
    """The files of a snapshot that a read needs."""

    scan: TableScan
    condition: RowFilter | None
    figures: Figures
    files: tuple[PlannedFile, ...]
    hidden: Hidden

    @staticmethod
    def of(scan: TableScan, condition: RowFilter | None, figures: Figures) -> LakeRead:
        """The files whose statistics do not rule the condition out."""
        with figures.timed("plan_seconds"):
            chosen = Chosen.of(scan, condition)
            kept = tuple(chosen.files())
        figures.add(files_pruned=chosen.count - len(kept))
        return LakeRead(scan, condition, figures, kept, _hidden(scan) if kept else {})

    def counted(self) -> tuple[LakeRead, int]:
        """(the files that must be read to count their rows, the rows of the others), by statistics alone."""
        if self.condition is None:
            whole: Callable[[PlannedFile], bool] = _any_file
        else:
            fields, skip = Fields.of(self.scan.table, self.condition.columns), self.condition.skip

            def whole(each: PlannedFile) -> bool:
                return all_meet(skip, lambda name: fields.of_file(each.file, name))

        sure = [each for each in self.files if not each.deletes and whole(each) and not self._may_be_hidden(each)]
        self.figures.add(files_counted=len(sure))
        known = {id(each) for each in sure}
        left = tuple(each for each in self.files if id(each) not in known)
        rest = LakeRead(self.scan, self.condition, self.figures, left, self.hidden)
        return rest, sum(each.file.rows for each in sure)

    def _may_be_hidden(self, each: PlannedFile) -> bool:
        return bool(self.hidden) and bool(RowNumbers.of(each.file).near(self.hidden))

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
        parts = [
            (each, part, count) for each in self.files for count in [self._parts(each, most)] for part in range(count)
        ]
        sources = [
            partial(self._batches, each, columns, deletes, wanted, part, count, threads=most == 1 or len(parts) == 1)
            for each, part, count in parts
        ]
        if len(sources) == 1:
            yield from sources[0]()
        else:
            few = min(most, len(sources))
            yield from merged(sources, threads=few, ahead=AHEAD * few, tick=tick)

    def _parts(self, each: PlannedFile, threads: int) -> int:
        """In how many parts a file is read; files with deletes in one, which are asked for once."""
        if each.deletes or len(self.files) >= 2 * threads:
            return 1
        return max(min(threads, each.file.bytes // PART_BYTES), 1)

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


def _timed(figures: Figures, items: Callable[[], Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The items; the time until each of them came is added to the figures, the time of who takes them is not."""
    began = time.perf_counter()
    for item in items():
        figures.add(lake_seconds=time.perf_counter() - began)
        yield item
        began = time.perf_counter()
    figures.add(lake_seconds=time.perf_counter() - began)


def _any_file(_: PlannedFile) -> bool:
    return True


def _hidden(scan: TableScan) -> Hidden:
    """Lake rows that do not belong to the cut: they died before it, or a log table's snapshot is newer than it."""
    ends = scan.lake_ends()
    return scan.cold_dead() if ends is None else {bucket: OffsetsFrom(end) for bucket, end in enumerate(ends)}
