"""Changes of tables to what a file or a contract says: the definition before, after, and the steps between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakestore.errors import Invalid
from lakestore.evolution import DropColumn, SetContract, Step
from lakestore.model.alteration import apply_steps
from lakestore.model.contract import document, file
from lakestore.model.contract.contract import Contract
from lakestore.model.table import Table
from lakestore.model.table_file import WantedTable, steps_between


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change of one table."""

    before: Table | None
    """None if the table does not exist."""
    after: Table
    steps: tuple[Step, ...] = ()

    @property
    def action(self) -> str:
        """create, alter or nothing."""
        return "create" if self.before is None else "alter" if self.steps else "nothing"

    def drops(self) -> list[str]:
        """Columns that are dropped with their values, as `--allow-drop` names them."""
        return [f"{self.after.name}.{step.name}" for step in self.steps if isinstance(step, DropColumn)]


def changes_of(
    wanted: Iterable[WantedTable], tables: Mapping[str, Table], contracts: Mapping[str, Contract] | None = None
) -> list[TableChange]:
    """The changes from the existing tables to the wanted ones. Raises one `Invalid` with every impossible change.

    `contracts` has the contracts of wanted tables by their names. A table without one keeps what it has.
    """
    changes: list[TableChange] = []
    problems: list[str] = []
    for table in wanted:
        contract = contracts.get(table.name) if contracts else None
        try:
            changes.append(_change(table, tables.get(table.name), contract))
        except Invalid as error:
            named = "" if error.message.startswith((f"table {table.name}", "line ")) else f"table {table.name}: "
            place = "" if error.message.startswith("line ") else f"{table.place}: "
            problems.append(f"{place}{named}{error.message}")
    if problems:
        raise Invalid(f"nothing was changed: {'; '.join(problems)}")
    return changes


def check_drops(changes: Iterable[TableChange], allowed: Sequence[str]) -> None:
    """Refuse changes that drop other columns than the allowed ones."""
    refused = [name for change in changes for name in change.drops() if name not in allowed]
    if refused:
        options = " ".join(f"--allow-drop {name}" for name in refused)
        raise Invalid(f"nothing was changed: columns would be dropped with what they hold; to do so add {options}")


def _change(table: WantedTable, before: Table | None, contract: Contract | None) -> TableChange:
    if before is None:
        made = table.definition()
        if contract is not None:
            made = replace(made, contract=contract.bind(made))
            contract.bind(made).check(made)
        return TableChange(None, made)
    # The present contract holds its columns; a new one may be without them.
    steps = steps_between(before if contract is None else replace(before, contract=None), table)
    if contract is not None and not _is_same(contract, before.contract):
        steps.append(SetContract(contract.document, contract.object, contract.why))
    after = apply_steps(before, steps)
    if contract is not None:
        contract.bind(after).check(after)
    return TableChange(before, after, tuple(steps))


def _is_same(contract: Contract, there: Contract | None) -> bool:
    return there is not None and (there.document, there.object) == (contract.document, contract.object)


def contract_changes(
    text: str, tables: Mapping[str, Table], *, names: Sequence[str] = (), database: str = "", why: str = ""
) -> list[TableChange]:
    """The changes that a contract makes. `names` selects tables; empty means all of the contract.

    Raises `Invalid` with every line that cannot be honoured.
    """
    root = document.parse(text)
    wanted, contracts, problems = list[WantedTable](), dict[str, Contract](), list[str]()
    entries = file.selected(root, names, database)
    for entry in entries:
        try:
            table, contract = file.with_contract(root, entry, text, database=database, existing=tables, why=why)
        except Invalid as error:
            problems.append(error.message)
            continue
        if table.name in contracts:
            problems.append(f"line {entry.line}: table {table.name} is described twice")
        wanted.append(table)
        contracts[table.name] = contract
    if problems:
        raise Invalid(f"nothing was changed: {'; '.join(problems)}")
    return changes_of(wanted, tables, contracts)
