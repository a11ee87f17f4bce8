"""Late data of a contract: what happens to a row whose partition is closed.

A row is late if the partition of its chosen time ended more than `closedAfter` before the server's clock. Partitions
are the finest of the table's year, month, day and hour transforms of that time, in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakestore.errors import Invalid
from lakestore.model import ttl
from lakestore.model.contract.document import Entry
from lakestore.model.contract.event_time import INGEST, LANDING_TIME, TIME_TYPE, TRANSFORMS, EventTime
from lakestore.model.outside_values import excerpt

if TYPE_CHECKING:
    from lakestore.model.contract.contract import Contract
    from lakestore.model.table import Table

PROPERTY = "lakestore.lateData"
REWRITE, LAND_TODAY, DROP, DEAD_LETTER = "rewrite", "land_today", "drop", "dead_letter"
POLICIES = (REWRITE, LAND_TODAY, DROP, DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class LateData:
    """The section `lakestore.lateData`."""

    policy: str
    """One of `POLICIES`."""
    closed_after_us: int
    """Microseconds after the end of a partition at which it is closed."""

    @staticmethod
    def of(contract: Contract) -> LateData | None:
        """The section of a contract; None without one. Raises `Invalid` with its line."""
        entry = contract.properties.get(PROPERTY)
        return None if entry is None else _read(entry)

    @property
    def lands(self) -> bool:
        """True if late rows go to the partition of the server's clock."""
        return self.policy == LAND_TODAY


def time_columns(contract: Contract) -> tuple[str, ...]:
    """Names of the columns that a table needs for its times. All are optional and of type timestamptz."""
    section, late = EventTime.of(contract), LateData.of(contract)
    landing = (LANDING_TIME,) if late is not None and late.lands else ()
    return (*(section.kept if section is not None else ()), *landing)


def partition_column(contract: Contract, table: Table) -> str:
    """The column whose time decides the partition of a row; empty without an event time."""
    section, late = EventTime.of(contract), LateData.of(contract)
    if section is None:
        return ""
    return LANDING_TIME if late is not None and late.lands else section.time_column(contract, table)


def partition_transform(table: Table, column: str) -> str:
    """The finest transform of times by which a table is partitioned over a column; empty without one."""
    found = {part.transform for part in table.lake.partition_fields() if part.column == column}
    return next((transform for transform in TRANSFORMS if transform in found), "")


def check(contract: Contract, table: Table) -> None:
    """Refuse a section that does not fit the table, with its line."""
    late = LateData.of(contract)
    if late is None:
        return
    entry, section = contract.properties[PROPERTY], EventTime.of(contract)
    if section is None or section.chosen == INGEST:
        raise entry.error("needs lakestore.eventTime with from: event or from: broker: a row is late by that time")
    if late.lands:
        column = table.column(LANDING_TIME)
        if column.type != TIME_TYPE or column.required:
            raise entry.error(
                f"needs the column {LANDING_TIME!r}, which is in table {table.name} and is no optional {TIME_TYPE}"
            )
    wanted = partition_column(contract, table)
    if not partition_transform(table, wanted):
        said = ", ".join(table.lake.partition_by) or "nothing"
        raise entry.error(
            f"needs partitions of {wanted}, and table {table.name} is partitioned by {said}: say partition_by:"
            f" [day({wanted})] in lake"
        )


def _read(entry: Entry) -> LateData:
    entry.check_keys("policy", "closedAfter")
    policy = entry.text("policy")
    if policy not in POLICIES:
        raise entry.error(f"has policy: {excerpt(policy)}, which is none of {', '.join(POLICIES)}")
    span = entry.field("closedAfter")
    if span is None:
        raise entry.error("has no closedAfter, such as 1d")
    try:
        seconds = ttl.seconds(span.value, "closedAfter")
    except Invalid as error:
        raise span.error(f"is {excerpt(span.value)}, which is no span of time such as '1d' or '6h'") from error
    return LateData(policy, seconds * 1_000_000)
