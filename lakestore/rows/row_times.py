"""Times of rows under a contract: the columns of times, rows without a usable time, and late rows.

- Everything is computed over whole columns; nothing here reads a clock.
- A time that cannot be read is never replaced by another one: its row is in `bad`.
- A row that keeps its stored event time, or does not name it under the engine `partial`, is neither bad nor late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.model import times
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.event_time import (
    BROKER,
    BROKER_TIME,
    EVENT,
    EVENT_TIME,
    INGEST_TIME,
    ISO,
    LANDING_TIME,
    EventTime,
)
from lakestore.model.contract.late_data import LateData, partition_column, partition_transform, time_columns
from lakestore.model.outside_values import excerpt
from lakestore.model.table import Table
from lakestore.rows import casting, scalar_casts
from lakestore.rows.casting import Rules
from lakestore.rows.scalar_casts import Mask, Times

Ints = npt.NDArray[np.int64]
_TIME = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = (
    (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) for moment in (datetime.min, datetime.max)
)
"""Times that Python and Iceberg's readers can show."""
_NUMPY = {"hour": "h", "day": "D", "month": "M", "year": "Y"}
_NAMES = {"hour": "%Y-%m-%d-%H", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
_NUMBER = r"^\s*[+-]?[0-9]+(\.[0-9]*)?\s*$"


def partition_starts(micros: Ints, transform: str) -> Ints:
    """The start of the partition of each time, in microseconds; `transform` is hour, day, month or year."""
    whole = micros.astype("datetime64[us]").astype(f"datetime64[{_NUMPY[transform]}]")
    return whole.astype("datetime64[us]").astype(np.int64)


def partition_ends(micros: Ints, transform: str) -> Ints:
    """The start of the partition after that of each time."""
    whole = micros.astype("datetime64[us]").astype(f"datetime64[{_NUMPY[transform]}]")
    return (whole + 1).astype("datetime64[us]").astype(np.int64)


@dataclass(frozen=True, slots=True)
class RowTimes:
    """The times of a batch."""

    batch: pa.RecordBatch
    """The rows with the columns of times that the table has."""
    bad: Mask
    """Rows without a usable time of the chosen kind."""
    reason: Callable[[int], str]
    """The sentence about a bad row."""
    late: Mask
    """Rows whose partition is closed."""
    starts: Ints
    """The start of each row's partition by its chosen time, in microseconds; meaningless for bad rows."""

    transform: str
    """The transform of the partitions."""

    def late_partitions(self, stays: Ints | None = None) -> dict[str, int]:
        """Closed partitions, as the lake names them, to the number of their rows among those that stay."""
        late = self.late if stays is None else self.late[stays]
        starts = self.starts if stays is None else self.starts[stays]
        found, counts = np.unique(starts[late], return_counts=True)
        names = [times.moment_of(start).strftime(_NAMES[self.transform]) for start in found.tolist()]
        return dict(zip(names, counts.tolist(), strict=True))


@dataclass(frozen=True)
class TimeRules:
    """The rules for the times of a table, ready for its batches."""

    table: Table
    contract: Contract
    section: EventTime
    late: LateData | None

    @staticmethod
    def of(table: Table) -> TimeRules | None:
        """None for a table whose rows get no times."""
        section = EventTime.of(table.contract) if table.contract is not None else None
        if table.contract is None or section is None:
            return None
        return TimeRules(table, table.contract, section, LateData.of(table.contract))

    @cached_property
    def column(self) -> str:
        """The column of the event time; empty if there is none."""
        return self.section.event_column(self.contract, self.table)

    @cached_property
    def transform(self) -> str:
        return partition_transform(self.table, partition_column(self.contract, self.table))

    @cached_property
    def _form(self) -> str:
        unit, zone = self.section.unit, self.section.zone
        return (f" in {unit}" if unit else "") + (f" of zone {zone}" if zone else "")

    @cached_property
    def _rules(self) -> Rules:
        unit = "" if self.section.unit == ISO else self.section.unit
        return Rules(scalar_casts.of_record, Times(unit, self.section.zone))

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """The columns that `fill` sets."""
        return time_columns(self.contract)

    @property
    def is_partly(self) -> bool:
        """Whether a row of the table may bring some of the columns only."""
        return self.table.merge.engine in ("partial", "aggregate")

    def fill(
        self,
        batch: pa.RecordBatch,
        now_us: int,
        *,
        from_bridge: bool = False,
        kept: Mask | None = None,
        brings_event: bool = True,
    ) -> RowTimes:
        """Add the times of rows to upsert or append, and find bad and late rows. The columns have the table's types.

        `from_bridge` is true if `_broker_time` of the rows is the bridge's; it is empty otherwise. `kept` is true for
        rows that keep the stored value of the event column, `brings_event` false if no row names that column.
        """
        count = batch.num_rows
        event, unread = self._event_times(batch)
        broker = _column(batch, BROKER_TIME) if from_bridge else pa.nulls(count, _TIME)
        ingest = pa.repeat(pa.scalar(now_us, pa.int64()).cast(_TIME), count)
        chosen = {EVENT: event, BROKER: broker}.get(self.section.chosen, ingest)
        absent = pc.is_null(chosen).to_numpy(zero_copy_only=False)
        bad = absent & ~self._spared(batch, kept, brings_event)
        micros = pc.fill_null(chosen.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
        starts, late = self._lateness(micros, absent, now_us)
        if self.section.keep:
            for name, column in ((EVENT_TIME, event), (BROKER_TIME, broker), (INGEST_TIME, ingest)):
                batch = _with(batch, name, column)
        if self.late is not None and self.late.lands:
            batch = _with(batch, LANDING_TIME, pc.if_else(pa.array(late), ingest, chosen))
        reason = self._reasons(batch, unread)
        return RowTimes(batch, bad, reason, late, starts, self.transform)

    def chosen_times(self, batch: pa.RecordBatch) -> pa.Array:
        """The chosen times of rows as a bridge sends them; null where a row has none, and for `ingest`."""
        if self.section.chosen == BROKER:
            return _column(batch, BROKER_TIME)
        return self._event_times(batch)[0] if self.section.chosen == EVENT else pa.nulls(batch.num_rows, _TIME)

    def _event_times(self, batch: pa.RecordBatch) -> tuple[pa.Array, Mask]:
        """The event times, null where there is none, and the rows whose value is no time."""
        count, none = batch.num_rows, np.zeros(batch.num_rows, dtype=np.bool_)
        if not self.column or self.column not in batch.schema.names:
            return pa.nulls(count, _TIME), none
        column = batch.column(self.column)
        wrong = none
        if pa.types.is_string(column.type):
            number = pc.match_substring_regex(column, _NUMBER)
            other = number if self.section.unit == ISO else pc.invert(number)
            wrong = other.fill_null(False).to_numpy(zero_copy_only=False)
            column = pc.if_else(pa.array(wrong), pa.scalar(None, column.type), column) if wrong.any() else column
        moments, misfit = casting.mask(column, pa.field(self.column, _TIME), self._rules)
        wrong = wrong if misfit is None else wrong | misfit
        if count:
            ends = pc.min_max(moments.view(pa.int64())).as_py()
            if ends["min"] is not None and not _FIRST <= ends["min"] <= ends["max"] <= _LAST:
                micros = moments.view(pa.int64())
                beyond = pc.or_(pc.less(micros, _FIRST), pc.greater(micros, _LAST))
                wrong = wrong | beyond.fill_null(False).to_numpy(zero_copy_only=False)
                moments = pc.if_else(beyond, pa.scalar(None, _TIME), moments)
        return moments, wrong

    def _spared(self, batch: pa.RecordBatch, kept: Mask | None, brings_event: bool) -> Mask:
        """Rows that need no event time, because the stored row has one."""
        if self.section.chosen == EVENT and self.is_partly and not brings_event:
            return np.ones(batch.num_rows, dtype=np.bool_)
        is_kept = kept is not None and self.section.chosen == EVENT
        return kept if is_kept and kept is not None else np.zeros(batch.num_rows, dtype=np.bool_)

    def _lateness(self, micros: Ints, absent: Mask, now_us: int) -> tuple[Ints, Mask]:
        if self.late is None or not len(micros):
            return micros, np.zeros(len(micros), dtype=np.bool_)
        late = partition_ends(micros, self.transform) + self.late.closed_after_us < now_us
        return partition_starts(micros, self.transform), late & ~absent

    def _reasons(self, batch: pa.RecordBatch, unread: Mask) -> Callable[[int], str]:
        def reason(row: int) -> str:
            if self.section.chosen == BROKER:
                return "the row has no time of a broker: only a bridge sends one"
            if not unread[row]:
                return f"column {self.column!r} has no event time"
            value = excerpt(batch.column(self.column)[row].as_py())
            return f"column {self.column!r} holds {value}, which is no event time{self._form}"

        return reason


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, _TIME)


def _with(batch: pa.RecordBatch, name: str, times: pa.Array) -> pa.RecordBatch:
    field, at = pa.field(name, _TIME), batch.schema.get_field_index(name)
    return batch.append_column(field, times) if at < 0 else batch.set_column(at, field, times)
