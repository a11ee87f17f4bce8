"""One data file of the lake as Arrow batches: the rows that are alive at a cut, as their table declares them.

pyarrow reads Parquet files, of whichever engine wrote them: columns are found by field id, rows by their `__bucket` and
`__offset`. `other_formats` reads the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Corrupt
from lakestore.lake import places
from lakestore.lake.field_ids import id_of
from lakestore.lake.manifests import File
from lakestore.lake.puffin import Positions
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET, SYSTEM_TYPES
from lakestore.model.projection import filled
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.rows.ranges import may_meet
from lakestore.union.figures import Figures
from lakestore.union.lake_columns import declared
from lakestore.union.lake_ranges import Fields, GroupRanges, Hidden, RowNumbers, dead_mask
from lakestore.union.lake_snapshot import named

BATCH_ROWS, BATCH_ROWS_MIN = 131_072, 1_024
BATCH_BYTES = 8 << 20
"""Bytes of a batch, about: rows that are wide come in fewer."""
PARQUET = "PARQUET"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of each file that a read wants."""

    table: Table
    columns: tuple[str, ...]
    hidden: Hidden
    """Rows that do not belong to the cut."""
    condition: RowFilter | None
    """It only skips row groups here."""
    figures: Figures


class DataFile:
    """One data file, or one of the equal parts that several threads read of it."""

    def __init__(self, file: File, wanted: Wanted, *, part: int = 0, parts: int = 1, threads: bool = True) -> None:
        self._file, self._wanted, self._table = file, wanted, wanted.table
        self._part, self._parts, self._threads = part, parts, threads
        self._schema = wanted.table.read_schema(list(wanted.columns))
        numbers = RowNumbers.of(file)
        self._dead = numbers.near(wanted.hidden) if wanted.hidden else {}
        self._bucket = numbers.bucket

    def batches(self, deleted: Positions) -> Iterator[pa.RecordBatch]:
        """The rows that are alive."""
        if not self._part:
            self._wanted.figures.add(files=1)
        with named(self._file.path):
            yield from self._parquet(deleted) if self._file.format == PARQUET else self._other(deleted)

    def _parquet(self, deleted: Positions) -> Iterator[pa.RecordBatch]:
        filesystem, path = places.place(self._file.path)
        with filesystem.open_input_file(path) as stream:
            parquet = pq.ParquetFile(stream, pre_buffer=True)
            metadata = parquet.metadata
            names = self._names(parquet.schema_arrow)
            alive = self._alive(metadata.num_rows, deleted)
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            starts = np.cumsum([0, *sizes])
            columns = self._needed(names)
            places_of = _leaves(metadata, columns)
            for group in self._groups(metadata, parquet.schema_arrow, names):
                row_group = metadata.row_group(group)
                chunks = [row_group.column(place) for place in places_of]
                stored = sum(chunk.total_compressed_size for chunk in chunks)
                self._wanted.figures.add(row_groups=1, lake_rows=sizes[group], lake_bytes=stored)
                row_bytes = sum(chunk.total_uncompressed_size for chunk in chunks) // max(sizes[group], 1)
                rows = min(max(BATCH_BYTES // max(row_bytes, 1), BATCH_ROWS_MIN), BATCH_ROWS)
                start = int(starts[group])
                for batch in parquet.iter_batches(rows, [group], columns, use_threads=self._threads):
                    yield self._living(batch, names, alive, start)
                    start += batch.num_rows

    def _groups(self, metadata: pq.FileMetaData, schema: pa.Schema, names: Mapping[str, str]) -> Iterator[int]:
        """The row groups of this part whose statistics do not rule the condition out."""
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
        """The rows of a file that is not Parquet: it has no groups of rows to leave out."""
        from lakestore.lake import other_formats  # seldom needed, and slow to import

        if self._part:
            return
        path, file = self._file.path, self._file
        with other_formats.opened_at(path, file.format, file.metrics) as other:
            names = self._names(other.schema)
            alive, start = self._alive(file.rows, deleted), 0
            self._wanted.figures.add(lake_rows=file.rows, lake_bytes=file.bytes)
            for batch in other.batches(self._needed(names)):
                yield self._living(batch, names, alive, start)
                start += batch.num_rows

    def _alive(self, rows: int, deleted: Positions) -> Mask | None:
        if not len(deleted):
            return None
        alive = np.ones(rows, dtype=np.bool_)
        alive[deleted[deleted < rows]] = False
        return alive

    def _names(self, schema: pa.Schema) -> dict[str, str]:
        """Our column to the file's, by field id, or by name in files that carry none."""
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

    def _needed(self, names: Mapping[str, str]) -> list[str]:
        """The file's columns to read."""
        told = () if not self._dead else (LAKE_OFFSET,) if self._bucket is not None else (LAKE_BUCKET, LAKE_OFFSET)
        needed = set(names) & {*self._wanted.columns, *told}
        return [names[name] for name in sorted(needed) or [LAKE_OFFSET]]

    def _living(
        self, batch: pa.RecordBatch, names: Mapping[str, str], alive: Mask | None, start: int
    ) -> pa.RecordBatch:
        """The living rows of a batch that begins at a position of the file, as the table declares them."""
        mask = self._mask(batch, names, None if alive is None else alive[start : start + batch.num_rows])
        kept = batch if mask is None or mask.all() else batch.filter(pa.array(mask))
        if kept.num_rows < batch.num_rows:
            self._wanted.figures.add(hidden_rows=batch.num_rows - kept.num_rows)
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
            buckets = batch.column(names[LAKE_BUCKET]).to_numpy()
        gone = dead_mask(buckets, batch.column(names[LAKE_OFFSET]).to_numpy(), self._dead)
        return ~gone if alive is None else alive & ~gone

    def _column(self, batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
        if name is None:
            return self._initial(field, batch.num_rows)
        return declared(batch.column(name), field, self._table)

    def _initial(self, field: pa.Field, rows: int) -> pa.Array:
        """The value in rows that are older than the column."""
        if field.name in SYSTEM_TYPES:
            return pa.nulls(rows, field.type)
        return filled(self._table.column(field.name), rows, "initial")


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """The places of the stored columns that make up these columns of a file."""
    if not metadata.num_row_groups:
        return []
    first, wanted = metadata.row_group(0), set(columns)
    paths = (first.column(place).path_in_schema for place in range(first.num_columns))
    return [place for place, path in enumerate(paths) if path.split(".")[0] in wanted]
