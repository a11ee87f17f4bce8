"""The contract in a table's definition: the document, its version, and who applied it when and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakestore.errors import Invalid
from lakestore.model.contract import deletes, document, event_time, late_data, ownership, promises
from lakestore.model.contract.document import Entry, column_name, stored_columns
from lakestore.model.contract.ownership import Ownership, SchemaPolicy
from lakestore.model.contract.promises import Budget, Promise
from lakestore.model.contract.rules import REQUIRED, Rules, rules_of

if TYPE_CHECKING:
    from lakestore.model.table import Table


@dataclass(frozen=True)
class Contract:
    """A table's contract."""

    document: str
    """The text of the file, as it was given."""
    object: str
    """The name of the table's entry in `schema`."""
    version: int = 0
    """Assigned by the server: 1, 2, 3 …; 0 for a contract that is not applied yet."""
    by: str = ""
    """The principal that applied it; empty on a server without authentication."""
    at_us: int = 0
    """The time of the commit, in microseconds since 1970."""
    why: str = ""
    """The reason that the principal gave."""
    bound: tuple[tuple[str, int], ...] = ()
    """Name in the document and id of each column that the document describes. A rename keeps the id."""

    @cached_property
    def root(self) -> Entry:
        """The whole document."""
        return document.parse(self.document)

    @cached_property
    def entry(self) -> Entry:
        """The table's entry in `schema`."""
        return document.table_entry(self.root, self.object)

    @cached_property
    def properties(self) -> dict[str, Entry]:
        """The values of the `lakestore.*` properties of the table, by name."""
        return document.properties(self.root, self.entry)

    @cached_property
    def promises(self) -> tuple[Promise, ...]:
        """The promises to the table's readers."""
        return promises.promises_of(self.root, self.entry)

    @cached_property
    def budget(self) -> Budget:
        """The bounds of the lake table's upkeep."""
        return promises.budget_of(self.properties)

    @cached_property
    def rules(self) -> Rules:
        """The rules for rows and batches."""
        return rules_of(self.root, self.entry)

    @cached_property
    def owner(self) -> Ownership | None:
        """The principals that decide about the table; None if the document names no owner."""
        return ownership.read_owner(self.properties)

    @cached_property
    def schema_changes(self) -> SchemaPolicy:
        """The policy of changes of columns."""
        return ownership.read_policy(self.properties, self.owner)

    def is_same_but_owner(self, other: Contract) -> bool:
        """Whether two contracts differ in nothing but the owner, the delegates and the approvers."""
        one, two = (ownership.without_owner(each.root.value) for each in (self, other))
        return self.object == other.object and bool(one == two)

    @cached_property
    def column_ids(self) -> dict[str, int]:
        """Name in the document to column id."""
        return dict(self.bound)

    def required_columns(self, table: Table) -> frozenset[str]:
        """The names of the table's columns whose nulls a rule decides on."""
        names = {column.id: column.name for column in table.columns}
        said = {rule.columns[0] for rule in self.rules.at_write if rule.kind == REQUIRED}
        return frozenset(names[number] for name, number in self.bound if name in said and number in names)

    def bind(self, table: Table) -> Contract:
        """The contract with the ids of the table's columns. Raises `Invalid` for a column that the table lacks."""
        ids = {column.name: column.id for column in table.columns}
        bound = []
        for column in stored_columns(self.entry):
            name = column_name(column)
            if name not in ids:
                raise column.error(f"is the column {name!r}, which table {table.name} does not have")
            bound.append((name, ids[name]))
        return replace(self, bound=tuple(bound))

    def check(self, table: Table) -> None:
        """Read every section. Raises `Invalid` with the line of the fault."""
        document.check_properties(self.root)
        _ = self.rules
        deletes.check(self, table)
        event_time.check(self, table)
        late_data.check(self, table)
        promises.check(self, table)
        _ = self.schema_changes
        ids = {column.id for column in table.columns}
        for name, number in self.bound:
            if number not in ids:
                raise Invalid(
                    f"table {table.name}: column {name!r} is in the contract and cannot be dropped: apply a contract"
                    " without it first"
                )

    def as_dict(self) -> dict[str, Any]:
        return {
            "document": self.document,
            "object": self.object,
            "version": self.version,
            "by": self.by,
            "at_us": self.at_us,
            "why": self.why,
            "bound": dict(self.bound),
        }

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Contract | None:
        if not data:
            return None
        return Contract(**{**data, "bound": tuple(data.get("bound", {}).items())})
