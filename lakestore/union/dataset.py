"""A table at a cut for DuckDB, behind a pyarrow dataset: its scanner is a union read.

Conditions that DuckDB pushes down are translated into conditions of Lakestore, so they reach the files and the server
like the conditions of `scan`. A column of nulls precedes the table's columns. A query that needs no column, such as
`count(*)`, asks for the first column, so no stored column is read and the number of rows comes from the plan.
"""

from __future__ import annotations

import contextvars
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakestore.errors import LakestoreError
from lakestore.model.columns import SYSTEM_PREFIX
from lakestore.model.table import Table
from lakestore.rows import pushdown
from lakestore.rows.condition import RowFilter, row_filter
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.union.explanation import Explanation, Figures
from lakestore.union.plan import TableScan

NO_COLUMN = f"{SYSTEM_PREFIX}lakestore_no_column"
_NOTHING = pa.field(NO_COLUMN, pa.int8())


class RowsOfQuery(ds.Dataset):  # type: ignore[misc]
    """The rows behind a view, with the two members of a pyarrow dataset that DuckDB uses: a schema and a scanner."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.rows: Rows | None = None
        """The rows of the query that runs. They have the schema."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows of every query."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> ds.Scanner:
        """A scanner of the rows of the query that runs."""
        assert self.rows is not None, "no query runs"
        return self.rows.scanner(columns, filter)


class Rows:
    """One table at the cut, for the views of a query."""

    def __init__(self, cut: Cut, scan: TableScan, system: Iterable[str], failures: list[LakestoreError]) -> None:
        self._cut, self._scan, self._failures = cut, scan, failures
        self._context = contextvars.copy_context()
        names = [*scan.table.selected(None), *sorted(set(system) - {"__change"})]
        self._schema = pa.schema([_NOTHING, *arrow.schema(scan.table, names)])
        self.reads: list[Explanation] = []
        """One entry for each read."""
        self.checks = True
        """Whether a condition that may differ from the query's is refused. A filter of a join may be wider than the
        query's condition.
        """

    @property
    def table(self) -> Table:
        """The definition at the cut."""
        return self._scan.table

    @property
    def schema(self) -> pa.Schema:
        """The column of nulls, then the table's columns, then the system columns that the query names."""
        return self._schema

    @property
    def columns(self) -> list[str]:
        """The columns that a query sees."""
        names: list[str] = self._schema.names[1:]
        return names

    def scanner(self, columns: list[str] | None, filter: pc.Expression | None) -> ds.Scanner:
        """A scanner of these columns. The scanner does not apply the filter a second time: the read already has."""
        if filter is not None and self.checks:
            pushdown.check(filter)
        names = self._schema.names if columns is None else columns
        condition = None if filter is None else self._condition(filter, names)
        schema = pa.schema([self._schema.field(name) for name in names])
        batches = self._batches(schema, condition, "" if filter is None else str(filter))
        return ds.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, batches))

    def read(self, names: Sequence[str], condition: RowFilter | None) -> Generator[pa.RecordBatch]:
        """The columns `names` of the rows that meet the condition."""
        return self._batches(pa.schema([self._schema.field(name) for name in names]), condition, "")

    def count(self, condition: RowFilter | None) -> int:
        """The number of rows that meet the condition. Statistics may know it."""
        figures = Figures()
        count = arrow.count(self._cut, self._scan, condition, figures)
        self._note((), "" if condition is None else condition.text, count, figures)
        return count

    def _condition(self, expression: pc.Expression, names: Sequence[str]) -> RowFilter:
        """The pushed-down condition, translated, or applied as it is. DuckDB asks for the columns that it names too."""
        schema = pa.schema([self._schema.field(name) for name in names if name != NO_COLUMN])
        found = pushdown.parse(expression, self._scan.table, schema)
        return row_filter(expression, schema.names, schema) if found is None else found

    def _batches(self, schema: pa.Schema, condition: RowFilter | None, text: str) -> Generator[pa.RecordBatch]:
        names, figures, rows = [name for name in schema.names if name != NO_COLUMN], Figures(), 0
        # DuckDB calls the scanner in its own threads, which lack the caller's deadline.
        context = self._context.copy()
        counted = not names and condition is None
        batches = self._counted() if counted else arrow.execute(self._cut, self._scan, names, condition, figures)
        try:
            while (batch := context.run(next, batches, None)) is not None:
                rows += batch.num_rows
                yield _with_nothing(batch, schema)
        except LakestoreError as error:
            self._failures.append(error)
            raise
        finally:
            self._note(names, (condition.text or text) if condition else "", rows, figures)

    def _note(self, names: Sequence[str], condition: str, rows: int, figures: Figures) -> None:
        table, live_rows = self._scan.table.name, self._scan.live_rows
        self.reads.append(Explanation(table, self._cut.token, tuple(names), condition, rows, live_rows, figures))

    def _counted(self) -> Iterator[pa.RecordBatch]:
        """Batches without columns, with as many rows as the plan counts."""
        left = self._scan.live_rows
        nulls = pa.nulls(min(left, arrow.BATCH_ROWS_MAX), _NOTHING.type)
        while left > 0:
            yield pa.RecordBatch.from_arrays([nulls.slice(0, left)], names=[NO_COLUMN])
            left -= len(nulls)


def _with_nothing(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the column of nulls, if the schema asks for it."""
    if NO_COLUMN not in schema.names or NO_COLUMN in batch.schema.names:
        return batch
    nulls = pa.nulls(batch.num_rows, _NOTHING.type)
    arrays = [nulls if name == NO_COLUMN else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
