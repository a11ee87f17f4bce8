"""A table at a cut as DuckDB asks for it: a pyarrow dataset whose scanner is a union read."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakestore.errors import LakestoreError
from lakestore.rows.condition import RowFilter, row_filter
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.union.plan import TableScan


class Rows(ds.Dataset):  # type: ignore[misc]
    """One table at the cut, with the two things DuckDB asks of a pyarrow dataset: its schema and a scanner."""

    def __init__(self, cut: Cut, scan: TableScan, system: Iterable[str], failures: list[LakestoreError]) -> None:
        self._cut, self._scan, self._failures = cut, scan, failures
        self._context = contextvars.copy_context()
        self._schema = arrow.schema(scan.table, [*scan.table.selected(None), *sorted(set(system) - {"__change"})])

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, and the system columns that the query names."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> ds.Scanner:
        """A scanner over what DuckDB asks for; it does not apply the filter again."""
        names = self._schema.names if columns is None else columns
        condition = None
        if filter is not None:
            text = str(filter)
            condition = row_filter(filter, [name for name in self._schema.names if name in text], self._schema)
        schema = pa.schema([self._schema.field(name) for name in names])
        return ds.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, self._batches(names, condition)))

    def _batches(self, names: list[str], condition: RowFilter | None) -> Iterator[pa.RecordBatch]:
        # DuckDB asks from threads of its own, which know nothing of the caller's deadline.
        context, batches = self._context.copy(), arrow.execute(self._cut, self._scan, names, condition)
        try:
            while (batch := context.run(next, batches, None)) is not None:
                yield batch
        except LakestoreError as error:
            self._failures.append(error)
            raise
