"""Columns and tables that change under load: no value shows under another column's name, no table for another one.

Columns are added with defaults, dropped, renamed, swapped, widened and added anew under an old name, while writers
write by older definitions and readers read at the head, older tokens and in streams. A table is dropped and made anew
under its name: nothing of the one before is seen in it, and neither its handles nor its positions serve the other one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly, few
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.checkers.passing import check as check_passing
from jepsen.checkers.versions import Answer, Rows, Versions, default_of, steps_of, tag_of, value_of
from jepsen.history import History
from jepsen.operation import Call, Invocation, Kind
from jepsen.rows import listed
from jepsen.workload import SPACING, Target
from jepsen.workloads.following import take_to_end

TAGS = 10_000
"""Each process numbers its columns by its number and one times this, and counting."""
TABLES = ("keyed", "log")
"""Tables whose columns change; `passing` is the one that is made anew."""
PASSING = "jepsen.passing"
READ_SECONDS = 20.0
KEPT = 10
_FIXED = [pa.field("id", pa.int64(), nullable=False), pa.field("by", pa.int64())]


class Evolution:
    """Alterations, writes and reads."""

    name = "evolution"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._format = chance.choice((2, 3))
        self._buckets = chance.choice((1, 2, 4))
        self._pace = chance.choice((4, 12))
        """The weight of alterations, where writes have 40."""
        self._passes = chance.choice((1, 1, 20))
        """The weight of the table that is made anew, beside those that are altered."""

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables, with two columns each."""
        options = {"format_version": self._format, "freshness": "2s"}
        for table in (*TABLES, "passing"):
            key = None if table == "log" else ["id"]
            schema = pa.schema(_FIXED)
            made = lake.create_table(_name(table), schema, primary_key=key, buckets=self._buckets, lake=options)
            _alter(made, [["add", "a", "string", 1, True]])
            if table in TABLES:
                _alter(made, [["add", "b", "int32", 2, True]])

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Writes and reads, alterations now and then."""
        following, tag = process * SPACING, (process + 1) * TAGS
        weights = {"write": 40, "alter": self._pace, "describe": 3, "read": 20, "past": 6, "stream": 6}
        passing = {"drop": 2, "create": 3, "pass-write": 10, "pass-read": 8, "pass-stream": 3 + self._passes // 2}
        weights |= {f: weight * self._passes for f, weight in passing.items()}
        while True:
            f = chance.choices(tuple(weights), tuple(weights.values()))[0]
            value: dict[str, Any] = {"table": chance.choice(TABLES), "old": chance.random() < 0.4}
            if f in ("write", "pass-write"):
                rows = list(range(following, following + chance.choice((1, 1, 3, 10))))
                following += len(rows)
                value |= {"rows": rows, "leave": chance.getrandbits(3)}
            elif f in ("alter", "create"):
                tag += 1
                value |= {"draw": [chance.randrange(7), chance.randrange(6), chance.randrange(4)], "tag": tag}
            elif f == "read":
                value["via"] = chance.choice(("scan", "snapshot", "sql", "lookup"))
            elif f in ("past", "stream", "pass-stream"):
                value["back"] = chance.randrange(KEPT)
            yield Invocation(f, value)

    def last(self, process: int) -> Iterator[Invocation]:
        """Everything, by each way."""
        for table in TABLES if process == 0 else ():
            for via in ("scan", "snapshot", "sql", "lookup"):
                yield Invocation("read", {"table": table, "old": False, "via": via})
            yield Invocation("describe", {"table": table, "old": False})
            yield Invocation("stream", {"table": table, "old": False, "back": -1})

    def client(self, target: Target, process: int) -> EvolutionClient:
        """A client that keeps its handles."""
        return EvolutionClient(target.connect(process), self._format)

    def check(self, history: History) -> Sequence[Anomaly]:
        """Everything that a changing table must not show."""
        made = [call for call in history.calls("create") if call.kind is Kind.OK and call.value["tag"] is not None]
        freshness = Freshness(history, [*history.calls("write", "alter", "pass-write"), *made])
        altered = (each for table in TABLES for each in _altered(history, table, freshness))
        return few([*altered, *check_passing(history, freshness)])


def _altered(history: History, table: str, freshness: Freshness) -> Iterator[Anomaly]:
    def calls(*names: str) -> list[Call]:
        return [call for call in history.calls(*names) if call.invoked.value["table"] == table]

    versions, alters = Versions(table), calls("alter")
    for call in alters:
        if call.kind is Kind.OK:
            yield from versions.alter(call)
    for call in calls("describe"):
        if call.kind is Kind.OK:
            yield from versions.add(call.value["schema"], call.value["columns"], call.invoked.index)
            yield from _stale(call, alters, freshness.bound(call))
    versions.close(call for call in alters if call.kind is Kind.INFO)
    rows = Rows(table, calls("write"))
    for call in calls("read", "past", "stream"):
        for answer in _answers(call, freshness.bound(call)):
            yield from versions.check(answer)
            yield from rows.check(answer)
            if call.f == "past" and call.value["of"] not in [row[answer.names.index("by")] for row in answer.rows]:
                sentence = f"a read of {table} at the token of row {call.value['of']} lacks that row"
                yield Anomaly("not-the-cut", sentence, (call.invoked.index,))


def _stale(call: Call, alters: Sequence[Call], bound: Bound) -> Iterator[Anomaly]:
    """A definition is no older than the newest one that the call must show."""
    for each in alters:
        if bound.covers(each):
            if each.value["after"]["schema"] > call.value["schema"]:
                schemas = f"version {call.value['schema']}, behind {each.value['after']['schema']}"
                yield Anomaly("stale-definition", f"a definition was {schemas}", (call.invoked.index,))
                return


def _answers(call: Call, bound: Bound) -> Iterator[Answer]:
    """The rows that one call was given: a stream's by version; a read of all rows also shows that none is lost."""
    if call.kind is not Kind.OK:
        return
    index = call.invoked.index
    for each in call.value["answers"]:
        is_whole = call.f == "read" and call.value["via"] != "lookup"
        due = bound if is_whole else None
        yield Answer(call.value["table"], index, each["names"], each["rows"], each["schema"], due)


class EvolutionClient:
    """Handles, writes and reads of one connection."""

    def __init__(self, lake: ls.Lake, format_version: int) -> None:
        self._lake, self._format = lake, format_version
        self._handles: dict[str, ls.Table] = {}
        """The handle of each table that was taken last: an old one, as others alter tables."""
        self._written: dict[str, list[tuple[int, str, int]]] = {table: [] for table in TABLES}
        """A row, the token and the version of each table's newest writes."""
        self._positions: list[tuple[int, str]] = []
        """Where streams of the passing table had come to, with the column that it had."""

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        f, value = invocation.f, invocation.value
        if f.startswith("pass") and f != "past":
            return self._pass(f, value)
        if f in ("drop", "create"):
            return self._make(f, value)
        handle = self._handle(_name(value["table"]), old=value["old"] and f != "describe")
        if f == "write":
            return self._write(handle, value)
        if f == "alter":
            before = _described(handle)
            steps = steps_of(before["columns"], value["draw"], value["tag"])
            if self._format == 2:  # only tables of Iceberg's format 3 have defaults of rows that are there
                steps = [[*step[:4], True] if step[0] == "add" else step for step in steps]
            _alter(handle, steps)
            return {**value, "before": before, "steps": steps, "after": _described(handle)}
        if f == "describe":
            return {**value, **_described(handle)}
        if f == "stream":
            return {**value, "answers": self._stream(handle)}
        if f == "past":
            return self._past(handle, value)
        return {**value, "answers": [self._read(handle, value)]}

    def _handle(self, name: str, *, old: bool) -> ls.Table:
        if not old or name not in self._handles:
            self._handles[name] = self._lake.table(name)
        return self._handles[name]

    def _write(self, handle: ls.Table, value: dict[str, Any]) -> dict[str, Any]:
        rows, sent = _rows(handle, value)
        token = handle.upsert(rows) if value["table"] == "keyed" else handle.append(rows)
        written = self._written[value["table"]]
        written.append((value["rows"][0], str(token), token.result.schema_id))
        del written[:-KEPT]
        return {**value, "sent": sent, "schema": token.result.schema_id}

    def _read(self, handle: ls.Table, value: dict[str, Any]) -> dict[str, Any]:
        """All rows of a table, or those of its keys that this client has written last."""
        via, name = value["via"], handle.name
        if via == "snapshot":
            with self._lake.snapshot() as cut:
                return _answer(cut.scan(name).to_arrow())
        if via == "sql":
            return _answer(self._lake.sql(f"SELECT * FROM {name}").to_arrow())
        keys = [{"id": by} for by, _, _ in self._written[value["table"]]]
        if via == "lookup" and value["table"] == "keyed" and keys:
            return _answer(handle.lookup(keys))
        return _answer(handle.scan().to_arrow())

    def _past(self, handle: ls.Table, value: dict[str, Any]) -> dict[str, Any]:
        """All rows at the token of a write, which has made the row that is named."""
        written = self._written[value["table"]]
        if not written:
            return {**value, "of": None, "answers": []}
        by, token, schema = written[-1 - value["back"] % len(written)]
        answer = _answer(handle.scan(at=token).to_arrow())
        return {**value, "of": by, "answers": [{**answer, "schema": schema}]}

    def _stream(self, handle: ls.Table) -> list[dict[str, Any]]:
        """All changes, by version."""
        batches = take_to_end(handle.changes(until="now"), READ_SECONDS)
        return [{**_answer(batch.table), "schema": batch.schema_id} for batch in batches]

    def _make(self, f: str, value: dict[str, Any]) -> dict[str, Any]:
        """Drop the passing table, or make it anew with another column."""
        if f == "drop":
            with suppress(ls.errors.NotFound):
                self._lake.drop_table(PASSING)
            return value
        schema, options = pa.schema(_FIXED), {"format_version": self._format}
        try:
            made = self._lake.create_table(PASSING, schema, primary_key=["id"], buckets=2, lake=options)
        except ls.Conflict:
            return {**value, "tag": None}  # it is there already
        _alter(made, [["add", "a", "string", value["tag"], True]])
        return value

    def _pass(self, f: str, value: dict[str, Any]) -> dict[str, Any]:
        """Writes and reads of the passing table by a handle that knows its column's tag."""
        handle = self._handle(PASSING, old=value["old"])
        columns = _described(handle)["columns"]
        tag = columns[0][2] if columns else None
        if f == "pass-write":
            rows, _ = _rows(handle, {**value, "leave": 0})
            handle.upsert(rows)
            return {**value, "tag": tag}
        if f == "pass-read":
            return {**value, "tag": tag, **_answer(handle.scan().to_arrow())}
        of, start = self._positions[-1 - value["back"] % len(self._positions)] if self._positions else (tag, "earliest")
        stream = handle.changes(start, until="now")
        batches = take_to_end(stream, READ_SECONDS)
        if tag is not None and stream.token:
            self._positions = [*self._positions[-KEPT + 1 :], (tag, stream.token)]
        answers = [_answer(batch.table) for batch in batches]
        return {**value, "tag": tag, "of": of, "answers": answers}

    def close(self) -> None:
        """End the connection."""
        self._lake.close()


def _alter(handle: ls.Table, steps: list[list[Any]]) -> None:
    """One alteration."""
    said: dict[str, Any] = {}
    for step in steps:
        if step[0] == "add":
            _, name, kind, tag, new_rows_only = step
            said |= {"add": {name: pa.string() if kind == "string" else pa.int32()}}
            said |= {"default": {name: default_of(tag, kind)}, "new_rows_only": new_rows_only}
        elif step[0] == "drop":
            said["drop"] = [step[1]]
        elif step[0] == "rename":
            said["rename"] = {step[1]: step[2]}
        elif step[0] == "swap":
            said["rename"] = {step[1]: step[2], step[2]: step[1]}
        elif step[0] == "widen":
            said["widen"] = {step[1]: pa.int64()}
        else:
            said["lake"] = {"freshness": step[1]}
    handle.alter(**said)


def _described(handle: ls.Table) -> dict[str, Any]:
    """The version that a handle knows."""
    columns = [[each.name, each.type, tag_of(each.default)] for each in handle.definition.columns if each.default]
    return {"schema": handle.definition.schema_id, "columns": columns}


def _rows(handle: ls.Table, value: dict[str, Any]) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Rows by a handle's definition, and for each what it names; some columns are left out."""
    columns = _described(handle)["columns"]
    named = [column for place, column in enumerate(columns) if not value["leave"] >> place & 1]
    rows, sent = [], []
    for by in value["rows"]:
        rows.append({"id": by, "by": by, **{name: value_of(tag, by, kind) for name, kind, tag in named}})
        sent.append([by, {str(tag): rows[-1].get(name) for name, _, tag in columns}])
    return rows, sent


def _answer(rows: pa.Table) -> dict[str, Any]:
    """Rows with the names of their own columns."""
    names = [name for name in rows.column_names if not name.startswith("__")]
    return {"names": names, "rows": listed(rows, *names), "schema": None}


def _name(table: str) -> str:
    return PASSING if table == "passing" else f"jepsen.evolution_{table}"
