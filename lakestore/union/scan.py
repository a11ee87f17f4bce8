"""`table.scan(…)`: one table at one cut, as Arrow, pandas or polars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from lakestore.errors import Invalid, NotFound
from lakestore.model.alteration import Requirement
from lakestore.model.names import other_table
from lakestore.model.token import Token
from lakestore.rows import condition_text, literals
from lakestore.rows.condition import RowFilter
from lakestore.union import arrow, plan
from lakestore.union.cut import Cut, Source, opened
from lakestore.union.explanation import Explanation, Figures
from lakestore.union.plan import TableScan
from lakestore.wire import tracing

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Scan:
    """A union read, which starts with the call of a `to_…` method or of `count`."""

    def __init__(
        self,
        source: Source,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: str | Token | None = None,
        uuid: str = "",
        former: Sequence[str] = (),
        require: Requirement | None = None,
    ) -> None:
        """If `uuid` is set, the read fails with `NotFound` when the name belongs to another table by now, which is no
        rescaled form of it; `former` are the uuids from before rescales."""
        if isinstance(columns, str):
            raise Invalid(f"columns= takes a list of names, not the text {columns!r}")
        self._source = source
        self._table = table
        self._columns = None if columns is None else tuple(columns)
        self._where = None if where is None else literals.fixed(where)
        self._at, self._uuid, self._require = at, uuid, require
        self._uuids = (uuid, *former)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches of bounded size, read while the caller iterates."""
        with self._begun() as (cut, scan, columns, condition):
            yield from arrow.execute(cut, scan, columns, condition)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream with a schema: the cut's schema, which may be older than the table's."""
        held = ExitStack()
        cut, scan, columns, condition = held.enter_context(self._begun())

        def batches() -> Iterator[pa.RecordBatch]:
            with held:
                yield from arrow.execute(cut, scan, columns, condition)

        return pa.RecordBatchReader.from_batches(arrow.schema(scan.table, columns), batches())

    def to_arrow(self) -> pa.Table:
        """The rows as one table, in the declared types."""
        with self._traced(), self._begun() as (cut, scan, columns, condition):
            schema = arrow.schema(scan.table, columns)
            return pa.Table.from_batches(arrow.execute(cut, scan, columns, condition), schema=schema)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame."""
        return frame_of_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame."""
        return frame_of_polars(self.to_arrow())

    def count(self) -> int:
        """The number of rows; without a condition no row is read."""
        if self._where is None and self._columns is None and not isinstance(self._source, Cut):
            at = "" if self._at is None else str(self._at)
            answer = self._source.plan(plan.request([self._table], at=at, no_dead=True, require=self._require))
            return self._meant(plan.decode(answer).scan(self._table)).live_rows
        with self._traced(), self._begun() as (cut, scan, _, condition):
            return arrow.count(cut, scan, condition)

    def explain(self) -> Explanation:
        """Read all rows, discard them, and report what was read, what was skipped and what it cost."""
        figures = Figures()
        with ExitStack() as held:
            with figures.timed("plan_seconds"):
                cut, scan, columns, condition = held.enter_context(self._begun())
            rows = sum(batch.num_rows for batch in arrow.execute(cut, scan, columns, condition, figures))
            where = self._where or ""
            return Explanation(scan.table.name, cut.token, tuple(columns), where, rows, scan.live_rows, figures)

    def _traced(self) -> AbstractContextManager[None]:
        return tracing.span("scan", table=self._table, where=self._where or "")

    @contextmanager
    def _begun(self) -> Iterator[tuple[Cut, TableScan, list[str], RowFilter | None]]:
        with opened(self._source, [self._table], self._at, self._require) as cut:
            scan = self._meant(cut.plan.scan(self._table))
            columns = arrow.schema(scan.table, self._columns).names
            condition = None if self._where is None else condition_text.parse(self._where, scan.table)
            yield cut, scan, columns, condition

    def _meant(self, scan: TableScan) -> TableScan:
        """The table's plan. Raises `NotFound` if the name belongs to another table."""
        if self._uuid and not {scan.table.uuid, *scan.table.former}.intersection(self._uuids):
            raise NotFound(other_table(self._table))
        return scan


def frame_of_pandas(table: pa.Table) -> pd.DataFrame:
    """An Arrow table as a pandas frame. Without pandas, the error says how to install it."""
    try:
        frame: pd.DataFrame = table.to_pandas()
    except ModuleNotFoundError as error:
        raise Invalid("pandas is not installed: pip install pandas") from error
    return frame


def frame_of_polars(table: pa.Table) -> pl.DataFrame:
    """An Arrow table as a polars frame. Without polars, the error says how to install it."""
    try:
        import polars
    except ModuleNotFoundError as error:
        raise Invalid("polars is not installed: pip install polars") from error
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame
