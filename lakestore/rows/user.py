"""Rows as users hand them in: tables, batches, data frames, lists of dicts, made one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.rows import python
from lakestore.rows.casting import Cast

NAMING = ("partial", "versioned", "aggregate")
"""Merge engines for which it matters what columns rows name."""
STREAMED_ROWS = 10_000
"""Dicts of an iterator that a writer takes at a time."""


def readable_again(rows: Any) -> Any:
    """The rows as something that is not used up, or done once more, when it is read: a table, or a list.

    Generators and other iterables become lists, a lazy frame of polars, a relation of DuckDB and a stream of batches
    become tables.
    """
    if hasattr(rows, "collect") and hasattr(rows, "collect_schema"):
        return rows.collect()
    if hasattr(rows, "to_arrow_table"):
        return rows.to_arrow_table()
    if hasattr(rows, "__arrow_c_stream__") and not hasattr(rows, "to_arrow") and not hasattr(rows, "columns"):
        return pa.table(rows)
    return list(rows) if _is_iterable(rows) else rows


def _is_iterable(rows: Any) -> bool:
    """Whether rows can only be gone through: a generator, the values of a dict, anything like it."""
    return isinstance(rows, Iterable) and not isinstance(rows, (Sequence, Mapping, str, bytes)) and not _is_frame(rows)


def _is_frame(rows: Any) -> bool:
    """Whether this is a table, a batch or a data frame by itself."""
    return hasattr(rows, "columns") or hasattr(rows, "to_arrow") or hasattr(rows, "__arrow_c_stream__")


def streamed(rows: Any) -> Iterator[Any]:
    """Rows that can only be gone through in lists of a commit's size, so that they need not fit into memory."""
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
    """The rows as one Arrow batch: of a Table, RecordBatch, pandas, polars, DuckDB, dicts, or several of these."""
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
            return python.batch_of_dicts(rows, schema)
        table = _joined([from_user(each, schema) for each in rows], schema)
    elif hasattr(rows, "to_arrow"):
        table = rows.to_arrow()
    elif hasattr(rows, "columns") and hasattr(rows, "index"):
        table = python.of_pandas(rows, schema)
    else:
        raise Invalid(
            f"rows of type {type(rows).__name__} are not a table, batch, data frame, dicts, or an iterable of these"
        )
    if not (table.num_rows or table.num_columns):
        return pa.RecordBatch.from_pylist([], schema=schema)
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Batches that name the same columns as one; types that differ are cast to the table's."""
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
            [Cast("rows").column(batch.column(field.name), field) for field in wanted], schema=wanted
        )
        for batch in same
    ]
    return pa.Table.from_batches(cast)


def _plain(batch: pa.RecordBatch) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in batch.schema])


def by_columns(rows: Any, table: Table) -> list[Any]:
    """The rows in parts, in order; the rows of a part name the same columns.

    More than one part only of dicts for engines to which a column that is not named is another thing than a null.
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
