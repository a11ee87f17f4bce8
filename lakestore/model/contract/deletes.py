"""The section `lakestore.deletes` of a contract: what a delete does, and how soon an erasure must end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakestore.errors import Invalid
from lakestore.model.contract.document import Entry
from lakestore.model.retention import seconds_of

if TYPE_CHECKING:
    from lakestore.model.table import Table

PROPERTY = "lakestore.deletes"
TOMBSTONES = ("delete", "ignore", "dead_letter")
ERASE_WITHIN_SECONDS = 30 * 86_400
"""The deadline of an erasure without a contract: a month, as article 12 of the GDPR has it."""
WITHIN_SECONDS_MAX = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Deletes:
    """The rule of deletes."""

    tombstone: str | None = None
    """One of `TOMBSTONES`; None leaves it to the option `deletes` of the table."""
    erase_within_seconds: int = ERASE_WITHIN_SECONDS
    """Time after which an erasure cuts off readers and subscriptions that hold it back."""


NONE = Deletes()


def from_entry(entry: Entry) -> Deletes:
    """The rule of a document. `Invalid` names the line of a wrong value."""
    entry.check_keys("tombstone", "eraseWithin")
    tombstone, within = entry.field("tombstone"), entry.field("eraseWithin")
    if tombstone is not None and tombstone.value not in TOMBSTONES:
        raise tombstone.error(f"is one of {', '.join(TOMBSTONES)}")
    return Deletes(tombstone.value if tombstone else None, _seconds(within) if within else ERASE_WITHIN_SECONDS)


def of_table(table: Table) -> Deletes:
    """The rule of a table's contract."""
    entry = table.contract.properties.get(PROPERTY) if table.contract else None
    return from_entry(entry) if entry else NONE


def _seconds(entry: Entry) -> int:
    value: Any = entry.value
    try:
        seconds = seconds_of(value)
    except Invalid as error:
        raise entry.error("is a time such as 30d") from error
    if not 0 < seconds <= WITHIN_SECONDS_MAX:
        raise entry.error("is a time of at most 366 days")
    return seconds
