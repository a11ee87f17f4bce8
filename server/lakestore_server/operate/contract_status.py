"""The contract of a table in its status: promises as measured, broken rules, and the budget with what is there."""

from __future__ import annotations

from dataclasses import dataclass

from lakestore.model.contract.promises import Budget
from lakestore_server.catalog.catalog import TableUpkeep
from lakestore_server.operate.lake_figures import LakeFigures
from lakestore_server.operate.promises import PromiseFigure


@dataclass(frozen=True, slots=True)
class RuleViolations:
    """A rule of a contract that rows broke, and what happened to them."""

    rule: str
    action: str
    rows: int


@dataclass(frozen=True, slots=True)
class BudgetFigure:
    """A bound of a table's upkeep, and what is there."""

    part: str
    """files, delete_ratio, snapshot_age or percent, as `lakestore.budget` names them."""
    bound: float
    used: float | None
    """None before the tierer has reported, or the lake was looked at."""
    exceeded: bool


@dataclass(frozen=True, slots=True)
class ContractStatus:
    """The contract of a table, and how far it is kept."""

    version: int
    by: str
    """The principal that applied it; empty on a server without authentication."""
    at_us: int
    why: str
    promises: list[PromiseFigure]
    violations: list[RuleViolations]
    """Rules that rows broke since the server's start."""
    budget: list[BudgetFigure]


def budget_figures(
    budget: Budget, lake: LakeFigures | None, upkeep: TableUpkeep | None, now_us: int
) -> list[BudgetFigure]:
    """The bounds that a contract sets, with what is there."""
    waiting = next((debt.count for debt in upkeep.debts if debt.duty == "compaction"), None) if upkeep else None
    deleted = age = None
    if lake is not None:
        deleted = min(lake.deleted_rows / lake.rows, 1.0) if lake.rows else 0.0
        age = max(now_us / 1e6 - lake.oldest_snapshot_ms / 1e3, 0.0) if lake.oldest_snapshot_ms else 0.0
    bounds: list[tuple[str, float | None, float | None]] = [
        ("files", budget.files, waiting),
        ("delete_ratio", budget.delete_ratio, deleted),
        ("snapshot_age", budget.snapshot_age_seconds, age),
        ("percent", budget.percent, upkeep.spent_percent if upkeep else None),
    ]
    return [
        BudgetFigure(part, float(bound), used, used is not None and used > bound)
        for part, bound, used in bounds
        if bound is not None
    ]
