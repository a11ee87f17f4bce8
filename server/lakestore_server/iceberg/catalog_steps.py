"""Steps of the catalog in commits of tables: checked against the state that the commit is made upon."""

from __future__ import annotations

from lakestore_server.state import catalog_change
from lakestore_server.state.catalog_change import (
    DROPPED,
    CatalogChange,
    CatalogStep,
    DropPointer,
    SetNamespace,
    SetPointer,
)
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.view import View

Key = tuple[str, str]
"""Namespace and name of a pointer."""


def add(view: View, record: CommitRecord, *steps: CatalogStep, key: str = "") -> None:
    """Add steps to a commit; `Conflict` if one does not fit what stands."""
    change = CatalogChange(steps, key)
    catalog_change.check(change, view.namespaces, view.pointers)
    record.catalog.append(change)


def moved(view: View, record: CommitRecord, source: Key, target: Key, key: str = "") -> None:
    """Have a table's pointer, if there is one, under another name."""
    pointer = view.pointers.get(source)
    steps: list[CatalogStep] = []
    if target[0] != DROPPED and target[0] not in view.namespaces:
        steps.append(SetNamespace(target[0]))
    if pointer is not None:
        steps += [DropPointer(*source), SetPointer(*target, None, pointer)]
    if steps or key:
        add(view, record, *steps, key=key)
