"""Rewrite of a lake table's manifests, when commits of other engines left very many small ones.

Iceberg's own commits merge manifests from a hundred on, so a table that Lakestore alone writes is seldom due. The
rewrite is a `replace` that keeps every file. Its snapshot has main's tier record, so the catalog knows it for ours, and
a tierer that was taken over is refused.
"""

from __future__ import annotations

from dataclasses import replace

from lakestore.model.table import Table
from lakestore_tiering import debts
from lakestore_tiering.debts import MANIFESTS, Debt
from lakestore_tiering.iceberg_java import java_errors
from lakestore_tiering.round import Round

EXCESS_MIN = 150
"""Manifests beyond the needed ones that make a rewrite worth its Spark job."""


def is_due(tools: Round, table: Table) -> bool:
    """True if the debt of manifests, as last computed, is worth a rewrite."""
    debt = tools.debts.of(table.uuid).get(MANIFESTS)
    return debt is not None and debt.count >= EXCESS_MIN


def rewrite(tools: Round, table: Table, *, force: bool = False) -> int:
    """Rewrite the manifests if it is due. Returns by how many there are fewer."""
    if not (force or is_due(tools, table)):
        return 0
    with tools.turn_of(table), java_errors():
        lake, record = tools.standing(table)
        before = len(tools.main_files(table, lake).by_name)
        after = replace(record, epoch=tools.epoch(), tier_from=record.tier_point)
        with tools.sparks_turn():
            action = lake.manifest_rewrite()
            for key, value in after.summary().items():
                action.snapshotProperty(key, value)
            action.execute()
        lake, _ = tools.standing(table)
        main = tools.main_files(table, lake)
        fewer = before - len(main.by_name)
        told = debts.of_manifests(main)
        helped = f"the last rewrite made {len(main.by_name):,} manifests of {before:,}"
        tools.debts.put(table.uuid, *(Debt(each.duty, each.count, each.note or helped) for each in told))
        tools.crash("manifests-rewritten")
        return fewer
