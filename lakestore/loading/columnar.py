"""Reads Parquet and Arrow files as chunks. A place is a number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Invalid
from lakestore.loading.casts import Casts
from lakestore.loading.files import File
from lakestore.loading.progress import Place
from lakestore.loading.reading import CHUNK_ROWS, Chunk, ColumnRequest, columns, without_rejects
from lakestore.loading.texts import TEXT_CHARS_MAX
from lakestore.rows.casting import ROWS

_CASTS = Casts(ROWS)


class Columnar:
    """An open Parquet or Arrow file with random access."""

    def __init__(self, file: File, stream: Any, wanted: ColumnRequest) -> None:
        self._file, self._opened, self._wanted = file, stream, wanted
        self._schema = wanted.schema

    def chunks(self, place: Place) -> Iterator[Chunk]:
        at, batches = self._from(place.offset)
        for batch in batches:
            if batch.num_rows <= place.offset - at:
                at += batch.num_rows
                continue
            batch = batch.slice(place.offset - at) if at < place.offset else batch
            at = max(at, place.offset)
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                yield self._chunk(batch.slice(start, CHUNK_ROWS), at + start)
            at += batch.num_rows
        if at < place.offset:
            raise Invalid(
                f"{self._file.shown} has {at} rows, fewer than were loaded: --again loads it from its beginning"
            )

    def _from(self, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        if self._file.kind == "arrow":
            return 0, arrow_batches(self._opened)
        file = pq.ParquetFile(self._opened)
        first, at = 0, 0
        while first < file.num_row_groups and at + file.metadata.row_group(first).num_rows <= row:
            at += file.metadata.row_group(first).num_rows
            first += 1
        names = file.schema_arrow.names
        self._wanted.check(self._file, names)
        kept = [name for name in names if not self._wanted.is_ignored(name)]
        groups = list(range(first, file.num_row_groups))
        return at, file.iter_batches(CHUNK_ROWS, row_groups=groups, columns=kept) if groups else iter(())

    def _chunk(self, batch: pa.RecordBatch, first: int) -> Chunk:
        names = batch.schema.names
        self._wanted.check(self._file, names)
        read = {name: batch.column(name) for name in names if not self._wanted.is_ignored(name)}
        made, refused = columns(read, self._schema, _CASTS, batch.num_rows, bad_max=self._wanted.bad_max)
        numbers = np.arange(batch.num_rows)

        def text(row: int) -> str:
            return str(batch.slice(row, 1).to_pylist()[0])[:TEXT_CHARS_MAX]

        def place_after(count: int) -> Place:
            return Place(first + count, first + count)

        chunk = Chunk(batch.num_rows, made, numbers, first + 1 + numbers, (), place_after, text)
        return without_rejects(chunk, refused)


def arrow_batches(stream: Any) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow file or stream."""
    try:
        file = pa.ipc.open_file(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        yield from pa.ipc.open_stream(stream)
        return
    for number in range(file.num_record_batches):
        yield file.get_batch(number)
