"""The live rows of a lake snapshot at a cut, read by several threads in parallel.

Statistics of files and row groups tell what can be skipped: parts that cannot meet the condition and, for a count,
parts in which every row meets it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Corrupt
from lakestore.iceberg import adopted_rows, places, position_deletes, puffin
from lakestore.iceberg.field_ids import id_of
from lakestore.iceberg.manifest_entries import Entries, Longs
from lakestore.iceberg.manifests import File
from lakestore.iceberg.puffin import Positions
from lakestore.model.columns import LAKE_BUCKET, LAKE_COLUMNS, LAKE_FIELD_IDS, LAKE_OFFSET, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.rows.projection import fill_column
from lakestore.rows.ranges import OffsetsFrom, may_meet
from lakestore.union import lake_pruning
from lakestore.union.explanation import Figures
from lakestore.union.lake_ranges import Fields, GroupRanges, Hidden, RowNumbers, dead_mask
from lakestore.union.lake_snapshot import FileList, PlannedFile, declared, named
from lakestore.union.lake_tests import FileTests, Mask
from lakestore.union.plan import TableScan
from lakestore.union.side_by_side import merged

BATCH_ROWS, BATCH_ROWS_MIN = 131_072, 1_024
BATCH_BYTES = 8 << 20
"""The approximate size of a batch: the wider the rows, the fewer rows it has."""
PARQUET = "PARQUET"
SMALL_BYTES = 128 << 10
"""A file of up to this size is read whole, with one request: 0.15 ms instead of 0.4 ms for a file of two rows."""


@dataclass(frozen=True)
class FileRead:
    """The part of each file that a read needs."""

    table: Table
    columns: tuple[str, ...]
    hidden: Hidden
    """Rows that do not belong to the cut."""
    condition: RowFilter | None
    """Used only to skip row groups."""
    figures: Figures

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self.table.read_schema(list(self.columns))

    @cached_property
    def layouts(self) -> dict[tuple[bool, bool], FileLayout]:
        """The layout that was used last, by the needed columns: of files with dead rows, and with several buckets."""
        return {}


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The place of a read's columns in files of one schema."""

    schema: pa.Schema
    names: Mapping[str, str]
    """Our columns to the file's columns."""
    columns: Sequence[str]
    """The file's columns to read."""
    leaves: Sequence[int]
    """Their leaf columns."""
    plain: Sequence[str] | None
    """The file's columns in the order of the read, if each has the type of the read; else None."""


class DataFile:
    """One data file, or one of the equal parts into which it is split for several threads."""

    def __init__(self, file: File, wanted: FileRead, *, part: int = 0, parts: int = 1, threads: bool = True) -> None:
        self._file, self._wanted, self._table = file, wanted, wanted.table
        self._part, self._parts, self._threads = part, parts, threads
        self._schema = wanted.schema
        numbers = RowNumbers.of(file)
        self._dead = numbers.near(wanted.hidden) if wanted.hidden else {}
        self._bucket = numbers.bucket

    def batches(self, deleted: Positions) -> Iterator[pa.RecordBatch]:
        """The live rows."""
        if not self._part:
            self._wanted.figures.add(files=1)
        with named(self._file.path):
            yield from self._parquet(deleted) if self._file.format == PARQUET else self._other(deleted)

    def _parquet(self, deleted: Positions) -> Iterator[pa.RecordBatch]:
        is_small = self._file.bytes <= SMALL_BYTES
        with _opened(self._file.path, whole=is_small) as stream:
            parquet = pq.ParquetFile(stream, pre_buffer=not is_small)
            metadata = parquet.metadata
            layout = self._layout(parquet.schema_arrow, metadata)
            names, columns = dict(layout.names), layout.columns
            numbers = self._numbers(names, parquet.schema_arrow, metadata.num_rows)
            alive = self._alive(metadata.num_rows, deleted)
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            starts = [0, *accumulate(sizes)]
            for group in self._groups(metadata, layout.schema, names):
                row_group = metadata.row_group(group)
                chunks = [row_group.column(place) for place in layout.leaves]
                stored = sum(chunk.total_compressed_size for chunk in chunks)
                self._wanted.figures.add(row_groups=1, lake_rows=sizes[group], lake_bytes=stored)
                row_bytes = sum(chunk.total_uncompressed_size for chunk in chunks) // max(sizes[group], 1)
                rows = min(max(BATCH_BYTES // max(row_bytes, 1), BATCH_ROWS_MIN), BATCH_ROWS)
                start = starts[group]
                threads = self._threads and not is_small
                for batch in parquet.iter_batches(rows, [group], columns, use_threads=threads):
                    yield self._living(_joined(batch, numbers, start), names, alive, start, layout.plain)
                    start += batch.num_rows

    def _layout(self, schema: pa.Schema, metadata: pq.FileMetaData) -> FileLayout:
        key = bool(self._dead), self._bucket is None
        last = self._wanted.layouts.get(key)
        if last is not None and last.schema.equals(schema, check_metadata=True) and metadata.num_row_groups:
            return last
        names = self._names(schema)
        columns = self._needed(names, schema)
        made = FileLayout(schema, names, columns, _leaves(metadata, columns), _plain(schema, names, self._schema))
        if metadata.num_row_groups:  # a file without rows has no leaves
            self._wanted.layouts[key] = made
        return made

    def _numbers(self, names: dict[str, str], schema: pa.Schema, rows: int) -> pa.Table | None:
        """The row numbers of an adopted file, if the read needs them; they are added to `names`."""
        if not adopted_rows.lacks_numbers(schema):
            return None
        condition = self._wanted.condition
        wanted = {*self._wanted.columns, *(condition.columns if condition else ())} & set(LAKE_COLUMNS)
        if not (self._dead or wanted):
            return None
        names.update({name: name for name in LAKE_COLUMNS})
        return adopted_rows.read(self._file.path, self._table.uuid, rows)

    def _groups(self, metadata: pq.FileMetaData, schema: pa.Schema, names: Mapping[str, str]) -> Iterator[int]:
        """The row groups of this part that may hold rows for the condition."""
        count = metadata.num_row_groups
        own = range(self._part * count // self._parts, (self._part + 1) * count // self._parts)
        condition = self._wanted.condition
        if condition is None:
            yield from own
            return
        kinds = {name: kind for name, kind in Fields.of(self._table, condition.columns).kinds.items() if name in names}
        ranges = GroupRanges(metadata, names, kinds)
        for group in own:
            if may_meet(condition.skip, lambda name, group=group: ranges.of(group, name)):  # type: ignore[misc]
                yield group
            else:
                self._wanted.figures.add(row_groups_pruned=1)

    def _other(self, deleted: Positions) -> Iterator[pa.RecordBatch]:
        """The live rows of an Avro or ORC file, which has no row groups to skip."""
        from lakestore.iceberg import other_formats  # imported here: rarely needed and slow to import

        if self._part:
            return
        path, file = self._file.path, self._file
        with other_formats.opened_at(path, file.format, file.metrics) as other:
            names = self._names(other.schema)
            alive, start = self._alive(file.rows, deleted), 0
            self._wanted.figures.add(lake_rows=file.rows, lake_bytes=file.bytes)
            for batch in other.batches(self._needed(names, other.schema)):
                yield self._living(batch, names, alive, start)
                start += batch.num_rows

    def _alive(self, rows: int, deleted: Positions) -> Mask | None:
        if not len(deleted):
            return None
        alive = np.ones(rows, dtype=np.bool_)
        alive[deleted[deleted < rows]] = False
        return alive

    def _names(self, schema: pa.Schema) -> dict[str, str]:
        """Maps our columns to the file's columns, by field id, or by name in a file without field ids."""
        by_id = {number: field.name for field in schema if (number := id_of(field)) is not None}
        condition = self._wanted.condition
        wanted = {*self._wanted.columns, *(condition.columns if condition else ()), LAKE_OFFSET}
        if self._dead:
            wanted.add(LAKE_BUCKET)
        if not by_id and self._table.schema_id:
            raise Corrupt(f"data file {self._file.path} has no field ids, and columns of its table were changed")
        if not by_id:
            return {name: name for name in wanted if name in schema.names}
        ids = {name: LAKE_FIELD_IDS.get(name) or self._table.column(name).id for name in wanted}
        return {name: by_id[number] for name, number in ids.items() if number in by_id}

    def _needed(self, names: Mapping[str, str], schema: pa.Schema) -> list[str]:
        """The columns to read from the file."""
        told = () if not self._dead else (LAKE_OFFSET,) if self._bucket is not None else (LAKE_BUCKET, LAKE_OFFSET)
        needed = set(names) & {*self._wanted.columns, *told}
        # One column at least, because a batch without columns loses its number of rows.
        return [names[name] for name in sorted(needed)] or [names.get(LAKE_OFFSET, schema.names[0])]

    def _living(
        self,
        batch: pa.RecordBatch,
        names: Mapping[str, str],
        alive: Mask | None,
        start: int,
        plain: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """The live rows of a batch in the table's types. `start` is the position of its first row in the file."""
        mask = self._mask(batch, names, None if alive is None else alive[start : start + batch.num_rows])
        kept = batch if mask is None or mask.all() else batch.filter(pa.array(mask))
        if kept.num_rows < batch.num_rows:
            self._wanted.figures.add(hidden_rows=batch.num_rows - kept.num_rows)
        if plain is not None:
            arrays = [kept.column(name) for name in plain]
        else:
            arrays = [self._column(kept, names.get(field.name), field) for field in self._schema]
        if not arrays:
            return kept
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _mask(self, batch: pa.RecordBatch, names: Mapping[str, str], alive: Mask | None) -> Mask | None:
        if not self._dead:
            return alive
        if LAKE_OFFSET not in names or (self._bucket is None and LAKE_BUCKET not in names):
            raise Corrupt(f"data file {self._file.path} has no {LAKE_BUCKET} and {LAKE_OFFSET}")
        buckets: Any = self._bucket
        if buckets is None:
            adopted_rows.check_numbers(batch.column(names[LAKE_BUCKET]), self._file.path)
            buckets = batch.column(names[LAKE_BUCKET]).to_numpy()
        adopted_rows.check_numbers(batch.column(names[LAKE_OFFSET]), self._file.path)
        gone = dead_mask(buckets, batch.column(names[LAKE_OFFSET]).to_numpy(), self._dead)
        return ~gone if alive is None else alive & ~gone

    def _column(self, batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
        if name is None:
            return self._initial(field, batch.num_rows)
        return declared(batch.column(name), field, self._table)

    def _initial(self, field: pa.Field, rows: int) -> pa.Array:
        """The column's value in rows that are older than the column."""
        if field.name in SYSTEM_TYPES:
            return pa.nulls(rows, field.type)
        return fill_column(self._table.column(field.name), rows, "initial")


def _plain(schema: pa.Schema, names: Mapping[str, str], wanted: pa.Schema) -> Sequence[str] | None:
    """The columns of a file that need no cast; None if one of them does, or is not there."""
    found = [names.get(part.name) for part in wanted]
    for name, part in zip(found, wanted, strict=True):
        if name is None or schema.field(name).type != part.type or pa.types.is_nested(part.type):
            return None
    return [name for name in found if name is not None]


def _opened(location: str, *, whole: bool) -> pa.NativeFile:
    """A data file for random reads; read at once if `whole`."""
    if whole:
        return pa.BufferReader(places.read(location))
    return places.open_file(location)


def _joined(batch: pa.RecordBatch, numbers: pa.Table | None, start: int) -> pa.RecordBatch:
    """A batch with the row numbers of its rows. Its first row is at position `start` of the file."""
    if numbers is None:
        return batch
    parts = [numbers.column(name).chunk(0).slice(start, batch.num_rows) for name in LAKE_COLUMNS]
    return pa.RecordBatch.from_arrays([*batch.columns, *parts], [*batch.schema.names, *LAKE_COLUMNS])


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """The indexes of the leaf columns in a Parquet file that make up these columns."""
    if not metadata.num_row_groups:
        return []
    first, wanted = metadata.row_group(0), set(columns)
    paths = (first.column(place).path_in_schema for place in range(first.num_columns))
    return [place for place, path in enumerate(paths) if path.split(".")[0] in wanted]


_PARQUET, _PUFFIN = "PARQUET", "PUFFIN"


@dataclass(slots=True)
class _Shared:
    """A delete file that several data files need."""

    left: int
    """The number of data files that have not asked yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: Mapping[str, Positions] | None = None


class Deletes:
    """The deletes of the data files of one read. Thread-safe.

    A delete file for several data files is kept in memory until the last of them has asked. Most delete files are for
    one data file.
    """

    def __init__(self, files: FileList, figures: Figures) -> None:
        self._figures = figures
        asked = Counter(_place(each.file) for each in files.shared_deletes())
        self._shared = {place: _Shared(count) for place, count in asked.items()}

    def of(self, planned: PlannedFile) -> Positions:
        """The deleted positions of a data file, in any order."""
        parts = [self._positions(each, planned.file.path) for each in planned.deletes]
        known = [part for part in parts if part is not None and len(part)]
        return np.concatenate(known) if known else np.empty(0, dtype=np.int64)

    def _positions(self, deletes: File, path: str) -> Positions | None:
        shared = self._shared.get(_place(deletes))
        if shared is None:
            return self._read(deletes).get(path)
        with shared.lock:
            if shared.found is None:
                shared.found = self._read(deletes)
            found = shared.found
            shared.left -= 1
            if not shared.left:
                shared.found = {}
        return found.get(path)

    def _read(self, file: File) -> Mapping[str, Positions]:
        with named(file.path):
            found, size = decoded(file)
        self._figures.add(delete_files=1, delete_bytes=size)
        return found


def _place(file: File) -> tuple[str, int | None]:
    return file.path, file.content_offset


def decoded(file: File) -> tuple[Mapping[str, Positions], int]:
    """The deleted positions in a delete file, by data file, and the bytes that were read."""
    if file.format == _PUFFIN and file.referenced_data_file is not None and file.content_offset is not None:
        data = places.read_part(file.path, file.content_offset, file.content_size or 0)
        return {file.referenced_data_file: puffin.positions(data, file.path)}, len(data)
    if file.format in (_PUFFIN, _PARQUET):
        data = places.read(file.path)
        decode = puffin.vectors if file.format == _PUFFIN else position_deletes.decode
        return decode(data, file.path), len(data)
    from lakestore.iceberg import other_formats  # imported here: rarely needed and slow to import

    with other_formats.opened_at(file.path, file.format) as other:
        batches = list(other.batches(position_deletes.COLUMNS))
    found = position_deletes.decode(pa.Table.from_batches(batches), file.path) if batches else {}
    return found, file.bytes


THREADS_MAX = 4
"""The most threads for one table, and never more than there are cores."""
AHEAD = 2
"""Batches that are read ahead of the reader, for each thread."""
SMALL_TOGETHER = 64
"""Small files that a thread reads as one piece, if files are many: to pass a batch on takes half as long as to
read a file of two rows."""
GATHERED_ROWS, GATHERED_BYTES = 1 << 14, 8 << 20
"""Small batches are joined until they have so many rows or bytes."""
PART_BYTES = 32 << 20
"""If there are fewer files than threads, files are split into parts of at least this size."""


def planned(scan: TableScan, condition: RowFilter | None) -> list[tuple[str, int]]:
    """Path and size, in bytes, of each data file that a read would open."""
    return lake_pruning.choose_files(scan, condition)[0].sizes()


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
        """The files that may hold rows for the condition."""
        with figures.timed("plan_seconds"):
            kept, count = lake_pruning.choose_files(scan, condition)
        figures.add(files_pruned=count - len(kept))
        return LakeRead(scan, condition, figures, kept, _hidden(scan) if kept else {})

    def counted(self) -> tuple[LakeRead, int]:
        """(the files that must be read to count their rows, the number of rows of all others), from statistics
        alone.
        """
        whole, left = self.files.split_whole(self._sure(), self.hidden)
        self.figures.add(files_counted=len(whole))
        return LakeRead(self.scan, self.condition, self.figures, left, self.hidden), whole.rows

    def _sure(self) -> Callable[[Entries, Longs], Mask]:
        """A test of a manifest's files: whether every row of a file certainly meets the condition."""
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
        """The live rows that meet the condition, in any order. `tick` is called about once a second while no batch
        arrives.

        If `columns` is empty, the batches have no columns, only a number of rows.
        """
        if not self.files:
            return
        read = tuple(dict.fromkeys([*columns, *(self.condition.columns if self.condition else ())]))
        wanted = FileRead(self.scan.table, read, self.hidden, self.condition, self.figures)
        deletes = Deletes(self.files, self.figures)
        most = threads or min(os.cpu_count() or 1, THREADS_MAX)
        parts, count = self._parts(most)
        sources = (
            partial(self._run, run, columns, deletes, wanted, part, of, threads=most == 1 or count == 1)
            for run, part, of in parts
        )
        if count == 1:
            yield from next(sources)()
        else:
            few = min(most, count)
            yield from merged(sources, threads=few, ahead=AHEAD * few, tick=tick)

    def _parts(self, threads: int) -> tuple[Iterable[tuple[Sequence[PlannedFile], int, int]], int]:
        """(files, part number, number of parts) for each piece to read, and the most pieces that there are. Threads
        consume the iterator as they become free.
        """
        if len(self.files) >= 2 * threads:
            together = max(min(len(self.files) // (8 * threads), SMALL_TOGETHER), 1)
            return ((run, 0, 1) for run in _runs(self.files, together)), len(self.files)
        found = [
            ([each], part, count)
            for each in self.files
            for count in [_parts_of(each, threads)]
            for part in range(count)
        ]
        return found, len(found)

    def _run(self, run: Sequence[PlannedFile], *rest: Any, threads: bool) -> Iterator[pa.RecordBatch]:
        batches = chain.from_iterable(self._batches(each, *rest, threads=threads) for each in run)
        return batches if len(run) == 1 else gathered(batches)

    def _batches(
        self,
        each: PlannedFile,
        columns: Sequence[str],
        deletes: Deletes,
        wanted: FileRead,
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


def _runs(files: Iterable[PlannedFile], together: int) -> Iterator[list[PlannedFile]]:
    """Large files one by one, small files by up to `together`."""
    run: list[PlannedFile] = []
    for each in files:
        if each.file.bytes > SMALL_BYTES:
            yield [each]
            continue
        run.append(each)
        if len(run) >= together:
            yield run
            run = []
    if run:
        yield run


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: consecutive small batches are joined up to a number of rows or bytes."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_columns:  # Arrow would lose the number of rows
            yield batch
            continue
        if held and (rows >= GATHERED_ROWS or size >= GATHERED_BYTES or batch.schema != held[0].schema):
            yield _concatenated(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if held:
        yield _concatenated(held)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _parts_of(each: PlannedFile, threads: int) -> int:
    """The number of parts of a file when files are few. A file with deletes is one part, because its deletes are
    asked for once.
    """
    return 1 if each.deletes else max(min(threads, each.file.bytes // PART_BYTES), 1)


def _timed(figures: Figures, items: Callable[[], Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The items. The time that each item takes to arrive is added to the figures; the time that the consumer takes
    is not.
    """
    began = time.perf_counter()
    for item in items():
        figures.add(lake_seconds=time.perf_counter() - began)
        yield item
        began = time.perf_counter()
    figures.add(lake_seconds=time.perf_counter() - began)


def _hidden(scan: TableScan) -> Hidden:
    """Lake rows outside the cut: superseded before it, or newer than the cut in a log table's snapshot."""
    ends = scan.lake_ends()
    return scan.cold_dead() if ends is None else {bucket: OffsetsFrom(end) for bucket, end in enumerate(ends)}
