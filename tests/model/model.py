"""What Lakestore is, without files: tables as dicts, commits as a list. The machine compares the server with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Key = tuple[object, ...]
Row = tuple[object, ...]
Kind = Literal["upsert", "delete", "append"]
Cut = dict[str, list[Row]]


@dataclass(frozen=True)
class Field:
    """A column in one version of a table."""

    id: int
    name: str
    type: str
    initial: object = None
    """What older rows show, and rows that do not name it."""


Version = tuple[Field, ...]


def shown(row: Row, source: Version, target: Version) -> Row:
    """A row of one version as another one has it."""
    held = {field.id: value for field, value in zip(source, row, strict=True)}
    return tuple(held.get(field.id, field.initial) for field in target)


@dataclass(frozen=True)
class Change:
    """Rows of one table in a commit; of a delete the rows are keys."""

    table: str
    kind: Kind
    rows: tuple[Row, ...]
    schema_id: int = 0
    """The version whose names the rows use."""


@dataclass
class TableModel:
    """One table: its rows now, and every change to it so far."""

    key_columns: int
    """How many of the first columns are the key; 0 for a log table."""
    versions: list[Version]
    live: dict[Key, Row] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)
    changes: list[tuple[str, Row, int]] = field(default_factory=list)
    """(__change, row, its version) in order; a delete carries the row that it removed."""

    @property
    def fields(self) -> Version:
        """The columns now."""
        return self.versions[-1]

    @property
    def schema_id(self) -> int:
        """The version now."""
        return len(self.versions) - 1

    def alter(self, fields: Version) -> None:
        """A new version: rows show as it has them."""
        self.live = {key: shown(row, self.fields, fields) for key, row in self.live.items()}
        self.appended = [shown(row, self.fields, fields) for row in self.appended]
        self.versions.append(fields)

    def shown(self, row: Row, source: int, target: int) -> Row:
        """A row of one version as another one has it."""
        return shown(row, self.versions[source], self.versions[target])

    def accepts(self, change: Change) -> bool:
        """Whether all columns that the change names are still there."""
        there = {field.id for field in self.fields}
        return change.kind == "delete" or all(field.id in there for field in self.versions[change.schema_id])

    def rows(self) -> list[Row]:
        """The rows a scan gives, sorted."""
        return sorted(self.live.values() if self.key_columns else self.appended, key=repr)

    def apply(self, kind: Kind, row: Row) -> str:
        """Apply one row: what it was counted as."""
        if kind == "append":
            self.appended.append(row)
            self.changes.append(("+I", row, self.schema_id))
            return "inserted"
        key = row[: self.key_columns]
        old = self.live.pop(key, None)
        if kind == "delete":
            if old is None:
                return "not_found"
            self.changes.append(("-D", old, self.schema_id))
            return "deleted"
        self.live[key] = row
        self.changes.append(("+I" if old is None else "+U", row, self.schema_id))
        return "inserted" if old is None else "updated"


class Model:
    """All tables, and every cut that a token names."""

    def __init__(self) -> None:
        self.tables: dict[str, TableModel] = {}
        self.cuts: dict[str, Cut] = {}
        self.versions: dict[str, dict[str, int]] = {}
        """Token of a cut to the version of each table there."""

    def commit(self, changes: Sequence[Change]) -> list[dict[str, int]]:
        """Apply a commit; per change what its rows were counted as."""
        answers = []
        for change in changes:
            counts = dict.fromkeys(("inserted", "updated", "deleted", "not_found"), 0)
            table = self.tables[change.table]
            for row in change.rows:
                now = row if change.kind == "delete" else table.shown(row, change.schema_id, table.schema_id)
                counts[table.apply(change.kind, now)] += 1
            answers.append(counts)
        return answers

    def remember(self, token: str) -> None:
        """The cut that a token names."""
        self.cuts[token] = self.cut()
        self.versions[token] = {name: table.schema_id for name, table in self.tables.items()}

    def cut(self) -> Cut:
        """Every table's rows."""
        return {name: table.rows() for name, table in self.tables.items()}
