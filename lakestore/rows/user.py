"""Converts a user's rows to one Arrow batch: tables, batches, data frames, lists of dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT
from lakestore.model.decimals import fits, misfit
from lakestore.model.outside_values import excerpt
from lakestore.model.table import Table
from lakestore.model.types import type_name
from lakestore.rows.casting import Budget, refuse

if TYPE_CHECKING:
    import pandas as pd


_FRACTIONS = (float, np.floating, Decimal)
_MIDNIGHT = time()
_NONE = type(None)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_PLAIN: dict[int, set[type]] = {kind.id: {int, _NONE} for kind in _INTEGERS} | {
    pa.string().id: {str, _NONE},
    pa.binary().id: {bytes, _NONE},
    pa.float64().id: {float, _NONE},
    pa.bool_().id: {bool, _NONE},
}
"""Type to the Python types that it keeps completely, so values need no check."""
_NOTHING: set[type] = set()
_EXACT_FLOATS = 1 << 53
"""Below this every integer is exact as a 64-bit float."""


def of_dicts(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """A table from a list of dicts. pyarrow guesses the types of columns that the schema lacks."""
    names, columns = _by_name(rows, schema)
    return pa.table(columns, names=names)


def batch_of_dicts(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """The table of `of_dicts` as one batch."""
    names, columns = _by_name(rows, schema)
    whole = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return pa.RecordBatch.from_arrays(whole, names=names)


def _by_name(rows: Sequence[Any], schema: pa.Schema) -> tuple[list[str], list[pa.Array]]:
    """(names, columns) of a list of dicts."""
    if others := [row for row in rows if not isinstance(row, Mapping)]:
        raise Invalid(f"a row is a dict of column name to value, unlike {others[0]!r}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [_column([row.get(name) for row in rows], schema, name) for name in names]


def of_pandas(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """A table from a pandas frame. Nested columns hold Python values, whose type pyarrow cannot guess.

    pandas stores integers with a missing value as floats. Whole floats become integers again.
    """
    nested = {field.name for field in schema if pa.types.is_nested(field.type) and _is_python(frame, field.name)}
    plain = pa.Table.from_pandas(frame[[name for name in frame.columns if name not in nested]], preserve_index=False)
    for at, field in enumerate(plain.schema):
        wanted = schema.field(field.name).type if schema.names.count(field.name) == 1 else field.type
        if pa.types.is_float64(field.type) and pa.types.is_integer(wanted) and _all_whole(plain.column(at)):
            plain = plain.set_column(at, field.name, plain.column(at).cast(pa.int64()))
    for at, name in enumerate(frame.columns):
        if name in nested:
            held = zip(frame[name], frame[name].notna(), strict=True)
            values = [value if there else None for value, there in held]
            plain = plain.add_column(at, name, _column(values, schema, name))
    return plain


def _all_whole(column: pa.ChunkedArray) -> bool:
    """True if all floats are integers that were not rounded."""
    values = column.drop_null().to_numpy()
    return bool((np.abs(values) < _EXACT_FLOATS).all() and (np.trunc(values) == values).all())


def _is_python(frame: pd.DataFrame, name: str) -> bool:
    return list(frame.columns).count(name) == 1 and frame[name].dtype == object


def _column(values: list[Any], schema: pa.Schema, name: str) -> pa.Array:
    at = schema.get_field_index(name)
    kind = schema.field(at).type if at >= 0 else None
    try:
        if kind is not None and set(map(type, values)) <= _PLAIN.get(kind.id, _NOTHING):
            return pa.array(values, type=kind)
        if kind is not None and pa.types.is_binary(kind) and set(map(type, values)) - {type(None)} == {int}:
            kind = None  # the column may hold members of a bitmap
        if kind is not None:
            _check(values, range(len(values)), kind, name)
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Invalid(_misfit(values, kind, name) or f"column {name!r}: {error}") from error


def _misfit(values: Sequence[Any], kind: pa.DataType | None, name: str) -> str:
    """The error sentence for the first value that does not fit its column. Empty if each value fits by itself."""
    for row, value in enumerate(values):
        try:
            pa.array([value], type=kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            wanted = "a value of one type" if kind is None else type_name(kind, name)
            return f"column {name!r}, row {row}: {excerpt(value)} is no {wanted}"
    return ""


def _check(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType, path: str) -> None:
    """Refuse values that pyarrow would store only in part. `rows` are the row numbers of the values."""
    if pa.types.is_struct(kind):
        _check_structs(values, rows, kind, path)
    elif pa.types.is_list(kind):
        # A text is a sequence too: pyarrow would make a list of its characters.
        _refuse_first(values, rows, kind, path, lambda value: isinstance(value, str | bytes | Mapping))
        pairs = [(part, row) for value, row in zip(values, rows, strict=True) if value is not None for part in value]
        _check([part for part, _ in pairs], [row for _, row in pairs], kind.value_type, f"{path}.element")
    elif pa.types.is_map(kind):
        entries = [
            (pair, row)
            for value, row in zip(values, rows, strict=True)
            if value is not None
            for pair in (value.items() if isinstance(value, Mapping) else value)
        ]
        for (_, *rest), row in entries:
            if len(rest) != 1:
                raise Invalid(f"column {path!r}, row {row}: a map is a dict or a list of pairs")
        places = [row for _, row in entries]
        _check([pair[0] for pair, _ in entries], places, kind.key_type, f"{path}.key")
        _check([pair[1] for pair, _ in entries], places, kind.item_type, f"{path}.value")
    else:
        _check_scalars(values, rows, kind, path)


def _check_structs(values: Sequence[Any], rows: Sequence[int], kind: pa.StructType, path: str) -> None:
    names = {part.name for part in kind}
    held = [(value, row) for value, row in zip(values, rows, strict=True) if value is not None]
    for value, row in held:
        if not isinstance(value, Mapping):
            raise Invalid(f"column {path!r}, row {row}: {type(value).__name__} is no dict, which a struct is")
        for name in value:
            if name not in names:
                raise Invalid(f"column {path!r}, row {row}: there is no field {name!r}")
    for part in kind:
        inner = [value.get(part.name) for value, _ in held]
        _check(inner, [row for _, row in held], part.type, f"{path}.{part.name}")


def _check_scalars(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType, path: str) -> None:
    seen = set(map(type, values))
    if pa.types.is_decimal(kind) and Decimal in seen:
        _refuse_first(values, rows, kind, path, lambda value: isinstance(value, Decimal) and not fits(value, kind))
    if not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return
    if any(issubclass(each, _FRACTIONS) for each in seen):
        _refuse_first(values, rows, kind, path, lambda value: isinstance(value, _FRACTIONS) and not _whole(value, kind))
    if pa.types.is_date(kind) and any(issubclass(each, datetime) for each in seen):
        _refuse_first(values, rows, kind, path, lambda v: isinstance(v, datetime) and v.time() != _MIDNIGHT)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        _check_zones(values, rows, kind, path)


def _check_zones(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType, path: str) -> None:
    """Refuse times with a zone in columns without one, and the reverse: pyarrow would guess or drop the zone."""
    wanted = pa.types.is_timestamp(kind) and kind.tz is not None
    for value, row in zip(values, rows, strict=True):
        if isinstance(value, datetime | time) and (value.utcoffset() is not None) != wanted:
            hint = "say datetime.now(UTC), or value.astimezone()" if wanted else "say value.replace(tzinfo=None)"
            has = "no" if wanted else "a"
            rule = f"has {has} time zone, which {kind} does not take: {hint}"
            raise Invalid(f"column {path!r}, row {row}: {value!r} {rule}")


def _whole(value: Any, kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and value == value and abs(value) != float("inf") and value == int(value))


def _refuse_first(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType, path: str, wrong: Any) -> None:
    for value, row in zip(values, rows, strict=True):
        if wrong(value):
            raise Invalid(
                f"column {path!r}, row {row}: {excerpt(value)} is no {type_name(kind, path)}{misfit(value, kind)}"
            )


NAMING = ("partial", "versioned", "aggregate")
"""Merge engines for which a column that a row does not name differs from null."""
STREAMED_ROWS = 10_000
"""Rows of an iterator that a writer takes at a time."""


def readable_again(rows: Any) -> Any:
    """The rows as a list or a table, which can be read more than once.

    Generators and other iterables become lists. A lazy polars frame, a DuckDB relation and a stream of batches become
    tables.
    """
    if hasattr(rows, "collect") and hasattr(rows, "collect_schema"):
        return rows.collect()
    if hasattr(rows, "to_arrow_table"):
        return rows.to_arrow_table()
    if hasattr(rows, "__arrow_c_stream__") and not hasattr(rows, "to_arrow") and not hasattr(rows, "columns"):
        return pa.table(rows)
    return list(rows) if _is_iterable(rows) else rows


def _is_iterable(rows: Any) -> bool:
    """True for rows that can only be iterated, such as a generator or the values of a dict."""
    return isinstance(rows, Iterable) and not isinstance(rows, (Sequence, Mapping, str, bytes)) and not _is_frame(rows)


def _is_frame(rows: Any) -> bool:
    """True for a single table, batch or data frame."""
    return hasattr(rows, "columns") or hasattr(rows, "to_arrow") or hasattr(rows, "__arrow_c_stream__")


def streamed(rows: Any) -> Iterator[Any]:
    """Yield iterable rows as lists of `STREAMED_ROWS`, so that they need not fit into memory."""
    if not _is_iterable(readable := rows if isinstance(rows, Iterator) else readable_again(rows)):
        yield readable
        return
    some: list[Any] = []
    for row in readable:
        if _is_frame(row):
            yield row
            continue
        some.append(row)
        if len(some) == STREAMED_ROWS:
            yield some
            some = []
    if some:
        yield some


def from_user(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    """One Arrow batch from a Table, RecordBatch, pandas, polars, DuckDB, dicts, or a list of these."""
    rows = readable_again(rows)
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, dict):
        rows = [rows]
    if isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=schema)
        if not _is_frame(rows[0]):
            return batch_of_dicts(rows, schema)
        table = _joined([from_user(each, schema) for each in rows], schema)
    elif hasattr(rows, "to_arrow"):
        table = rows.to_arrow()
    elif hasattr(rows, "columns") and hasattr(rows, "index"):
        table = of_pandas(rows, schema)
    else:
        raise Invalid(
            f"rows of type {type(rows).__name__} are not a table, batch, data frame, dicts, or an iterable of these"
        )
    if not (table.num_rows or table.num_columns):
        return pa.RecordBatch.from_pylist([], schema=schema)
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Join batches with the same columns. Differing types are cast to the table's types."""
    names = batches[0].schema.names
    for batch in batches:
        if set(batch.schema.names) != set(names):
            raise Invalid(
                f"batches of one write have the same columns, not ({', '.join(names)}) and"
                f" ({', '.join(batch.schema.names)}): write them one by one"
            )
    same = [batch.select(names) for batch in batches]
    if all(batch.schema.types == same[0].schema.types for batch in same):
        return pa.Table.from_batches([batch.replace_schema_metadata(None).cast(_plain(same[0])) for batch in same])
    wanted = pa.schema([schema.field(name).with_nullable(True) for name in names if name in schema.names])
    cast = [
        pa.RecordBatch.from_arrays(
            [refuse(batch.column(field.name), field, table="rows", budget=Budget("rows", DEFAULT)) for field in wanted],
            schema=wanted,
        )
        for batch in same
    ]
    return pa.Table.from_batches(cast)


def _plain(batch: pa.RecordBatch) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in batch.schema])


def by_columns(rows: Any, table: Table) -> list[Any]:
    """Split the rows into parts, in order. The rows of a part name the same columns.

    Only dicts give more than one part, and only for the merge engines in `NAMING`.
    """
    several = isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)) and len(rows) > 1
    if not several or table.merge.engine not in NAMING or not all(isinstance(row, Mapping) for row in rows):
        return [rows]
    keys = [tuple(str(row.get(name)) for name in table.primary_key) for row in rows]
    if len(set(keys)) < len(keys):  # changes of one key stay in their order
        return [list(part) for _, part in groupby(rows, key=frozenset)]
    parts: dict[frozenset[str], list[Any]] = {}
    for row in rows:
        parts.setdefault(frozenset(row), []).append(row)
    return list(parts.values())
