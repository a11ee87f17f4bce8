"""Reads JSON lines as chunks: a block by Arrow's reader, or line by line if the reader refuses it.

The readers are the bridge's, so a load and the bridge accept the same lines. Unlike the bridge, a load refuses a field
without a column, because a misspelled name would lose its values silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode import json_fallback
from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.decode.json_fallback import DEPTH_MAX, RefusedRecord
from lakestore.kafka.bridge.decode.json_records import Shape, note_extra, parse_lines
from lakestore.kafka.bridge.outcome import Op
from lakestore.kafka.bridge.pipeline import Pipeline
from lakestore.kafka.bridge.records import Records as Block
from lakestore.kafka.bridge.spec import ColumnSpec, TableSpec, TopicSpec
from lakestore.kafka.debezium import CONNECTOR
from lakestore.loading import texts
from lakestore.loading.casts import Casts, file_type
from lakestore.loading.columnar import Columnar
from lakestore.loading.csv_blocks import Csv
from lakestore.loading.files import TEXTS, File
from lakestore.loading.progress import Place
from lakestore.loading.reading import Bad, Bools, Chunk, ColumnRequest, Ints, Reader, columns, without_rejects
from lakestore.loading.texts import Records, Text
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import no_column
from lakestore.model.outside_values import first_line
from lakestore.model.table import Table
from lakestore.rows.casting import JSON

_TOPIC = "file"
_CASTS = Casts(JSON)


class DebeziumLines:
    """A file of change events, one for each line."""

    def __init__(self, file: File, text: Text, wanted: ColumnRequest) -> None:
        table = wanted.table
        if not table.keyed:
            raise Invalid(f"table {table.name} is a log table: change events go into one with a primary key")
        self._text, self._table = text, table
        ours = f'"connector":"{CONNECTOR}"'.encode() in text.head.replace(b" ", b"")
        spec = TableSpec(table.name, columns=_micros(table) if ours else ())
        topic = TopicSpec(_TOPIC, _TOPIC, target=spec, format="debezium-json", wire="plain")
        self._pipeline = Pipeline(topic=topic, tables={table.name: table}, decoder=DebeziumJson(wire="plain"))

    def chunks(self, place: Place) -> Iterator[Chunk]:
        for records in self._text.blocks(place, texts.lines):
            yield self._chunk(records)

    def _chunk(self, records: Records) -> Chunk:
        count = len(records)
        values = [records.data[start:end] for start, end in zip(records.starts, records.ends, strict=True)]
        zeros = np.zeros(count, np.int64)
        block = Block(
            _TOPIC, "", zeros, np.arange(count, dtype=np.int64), zeros - 1, pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
        )  # fmt: skip
        mapped = self._pipeline.process(block)
        bad = [
            Bad(each.record, int(records.lines[each.record]), each.sentence, records.text(each.record))
            for rejects in mapped.rejects.values()
            for each in rejects
        ]
        bad = sorted({each.record: each for each in bad}.values(), key=lambda each: each.record)
        empty = pa.RecordBatch.from_pylist([], schema=self._table.nullable_schema)
        batch, record, deletes, kept = empty, np.zeros(0, np.int64), np.zeros(0, np.bool_), {}
        for rows in mapped.tables:
            batch, record, deletes, kept = rows.batch, rows.record, rows.op == Op.DELETE, dict(rows.kept)
        return Chunk(
            count, batch, record, records.lines, bad, records.place_after, records.text, deletes=deletes, kept=kept
        )


def _micros(table: Table) -> tuple[ColumnSpec, ...]:
    return tuple(
        ColumnSpec(column.name, column.type, unit="us" if pa.types.is_temporal(column.arrow.type) else "")
        for column in table.columns
    )


_SAMPLED = 32
_PART, _PARTS = 64, 16


class JsonLines:
    """A file of JSON lines."""

    def __init__(self, file: File, text: Text, wanted: ColumnRequest) -> None:
        self._file, self._text, self._wanted = file, text, wanted
        self._schema = pa.schema([self._numbers(field) for field in wanted.schema])
        fields = [field.with_type(file_type(field.type)) for field in self._schema]
        if b'"__' in text.head:  # output of `read` or `changes`: declaring these columns keeps Arrow's reader usable
            known = set(self._schema.names)
            fields += [pa.field(name, kind) for name, kind in SYSTEM_TYPES.items() if name not in known]
        self._shape = Shape.of(pa.schema(fields), "value")
        self._asked = [field.name for field in self._schema if self._is_asked(field)] if wanted.needs_absent else []

    def _numbers(self, field: pa.Field) -> pa.Field:
        if field.name not in self._wanted.numbered:
            return field
        for line in self._text.head.splitlines()[:_SAMPLED]:
            try:
                held = json_fallback.parse_object(line)
            except RefusedRecord:
                continue
            value = held.get(field.name) if isinstance(held, dict) else None
            if value is not None:
                return field.with_type(pa.int64()) if isinstance(value, json_fallback.Number) else field
        return field

    def _is_asked(self, field: pa.Field) -> bool:
        return field.name not in self._wanted.table.primary_key

    def chunks(self, place: Place) -> Iterator[Chunk]:
        for records in self._text.blocks(place, texts.lines):
            yield self._chunk(records)

    def _chunk(self, records: Records) -> Chunk:
        pieces: list[tuple[Ints, pa.StructArray]] = []
        bad: list[Bad] = []
        self._read(records, np.arange(len(records)), pieces, bad)
        if len(pieces) > 1 and any(rows.type != pieces[0][1].type for _, rows in pieces):
            pieces = [(ids, rows.cast(self._shape.texts)) for ids, rows in pieces]
        record = np.concatenate([ids for ids, _ in pieces]) if pieces else np.zeros(0, np.int64)
        rows = pa.concat_arrays([rows for _, rows in pieces]) if pieces else pa.array([], self._shape.texts)
        if (np.diff(record) < 0).any():
            order = np.argsort(record, kind="stable")
            record, rows = record[order], rows.take(pa.array(order))
        absent = self._absent(records, record, rows)
        flat = dict(zip([field.name for field in rows.type], rows.flatten(), strict=True))
        named = {name: flat[name] for name in self._schema.names if not absent.get(name, _SOME).all()}
        batch, refused = columns(named, self._schema, _CASTS, len(record), bad_max=self._wanted.bad_max)
        chunk = Chunk(
            len(records), batch, record, records.lines, bad, records.place_after, records.text,
            absent={name: flags for name, flags in absent.items() if name in named},
        )  # fmt: skip
        return without_rejects(chunk, refused)

    def _read(self, records: Records, lines: Ints, pieces: list[tuple[Ints, pa.StructArray]], bad: list[Bad]) -> None:
        by_hand = self._shape.by_hand
        if not by_hand:
            lines = self._without_far(records, lines, pieces, bad)
        if not len(lines):
            return
        rows = None if by_hand else self._at_once(records, lines)
        if rows is None and not by_hand and self._shape.learn(self._samples(records, lines)):
            lines = self._without_far(records, lines, pieces, bad)
            rows = self._at_once(records, lines) if len(lines) else None
        if rows is not None:
            pieces.append((lines, rows))
        elif len(lines) <= _PART or by_hand:
            self._one_by_one(records, lines, pieces, bad)
        else:
            size = max(_PART, -(-len(lines) // _PARTS))
            for first in range(0, len(lines), size):
                self._read(records, lines[first : first + size], pieces, bad)

    def _without_far(
        self, records: Records, lines: Ints, pieces: list[tuple[Ints, pa.StructArray]], bad: list[Bad]
    ) -> Ints:
        """The lines without far decimals. The others are read one by one."""
        far = self._shape.far
        if not len(lines) or far.rows(_as_text(records.joined(lines))) is None:
            return lines
        is_far = far.rows(_each(records, lines))
        if is_far is None:
            return lines
        self._one_by_one(records, lines[is_far], pieces, bad)
        return lines[~is_far]

    def _at_once(self, records: Records, lines: Ints) -> pa.StructArray | None:
        starts, ends = records.starts[lines], records.ends[lines]
        whole = np.frombuffer(records.data, dtype=np.uint8)
        lengths = ends - starts
        if (lengths < 2).any() or (whole[starts] != ord("{")).any() or (whole[ends - 1] != ord("}")).any():
            return None
        data = records.joined(lines)
        if b"\0" in data or self._is_deep(records, lines, lengths):
            return None
        try:
            _as_text(data).cast(pa.string())
        except pa.ArrowInvalid:
            return None
        return parse_lines(pa.py_buffer(data), len(lines), self._shape, "error")

    def _is_deep(self, records: Records, lines: Ints, lengths: Ints) -> bool:
        long = lines[lengths >= 2 * DEPTH_MAX]
        return any(json_fallback.depth(self._raw(records, int(at))) > DEPTH_MAX for at in long)

    def _raw(self, records: Records, record: int) -> bytes:
        return records.data[records.starts[record] : records.ends[record]]

    def _samples(self, records: Records, lines: Ints) -> list[object]:
        found: list[object] = []
        for record in lines[:: max(1, len(lines) // _SAMPLED)].tolist():
            try:
                read = json_fallback.parse_object(self._raw(records, record))
            except RefusedRecord:
                continue
            found.append(read.held if isinstance(read, json_fallback.DuplicateName) else read)
        return found

    def _one_by_one(
        self, records: Records, lines: Ints, pieces: list[tuple[Ints, pa.StructArray]], bad: list[Bad]
    ) -> None:
        read, fields = self._shape.reader.read, self._shape.reader.fields
        rows, kept = [], []
        for record in lines.tolist():
            try:
                found = json_fallback.parse_object(self._raw(records, record))
                extra: dict[str, pa.DataType] = {}
                note_extra(found, fields, "", extra)
                if unknown := sorted(name for name in extra if not self._wanted.is_ignored(name)):
                    raise RefusedRecord(
                        "unknown", no_column(f"table {self._wanted.table.name}", unknown[0], self._schema.names)
                    )
                rows.append(read(found))
                kept.append(record)
            except RefusedRecord as refused:
                why = (
                    refused.why.replace("the record", "the line")
                    .replace("value.", "")
                    .replace("bytes as base64", "hex")
                )
                bad.append(Bad(record, int(records.lines[record]), why, records.text(record)))
        if kept:
            pieces.append((np.array(kept, dtype=np.int64), pa.array(rows, self._shape.texts)))

    def _absent(self, records: Records, record: Ints, rows: pa.StructArray) -> dict[str, Bools]:
        found: dict[str, Bools] = {}
        places = {name: at for at, name in enumerate(part.name for part in rows.type)}
        for name in self._asked:
            column = rows.field(places[name])
            if not column.null_count:
                continue
            empty = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            flags = np.zeros(len(record), np.bool_)
            flags[empty] = ~self._named(records, record[empty], name)
            if flags.any():
                found[name] = flags
        return found

    def _named(self, records: Records, record: Ints, name: str) -> Bools:
        """Mask of the records that name a column. Lines with the name inside a text, or escaped, are parsed."""
        told = pa.array([self._raw(records, int(at)) for at in record], pa.binary())
        quoted = orjson.dumps(name).decode()
        close = pc.or_(pc.match_substring(told, quoted), pc.match_substring(told, "\\"))
        flags = np.array(close.to_numpy(zero_copy_only=False))
        for at in np.flatnonzero(flags).tolist():
            read = json_fallback.parse_object(told[at].as_py())
            flags[at] = name in (read.held if isinstance(read, json_fallback.DuplicateName) else read)
        return flags


_SOME = np.zeros(1, np.bool_)


def _as_text(data: bytes) -> pa.BinaryArray:
    """One value with these bytes, which are not copied."""
    places = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, places, pa.py_buffer(data)])


def _each(records: Records, lines: Ints) -> pa.BinaryArray:
    """The bytes of each line. They are not copied if all lines are asked for."""
    places = pa.py_buffer(np.append(records.starts, records.nexts[-1:]).astype(np.int32))
    every = pa.BinaryArray.from_buffers(pa.binary(), len(records), [None, places, pa.py_buffer(records.data)])
    return every if len(lines) == len(records) else every.take(pa.array(lines))


def chunks_of(file: File, wanted: ColumnRequest, place: Place) -> Iterator[Chunk]:
    """The records of a file from a place. Raises `Invalid` if the bytes have another format."""
    with ExitStack() as stack:
        try:
            yield from _reader(file, wanted, stack).chunks(place)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise Invalid(f"{file.shown} cannot be read: {first_line(error)}") from error


def _reader(file: File, wanted: ColumnRequest, stack: ExitStack) -> Reader:
    if file.kind not in TEXTS:
        return Columnar(file, stack.enter_context(file.seekable()), wanted)
    text = Text(file, stack.enter_context(file.stream()))
    if file.kind == "csv":
        return Csv(file, text, wanted)
    return JsonLines(file, text, wanted) if file.kind == "jsonl" else DebeziumLines(file, text, wanted)
