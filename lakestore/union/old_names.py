"""Names that columns had before a rename, in the text of a query.

A query from before the rename and a query from after it mean the same column. `spellings` says how to show the tables
to an engine, in the order in which the engine is asked: a later one is for an engine that does not find a name.

1. A query that uses an old name and not the present one sees the table's columns under the names that they had before
   that rename, `SELECT *` included.
2. A query that uses present names sees the table as it is.
3. A query whose text has both sees the old name in place of the present one, and then both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lakestore.model.columns import OldName
from lakestore.model.table import Table

Spelling = Mapping[str, Mapping[str, str]]
"""By the table's name in the query: the shown name and the column's present name, in the order of the columns. A table
that shows its columns as they are is left out."""


def spellings(tables: Mapping[str, Table], words: Collection[str]) -> list[Spelling]:
    """The ways to show tables to a query that uses these words, in lower case; the first is tried first."""
    used = {name: found for name, table in tables.items() if (found := _used(table, words))}
    before, whole, both = dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]]()
    for name, olds in used.items():
        table = tables[name]
        present = {column.id: column.name for column in table.columns}
        alone = [old for old in olds if present[old.id].lower() not in words]
        if alone:
            before[name] = _before(table, alone, words)
        whole[name] = _before(table, olds, ())
        both[name] = {column.name: column.name for column in table.columns} | {
            old.name: present[old.id] for old in olds
        }
    several: list[Spelling] = [before, {}, whole, both] if before else [{}, whole, both]
    return [each for place, each in enumerate(several) if each not in several[:place]]


def _used(table: Table, words: Collection[str]) -> list[OldName]:
    """The old names in the words."""
    ids = {column.id for column in table.columns}
    return [old for old in table.old_names if old.id in ids and old.name.lower() in words]


def _before(table: Table, used: Sequence[OldName], words: Collection[str]) -> dict[str, str]:
    """The columns as they were named before the earliest of the renames that ended these names. A column whose present
    name is in the words keeps it. A second used name of a column comes last."""
    moment = min(old.until_us for old in used)
    names = {column.id: column.name for column in table.columns}
    for old in reversed(table.old_names):
        if old.id in names and old.until_us >= moment and _present(table, old.id).lower() not in words:
            names[old.id] = old.name
    shown = {names[column.id]: column.name for column in table.columns}
    return shown | {old.name: _present(table, old.id) for old in used}


def _present(table: Table, number: int) -> str:
    """The present name of a column by its id."""
    return next(column.name for column in table.columns if column.id == number)
