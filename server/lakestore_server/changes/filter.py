"""Changes of a filtered table: a row that starts to match is an insert, a row that stops matching is a delete.

- A condition is bound to column ids when a stream opens, so it survives a rename or a wider type.
- The rows before and after a change are tested in the schema version of the change.
- A dropped column ends the stream.
- The condition belongs to the request, not to the subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES, Column
from lakestore.model.table import Table
from lakestore.rows import condition_text
from lakestore.rows.condition import RowFilter
from lakestore.rows.projection import Projection
from lakestore_server.read.parsed_conditions import PARSED
from lakestore_server.read.rows import ReadOptions, Rows, imaged, read
from lakestore_server.state.bucket_log import BucketLog, Needed
from lakestore_server.state.chunk import DELETE, INSERT, PREV, UPDATE
from lakestore_server.state.view import Versions

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the rows of a table, bound to the table's columns."""

    text: str
    columns: tuple[tuple[int, str], ...] = ()
    """Id and name (in the condition's text) of each column that the condition reads."""
    schema_id: int = 0
    """The schema version in which it was bound; older versions show the initial value of a newer column."""


def bind_condition(text: str, versions: Versions) -> Condition:
    """The condition on a table, or `Invalid`. A name means the column that has it now or had it last."""
    current = versions.current
    now = {column.id: column for column in current.columns}
    named = [replace(now.get(c.id, c), name=c.name) for table in versions.tables for c in table.columns]
    known = {column.name.lower(): column for column in named}
    parsed = condition_text.parse(text, replace(current, columns=tuple(known.values())))
    if parsed.inside:
        raise Invalid(
            f"the condition of a change stream reads whole columns, not fields of {parsed.inside[0]!r}: a field that is"
            " renamed later would end the stream"
        )
    for name in parsed.columns:
        if name in SYSTEM_TYPES:
            raise Invalid(f"{name} cannot stand in the condition of a change stream: name columns of {current.name}")
        if known[name.lower()].id not in now:
            raise _dropped(name, current)
    return Condition(text, tuple((known[name.lower()].id, name) for name in sorted(parsed.columns)), current.schema_id)


@dataclass(frozen=True, slots=True)
class RowCondition:
    """A condition for rows that are shown in one schema version."""

    filter: RowFilter
    shown: Table
    """The version's columns that the condition reads, under the names in its text."""
    versions: Versions

    @staticmethod
    def bind(condition: Condition, versions: Versions, version: Table) -> RowCondition:
        """The condition on rows in this version; `Invalid` if the version lacks one of its columns."""
        columns = tuple(_column(number, name, condition, versions, version) for number, name in condition.columns)
        shown = replace(version, columns=columns)
        return RowCondition(PARSED.filter_of(condition.text, version.name, columns), shown, versions)

    def needed(self, schema_id: int) -> list[str]:
        """The columns of a stored version that the condition reads."""
        ids = {column.id for column in self.shown.columns}
        return [column.name for column in self.versions.numbered(schema_id).columns if column.id in ids]

    def columns(self, batch: pa.RecordBatch, schema_id: int) -> pa.RecordBatch:
        """The columns of stored rows that the condition reads."""
        arrays = Projection(self.versions.numbered(schema_id), self.shown).columns(batch, self.shown.columns)
        fields = [column.arrow.with_nullable(True) for column in self.shown.columns]
        if not fields:
            # A condition like `1 = 1` reads no column, and a batch without columns has no rows.
            return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=[""])
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def mask(self, batch: pa.RecordBatch, schema_id: int) -> Mask:
        return self.filter.mask(self.columns(batch, schema_id))


def filtered(
    log: BucketLog, start: int, end: int, condition: RowCondition, shown: Needed, *, images: bool
) -> Iterator[Rows]:
    """The changes of the filtered table in [start, end). With `images` each update is preceded by the row before it. A
    delete always carries the removed row."""
    if log.keyed:
        for rows in read(log, start, end):
            seen = _changes(log, rows, condition, images=images)
            if seen is not None:
                yield seen
        return
    for found in read(log, start, end, ReadOptions(timed=False, needed=condition.needed)):
        mask = condition.mask(found.batch, found.schema_id)
        if mask.any():
            first, last = int(found.offsets[0]), int(found.offsets[-1])
            for rows in read(log, first, last + 1, ReadOptions(needed=shown)):
                yield rows.filter(mask[rows.offsets - first])


def _changes(log: BucketLog, rows: Rows, condition: RowCondition, *, images: bool) -> Rows | None:
    prev = rows.batch.column(PREV).to_numpy()
    now = condition.mask(rows.batch, rows.schema_id) & (rows.change != DELETE)
    was = np.zeros(len(prev), dtype=np.bool_)
    replaced = np.flatnonzero(prev >= 0)
    if len(replaced):
        old = log.take(prev[replaced], condition.columns)
        was[replaced] = condition.filter.mask(old)
    seen = now | was
    if not seen.any():
        return None
    change = np.where(now, np.where(was, UPDATE, INSERT), DELETE).astype(np.int8)
    known = np.where(was, prev, -1)
    kept = replace(rows, change=change).filter(seen)
    return imaged(log, kept, known[seen], condition.versions, updates=images)


def _column(number: int, name: str, condition: Condition, versions: Versions, version: Table) -> Column:
    found = next((column for column in version.columns if column.id == number), None)
    if found is None and version.schema_id < condition.schema_id:
        later = versions.numbered(condition.schema_id)
        found = next(column for column in later.columns if column.id == number)
    if found is None:
        raise _dropped(name, version)
    return replace(found, name=name)


def _dropped(name: str, table: Table) -> Invalid:
    return Invalid(
        f"column {name!r} of the stream's condition was dropped from table {table.name} (schema version "
        f"{table.schema_id}): open the stream at its token with another condition"
    )
