"""The event time of a contract: the one time of a row that partitions and completeness use.

- `event` is a column of the row, `broker` the timestamp of its Kafka record, `ingest` the server's clock.
- With `keep` all three are columns of the table. The server fills them; the bridge sends `_broker_time`.
- The chosen time is always a column, so that the lake can be partitioned by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakestore.model.columns import LAKE_TIMESTAMP
from lakestore.model.contract.document import Entry
from lakestore.model.outside_values import excerpt

if TYPE_CHECKING:
    from lakestore.model.contract.contract import Contract
    from lakestore.model.table import Table

PROPERTY = "lakestore.eventTime"
EVENT, BROKER, INGEST = "event", "broker", "ingest"
EVENT_TIME, BROKER_TIME, INGEST_TIME, LANDING_TIME = "_event_time", "_broker_time", "_ingest_time", "_landing_time"
"""Columns that the server fills. `_landing_time` is the time by which a table with the late policy `land_today` is
partitioned: the chosen time, or the server's clock for a late row.
"""
KEPT = {EVENT: EVENT_TIME, BROKER: BROKER_TIME, INGEST: INGEST_TIME}
TIME_TYPE = "timestamptz"
ISO = "iso"
UNITS = ("s", "ms", "us", "ns")
_NUMBERS = ("int", "float", "decimal")


@dataclass(frozen=True, slots=True)
class EventTime:
    """The section `lakestore.eventTime`."""

    chosen: str
    """`event`, `broker` or `ingest`."""
    column: str = ""
    """The column of the event time, by its name in the document; empty if the rows have none."""
    unit: str = ""
    """Unit of numbers: s, ms, us or ns; `iso` for texts. Empty for columns that are times."""
    zone: str = ""
    """The zone of times without one."""
    keep: bool = False
    """True if all three times are columns."""

    @staticmethod
    def of(contract: Contract) -> EventTime | None:
        """The section of a contract; None without one. Raises `Invalid` with its line."""
        entry = contract.properties.get(PROPERTY)
        return None if entry is None else _read(entry)

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns that the table has for its times."""
        return tuple(KEPT.values()) if self.keep else ()

    def event_column(self, contract: Contract, table: Table) -> str:
        """The present name of the column with the event time; empty if there is none."""
        number = contract.column_ids.get(self.column)
        return next((column.name for column in table.columns if column.id == number), "")

    def time_column(self, contract: Contract, table: Table) -> str:
        """The present name of the column with the chosen time."""
        if self.keep:
            return KEPT[self.chosen]
        return LAKE_TIMESTAMP if self.chosen == INGEST else self.event_column(contract, table)


def check(contract: Contract, table: Table) -> None:
    """Refuse a section that does not fit the table's columns, with its line."""
    section = EventTime.of(contract)
    if section is None:
        return
    entry = contract.properties[PROPERTY]
    for name in section.kept:
        column = table.column(name)
        if column.type != TIME_TYPE or column.required:
            raise entry.error(
                f"keeps times in column {name!r}, which is in table {table.name} and is no optional {TIME_TYPE}"
            )
    if section.keep and table.skip_unchanged:
        raise entry.error(
            f"keeps the time of each write, and table {table.name} skips unchanged rows, but none is unchanged with"
            " another time: leave skip_unchanged or keep out"
        )
    if section.column:
        name = section.event_column(contract, table)
        if not name:
            raise entry.error(
                f"names the column {section.column!r}, which is not in properties of the schema entry"
                f" {excerpt(contract.object)}"
            )
        _check_type(entry, section, table.column(name).type)
        if section.chosen == EVENT and not section.keep and table.column(name).type != TIME_TYPE:
            raise entry.error(f"names the column {name!r}, which is no {TIME_TYPE}: add keep: true")
    for part in table.lake.partition_fields():
        others = {*KEPT.values(), LAKE_TIMESTAMP, section.event_column(contract, table)} - {""}
        if part.column in others - {section.time_column(contract, table)} and part.transform in TRANSFORMS:
            raise entry.error(
                f"chooses the time in {section.time_column(contract, table)}, and table {table.name} is partitioned by"
                f" {part.transform}({part.column})"
            )


TRANSFORMS = ("hour", "day", "month", "year")
"""Partition transforms of times, the finest first."""


def _read(entry: Entry) -> EventTime:
    entry.check_keys("from", "column", "unit", "zone", "keep")
    chosen, column = entry.text("from"), entry.text("column")
    if chosen not in KEPT:
        raise entry.error(f"has from: {excerpt(chosen)}, which is none of {', '.join(KEPT)}")
    unit, zone = entry.text("unit"), entry.text("zone")
    if unit and unit not in (*UNITS, ISO):
        raise entry.error(f"has unit: {excerpt(unit)}, which is none of {', '.join(UNITS)}, {ISO}")
    if (unit or zone or chosen == EVENT) and not column:
        raise entry.error("has no column")
    try:
        _ = ZoneInfo(zone) if zone else None
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise entry.error(f"has zone: {excerpt(zone)}, which is no time zone") from error
    found = entry.field("keep")
    keep = False if found is None else found.value
    if not isinstance(keep, bool):
        raise entry.error(f"has keep: {excerpt(keep)}, which is neither true nor false")
    if chosen == BROKER and not keep:
        raise entry.error("has from: broker, whose time is a column only with keep: true")
    return EventTime(chosen, column, unit, zone, keep)


def _check_type(entry: Entry, section: EventTime, kind: str) -> None:
    """Refuse a unit or a zone that does not fit the type of the column."""
    if kind == TIME_TYPE:
        fits, wanted = not section.unit, "no unit"
    elif kind in ("timestamp", "date"):
        fits, wanted = bool(section.zone) and not section.unit, "a zone and no unit"
    elif kind == "string":
        fits, wanted = bool(section.unit), "a unit"
    elif kind.startswith(_NUMBERS):
        fits, wanted = section.unit in UNITS, f"a unit of {', '.join(UNITS)}"
    else:
        raise entry.error(f"names the column {section.column!r}, which is {kind} and holds no time")
    if not fits:
        raise entry.error(f"names the column {section.column!r}, which is {kind} and needs {wanted}")
