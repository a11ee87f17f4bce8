"""Derives a table's columns from the first rows of a file, with the readers that read the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode import inference, json_fallback
from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.decode.json_fallback import RefusedRecord
from lakestore.kafka.bridge.records import Records as Block
from lakestore.loading import texts
from lakestore.loading.changes import Changes
from lakestore.loading.columnar import arrow_batches
from lakestore.loading.csv_blocks import text_columns
from lakestore.loading.files import TEXTS, File
from lakestore.loading.json_blocks import chunks_of
from lakestore.loading.progress import Place
from lakestore.loading.reading import Chunk, ColumnRequest, Options
from lakestore.loading.texts import Records, Text
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import no_column
from lakestore.model.outside_values import first_line
from lakestore.model.types import arrow_type
from lakestore.rows import casting

SAMPLE_ROWS = 100_000
_PROBE_ROWS = 100
"""Rows that are tried before the whole sample: a failing cast costs Arrow 2 µs for each value that does not fit."""
_LEADING_ZERO = r"^[+-]?0[0-9]"
_CANDIDATES = (
    pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
)  # fmt: skip
"""Types of CSV columns, narrowest first. A column has the first type that takes all samples."""
_DAY = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}"
"""Start of a text that may be a date or a timestamp."""
_WORDS = pa.array(["true", "false"])


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns derived from a file's first rows."""

    schema: pa.Schema
    rows: int
    """Number of sampled rows; 0 if the file declares its types."""
    key: tuple[str, ...] = ()


def first_chunk(file: File, wanted: ColumnRequest, where: str) -> Chunk | None:
    """The first rows as a load would write them; None for a file without rows."""
    changes = Changes(wanted, where)
    with ExitStack() as stack:
        stack.enter_context(file.stdin.looked_at() if file.stdin is not None else nullcontext())
        chunk = next(chunks_of(file, wanted, Place()), None)
        return None if chunk is None else changes.prepare(chunk)


def sample_columns(file: File, options: Options, types: Mapping[str, str] = MappingProxyType({})) -> Sample:
    """Derive the columns of a file. `types` has the types that the user named."""
    try:
        sample = _sampled(file, options)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise Invalid(f"{file.shown} cannot be read: {first_line(error)}") from error
    schema = sample.schema
    for column, kind in types.items():
        if column not in schema.names:
            raise Invalid(no_column(file.shown, column, schema.names))
        schema = schema.set(schema.names.index(column), pa.field(column, arrow_type(kind)))
    return replace(sample, schema=schema)


def _sampled(file: File, options: Options) -> Sample:
    with ExitStack() as stack:
        stack.enter_context(file.stdin.looked_at() if file.stdin is not None else nullcontext())
        if file.kind not in TEXTS:
            return _own(file, stack.enter_context(file.seekable()), options)
        text = Text(file, stack.enter_context(file.stream()))
        found = _csv(file, text, options) if file.kind == "csv" else _lines(file, text)
    if not found.rows:
        raise Invalid(f"{file.shown} holds no rows to tell the columns of a table by")
    left = (*SYSTEM_TYPES, *([options.op_column] if options.op_column else []))
    return Sample(pa.schema([each for each in found.schema if each.name not in left]), found.rows, found.key)


def _own(file: File, stream: Any, options: Options) -> Sample:
    if file.kind == "parquet":
        schema = pq.ParquetFile(stream).schema_arrow
    else:
        first = next(arrow_batches(stream), None)
        if first is None:
            raise Invalid(f"{file.shown} holds no rows")
        schema = first.schema
    left = (*SYSTEM_TYPES, *([options.op_column] if options.op_column else []))
    return Sample(pa.schema([each for each in schema if each.name not in left]).remove_metadata(), 0)


def _first(blocks: Iterator[Records]) -> Iterator[Records]:
    rows = 0
    for records in blocks:
        yield records
        rows += len(records)
        if rows >= SAMPLE_ROWS:
            return


def _lines(file: File, text: Text) -> Sample:
    raw = [
        records.data[start:end]
        for records in _first(text.blocks(Place(), texts.lines))
        for start, end in zip(records.starts, records.ends, strict=True)
    ][:SAMPLE_ROWS]
    if file.kind != "jsonl":
        return _events(raw)
    return Sample(inference.storable(inference.schema_of(_objects(raw))), len(raw))


def _objects(raw: Sequence[bytes]) -> Iterator[object]:
    for line in raw:
        try:
            found = json_fallback.parse_object(line)
        except RefusedRecord:
            continue
        yield found.held if isinstance(found, json_fallback.DuplicateName) else found


def _events(raw: Sequence[bytes]) -> Sample:
    count = len(raw)
    zeros = np.zeros(count, np.int64)
    block = Block(
        "file", "", zeros, np.arange(count, dtype=np.int64), zeros - 1, pa.nulls(count, pa.binary()),
        pa.array(raw, pa.binary()),
    )  # fmt: skip
    decoded = DebeziumJson(wire="plain").decode(block, None)
    return Sample(inference.storable(pa.schema(list(decoded.values.type)), decoded.key_names), count, decoded.key_names)


def _csv(file: File, text: Text, options: Options) -> Sample:
    if not options.header:
        raise Invalid(f"{file.shown} has no header to name the columns of a new table: create the table first")
    names, columns, rows = text_columns(file, text, options, SAMPLE_ROWS)
    return Sample(pa.schema([(name, _type(column)) for name, column in zip(names, columns, strict=True)]), rows)


def _type(column: pa.Array) -> pa.DataType:
    """The narrowest type that takes all texts. 007 is a text, as is a column without values."""
    held = column.drop_null()
    if not len(held) or pc.any(pc.match_substring_regex(held, _LEADING_ZERO)).as_py():
        return pa.string()
    for kind in _CANDIDATES:
        if pa.types.is_boolean(kind) and not pc.all(pc.is_in(pc.utf8_lower(held), value_set=_WORDS)).as_py():
            continue
        if _takes(held[:_PROBE_ROWS], kind) and _takes(held, kind):
            return kind
    return pa.string()


def _takes(values: pa.Array, kind: pa.DataType) -> bool:
    # Arrow would read a text of digits alone as milliseconds.
    if pa.types.is_temporal(kind) and not pc.all(pc.match_substring_regex(values, _DAY)).as_py():
        return False
    return casting.mask(values, pa.field("", kind), casting.CSV)[1] is None
