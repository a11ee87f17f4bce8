"""Rows as users hand them in: tables, batches, data frames, lists of dicts, made one Arrow batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.rows import python

NAMING = ("partial", "versioned", "aggregate")
"""Merge engines for which it matters what columns rows name."""


def readable_again(rows: Any) -> Any:
    """The rows as something that is not used up when it is read: a stream of batches becomes a table."""
    is_stream = hasattr(rows, "__arrow_c_stream__") and not hasattr(rows, "to_arrow") and not hasattr(rows, "columns")
    return pa.table(rows) if is_stream else rows


def from_user(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as one Arrow batch: of a Table, RecordBatch, pandas, polars or a list of dicts."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, dict):
        rows = [rows]
    if isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        return python.batch_of_dicts(rows, schema)
    elif hasattr(rows, "to_arrow"):
        table = rows.to_arrow()
    elif hasattr(rows, "columns") and hasattr(rows, "index"):
        table = python.of_pandas(rows, schema)
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
    else:
        raise Invalid(f"rows of type {type(rows).__name__} are not a table, batch, data frame or list of dicts")
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


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
