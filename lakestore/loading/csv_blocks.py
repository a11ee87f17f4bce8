"""Reads CSV as chunks. Arrow's reader takes a block with its types; if it fails, columns are read as text and cast.

- A record ends at a line break outside quotes. A value is quoted if it begins with a quote; a quote inside is doubled.
- An empty value without quotes is null, as is the text that the user named. A quoted empty value is an empty text.
- A line with a quote that is never closed is refused on its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode import json_fallback
from lakestore.kafka.bridge.decode.json_fallback import DEPTH_MAX, RefusedRecord
from lakestore.kafka.bridge.decode.json_records import Shape, note_extra, parse_lines
from lakestore.loading.casts import Casts, file_type
from lakestore.loading.files import File
from lakestore.loading.progress import Place
from lakestore.loading.reading import Bad, Bools, Chunk, ColumnRequest, Ints, Options, columns, without_rejects
from lakestore.loading.texts import Records, RecordSpans, Text, not_blank, physical
from lakestore.model.outside_values import first_line
from lakestore.rows import casting
from lakestore.rows.casting import CSV, JSON
from lakestore.rows.scalar_casts import Mask

_ONE_BY_ONE_MAX, _PARTS = 64, 16
_VALUE = "v"


class _Unread(ValueError):
    """A text is not JSON of its column's type."""


@dataclass(frozen=True, slots=True)
class CsvCasts(Casts):
    """Casts texts of CSV. A nested column is a text of JSON."""

    _shapes: dict[pa.DataType, Shape] = dataclasses.field(default_factory=dict)

    def mask(self, array: pa.Array, field: pa.Field) -> tuple[pa.Array, Mask | None]:
        if not pa.types.is_nested(field.type) or not len(array):
            return casting.mask(array, field, self.rules)
        made, bad = [], np.zeros(len(array), np.bool_)
        for start, values, unread in self._read(array, 0, len(array), self._shape(field)):
            column, wrong = casting.mask(values, field, JSON)
            made.append(column)
            bad[start : start + len(values)] = unread if wrong is None else unread | wrong
        return pa.concat_arrays(made), bad if bad.any() else None

    def reason(self, value: pa.Array, field: pa.Field) -> str:
        shape = self._shape(field)
        try:
            rows = pa.array([_one(value[0].as_py(), shape)], shape.texts)
        except _Unread as error:
            return str(error)
        return casting.why(rows.field(0), field, JSON)

    def _shape(self, field: pa.Field) -> Shape:
        kind = file_type(field.type)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = Shape.of(pa.schema([(_VALUE, kind)]), "value")
        return shape

    def _read(self, texts: pa.Array, start: int, end: int, shape: Shape) -> Iterator[tuple[int, pa.Array, Mask]]:
        """Parse a range at once, in parts or one by one. Yields (start, values as JSON, mask of unread rows)."""
        some = texts.slice(start, end - start)
        read = None if shape.by_hand else _at_once(some, shape)
        if read is not None:
            yield start, *read
        elif end - start <= _ONE_BY_ONE_MAX or shape.by_hand:
            yield start, *_one_by_one(some, shape)
        else:
            size = max(_ONE_BY_ONE_MAX, -(-(end - start) // _PARTS))
            for first in range(start, end, size):
                yield from self._read(texts, first, min(first + size, end), shape)


def _at_once(texts: pa.StringArray, shape: Shape) -> tuple[pa.Array, Mask] | None:
    """(values, mask of unread rows) by one call of Arrow's reader, or None. Texts with far decimals are read alone."""
    whole = texts.fill_null("null")
    odd = pc.or_(pc.match_substring(whole, "\n"), pc.greater(pc.binary_length(whole), 2 * DEPTH_MAX))
    if pc.any(odd).as_py():
        return None
    far = shape.far.rows(whole)
    near = whole if far is None else pc.if_else(pa.array(far), "null", whole)
    lines = pc.binary_join_element_wise(f'{{"{_VALUE}":', near, "}", "")
    lists = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    data = pc.binary_join(lists, "\n").buffers()[2]
    if data is None or not np.frombuffer(data, dtype=np.uint8).all():
        return None
    rows = parse_lines(data, len(texts), shape, "error")
    if rows is None:
        return None
    values, unread, places = rows.field(0), np.zeros(len(texts), np.bool_), np.arange(len(texts))
    if far is not None:
        alone, unread[far] = _one_by_one(texts.filter(pa.array(far)), shape)
        places[far] = len(texts) + np.arange(len(alone))
        values = pa.concat_arrays([values, alone]).take(pa.array(places))
    return values, unread


def _one_by_one(texts: pa.StringArray, shape: Shape) -> tuple[pa.Array, Mask]:
    rows, unread = [], np.zeros(len(texts), np.bool_)
    for row, text in enumerate(texts.to_pylist()):
        try:
            rows.append(_one(text, shape))
        except _Unread:
            rows.append(None)
            unread[row] = True
    return pc.struct_field(pa.array(rows, shape.texts), [0]), unread


def _one(text: str | None, shape: Shape) -> Any:
    try:
        found = json_fallback.parse_object(f'{{"{_VALUE}":{"null" if text is None else text}}}'.encode())
        extra: dict[str, pa.DataType] = {}
        note_extra(found, shape.reader.fields, "", extra)
        if extra:
            raise _Unread(f"it has no field {min(extra).removeprefix(f'{_VALUE}.')!r}")
        return shape.reader.read(found)
    except RefusedRecord as refused:
        raise _Unread(refused.why.replace(f"value.{_VALUE}", "it")) from refused


QUOTED_BYTES_MAX = 1 << 20
"""The longest record with a quoted line break. A longer one has an unclosed quote by mistake."""
_QUOTE = ord('"')
_BOM = b"\xef\xbb\xbf"


class Splitter:
    """Finds the records of CSV in bytes."""

    def __init__(self, delimiter: str, *, one_column: bool) -> None:
        """With one column a blank line is a null."""
        self._delimiter, self._one_column = delimiter.encode(), one_column
        mark = re.escape(self._delimiter)
        self._value = re.compile(rb'"(?:[^"]|"")*+"[^' + mark + rb"\n]*|[^\"" + mark + rb"\n][^" + mark + rb"\n]*|")

    def __call__(self, data: bytes, is_end: bool) -> RecordSpans:
        starts, nexts = physical(data, is_end)
        line_ends = nexts
        used, broken = (int(nexts[-1]) if len(nexts) else 0), np.zeros(0, np.int64)
        if b'"' in data:
            starts, nexts, broken, used = self._quoted(data, starts, nexts, is_end)
        if self._one_column:
            return RecordSpans(starts, nexts, broken, used, line_ends)
        kept = not_blank(data, starts, nexts)
        if len(broken):
            broken = np.cumsum(kept)[broken] - 1
        return RecordSpans(starts[kept], nexts[kept], broken, used, line_ends)

    def _quoted(self, data: bytes, starts: Ints, nexts: Ints, is_end: bool) -> tuple[Ints, Ints, Ints, int]:
        odd = np.flatnonzero(~self._closed(data, starts, nexts))
        if not len(odd):
            return starts, nexts, np.zeros(0, np.int64), int(nexts[-1]) if len(nexts) else 0
        made_starts, made_nexts, broken = [], [], []
        at, used = 0, int(nexts[-1])
        for line in odd.tolist():
            if line < at:
                continue
            end = self._end(data, int(starts[line]))
            if end is None and not is_end and len(data) - starts[line] < QUOTED_BYTES_MAX:
                used, nexts = int(starts[line]), nexts[:line]
                break
            last = line if end is None else int(np.searchsorted(nexts, end))
            if last >= len(nexts):  # closed, and its line continues in the next block
                used, nexts = int(starts[line]), nexts[:line]
                break
            made_starts.append(starts[at : line + 1])
            made_nexts.append(np.append(nexts[at:line], nexts[last]))
            if end is None:
                broken.append(sum(map(len, made_starts)) - 1)
            at = last + 1
        made_starts.append(starts[at : len(nexts)])
        made_nexts.append(nexts[at:])
        return np.concatenate(made_starts), np.concatenate(made_nexts), np.array(broken, np.int64), used

    def _closed(self, data: bytes, starts: Ints, nexts: Ints) -> Bools:
        whole = np.frombuffer(data, dtype=np.uint8)
        places = np.flatnonzero(whole == _QUOTE)
        line = np.searchsorted(nexts, places, side="right")
        inside = line < len(nexts)
        places, line = places[inside], line[inside]
        if not len(places):
            return np.ones(len(starts), np.bool_)
        first = np.searchsorted(places, starts)
        opens = (np.arange(len(places)) - first[line]) % 2 == 0
        mark = self._delimiter[0]
        before = whole[np.maximum(places - 1, 0)]
        after = whole[np.minimum(places + 1, len(whole) - 1)]
        at_start = (places == starts[line]) | (before == mark) | (before == _QUOTE)
        at_end = (places + 1 >= len(whole)) | (after == mark) | (after == _QUOTE) | (after == 10) | (after == 13)
        right = np.where(opens, at_start, at_end)
        closed = np.ones(len(starts), np.bool_)
        closed[line[~right]] = False
        closed[np.bincount(line, minlength=len(starts)) % 2 == 1] = False
        return closed

    def _end(self, data: bytes, start: int) -> int | None:
        at, most = start, start + QUOTED_BYTES_MAX
        if data.startswith(_BOM, at) and not at:
            at += len(_BOM)
        while True:
            found = self._value.match(data, at, most)
            assert found is not None, "an empty value is one"
            at = found.end()
            following = data[at : at + 1]
            if following == self._delimiter:
                at += 1
            elif following == b"\n":
                return at + 1
            else:
                return at if at >= len(data) else None


class Csv:
    """A CSV file."""

    def __init__(self, file: File, text: Text, wanted: ColumnRequest) -> None:
        self._file, self._text, self._wanted = file, text, wanted
        options = wanted.options
        self._delimiter = delimiter_of(file, options)
        self._names = wanted.schema.names
        if options.header:
            self._names = header_of(file, text.head, self._delimiter)
            wanted.check(file, self._names)
        self._split = Splitter(self._delimiter, one_column=len(self._names) == 1)
        self._schema = self._typed(wanted)
        self._casts = CsvCasts(CSV)
        self._nulls = sorted({"", options.null})

    def _typed(self, wanted: ColumnRequest) -> pa.Schema:
        known = wanted.schema
        return pa.schema(
            [
                pa.field(name, pa.int64() if name in wanted.numbered else known.field(name).type)
                for name in self._names
                if name in known.names
            ]
        )

    def chunks(self, place: Place) -> Iterator[Chunk]:
        for records in self._text.blocks(place, self._split):
            has_header = records.before.offset == 0 and self._wanted.options.header and len(records)
            yield self._chunk(records, 1 if has_header else 0)

    def _chunk(self, records: Records, first: int) -> Chunk:
        bad = [
            Bad(int(at), int(records.lines[at]), "a quote is opened, and never closed", records.text(int(at)))
            for at in records.broken
            if at >= first
        ]
        numbers = np.arange(first, len(records))
        if len(records.broken):
            numbers = np.setdiff1d(numbers, records.broken)
        read, misfits = self._parsed(records, numbers, bad)
        numbers = np.setdiff1d(numbers, misfits) if len(misfits) else numbers
        refused: dict[int, str] = {}
        if isinstance(read, pa.RecordBatch):
            batch = read
        else:
            known = set(self._schema.names)
            named = {name: column for name, column in read.items() if name in known}
            batch, refused = columns(named, self._schema, self._casts, len(numbers), bad_max=self._wanted.bad_max)
        chunk = Chunk(
            len(records), batch, numbers, records.lines, sorted(bad, key=lambda each: each.record),
            records.place_after, records.text,
        )  # fmt: skip
        return without_rejects(chunk, refused)

    def _parsed(
        self, records: Records, numbers: Ints, bad: list[Bad]
    ) -> tuple[pa.RecordBatch | dict[str, pa.Array], list[int]]:
        """Parse records to a typed batch, or to columns of text. Records of another width go to `bad`."""
        if not len(numbers):
            return {name: pa.array([], pa.string()) for name in self._names}, []
        data = records.joined(numbers)
        try:
            table = self._table(data, typed=True)
            if table.num_rows == len(numbers):
                return self._batch(table), []
        except (pa.ArrowException, UnicodeDecodeError):
            pass  # a value or a record does not fit: read as text below
        widths: list[tuple[int, int]] = []
        try:
            table = self._table(data, typed=False, widths=widths)
        except (pa.ArrowException, UnicodeDecodeError):
            return self._one_by_one(records, numbers, bad)
        if table.num_rows + len(widths) != len(numbers):
            return self._one_by_one(records, numbers, bad)
        misfits = [int(numbers[row]) for row, _ in widths]
        for (_, width), record in zip(widths, misfits, strict=True):
            bad.append(self._of_width(records, record, width))
        return {name: _combined(table.column(at)) for at, name in enumerate(self._names)}, misfits

    def _of_width(self, records: Records, record: int, width: int) -> Bad:
        why = f"the line has {width} values, and there are {len(self._names)} columns"
        return Bad(record, int(records.lines[record]), why, records.text(record))

    def _one_by_one(self, records: Records, numbers: Ints, bad: list[Bad]) -> tuple[dict[str, pa.Array], list[int]]:
        tables, misfits = [], []
        for number in numbers.tolist():
            widths: list[tuple[int, int]] = []
            try:
                found = self._table(records.joined(np.array([number])), typed=False, widths=widths)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                why = "the line is not UTF-8" if isinstance(error, UnicodeDecodeError) else first_line(error)
                if "UTF8" in why:
                    why = "the line is not UTF-8"
                bad.append(Bad(number, int(records.lines[number]), why, records.text(number)))
                misfits.append(number)
                continue
            if widths or found.num_rows != 1:
                bad.append(self._of_width(records, number, widths[0][1] if widths else 0))
                misfits.append(number)
                continue
            tables.append(found)
        if not tables:
            return {name: pa.array([], pa.string()) for name in self._names}, misfits
        table = pa.concat_tables(tables)
        return {name: _combined(table.column(at)) for at, name in enumerate(self._names)}, misfits

    def _table(self, data: bytes, *, typed: bool, widths: list[tuple[int, int]] | None = None) -> pa.Table:
        kinds = [self._read_type(name) if typed else pa.string() for name in self._names]
        return _table(data, kinds, self._delimiter, self._nulls, widths)

    def _read_type(self, name: str) -> pa.DataType:
        if name not in self._schema.names:
            return pa.string()
        kind, t = self._schema.field(name).type, pa.types
        plain = (
            t.is_integer(kind) or t.is_floating(kind) or t.is_string(kind) or t.is_date(kind) or t.is_timestamp(kind)
        )
        return kind if plain else pa.string()

    def _batch(self, table: pa.Table) -> pa.RecordBatch | dict[str, pa.Array]:
        read = {name: _combined(table.column(at)) for at, name in enumerate(self._names)}
        arrays = []
        for field in self._schema:
            array, bad = self._casts.mask(read[field.name], field)
            if bad is not None:
                return read
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _table(
    data: bytes, kinds: Sequence[pa.DataType], delimiter: str, nulls: list[str], widths: list[tuple[int, int]] | None
) -> pa.Table:
    """Parse records to columns. A record of another width goes to `widths`, or raises without it."""
    named = {f"{at}": kind for at, kind in enumerate(kinds)}

    def skip(row: pacsv.InvalidRow) -> str:
        if widths is None:
            return "error"
        widths.append((row.number - 1, row.actual_columns))
        return "skip"

    return pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(column_names=list(named), block_size=len(data) + 1, use_threads=False),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=skip
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=named, null_values=nulls, strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def delimiter_of(file: File, options: Options) -> str:
    """The delimiter. Raises `Invalid`."""
    found = options.delimiter or file.separator
    if len(found.encode()) != 1 or found in '"\r\n':
        raise Invalid(f"--delimiter is one character of ASCII, and no quote or line break, unlike {found!r}")
    return found


def header_of(file: File, head: bytes, delimiter: str) -> list[str]:
    """The names in the first record."""
    found = Splitter(delimiter, one_column=False)(head, True)
    starts, nexts, broken = found.starts, found.nexts, found.broken
    if not len(starts) or (len(broken) and broken[0] == 0):
        raise Invalid(f"{file.shown} has no header: its first line names the columns, or say --no-header")
    line = head[int(starts[0]) : int(nexts[0])].removeprefix(_BOM)
    try:
        read = pacsv.read_csv(
            pa.BufferReader(line.rstrip(b"\r\n") + b"\n"),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        )
        names = list(read.schema.names)
    except UnicodeDecodeError as error:
        raise Invalid(f"{file.shown}: the header is not UTF-8: save the file as UTF-8") from error
    except pa.ArrowException as error:
        raise Invalid(f"{file.shown}: the header cannot be read: {first_line(error)}") from error
    if read.num_rows:
        raise Invalid(f"{file.shown}: its lines end in a carriage return alone: save it with line feeds")
    return names


def text_columns(file: File, text: Text, options: Options, rows: int) -> tuple[list[str], list[pa.Array], int]:
    """Column names, texts of the first records with the right width, and the number of these records."""
    delimiter = delimiter_of(file, options)
    names = header_of(file, text.head, delimiter)
    split, nulls = Splitter(delimiter, one_column=len(names) == 1), sorted({"", options.null})
    tables, count = [], 0
    for records in text.blocks(Place(), split):
        first = 1 if not records.before.offset else 0
        numbers = np.setdiff1d(np.arange(first, len(records)), records.broken)[: rows - count]
        if len(numbers):
            try:
                found = _table(records.joined(numbers), [pa.string()] * len(names), delimiter, nulls, [])
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise _unread(file, records, numbers, error) from error
            tables.append(found)
            count += found.num_rows
        if count >= rows:
            break
    if not tables:
        return names, [pa.array([], pa.string()) for _ in names], 0
    whole = pa.concat_tables(tables)
    return names, [_combined(whole.column(at)) for at in range(len(names))], count


def _unread(file: File, records: Records, numbers: Ints, error: Exception) -> Invalid:
    for number in numbers.tolist():
        try:
            records.data[records.starts[number] : records.ends[number]].decode()
        except UnicodeDecodeError:
            return Invalid(f"{file.shown}, line {records.lines[number]}: the line is not UTF-8: save the file as UTF-8")
    return Invalid(f"{file.shown} cannot be read: {first_line(error)}")


def _combined(column: pa.ChunkedArray) -> pa.Array:
    made = column.combine_chunks()
    return pa.concat_arrays(made.chunks) if isinstance(made, pa.ChunkedArray) else made
