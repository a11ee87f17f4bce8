"""What the merge engines mean, row by row in plain Python: the server's vectorised merging is compared with it.

Rows are dicts of column to value; those of one change name the same columns. A bitmap is a frozenset of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from lakestore.model.table import Table

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass
class Merged:
    """One table: its live rows, what it remembers of deleted ones, and every change so far."""

    table: Table
    defaults: Mapping[str, Any] = field(default_factory=dict)
    live: dict[Key, Row] = field(default_factory=dict)
    deleted: dict[Key, Any] = field(default_factory=dict)
    """Of `versioned`: the versions of deleted rows."""
    changes: list[tuple[str, Row]] = field(default_factory=list)
    """(__change, row); a delete has the row that it removed."""

    def apply(self, kind: str, rows: Sequence[Row]) -> Counter[str]:
        """Apply one change (upsert, delete or insert); what its rows were counted as, together as many as they are."""
        if kind == "delete" and self.table.deletes == "ignore":
            return Counter(ignored=len(rows))
        folds = kind == "insert" or self.table.merge.folds
        groups: dict[Any, list[Row]] = {}
        for place, row in enumerate(rows):
            key = tuple(row[name] for name in self.table.primary_key)
            groups.setdefault(key if folds else (key, place), []).append(row)
        counts = Counter(folded=len(rows) - len(groups))
        for found, sent in groups.items():
            counts[self._one(kind, found if folds else found[0], sent)] += 1
        return +counts

    def _one(self, kind: str, key: Key, sent: list[Row]) -> str:
        old = self.live.get(key)
        if kind == "delete":
            return self._delete(key, old, sent)
        if kind == "insert" or self.table.merge.engine == "first_row":
            sent = sent[:1]
            if old is not None:
                return "ignored"
        new = self._merged(old, sent)
        if self.table.merge.engine == "versioned":
            column = self.table.merge.column
            held = old[column] if old is not None else self.deleted.get(key)
            if held is not None and new[column] < held:
                return "ignored"
        return self._stored(key, old, new)

    def _stored(self, key: Key, old: Row | None, new: Row) -> str:
        if old is not None and self.table.skip_unchanged and all(same(old[name], new[name]) for name in new):
            return "unchanged"
        self.live[key] = new
        self.deleted.pop(key, None)
        self.changes.append(("+I" if old is None else "+U", new))
        return "inserted" if old is None else "updated"

    def _delete(self, key: Key, old: Row | None, sent: list[Row]) -> str:
        if old is None:
            return "not_found"
        engine, column = self.table.merge.engine, self.table.merge.column
        if engine == "versioned":
            versions: list[Any] = [row.get(column, old[column]) for row in sent]
            version = max(versions)
            if version < old[column]:
                return "ignored"
            self.deleted[key] = version
        named = [name for name in sent[0] if name not in self.table.primary_key]
        if engine == "partial" and named:
            new = {**old, **dict.fromkeys(named)}
            if any(value is not None for name, value in new.items() if name not in self.table.primary_key):
                return self._stored(key, old, new)
        self.changes.append(("-D", self.live.pop(key)))
        return "deleted"

    def _merged(self, old: Row | None, sent: list[Row]) -> Row:
        """The row that these make of the old one."""
        names = [column.name for column in self.table.columns]
        fresh = [{name: row.get(name, self.defaults.get(name)) for name in names} for row in sent]
        merge = self.table.merge
        if merge.engine == "partial" and old is not None:
            return {**old, **sent[-1]}
        if merge.engine == "versioned":
            return max(reversed(fresh), key=lambda row: row[merge.column])
        if merge.engine != "aggregate":
            return fresh[-1]
        functions = dict(merge.functions)
        rows = ([] if old is None else [old]) + fresh
        new: Row = {}
        for name in names:
            function = functions.get(name)
            kind = function.name if function else "last_non_null"
            if kind == "distinct_count":
                continue
            if kind == "count":
                new[name] = ((old[name] or 0) if old is not None else 0) + len(fresh)
            elif name in self.table.primary_key or name not in sent[0]:
                new[name] = rows[0][name]
            else:
                new[name] = folded(kind, function.argument if function else "", [row[name] for row in rows])
        counted = {name: len(new[f.argument] or ()) for name, f in functions.items() if f.name == "distinct_count"}
        return {name: (new | counted)[name] for name in names}


_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "max": lambda a, b: b if a != a else a if b != b else max(a, b),
    "min": lambda a, b: b if a != a else a if b != b else min(a, b),
    "last_non_null": lambda a, b: b,
    "bool_and": lambda a, b: a and b,
    "bool_or": lambda a, b: a or b,
    "bitmap": lambda a, b: a | b,
}


def folded(kind: str, argument: str, values: list[Any]) -> Any:
    """One column's values, in order, as one; null counts for nothing but in `first` and `last`."""
    if kind in ("first", "last"):
        return values[0 if kind == "first" else -1]
    there = [value for value in values if value is not None]
    if kind == "string_list":
        return (argument or ",").join(there) if there else None
    return reduce(_PAIRS[kind], there) if there else None


def same(a: Any, b: Any) -> bool:
    """Equal, or both NaN."""
    return bool(a == b or (a != a and b != b))
