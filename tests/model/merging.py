"""What the merge engines mean, row by row in plain Python: the server's vectorised merging is compared with it.

Rows are dicts of column to value; those of one change name the same columns. A bitmap is a frozenset of numbers, and
a column that a row keeps is `KEPT`. `AS_OF` in a row is the time at which it was due.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any

from lakestore.model.table import Table

Row = dict[str, Any]
Key = tuple[Any, ...]
KEPT = "(kept)"
"""In place of a value."""
AS_OF = "__as_of"


@dataclass(frozen=True)
class Mark:
    """The place of a row of a `versioned` table among those of its key."""

    version: Any
    within: Any
    time: datetime | None
    """Of its commit."""

    def is_older_than(self, other: Mark) -> bool:
        """Whether its version is, as far as they are comparable."""
        return bool(self.within == other.within and self.version < other.version)

    def is_late_for(self, other: Mark, due: datetime | None) -> bool:
        """Whether the other one, of another source, was there by the time that this one was due."""
        return due is not None and self.within != other.within and other.time is not None and other.time >= due


@dataclass
class Merged:
    """One table: its live rows, what it remembers of deleted ones, and every change so far."""

    table: Table
    defaults: Mapping[str, Any] = field(default_factory=dict)
    live: dict[Key, Row] = field(default_factory=dict)
    deleted: dict[Key, Mark] = field(default_factory=dict)
    """Of `versioned`: the places of deleted rows."""
    times: dict[Key, datetime | None] = field(default_factory=dict)
    """Of live rows: when each was committed."""
    changes: list[tuple[str, Row]] = field(default_factory=list)
    """(__change, row); a delete has the row that it removed."""
    _time: datetime | None = None
    """Of the commit that is applied."""

    def baseless(self, kind: str, rows: Sequence[Row]) -> list[int]:
        """The places of the rows that have nothing to keep, each as if the others had not been sent."""
        found, there = list[int](), set(self.live)
        for place, row in enumerate(rows if kind == "upsert" else ()):
            key = tuple(row[name] for name in self.table.primary_key)
            if key not in there and not self._is_ignored(row, self.deleted.get(key)):
                if KEPT in row.values():
                    found.append(place)
                else:
                    there.add(key)
        return found

    def mark(self, row: Row, time: datetime | None = None) -> Mark:
        """The place of a row."""
        merge = self.table.merge
        return Mark(row.get(merge.column), row.get(merge.within), time)

    def _held(self, key: Key) -> Mark | None:
        """The place of what stands for a key."""
        return self.mark(self.live[key], self.times.get(key)) if key in self.live else self.deleted.get(key)

    def _is_ignored(self, row: Row, held: Mark | None) -> bool:
        mark = self.mark(row)
        return held is not None and (mark.is_older_than(held) or mark.is_late_for(held, row.get(AS_OF)))

    def _last_of(self, key: Key, sent: Sequence[Row]) -> Row | None:
        """The last row of a `versioned` table that comes in, with what it keeps; one after the other."""
        before, row_before = self._held(key), self.live.get(key)
        held, last = before, None
        for row in sent:
            mark = self.mark(row)
            late = before is not None and mark.is_late_for(before, row.get(AS_OF))
            if not late and not (held is not None and mark.is_older_than(held)):
                last = {name: value for name, value in row.items() if name != AS_OF}
                last = {n: (row_before or {}).get(n) if v == KEPT else v for n, v in last.items()}
                held, row_before = mark, last
        return last

    def apply(self, kind: str, rows: Sequence[Row], time: datetime | None = None) -> Counter[str]:
        """Apply one change (upsert, delete or insert); what its rows were counted as, together as many as they are."""
        self._time = time
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
            if old is not None:
                return "ignored"
            newer = [row for row in sent if not self._is_ignored(row, self.deleted.get(key))]
            sent = newer[:1] or sent[:1]
        if self.table.merge.engine == "versioned":
            last = self._last_of(key, sent)
            if last is None:
                return "ignored"
            sent = [last]
        elif old is not None:
            sent = [{name: old[name] if value == KEPT else value for name, value in row.items()} for row in sent]
        return self._stored(key, old, self._merged(old, sent))

    def _stored(self, key: Key, old: Row | None, new: Row) -> str:
        if old is not None and self.table.skip_unchanged and all(same(old[name], new[name]) for name in new):
            return "unchanged"
        self.live[key], self.times[key] = new, self._time
        self.deleted.pop(key, None)
        self.changes.append(("+I" if old is None else "+U", new))
        return "inserted" if old is None else "updated"

    def _delete(self, key: Key, old: Row | None, sent: list[Row]) -> str:
        engine = self.table.merge.engine
        if engine == "versioned":
            last = self._last_of(key, sent) if self.table.merge.column in sent[0] else old
            if last is not None:
                self.deleted[key] = self.mark(last, self._time)
            elif old is not None:
                return "ignored"
        if old is None:
            return "not_found"
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
    """Equal, also in the sign of a zero, or both NaN."""
    if isinstance(a, float) and isinstance(b, float) and a == b:
        return math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b or (a != a and b != b))
