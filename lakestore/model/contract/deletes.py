"""The section `lakestore.deletes` of a contract: what a delete does, and how soon an erasure must end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lakestore.errors import Invalid
from lakestore.model.contract.document import Entry
from lakestore.model.retention import seconds_of

if TYPE_CHECKING:
    from lakestore.model.contract.contract import Contract
    from lakestore.model.table import Table

PROPERTY = "lakestore.deletes"
_OPTION = {"delete": "allow", "ignore": "ignore", "dead_letter": "dead_letter"}
"""The tombstone of a contract to the table's option `deletes`, which every door obeys."""
TOMBSTONES = tuple(_OPTION)
ERASE_WITHIN_SECONDS = 30 * 86_400
"""The deadline of an erasure without a contract: a month, as article 12 of the GDPR has it."""
WITHIN_SECONDS_MAX = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Deletes:
    """The rule of deletes."""

    tombstone: str | None = None
    """Fate of a delete, one of `TOMBSTONES`; None leaves it to the table's option `deletes`."""
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
    return of_contract(table.contract) if table.contract else NONE


def of_contract(contract: Contract) -> Deletes:
    """The rule of a contract."""
    entry = contract.properties.get(PROPERTY)
    return from_entry(entry) if entry else NONE


def obeyed(table: Table) -> Table:
    """The table whose option `deletes` is what its contract says."""
    option = _OPTION.get(of_table(table).tombstone or "")
    return replace(table, deletes=option) if option and table.keyed and table.deletes != option else table


def check(contract: Contract, table: Table) -> None:
    """Raises `Invalid` with the line if the table has no deletes, or its option `deletes` is another one."""
    said = of_contract(contract).tombstone
    if said is None:
        return
    entry = contract.properties[PROPERTY]
    if not table.keyed:
        raise entry.error(f"has a tombstone, and log table {table.name} has no deletes")
    if table.deletes != _OPTION[said]:
        raise Invalid(
            f"table {table.name}: deletes is {_OPTION[said]!r} by its contract, and not {table.deletes!r}: apply a"
            " contract with another tombstone"
        )


def _seconds(entry: Entry) -> int:
    value: Any = entry.value
    try:
        seconds = seconds_of(value)
    except Invalid as error:
        raise entry.error("is a time such as 30d") from error
    if not 0 < seconds <= WITHIN_SECONDS_MAX:
        raise entry.error("is a time of at most 366 days")
    return seconds
