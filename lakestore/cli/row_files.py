"""Files of rows: Parquet, CSV, JSON lines and Arrow IPC, read and written in bounded batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from lakestore.cli import json_lines
from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.model.types import optional
from lakestore.rows.user import NAMING
from lakestore.union.lake_columns import recast

_Piece = TypeVar("_Piece")
COMMIT_ROWS = 100_000
_KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}


def kind_of(path: Path) -> str:
    """The format that a file's name says."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise Invalid(f"{path}: the name ends in none of {', '.join(sorted(_KINDS))}")
    return kind


def files_of(path: Path) -> list[Path]:
    """The file, or the Parquet files below a folder, by name."""
    if not path.exists():
        raise Invalid(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*.parquet") if not p.name.startswith((".", "_")))
    if not found:
        raise Invalid(f"{path} holds no .parquet files")
    return found


def schema_of(path: Path) -> pa.Schema:
    """The Arrow schema of a file's rows, as far as its format says."""
    batch = next(iter(batches_of(path, None)), None)
    if batch is None:
        raise Invalid(f"{path} holds no rows")
    return batch.schema


def changes_of(path: Path, table: Table, *, delete: bool = False) -> Iterator[pa.Table | list[dict[str, Any]]]:
    """The rows of a file as they are written to a table, or deleted there, a commit's worth at a time.

    Lines of JSON go as dicts where a column that a line does not name is another thing than a null.
    """
    wanted, carried = _wanted(table, kind_of(path)), _carried(table, delete=delete)
    if kind_of(path) == "jsonl" and _tells_absent(table):
        for rows in _refused_by_name(path, json_lines.rows(path, wanted)):
            yield [{name: value for name, value in row.items() if name in carried} for row in rows]
        return
    for piece in commits_of(batches_of(path, wanted)):
        yield piece.select([name for name in piece.schema.names if name in carried]) if delete else piece


def _wanted(table: Table, kind: str) -> pa.Schema:
    """The types in which a text file is read. CSV holds the members of a bitmap, not its bytes."""
    bitmaps = {column for column, function in table.merge.functions if function.name == "bitmap"}
    as_numbers = bitmaps if kind == "csv" else set()
    fields = [field.with_nullable(True) for field in table.schema]
    return pa.schema([field.with_type(pa.int64()) if field.name in as_numbers else field for field in fields])


def _carried(table: Table, *, delete: bool) -> set[str]:
    """The columns of a file that go to the server: of deletes the key, and columns that the merge engine uses."""
    if delete and table.merge.engine != "partial":
        return {*table.primary_key, *table.merge.version}
    return set(table.schema.names)


def _tells_absent(table: Table) -> bool:
    return table.merge.engine in NAMING or any(column.default is not None for column in table.columns)


def batches_of(path: Path, wanted: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """The rows of a file in batches of any size; text formats are read in the wanted types."""
    reader: Callable[[Path, pa.Schema | None], Iterator[pa.RecordBatch]] = _READERS[kind_of(path)]
    yield from _refused_by_name(path, reader(path, wanted))


def _refused_by_name(path: Path, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    try:
        yield from pieces
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}") from error


def _parquet(path: Path, wanted: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(COMMIT_ROWS)


def _csv(path: Path, wanted: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    flat = [field for field in wanted or () if not pa.types.is_nested(field.type)]
    types = {field.name: field.type for field in flat} or None
    convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    with pacsv.open_csv(path, convert_options=convert) as reader:
        _check_flat(pa.schema([field for field in wanted or () if field.name in reader.schema.names]))
        yield from reader


def _check_flat(schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise Invalid(f"column {field.name!r} is nested, which CSV cannot hold: use Parquet, Arrow or JSON lines")


def _arrow(path: Path, wanted: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            yield from pa.ipc.open_stream(source)
            return
        for i in range(file.num_record_batches):
            yield file.get_batch(i)


_READERS = {"parquet": _parquet, "csv": _csv, "jsonl": json_lines.read, "arrow": _arrow}


def commits_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in pieces that are neither tiny nor larger than a commit should be."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, COMMIT_ROWS):
            piece = batch.slice(start, COMMIT_ROWS)
            if rows + piece.num_rows > COMMIT_ROWS:
                yield pa.Table.from_batches(waiting)
                waiting, rows = [], 0
            waiting.append(piece)
            rows += piece.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


def _loose(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [recast(batch.column(i), field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Output(AbstractContextManager["Output"]):
    """A file, or stdout, that takes batches. A file appears under its name only when it is whole."""

    def __init__(self, path: Path | None, kind: str, schema: pa.Schema) -> None:
        if kind == "csv":
            _check_flat(schema)
        self._path = path
        self._part = None if path is None else path.with_name(f".{path.name}.part")
        self._stack = ExitStack()
        sink = sys.stdout.buffer if self._part is None else self._stack.enter_context(self._part.open("wb"))
        self._write: Callable[[pa.RecordBatch], Any] = self._writer(sink, kind, schema)

    def _writer(self, sink: Any, kind: str, schema: pa.Schema) -> Callable[[pa.RecordBatch], Any]:
        if kind == "parquet":
            loose = pa.schema([field.with_type(optional(field.type)) for field in schema])
            writer = self._stack.enter_context(pq.ParquetWriter(sink, loose, compression="zstd"))
            return lambda batch: writer.write_batch(_loose(batch, loose))
        if kind == "arrow":
            opened = pa.ipc.new_stream if self._path is None else pa.ipc.new_file
            arrow = self._stack.enter_context(opened(sink, schema))
            return lambda batch: arrow.write_batch(batch)
        if kind == "csv":
            lines = self._stack.enter_context(pacsv.CSVWriter(sink, schema))
            return lambda batch: lines.write_batch(batch)
        return lambda batch: sink.writelines(f"{line}\n".encode() for line in json_lines.lines(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._write(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
        except BaseException:
            self._discard()
            raise
        if error is not None:
            self._discard()
        elif self._part is not None and self._path is not None:
            self._part.replace(self._path)

    def _discard(self) -> None:
        if self._part is not None:
            self._part.unlink(missing_ok=True)
