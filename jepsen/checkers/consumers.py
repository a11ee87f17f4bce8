"""Consumers of changelogs: whether every one of them was told the truth, in order, once, whole, and to the end.

Calls are those of `jepsen.workloads.changelog`. The rules that etcd gives its watches go by its names: Ordered, Unique,
Atomic, Reliable, Resumable and Bookmarkable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen.anomaly import Anomaly, few
from jepsen.checkers.changes import Change, Fold, Order, Places, Row, differences, shown
from jepsen.history import History
from jepsen.operation import Call, Kind

PREFIX = "jepsen.changelog_"
"""Names of tables begin with this, and end with their engines."""
EVERY_ROW = ("upsert", "partial", "aggregate")
"""Engines under which each row that is written is a change."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """The changes that a consumer asks for."""

    tables: Sequence[str]
    images: bool = False
    where: str = ""
    columns: Sequence[str] = ()

    @property
    def whole(self) -> bool:
        """Whether it is told everything but, perhaps, images."""
        return not self.where and not self.columns


@dataclass(frozen=True, slots=True)
class Written:
    """One row, as it was sent."""

    call: Call
    change: int
    kind: str
    row: Row


class Consumers:
    """All writes and all streams of a history."""

    def __init__(self, consumers: Sequence[Consumer], history: History) -> None:
        self._consumers, self._history = consumers, history
        self._writes = history.calls("write")
        self._written: dict[tuple[str, int], Written] = {}
        self._deletes: Counter[tuple[str, Any]] = Counter()
        for call in self._writes:
            for number, change in enumerate(call.invoked.value):
                for row in change["rows"]:
                    if change["kind"] == "delete":
                        self._deletes[change["table"], row["id"]] += call.kind is not Kind.FAIL
                    elif "by" in row:
                        self._written[change["table"], row["by"]] = Written(call, number, change["kind"], row)
        self._places = Places()
        self._seen: set[tuple[str, int]] = set()
        """Table and name of every row that a whole consumer was told of."""
        self._dead: dict[tuple[str, int, int], Any] = {}
        """Places of deletes, with the key."""
        self._times: dict[tuple[str, int, int], str] = {}

    def anomalies(self) -> list[Anomaly]:
        """All that is wrong, the first few of each name."""
        return few([*self._streams(), *self._lost(), *self._deleted()])

    def _streams(self) -> Iterator[Anomaly]:
        """Each process's reads of a consumer follow one another, and so do its endless streams."""
        ways: dict[Any, _Way] = {}
        for call in self._history.calls("read", "live"):
            if call.kind is not Kind.OK:
                continue
            value, index = call.value, call.invoked.index
            key = call.process, call.f, value["consumer"]
            consumer = self._consumers[value["consumer"]]
            if value["start"] == "time":
                yield from self._from_time(value, index)
                continue
            if value["start"] in ("earliest", "snapshot"):
                ways[key] = _Way(self, consumer, f"consumer {key[2]} of process {key[0]}", value["start"] == "earliest")
            yield from ways[key].add(value, index)

    def told(self, table: str, changes: Sequence[Change], operation: int, *, whole: bool) -> Iterator[Anomaly]:
        """The changes of one table that any consumer was told, but for snapshots."""
        # What a delete says of the row is the row before, and is held against that.
        records = [[kind, *at, {"id": row["id"]} if kind == "-D" else row, ""] for kind, *at, row, _ in changes]
        yield from self._places.add(table, records, operation)
        for kind, bucket, offset, row, time in changes:
            self._times[table, bucket, offset] = time
            if kind == "-D" and whole:
                self._dead[table, bucket, offset] = row["id"]
            elif kind in ("+I", "+U") and whole and row["by"] is not None:
                self._seen.add((table, row["by"]))

    def merged(self, table: str, change: Change, held: Row | None, operation: int) -> Iterator[Anomaly]:
        """Whether a row is what its table's engine makes of the one before and the one that was written."""
        kind, row = change[0], change[3]
        if table == "skipping":
            if kind == "+U" and row == held:
                yield Anomaly("no-op-stored", f"{table}: {shown(row)} replaced an equal row", (operation,))
            return
        written = self._written.get((table, row["by"]))
        if written is None:
            yield Anomaly("phantom", f"{table} holds {shown(row)}, which nobody has written", (operation,))
            return
        if written.call.kind is Kind.FAIL:
            sentence = f"{table} holds {shown(row)} of a commit that has failed"
            yield Anomaly("aborted-read", sentence, (operation, written.call.invoked.index))
        due = expected(table, held, written.row)
        if row != due or not _takes(table, kind, held, written):
            sentence = f"{table}: {shown(written.row)} behind {shown(held)} was stored as {kind} {shown(row)}"
            yield Anomaly("wrong-merge", f"{sentence}, and {shown(due)} was due", (operation,))

    def knows(self, table: str, name: int) -> bool:
        """Whether somebody tried to write the row."""
        return (table, name) in self._written

    def rows_with(self, table: str, name: int, tables: Sequence[str]) -> tuple[int, set[tuple[str, int]]]:
        """The commit of a row, and all of its rows that must come with it in a stream of some tables."""
        call = self._written[table, name].call
        rows = {
            (change["table"], row["by"])
            for change in call.invoked.value
            if change["table"] in tables and change["table"] in EVERY_ROW and change["kind"] == "upsert"
            for row in change["rows"]
        }
        return call.invoked.index, rows

    def _from_time(self, value: dict[str, Any], operation: int) -> Iterator[Anomaly]:
        """A stream from a time has everything from then on and nothing before."""
        firsts: dict[tuple[str, int], int] = {}
        for batch in value["batches"]:
            table = _short(batch["table"])
            for change in batch["rows"]:
                if change[4] < value["begin"]:
                    sentence = f"a stream from {value['begin']} gave {shown(change[3])} of {change[4]}"
                    yield Anomaly("before-its-time", sentence, (operation,))
                firsts.setdefault((table, change[1]), change[2])
        if not self._consumers[value["consumer"]].whole:
            return
        for (table, bucket), first in firsts.items():
            before = self._times.get((table, bucket, first - 1), "")
            if before >= value["begin"]:
                sentence = f"a stream from {value['begin']} began at offset {first} of bucket {bucket} of {table}"
                yield Anomaly("not-reliable", f"{sentence}, and left out the one of {before}", (operation,))

    def _lost(self) -> Iterator[Anomaly]:
        """Acknowledged rows that no stream gave, though each was read to its end; counts of what was stored."""
        for call in self._writes:
            if call.kind is not Kind.OK:
                continue
            for change in call.invoked.value:
                table, sent = change["table"], len(change["rows"])
                counts = call.value["counts"][table]
                if sum(counts.values()) != sent:
                    yield Anomaly("miscounted", f"{table}: {sent} rows were counted as {counts}", (call.invoked.index,))
                if change["kind"] == "delete" or table == "skipping":
                    continue
                stored = sum((table, row["by"]) in self._seen for row in change["rows"])
                due = counts["inserted"] + counts["updated"]
                if table in EVERY_ROW and change["kind"] == "upsert":
                    due = sent
                if stored != due:
                    sentence = (
                        f"{table}: {due} rows of an acknowledged commit were stored, and {stored} are in the changelog"
                    )
                    yield Anomaly("lost" if stored < due else "miscounted", sentence, (call.invoked.index,))

    def _deleted(self) -> Iterator[Anomaly]:
        """No key is deleted more often than somebody tried to."""
        dead = Counter((place[0], key) for place, key in self._dead.items())
        for (table, key), count in dead.items():
            if count > self._deletes[table, key]:
                sentence = f"{table}: key {key} was deleted {count} times, and {self._deletes[table, key]} were tried"
                yield Anomaly("phantom-delete", sentence)


def expected(table: str, held: Row | None, sent: Row) -> Row:
    """The row that an engine makes."""
    nothing = dict.fromkeys(("id", "a", "b", "by"))
    if table == "partial":
        return {**nothing, **(held or {}), **sent}
    if table == "aggregate" and held is not None:
        return {**nothing, **sent, "a": (held["a"] or 0) + sent["a"]}
    return {**nothing, **sent}


def _takes(table: str, kind: str, held: Row | None, written: Written) -> bool:
    """Whether the engine takes the row at all."""
    if kind == "+I":
        return held is None
    if written.kind == "insert" or table == "first_row":
        return False
    return table != "versioned" or held is None or bool(written.row["a"] >= held["a"])


class _Way:
    """One consumer's way from the start of a stream, through all tokens at which it was read on."""

    def __init__(self, all_: Consumers, consumer: Consumer, name: str, is_complete: bool) -> None:
        self._all, self._consumer, self._name, self._is_complete = all_, consumer, name, is_complete
        self._folds = {
            table: Fold(f"{name}, {table}", ["id"], images=consumer.images, whole_deletes=bool(consumer.where))
            for table in consumer.tables
        }
        self._orders = {
            table: Order(name, dense=consumer.whole and table != "versioned", from_start=is_complete)
            for table in consumer.tables
        }
        self._waiting: dict[int, set[tuple[str, int]]] = defaultdict(set)
        """Per commit of which some rows have come those that have not."""
        self._came: set[int] = set()
        self._token = ""

    def add(self, value: dict[str, Any], operation: int) -> Iterator[Anomaly]:
        """The next call's changes, and the scan at their end."""
        if value["start"] == "resume" and value["begin"] != self._token:
            yield Anomaly("not-resumable", f"{self._name} went on at another token than it had come to", (operation,))
        for batch in value["batches"]:
            yield from self._batch(batch, operation)
        self._token = value["token"] or self._token
        for table, rows in value["scans"].items():
            read = {row["id"]: row for row in rows}
            yield from differences(f"{self._name}, {table}", self._folds[table].rows, read, operation)
            if len(read) != len(rows):
                yield Anomaly("row-twice", f"{self._name}, {table}: a scan gave a key twice", (operation,))

    def _batch(self, batch: dict[str, Any], operation: int) -> Iterator[Anomaly]:
        table, rows = _short(batch["table"]), batch["rows"]
        if batch["snapshot"]:
            self._orders[table].snapshot(table, rows)
        else:
            yield from self._orders[table].add(table, rows, operation)
            yield from self._all.told(table, rows, operation, whole=self._consumer.whole)
        fold = self._folds[table]
        for change in rows:
            if self._consumer.whole and not batch["snapshot"] and change[0] in ("+I", "+U"):
                yield from self._all.merged(table, change, fold.rows.get(change[3]["id"]), operation)
                self._part(table, change[3]["by"])
            yield from fold.add([change], operation)
        if batch["whole"]:
            for fold in self._folds.values():
                yield from fold.end(operation)
            yield from self._ends(operation)

    def _part(self, table: str, name: int | None) -> None:
        """A row of a commit has come, whose others must come before the commit's end."""
        if not self._is_complete or name is None or not self._all.knows(table, name):
            return
        commit, rows = self._all.rows_with(table, name, self._consumer.tables)
        if commit not in self._came:
            self._came.add(commit)
            self._waiting[commit] = set(rows)
        self._waiting[commit].discard((table, name))

    def _ends(self, operation: int) -> Iterator[Anomaly]:
        for commit, rows in self._waiting.items():
            if rows:
                sentence = (
                    f"{self._name}: a whole batch ended with a part of commit {commit}, without {sorted(rows)[:3]}"
                )
                yield Anomaly("not-atomic", sentence, (operation, commit))
        self._waiting.clear()


def _short(table: str) -> str:
    return table.removeprefix(PREFIX)
