"""Rows as files: Parquet, CSV, JSON lines and Arrow. A file gets its name when it is complete; a folder gets parts.

`lakestore.loading` reads these files and returns the same rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from lakestore.cli import json_lines
from lakestore.errors import Invalid
from lakestore.loading.files import format_of as kind_of
from lakestore.loading.reading import naming
from lakestore.model.types import is_bytes, optional
from lakestore.rows import json_texts
from lakestore.union.lake_snapshot import recast

__all__ = ["KINDS", "LINES", "Output", "kind_of"]

KINDS = ("parquet", "csv", "jsonl", "arrow")
LINES = "lines"
"""Format of lines that are texts already: batches with one column."""
_SUFFIXES = {LINES: ".jsonl", "parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl", "arrow": ".arrow"}
_PART, _HIDDEN = "part-", "."
_LINES = 10_000
_Write = Callable[[pa.RecordBatch], Any]


class Output(AbstractContextManager["Output"]):
    """Writes batches to a file, a folder of parts, or stdout. Files get their names when all are complete."""

    def __init__(
        self, path: Path | None, kind: str, schema: pa.Schema | None = None, *, rows_per_file: int | None = None
    ) -> None:
        """`schema` is used if no rows come. With `rows_per_file`, and for a folder, the files are parts."""
        self._path, self._kind, self._schema = path, kind, schema
        self._rows_max = rows_per_file
        self._is_folder = path is not None and (rows_per_file is not None or path.is_dir())
        if rows_per_file is not None and path is None:
            raise Invalid("--rows-per-file is for files: say -o FOLDER as well")
        if path is not None and self._is_folder:
            with naming(path):
                _prepare(path)
        self._is_stream = path is not None and path.exists() and not path.is_dir() and not path.is_file()
        self._parts: list[tuple[Path, Path]] = []
        """Hidden name and final name of every file begun."""
        self._open: _Open | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Rows with other columns begin a new part."""
        with naming(self._path):
            self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            if self._open is not None and self._open.schema != batch.schema and self._kind not in ("jsonl", LINES):
                self._change(batch.schema)
            if self._open is None:
                self._begin(batch.schema)
            assert self._open is not None, "just begun"
            room = batch.num_rows if self._rows_max is None else self._rows_max - self._open.rows
            self._open.write(batch.slice(0, room))
            batch = batch.slice(room)
            if self._rows_max is not None and self._open.rows >= self._rows_max:
                self._end()

    def _change(self, schema: pa.Schema) -> None:
        if not self._is_folder:
            raise Invalid(
                f"the columns change within these rows, to {', '.join(schema.names)}: write JSON lines, or parts into"
                " a folder"
            )
        self._end()

    def _begin(self, schema: pa.Schema) -> None:
        if self._path is None:
            self._open = _Open(sys.stdout.buffer, self._kind, schema)
            return
        if self._is_stream:  # a pipe or device, which a file must not replace
            self._open = _Open(self._path.open("wb"), self._kind, schema, is_own=True)
            return
        path = (
            self._path / f"{_PART}{len(self._parts):05}{_SUFFIXES[self._kind]}"
            if self._is_folder
            else self._path.resolve()
        )
        hidden = path.with_name(f"{_HIDDEN}{path.name}.part")
        sink = hidden.open("wb")
        self._parts.append((hidden, path))
        self._open = _Open(sink, self._kind, schema, is_own=True, is_file=True)

    def _end(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with naming(self._path):
                if error is None and self._open is None and not self._parts and self._schema is not None:
                    self._begin(self._schema)
                self._end()
        except BaseException:
            self._discard()
            raise
        if error is not None:
            self._discard()
            return
        with naming(self._path):
            for hidden, path in self._parts:
                hidden.replace(path)

    def _discard(self) -> None:
        for hidden, _ in self._parts:
            hidden.unlink(missing_ok=True)


def _prepare(folder: Path) -> None:
    """Create a folder for parts. Raises if it has parts already."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_HIDDEN}{_PART}*.part"):
        left.unlink()
    if next(folder.glob(f"{_PART}*"), None) is not None:
        raise Invalid(f"{folder} holds parts of earlier rows: empty it, or name another folder")


class _Open:
    """An open file."""

    def __init__(self, sink: Any, kind: str, schema: pa.Schema, *, is_own: bool = False, is_file: bool = False) -> None:
        """`is_own`: close the sink at the end. `is_file`: the sink can seek and sync."""
        self.schema, self.rows = schema, 0
        self._stack, self._sink, self._is_own, self._is_file = ExitStack(), sink, is_own, is_file
        self._write = self._writer(kind)

    def _writer(self, kind: str) -> _Write:
        schema, sink = self.schema, self._sink
        if kind == "parquet":
            loose = pa.schema([field.with_type(optional(field.type)) for field in schema])
            writer = self._stack.enter_context(pq.ParquetWriter(sink, loose, compression="zstd"))
            return lambda batch: writer.write_batch(_loose(batch, loose))
        if kind == "arrow":
            opened = pa.ipc.new_file if self._is_file else pa.ipc.new_stream
            arrow = self._stack.enter_context(opened(sink, schema))
            return lambda batch: arrow.write_batch(batch)
        if kind == "csv":
            flat = pa.schema([field.with_type(_flat_type(field.type)).with_nullable(True) for field in schema])
            commas = self._stack.enter_context(pacsv.CSVWriter(sink, flat))
            return lambda batch: commas.write_batch(_flat(batch, flat))
        if kind == LINES:
            return lambda batch: self._put(batch.column(0))
        return self._lines if all(_has_json(field.type) for field in schema) else self._odd_lines

    def _lines(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _LINES):
            some = batch.slice(start, _LINES)
            self._put(json_texts.objects(some.schema.names, some.columns, json_texts.PLAIN))

    def _put(self, lines: pa.Array) -> None:
        if len(lines):
            lists = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
            self._sink.write(pc.binary_join(lists, pa.scalar("\n", lines.type)).buffers()[2])
            self._sink.write(b"\n")

    def _odd_lines(self, batch: pa.RecordBatch) -> None:
        self._sink.writelines(f"{line}\n".encode() for line in json_lines.lines(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        try:
            self._stack.close()
            self._sink.flush()
            if self._is_file:
                os.fsync(self._sink.fileno())
        finally:
            if self._is_own:
                self._sink.close()


def _loose(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [recast(batch.column(i), field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_json(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_struct(kind):
        return all(_has_json(part.type) for part in kind)
    if t.is_list(kind):
        return _has_json(kind.value_type)
    if t.is_map(kind):
        return _has_json(kind.key_type) and _has_json(kind.item_type)
    times = t.is_date32(kind) or t.is_time64(kind) or t.is_timestamp(kind)
    plain = t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_string(kind)
    return bool(times or plain or t.is_decimal(kind) or is_bytes(kind))


def _is_text_in_csv(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_nested(kind) or t.is_decimal(kind) or t.is_time(kind) or is_bytes(kind))


def _flat_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if _is_text_in_csv(kind) else kind


def _flat(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_text(column) for column in batch.columns], schema=schema)


def _text(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _is_text_in_csv(kind):
        return array
    if not _has_json(kind):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    text = json_texts.values(array, json_texts.PLAIN)
    if not pa.types.is_nested(kind):
        text = pc.utf8_trim(text, characters='"')
    return pc.if_else(array.is_valid(), text, None)
