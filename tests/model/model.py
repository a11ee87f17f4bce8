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
class Change:
    """Rows of one table in a commit; of a delete the rows are keys."""

    table: str
    kind: Kind
    rows: tuple[Row, ...]


@dataclass
class TableModel:
    """One table: its rows now, and every change to it so far."""

    key_columns: int
    """How many of the first columns are the key; 0 for a log table."""
    live: dict[Key, Row] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)
    changes: list[tuple[str, Row]] = field(default_factory=list)
    """(__change, row) in order; a delete carries the row that it removed."""

    def rows(self) -> list[Row]:
        """The rows a scan gives, sorted."""
        return sorted(self.live.values() if self.key_columns else self.appended, key=repr)

    def apply(self, kind: Kind, row: Row) -> str:
        """Apply one row: what it was counted as."""
        if kind == "append":
            self.appended.append(row)
            self.changes.append(("+I", row))
            return "inserted"
        key = row[: self.key_columns]
        old = self.live.pop(key, None)
        if kind == "delete":
            if old is None:
                return "not_found"
            self.changes.append(("-D", old))
            return "deleted"
        self.live[key] = row
        self.changes.append(("+I" if old is None else "+U", row))
        return "inserted" if old is None else "updated"


class Model:
    """All tables, and every cut that a token names."""

    def __init__(self) -> None:
        self.tables: dict[str, TableModel] = {}
        self.cuts: dict[str, Cut] = {}

    def commit(self, changes: Sequence[Change]) -> list[dict[str, int]]:
        """Apply a commit; per change what its rows were counted as."""
        answers = []
        for change in changes:
            counts = dict.fromkeys(("inserted", "updated", "deleted", "not_found"), 0)
            for row in change.rows:
                counts[self.tables[change.table].apply(change.kind, row)] += 1
            answers.append(counts)
        return answers

    def cut(self) -> Cut:
        """Every table's rows."""
        return {name: table.rows() for name, table in self.tables.items()}
