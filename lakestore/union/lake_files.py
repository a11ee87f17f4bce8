"""Data files of a lake snapshot as Arrow batches, less what is deleted and what died since.

PyIceberg plans: which data files, which position deletes or deletion vectors. pyarrow reads the Parquet files, of
whichever engine wrote them: columns are found by field id, rows by their `__bucket` and `__offset`. `other_formats`
reads the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg import expressions as ice
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, StaticTable

from lakestore.errors import Corrupt, Invalid, PlanExpired
from lakestore.lake import other_formats, position_deletes, puffin
from lakestore.lake.field_ids import id_of
from lakestore.lake.metrics import Metrics
from lakestore.lake.puffin import Positions
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET, SYSTEM_TYPES
from lakestore.model.projection import filled
from lakestore.model.table import Table
from lakestore.rows.condition import AllOf, Comparison, RowFilter, Skip
from lakestore.rows.offsets import OffsetSet, OffsetsFrom
from lakestore.union.lake_columns import declared
from lakestore.union.plan import TableScan

BATCH_ROWS = 131_072
METADATA_KEPT = 32

Hidden = Mapping[int, OffsetSet] | Mapping[int, OffsetsFrom]


@lru_cache(maxsize=METADATA_KEPT)
def metadata(location: str) -> StaticTable:
    """The Iceberg table as one metadata file says; such files never change."""
    with _named(location):
        return StaticTable.from_metadata(location)


def read(scan: TableScan, columns: Sequence[str], condition: RowFilter | None) -> Iterator[pa.RecordBatch]:
    """The cold side of a plan: lake rows that are alive at the cut, in the table's declared types.

    The condition only skips files and row groups here: rows that do not meet it may still come.
    """
    if not scan.in_lake:
        return
    lake = metadata(scan.metadata_location)
    dead, deletes = _hidden(scan), _Deletes(lake.io)
    for task in _tasks(lake, scan, condition):
        reader = _FileReader(lake.io, task.file, scan.table, columns, dead)
        yield from reader.batches(deletes.of(task), condition)


def _hidden(scan: TableScan) -> Hidden:
    """Lake rows that do not belong to the cut: they died before it, or a log table's snapshot is newer than it."""
    ends = scan.lake_ends()
    return scan.cold_dead() if ends is None else {bucket: OffsetsFrom(end) for bucket, end in enumerate(ends)}


def _tasks(lake: StaticTable, scan: TableScan, condition: RowFilter | None) -> Sequence[FileScanTask]:
    keep: Any = ice.AlwaysTrue()
    if condition is not None and condition.skip is not None:
        keep = _iceberg(condition.skip, scan.table, lake.schema()) or keep
    with _named(scan.metadata_location):
        try:
            tasks = list(lake.scan(row_filter=keep, snapshot_id=scan.snapshot_id).plan_files())
        except ValueError as error:
            raise Invalid(f"lake table {scan.table.name} cannot be read: {error}") from error
    return tasks if scan.part is None else [task for task in tasks if task.file.file_path in scan.part.files]


def planned(scan: TableScan, condition: RowFilter | None) -> list[tuple[str, int]]:
    """Path and size, in bytes, of each data file that a read opens: the condition leaves out what cannot meet it."""
    if not scan.in_lake:
        return []
    tasks = _tasks(metadata(scan.metadata_location), scan, condition)
    return [(task.file.file_path, task.file.file_size_in_bytes) for task in tasks]


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors of files as errors of ours that name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise PlanExpired(f"file {path} is gone: the read took longer than its lease, so read again") from error
    except (pa.ArrowInvalid, struct.error) as error:
        raise Corrupt(f"file {path} cannot be read: {error}") from error


def _iceberg(skip: Skip, table: Table, schema: Schema) -> ice.BooleanExpression | None:
    """The condition for PyIceberg's pruning, or None where it knows nothing."""
    if isinstance(skip, Comparison):
        return _iceberg_test(skip, table, schema)
    parts = [_iceberg(part, table, schema) for part in skip.parts]
    known = [part for part in parts if part is not None]
    if isinstance(skip, AllOf):
        return _joined(ice.And, known) if known else None
    return _joined(ice.Or, known) if len(known) == len(parts) else None


def _joined(join: type[ice.And] | type[ice.Or], parts: list[ice.BooleanExpression]) -> ice.BooleanExpression:
    """The parts as a balanced tree, which PyIceberg walks by recursion."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_joined(join, parts[:half]), _joined(join, parts[half:]))


_COMPARISONS: dict[str, Any] = {
    "=": ice.EqualTo,
    "!=": ice.NotEqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
    "starts with": ice.StartsWith,
    "in": ice.In,
    "is null": ice.IsNull,
    "is not null": ice.NotNull,
}


def _iceberg_test(test: Comparison, table: Table, schema: Schema) -> ice.BooleanExpression | None:
    column = table.column(test.column)
    name = schema.find_column_name(column.id)
    if name is None or column.type in ("binary", "bool", "time") or column.type.startswith("fixed"):
        return None
    values = [_iceberg_value(value) for value in test.values]
    made: ice.BooleanExpression = _COMPARISONS[test.sign](name, *([values] if test.sign == "in" else values))
    return made


def _iceberg_value(value: Any) -> Any:
    """Dates and times as the texts that PyIceberg casts to whichever column type it meets."""
    return value.isoformat() if hasattr(value, "isoformat") else value


class _Deletes:
    """Deleted positions of data files; every delete file is read once in a scan."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._by_delete_file: dict[str, Mapping[str, Positions]] = {}

    def of(self, task: FileScanTask) -> Positions:
        """Positions of the task's data file that are deleted, in any order."""
        path = task.file.file_path
        parts = [self._read(file).get(path) for file in task.delete_files]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if known else np.empty(0, dtype=np.int64)

    def _read(self, file: DataFile) -> Mapping[str, Positions]:
        path = file.file_path
        if path not in self._by_delete_file:
            with _named(path):
                self._by_delete_file[path] = self._decoded(file)
        return self._by_delete_file[path]

    def _decoded(self, file: DataFile) -> Mapping[str, Positions]:
        path, form = file.file_path, file.file_format
        with self._io.new_input(path).open() as stream:
            if form == FileFormat.PUFFIN:
                return puffin.vectors(stream.read(), path)
            if form == FileFormat.PARQUET:
                return position_deletes.decode(stream.read(), path)
            with other_formats.opened(stream, path, form.value) as other:
                batches = list(other.batches(position_deletes.COLUMNS))
        return position_deletes.decode(pa.Table.from_batches(batches), path) if batches else {}


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Lowest and highest `__bucket` and `__offset` of a data file; None where its metrics do not say."""

    buckets: tuple[int, int] | None
    offsets: tuple[int, int] | None

    def may_meet(self, dead: Hidden) -> bool:
        """Whether a row of the file can be among the dead."""
        near = [offsets for bucket, offsets in dead.items() if self._has(bucket)]
        if self.offsets is None:
            return bool(near)
        low, high = self.offsets
        return any(len(offsets.below(high + 1)) > len(offsets.below(low)) for offsets in near)

    def _has(self, bucket: int) -> bool:
        return self.buckets is None or self.buckets[0] <= bucket <= self.buckets[1]


def _bounds(file: DataFile) -> _Bounds:
    def pair(field: int, code: str) -> tuple[int, int] | None:
        low, high = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
        if low is None or high is None:
            return None
        return struct.unpack(code, low)[0], struct.unpack(code, high)[0]

    return _Bounds(pair(LAKE_FIELD_IDS[LAKE_BUCKET], "<i"), pair(LAKE_FIELD_IDS[LAKE_OFFSET], "<q"))


class _FileReader:
    """One data file."""

    def __init__(self, io: FileIO, file: DataFile, table: Table, columns: Sequence[str], dead: Hidden) -> None:
        self._io, self._table, self._file = io, table, file
        self._columns = list(columns)
        self._schema = table.read_schema(self._columns)
        self._dead = dead if dead and _bounds(file).may_meet(dead) else {}

    def batches(self, deleted: Positions, condition: RowFilter | None) -> Iterator[pa.RecordBatch]:
        """The rows of the file that are alive."""
        if self._file.file_format != FileFormat.PARQUET:
            yield from self._other(deleted)
            return
        with _named(self._file.file_path), self._io.new_input(self._file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream, pre_buffer=True)
            names = self._names(parquet.schema_arrow)
            alive = self._alive(parquet.metadata.num_rows, deleted)
            groups = self._groups(stream, parquet, names, condition)
            starts = np.cumsum([0, *(parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups))])
            for group in groups:
                yield from self._group(parquet, group, names, alive, int(starts[group]))

    def _other(self, deleted: Positions) -> Iterator[pa.RecordBatch]:
        """The `batches` of a file that is not Parquet: it has no groups of rows to leave out."""
        path, form = self._file.file_path, self._file.file_format.value
        with (
            _named(path),
            self._io.new_input(path).open() as stream,
            other_formats.opened(stream, path, form, _metrics(self._file)) as other,
        ):
            names = self._names(other.schema)
            alive, start = self._alive(self._file.record_count, deleted), 0
            for batch in other.batches(self._needed(names)):
                yield self._living(batch, names, alive, start)
                start += batch.num_rows

    def _alive(self, rows: int, deleted: Positions) -> npt.NDArray[np.bool_] | None:
        if not len(deleted):
            return None
        alive = np.ones(rows, dtype=np.bool_)
        alive[deleted[deleted < rows]] = False
        return alive

    def _names(self, schema: pa.Schema) -> dict[str, str]:
        """Our column to the file's, by field id, or by name in files that carry none."""
        by_id = {number: field.name for field in schema if (number := id_of(field)) is not None}
        wanted = {*self._columns, LAKE_OFFSET, *([LAKE_BUCKET] if self._dead else [])}
        if not by_id and self._table.schema_id:
            raise Corrupt(f"data file {self._file.file_path} has no field ids, and columns of its table were changed")
        if not by_id:
            return {name: name for name in wanted if name in schema.names}
        ids = {name: LAKE_FIELD_IDS.get(name) or self._table.column(name).id for name in wanted}
        return {name: by_id[number] for name, number in ids.items() if number in by_id}

    def _groups(
        self, stream: Any, parquet: pq.ParquetFile, names: Mapping[str, str], condition: RowFilter | None
    ) -> list[int]:
        """Row groups whose statistics do not rule the condition out; floats decide nothing, for NaN is not in them."""
        every = list(range(parquet.num_row_groups))
        if condition is None or condition.floats or any(names.get(name) != name for name in condition.columns):
            return every
        if any(pa.types.is_nested(parquet.schema_arrow.field(name).type) for name in condition.columns):
            return every  # Fields inside are found by id, statistics by name.
        fragment = ds.ParquetFileFormat().make_fragment(stream)
        try:
            return [group.id for group in fragment.subset(condition.expression, parquet.schema_arrow).row_groups]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return every  # The file's older types do not fit the expression; the rows, cast, will.

    def _group(
        self, parquet: pq.ParquetFile, group: int, names: Mapping[str, str], alive: Any, start: int
    ) -> Iterator[pa.RecordBatch]:
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=self._needed(names)):
            yield self._living(batch, names, alive, start)
            start += batch.num_rows

    def _needed(self, names: Mapping[str, str]) -> list[str]:
        """The file's columns to read."""
        needed = set(names) & {*self._columns, *((LAKE_BUCKET, LAKE_OFFSET) if self._dead else ())}
        return [names[name] for name in needed or {LAKE_OFFSET}]

    def _living(self, batch: pa.RecordBatch, names: Mapping[str, str], alive: Any, start: int) -> pa.RecordBatch:
        """The living rows of a batch that begins at a position of the file, as the table declares them."""
        mask = self._mask(batch, names, None if alive is None else alive[start : start + batch.num_rows])
        return self._projected(batch if mask is None else batch.filter(pa.array(mask)), names)

    def _mask(self, batch: pa.RecordBatch, names: Mapping[str, str], alive: Any) -> Any:
        if not self._dead:
            return alive
        if LAKE_BUCKET not in names or LAKE_OFFSET not in names:
            raise Corrupt(f"data file {self._file.file_path} has no {LAKE_BUCKET} and {LAKE_OFFSET}")
        buckets = batch.column(names[LAKE_BUCKET]).to_numpy()
        gone = dead_mask(buckets, batch.column(names[LAKE_OFFSET]).to_numpy(), self._dead)
        return ~gone if alive is None else alive & ~gone

    def _projected(self, batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
        arrays = [self._column(batch, names.get(field.name), field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
        if name is None:
            return self._initial(field, batch.num_rows)
        return declared(batch.column(name), field, self._table)

    def _initial(self, field: pa.Field, rows: int) -> pa.Array:
        """The value in rows that are older than the column."""
        if field.name in SYSTEM_TYPES:
            return pa.nulls(rows, field.type)
        return filled(self._table.column(field.name), rows, "initial")


def _metrics(file: DataFile) -> Metrics:
    """The manifest's words on the columns of a file."""
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return Metrics(lower, upper, file.null_value_counts or {}, file.value_counts or {})


def dead_mask(buckets: npt.NDArray[Any], offsets: npt.NDArray[np.int64], dead: Hidden) -> npt.NDArray[np.bool_]:
    """For each row, whether it is among the dead."""
    gone = np.zeros(len(offsets), dtype=np.bool_)
    for bucket in np.flatnonzero(np.bincount(buckets)).tolist() if len(buckets) else []:
        if bucket in dead:
            own = buckets == bucket
            gone[own] = dead[bucket].contains(offsets[own])
    return gone


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One file of a lake snapshot."""

    content: str
    """data, position deletes or equality deletes."""
    path: str
    format: str
    rows: int
    bytes: int


_CONTENT = {0: "data", 1: "position deletes", 2: "equality deletes"}


def files(metadata_location: str, snapshot_id: int) -> list[LakeFile]:
    """The files that a snapshot consists of."""
    with _named(metadata_location):
        table = metadata(metadata_location).inspect.files(snapshot_id)
    names = ["content", "file_path", "file_format", "record_count", "file_size_in_bytes"]
    columns = (table.column(name).to_pylist() for name in names)
    return [LakeFile(_CONTENT[content], *rest) for content, *rest in zip(*columns, strict=True)]


def history(metadata_location: str) -> list[str]:
    """The operations of main's kept snapshots, oldest first: append, overwrite, replace (a compaction), delete."""
    table = metadata(metadata_location)
    found = (table.snapshot_by_id(entry.snapshot_id) for entry in table.history())
    return [snapshot.summary.operation.value for snapshot in found if snapshot and snapshot.summary]
