"""Lists: transactions append to several keys of several tables or read them at one cut, and no cycle may come of it.

A list is what its table can order: rows of a log, rows of a keyed table whose bucket is the list's, or one row whose
`string_list` grows; in a table of the fourth kind a list has one element, which the first of several
`insert_if_absent` gives it. Values are Elle's micro-operations, so that its own checkers read the history. Leave two
things out there: reads of the past (`past`), which are as of an older commit, and appends of `once` of unknown outcome
that cannot have been, as another was first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers.appends import Lists, Transaction, writers
from jepsen.checkers.cycles import Link
from jepsen.checkers.freshness import Freshness
from jepsen.history import History
from jepsen.operation import Call, Invocation, Kind
from jepsen.workload import SPACING, Target

READS = ("lookup", "snapshot", "sql")
ONLY_READS = ("everything", *READS)
ROUND = 50
"""Operations of one process after which it goes on to new keys, so that lists stay short."""
KEYS_PER_TABLE = 3
KEPT_TOKENS = 20
_KEY = pa.field("k", pa.int64(), nullable=False)
_NUMBER = pa.field("n", pa.int64(), nullable=False)


class ListAppend:
    """Appends to lists and reads of lists."""

    name = "list_append"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        kinds = ["list", "once", *chance.choices(("list", "log", "rows"), k=chance.randint(1, 3))]
        self._kinds = tuple(chance.sample(kinds, len(kinds)))
        self._buckets = tuple(chance.choice((1, 2, 4)) for _ in kinds)

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables."""
        for number, (kind, buckets) in enumerate(zip(self._kinds, self._buckets, strict=True)):
            name = _table(number)
            if kind == "log":
                lake.create_table(name, pa.schema([_KEY, _NUMBER]), buckets=1)
            elif kind == "rows":
                schema, key = pa.schema([_KEY, _NUMBER]), ["k", "n"]
                lake.create_table(name, schema, primary_key=key, bucket_key=["k"], buckets=buckets)
            elif kind == "once":
                lake.create_table(name, pa.schema([_KEY, _NUMBER]), primary_key=["k"], buckets=buckets)
            else:
                schema, merge = pa.schema([_KEY, pa.field("items", pa.string())]), {"items": "string_list( )"}
                lake.create_table(name, schema, primary_key=["k"], buckets=buckets, merge=ls.aggregate(merge))

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Appends and reads, about one to one."""
        following, number = process * SPACING, 0
        while True:
            keys = self._keys(number // ROUND)
            number += 1
            f = chance.choices(("append", "once", "past", "everything", *READS), (45, 8, 5, 2, 14, 14, 8))[0]
            if f == "everything":
                yield Invocation(f)
            elif f == "past":
                named = sorted(chance.sample(keys, min(len(keys), 3)))
                yield Invocation(f, {"back": chance.randrange(KEPT_TOKENS), "keys": named})
            elif f == "once":
                once = [key for key in keys if self._kind(key) == "once"]
                micro: list[list[Any]] = []
                for key in chance.sample(once, min(len(once), chance.randint(1, 2))):
                    micro += [["r", key, None], ["append", key, following]]
                    following += 1
                yield Invocation(f, micro)
            elif f == "append":
                lists = [key for key in keys if self._kind(key) != "once"]
                count = chance.choice((1, 1, 2, 3, 5))
                yield Invocation(f, [["append", chance.choice(lists), following + each] for each in range(count)])
                following += count
            else:
                named = self._readable(f, keys, chance)
                yield Invocation(f, [["r", key, None] for key in named])

    def _keys(self, turn: int) -> list[int]:
        """The keys of a process's turn, some of every table."""
        count = KEYS_PER_TABLE * len(self._kinds)
        return list(range(turn * count, (turn + 1) * count))

    def _readable(self, f: str, keys: Sequence[int], chance: random.Random) -> list[int]:
        """Keys of several tables, or for a look-up of one table that has one row for each list."""
        if f == "lookup":
            looked_up = [each for each, kind in enumerate(self._kinds) if kind in ("list", "once")]
            table = chance.choice(looked_up)
            keys = [key for key in keys if key % len(self._kinds) == table]
        return sorted(chance.sample(keys, chance.randint(1, len(keys))))

    def _kind(self, key: int) -> str:
        return self._kinds[key % len(self._kinds)]

    def last(self, process: int) -> Iterator[Invocation]:
        """All lists at one cut, and some by each other way."""
        yield Invocation("everything")
        if process == 0:
            yield Invocation("past", {"back": 0, "keys": self._keys(0)[:3]})
        for f in READS if process == 0 else ():
            chance = random.Random(f)
            yield Invocation(f, [["r", key, None] for key in self._readable(f, self._keys(0), chance)])

    def client(self, target: Target, process: int) -> ListClient:
        """A client of the tables."""
        return ListClient(target.connect(process), self._kinds)

    def check(self, history: History) -> Sequence[Anomaly]:
        """Everything that a strictly serializable system does not show."""
        calls = history.calls("append", "once", "everything", *READS)
        freshness = Freshness(history, [call for call in calls if call.f not in ONLY_READS])
        told = [Transaction.of(call, freshness.bound(call) if call.f in ONLY_READS else None) for call in calls]
        late = _late(calls, {key: held[0] for each in told for key, held in each.reads() if held})
        made = [_without(each, late.get(each.number, {})) for each in told]
        written = writers(made)
        past = list(_past(history.calls("past"), written))
        edges = [(commit.number, each.number, Link.REALTIME, "it was read as of that commit") for commit, each in past]
        edges += [
            (written[first].number, number, Link.WR, f"its append to key {first[0]} was late")
            for number, firsts in late.items()
            for first in firsts.items()
            if first in written
        ]
        found = Lists([*made, *(each for _, each in past)]).anomalies(edges)
        return [*found, *(anomaly for commit, each in past for anomaly in _beyond(commit, each, written))]


def _late(calls: Sequence[Call], firsts: Mapping[int, int]) -> dict[int, dict[int, int]]:
    """By the number of a transaction of unknown outcome its keys on which others were first, with their elements.

    A commit of `insert_if_absent` has the elements of those of its keys that were absent, and of no others; if it
    happened, then behind those that were first.
    """
    late = dict[int, dict[int, int]]()
    for call in calls:
        if call.f == "once" and call.kind is Kind.INFO:
            own = {key: value for f, key, value in call.invoked.value if f == "append"}
            late[call.invoked.index] = {key: firsts[key] for key in own if firsts.get(key, own[key]) != own[key]}
    return late


def _without(made: Transaction, keys: Mapping[int, int]) -> Transaction:
    """A transaction less what it did with some keys."""
    return replace(made, operations=tuple(micro for micro in made.operations if micro[1] not in keys))


def _past(calls: Sequence[Call], written: Mapping[Any, Transaction]) -> Iterator[tuple[Transaction, Transaction]]:
    """Reads of the past behind the commits of which they are: they are where the commit was, whenever they were done.

    They belong to no process's order.
    """
    for call in calls:
        if call.kind is not Kind.OK or call.value["of"] is None:
            continue
        commit = written[tuple(call.value["of"])]
        micro = tuple((f, key, value) for f, key, value in call.value["read"])
        number = call.invoked.index
        yield commit, replace(commit, number=number, process=f"past {number}", operations=micro)


def _beyond(commit: Transaction, past: Transaction, written: Mapping[Any, Transaction]) -> Iterator[Anomaly]:
    """A read as of a commit has that commit's own elements, and behind them none of a commit that began later.

    Commits that become durable together share their token, so that elements of others at work then may come behind.
    """
    own = commit.appended()
    for key, elements in past.reads():
        if key not in own:
            continue
        last = elements.index(own[key][-1]) + 1 if own[key][-1] in elements else 0
        has_own = elements[last - len(own[key]) : last] == own[key]
        if not has_own or any(
            written[key, each].begin > commit.end for each in elements[last:] if (key, each) in written
        ):
            sentence = f"key {key} was read as {elements[-5:]} at the token of the commit that appended {own[key]}"
            yield Anomaly("not-the-cut", sentence, (past.number, commit.number))


class ListClient:
    """Transactions of one connection."""

    def __init__(self, lake: ls.Lake, kinds: Sequence[str]) -> None:
        self._lake, self._kinds = lake, kinds
        self._tokens: list[tuple[list[Any], str]] = []
        """The first element of each of the newest commits, as key and value, and the token."""

    def invoke(self, invocation: Invocation) -> Any:
        """The micro-operations with what was read."""
        if invocation.f == "append":
            return self._append(invocation.value)
        if invocation.f == "once":
            return self._once(invocation.value)
        if invocation.f == "everything":
            with self._lake.snapshot() as cut:
                return [["r", key, held] for key, held in sorted(self._scanned(cut, None).items())]
        if invocation.f == "past":
            return self._read_past(invocation.value["back"], invocation.value["keys"])
        keys = [key for _, key, _ in invocation.value]
        if invocation.f == "lookup":
            table = keys[0] % len(self._kinds)
            rows = self._lake.table(_table(table)).lookup([{"k": key} for key in keys])
            held = self._lists(table, rows.to_pylist())
        elif invocation.f == "sql":
            held = self._queried(keys)
        else:
            with self._lake.snapshot() as cut:
                held = self._scanned(cut, keys)
        return [["r", key, held.get(key, [])] for key in keys]

    def _append(self, micro: list[list[Any]]) -> list[list[Any]]:
        rows: dict[int, list[dict[str, Any]]] = {}
        for _, key, value in micro:
            table = key % len(self._kinds)
            row = {"k": key, "items": str(value)} if self._kinds[table] == "list" else {"k": key, "n": value}
            rows.setdefault(table, []).append(row)
        if len(rows) == 1:
            ((table, only),) = rows.items()
            handle = self._lake.table(_table(table))
            token = str(handle.append(only) if self._kinds[table] == "log" else handle.upsert(only))
        else:
            with self._lake.commit() as commit:
                for table, each in rows.items():
                    add = commit.append if self._kinds[table] == "log" else commit.upsert
                    add(_table(table), each)
            token = commit.token
        self._tokens = [*self._tokens[-KEPT_TOKENS + 1 :], (micro[0][1:], token)]
        return micro

    def _once(self, micro: list[list[Any]]) -> list[list[Any]]:
        """Each key's own value is appended if no other one was there before."""
        wanted = {key: value for f, key, value in micro if f == "append"}
        table = self._lake.table(_table(min(wanted) % len(self._kinds)))
        rows = table.insert_if_absent([{"k": key, "n": value} for key, value in wanted.items()]).to_pylist()
        done: list[list[Any]] = []
        for row in rows:
            key, value = row["k"], row["n"]
            done += [["r", key, []], ["append", key, value]] if wanted[key] == value else [["r", key, [value]]]
        return done

    def _read_past(self, back: int, keys: list[int]) -> dict[str, Any]:
        if not self._tokens:
            return {"of": None, "read": []}
        of, token = self._tokens[-1 - back % len(self._tokens)]
        named = sorted({*keys, of[0]})
        held = self._scanned(self._lake.at(token), named)
        return {"of": of, "read": [["r", key, held.get(key, [])] for key in named]}

    def _scanned(self, cut: ls.Snapshot, keys: Sequence[int] | None) -> dict[int, list[int]]:
        """Some lists, or all, at a cut."""
        held: dict[int, list[int]] = {}
        for table, kind in enumerate(self._kinds):
            own = [key for key in keys or () if key % len(self._kinds) == table]
            if keys is not None and not own:
                continue
            columns = ["k", "items"] if kind == "list" else ["k", "n", "__offset"]
            where = None if keys is None else f"k IN ({', '.join(str(key) for key in own)})"
            held |= self._lists(table, cut.scan(_table(table), columns, where).to_arrow().to_pylist())
        return held

    def _queried(self, keys: Sequence[int]) -> dict[int, list[int]]:
        """Some lists by one query."""
        parts: list[str] = []
        for table, kind in enumerate(self._kinds):
            own = ", ".join(str(key) for key in keys if key % len(self._kinds) == table)
            columns = "items, 0 AS n, 0 AS place" if kind == "list" else "'' AS items, n, __offset AS place"
            if own:
                parts.append(f"SELECT {table} AS t, k, {columns} FROM {_table(table)} WHERE k IN ({own})")
        rows: dict[int, list[dict[str, Any]]] = {}
        for row in self._lake.sql(" UNION ALL ".join(parts)).to_pylist():
            rows.setdefault(row["t"], []).append({**row, "__offset": row["place"]})
        held: dict[int, list[int]] = {}
        for table, each in rows.items():
            held |= self._lists(table, each)
        return held

    def _lists(self, table: int, rows: list[dict[str, Any]]) -> dict[int, list[int]]:
        if self._kinds[table] == "list":
            return {row["k"]: [int(item) for item in row["items"].split()] for row in rows}
        held: dict[int, list[int]] = {}
        for row in sorted(rows, key=lambda row: row.get("__offset", 0)):
            held.setdefault(row["k"], []).append(row["n"])
        return held

    def close(self) -> None:
        """End the connection."""
        self._lake.close()


def _table(number: int) -> str:
    return f"jepsen.list{number}"
