"""Versions of a table's columns: what alterations make of them, and what answers show under which name.

Every column has a number of its own, its tag, which is in its default and in every value that is meant for it. So an
answer tells by itself which column each name stands for. Columns are `[name, type, tag]`, without `id` and `by`; `by`
is also the row's id, and no row is ever written twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.freshness import Bound
from jepsen.operation import Call, Kind

NAMES = ("a", "b", "c", "d", "e", "f")
COLUMNS_MAX = 4
TAG_SPACING = 1_000
"""Integers of a column are its tag times this, and counting."""
DEPTH_MAX = 3
"""Alterations of unknown outcome that may have followed one another unseen."""
Column = list[Any]
Step = list[Any]


def value_of(tag: int, by: int, kind: str) -> Any:
    """The value of a row in a column."""
    return f"T{tag}:{by}" if kind == "string" else tag * TAG_SPACING + by % (TAG_SPACING - 1)


def default_of(tag: int, kind: str) -> Any:
    """The value in rows that do not name the column."""
    return f"T{tag}:default" if kind == "string" else tag * TAG_SPACING + TAG_SPACING - 1


def tag_of(value: Any) -> int:
    """The column that a value is meant for; -1 of one that is for none."""
    if isinstance(value, str):
        head = value[1:].partition(":")[0]
        return int(head) if value[:1] == "T" and head.isdigit() else -1
    return int(value) // TAG_SPACING


def steps_of(columns: Sequence[Column], draw: Sequence[int], tag: int) -> list[Step]:
    """The alteration that some drawn numbers mean for these columns: each whatever the columns are."""
    sort, which, what = draw
    free = [name for name in NAMES if name not in {column[0] for column in columns}]
    added = "string" if what % 2 else "int32"
    add = ["add", free[which % len(free)], added, tag, bool(what & 2)]
    if not columns:
        return [add]
    chosen = columns[which % len(columns)]
    small = [column for column in columns if column[1] == "int32"]
    if sort == 0 and len(columns) < COLUMNS_MAX:
        return [add]
    if sort == 1:
        return [["drop", chosen[0]]]
    if sort == 2:
        return [["rename", chosen[0], free[what % len(free)]]]
    if sort == 3 and small:
        return [["widen", small[which % len(small)][0]]]
    if sort == 4 and len(columns) > 1:
        other = columns[(which + 1) % len(columns)]
        return [["swap", chosen[0], other[0]]]
    if sort == 5:
        return [["options", f"{2 + what}s"]]
    return [["drop", chosen[0]], ["add", chosen[0], *add[2:]]]


def altered(columns: Sequence[Column], steps: Sequence[Step]) -> list[Column]:
    """The columns after an alteration."""
    made = [list(column) for column in columns]
    for step in steps:
        names = {column[0]: column for column in made}
        if step[0] == "add":
            made.append([step[1], step[2], step[3]])
        elif step[0] == "drop":
            made.remove(names[step[1]])
        elif step[0] == "rename":
            names[step[1]][0] = step[2]
        elif step[0] == "widen":
            names[step[1]][1] = "int64"
        elif step[0] == "swap":
            names[step[1]][0], names[step[2]][0] = step[2], step[1]
    return made


BEGINNING: list[Column] = [["a", "string", 1], ["b", "int32", 2]]
"""The columns of a new table, beside its key: nobody may have been told of them before they were altered."""


@dataclass(slots=True)
class Answer:
    """Rows as one read gave them."""

    table: str
    operation: int
    names: list[str]
    rows: list[list[Any]]
    schema: int | None = None
    """The number of the version, where the read tells it."""
    bound: Bound | None = None
    """The writes that must be there; None where no write must be."""
    columns: dict[str, int] = field(default_factory=dict)
    """By name the tag that the values show."""


class Versions:
    """All versions of one table that somebody was told of, and those that unknown alterations may have made."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._known: dict[int, list[Column]] = {}
        self._possible: list[list[Column]] = []
        self._filled: set[int] = set()
        """Tags of columns with a default for rows that were there before: no row shows null in one."""

    def add(self, schema: int, columns: list[Column], operation: int) -> Iterator[Anomaly]:
        """A definition that somebody was given."""
        known = self._known.setdefault(schema, columns)
        if known != columns:
            sentence = f"version {schema} of {self._table} is {columns}, and was {known}"
            yield Anomaly("two-definitions", sentence, (operation,))

    def alter(self, call: Call) -> Iterator[Anomaly]:
        """An acknowledged alteration makes what it says of what was there."""
        value, index = call.value, call.invoked.index
        for side in ("before", "after"):
            yield from self.add(value[side]["schema"], value[side]["columns"], index)
        self._filled |= {step[3] for step in value["steps"] if step[0] == "add" and not step[4]}
        due = altered(value["before"]["columns"], value["steps"])
        if value["after"]["columns"] != due:
            sentence = f"{value['steps']} made {value['after']['columns']} of {self._table}, and {due} was due"
            yield Anomaly("half-alter", sentence, (index,))

    def close(self, unknown: Iterable[Call]) -> None:
        """With alterations that may have happened, on any version, one after the other."""
        versions = [BEGINNING, *(each for each in self._known.values() if each != BEGINNING)]
        pending = [(call.invoked.value["draw"], call.invoked.value["tag"]) for call in unknown]
        newest = [(columns, frozenset[int]()) for columns in versions]
        self._possible = [*versions]
        for _ in range(DEPTH_MAX):
            following = []
            for columns, used in newest:
                for number, (draw, tag) in enumerate(pending):
                    if number not in used:
                        made = altered(columns, steps_of(columns, draw, tag))
                        if made not in self._possible:
                            self._possible.append(made)
                            following.append((made, used | {number}))
            newest = following

    def check(self, answer: Answer) -> Iterator[Anomaly]:
        """An answer shows one version, and every value under its own column's name."""
        yield from self._values(answer)
        own = [name for name in answer.names if name not in ("id", "by")]
        fitting = self._possible
        if answer.schema is not None and answer.schema in self._known:
            fitting = [self._known[answer.schema]]
        fits = []
        for columns in fitting:
            tags = {column[0]: column[2] for column in columns}
            if list(tags) == own and all(tags[name] == tag for name, tag in answer.columns.items()):
                fits.append(tags)
        if fits:
            yield from self._nulls(answer, fits)
            return
        sentence = f"a read of {self._table} shows the columns {own} as {answer.columns}, which is no version of it"
        yield Anomaly("no-version", sentence, (answer.operation,))

    def _nulls(self, answer: Answer, fits: Sequence[Mapping[str, int]]) -> Iterator[Anomaly]:
        """Columns that rows from before have a default in hold no null."""
        for name, tag in fits[0].items():
            if tag in self._filled and all(each[name] == tag for each in fits):
                place = answer.names.index(name)
                empty = [row[answer.names.index("by")] for row in answer.rows if row[place] is None]
                if empty:
                    sentence = f"row {empty[0]} of {self._table} shows null in column {name}, which has a default"
                    yield Anomaly("wrong-default", sentence, (answer.operation,))

    def _values(self, answer: Answer) -> Iterator[Anomaly]:
        for place, name in enumerate(answer.names):
            if name in ("id", "by"):
                continue
            values = [(row[place], row[answer.names.index("by")]) for row in answer.rows if row[place] is not None]
            tags = sorted({tag_of(value) for value, _ in values})
            if len(tags) > 1:
                sentence = f"column {name} of {self._table} holds values of the columns {tags}"
                yield Anomaly("mixed-column", sentence, (answer.operation,))
            if not tags:
                continue
            if tags[0] in answer.columns.values():
                sentence = f"two columns of {self._table} show the values of column {tags[0]}"
                yield Anomaly("one-column-twice", sentence, (answer.operation,))
            answer.columns[name] = tags[0]
            for value, by in values:
                kind = "string" if isinstance(value, str) else "int"
                if value not in (value_of(tag_of(value), by, kind), default_of(tag_of(value), kind)):
                    sentence = f"row {by} of {self._table} shows {value} in column {name}"
                    yield Anomaly("wrong-value", sentence, (answer.operation,))


class Rows:
    """The rows that were sent to a table, with what they named."""

    def __init__(self, table: str, writes: Iterable[Call]) -> None:
        self._table = table
        self._calls: dict[int, Call] = {by: call for call in writes for by in call.invoked.value["rows"]}
        self._named: dict[int, dict[int, Any]] = {}
        """The values of each acknowledged row by tag; None for a column that its writer knew and did not name."""
        for call in self._calls.values():
            if call.kind is Kind.OK:
                for by, named in call.value["sent"]:
                    self._named[by] = {int(tag): value for tag, value in named.items()}

    def check(self, answer: Answer) -> Iterator[Anomaly]:
        """No row is lost, twice, of a failed write or of nobody; named values and defaults show."""
        found = [row[answer.names.index("by")] for row in answer.rows]
        operation = (answer.operation,)
        if len(found) != len(set(found)):
            yield Anomaly("row-twice", f"a read of {self._table} gave a row twice", operation)
        for by in found:
            call = self._calls.get(by)
            if call is None:
                yield Anomaly("phantom", f"{self._table} holds row {by}, which nobody has written", operation)
            elif call.kind is Kind.FAIL:
                yield Anomaly("aborted-read", f"{self._table} holds row {by} of a write that has failed", operation)
        if answer.bound is not None:
            for by, call in self._calls.items():
                if answer.bound.covers(call) and by not in set(found):
                    sentence = f"a read of {self._table} lacks row {by}, which was acknowledged before"
                    yield Anomaly("lost", sentence, (answer.operation, call.invoked.index))
                    break
        yield from self._shown(answer)

    def _shown(self, answer: Answer) -> Iterator[Anomaly]:
        for name, tag in answer.columns.items():
            place, by_place = answer.names.index(name), answer.names.index("by")
            for row in answer.rows:
                named: Mapping[int, Any] = self._named.get(row[by_place], {})
                if tag not in named:
                    continue
                value = row[place]
                kind = "string" if isinstance(value, str) else "int"
                due = named[tag] if named[tag] is not None else default_of(tag, kind)
                if value != due:
                    sentence = f"row {row[by_place]} of {self._table} shows {value} in column {name}, and {due} was due"
                    yield Anomaly("wrong-value", sentence, (answer.operation,))
