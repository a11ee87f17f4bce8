"""Accounts: transfers are commits over tables and buckets, and no read of any kind shows half of one.

Accounts of a group lie in two keyed tables, and a transfer writes all of them with its name; other accounts are sums,
to which transfers add deltas. Auditors look up, scan, query at one cut, read older tokens and times, and follow the
changes of all four tables, in which every commit's end is audited.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import psycopg
import pyarrow as pa

import lakestore as ls
from jepsen import engines
from jepsen.anomaly import Anomaly, few
from jepsen.checkers.audits import INITIAL, OPENING, Audit, Cut, Plan
from jepsen.checkers.changes import Fold, Order
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.history import History
from jepsen.operation import SHAPE, Call, Invocation, Kind
from jepsen.workload import SPACING, Target
from jepsen.workloads.by_spark import SparkReader
from jepsen.workloads.following import plain_value, take, told

TABLES = {
    "left": ("id", "balance", "transfer"),
    "right": ("id", "balance", "transfer"),
    "credit": ("id", "balance", "moves", "known"),
    "debit": ("id", "balance", "moves", "known"),
}
"""Tables, whose names begin with `jepsen.bank_`, with the columns that auditors read."""
NAMES = [f"jepsen.bank_{table}" for table in TABLES]
GROUPED = ("left", "right")
KEPT = 20
ONE_SHARE = 0.3
"""The part of the reads by Spark that are of one table; the others are of all by one statement."""
DOOR_WAYS = ("lookups", "transaction", "statement")
"""The ways to read all accounts by the Postgres port: one key after the other or one table after the other in a
transaction, or all by one statement.
"""
DOOR_SECONDS = 5
_OF_FAULTS = frozenset({"08", "40", "53", "57", "58", "72"})
"""Classes of SQLSTATE with which the port may answer under faults: a connection that ends, a limit, a server that
stops, a cut that is no longer kept."""
QUIET_SECONDS, FOLLOW_SECONDS, FOLLOW_BATCHES = 0.05, 1.0, 20
DRAIN_SECONDS = 20.0
_ID = pa.field("id", pa.int64(), nullable=False)
_BALANCE = pa.field("balance", pa.int64())
_GROUPED = pa.schema([_ID, _BALANCE, pa.field("transfer", pa.int64())])
_ADDED = pa.schema(
    [_ID, _BALANCE, pa.field("moves", pa.int64()), pa.field("seen", pa.binary()), pa.field("known", pa.int64())]
)
_SUMS = {"balance": "sum", "moves": "count", "seen": "bitmap", "known": "distinct_count(seen)"}


class Bank:
    """Transfers and audits."""

    name = "bank"
    needs: frozenset[str] = frozenset()
    audits: tuple[tuple[str, int], ...] = (
        ("lookup", 12),
        ("scan", 8),
        ("snapshot", 8),
        ("sql", 6),
        ("past", 6),
        ("time", 4),
        ("follow", 16),
        ("reopen", 2),
    )
    """Kinds of audits and their weights, where transfers have 40."""

    def __init__(self, chance: random.Random) -> None:
        self._plan = Plan(chance.randint(1, 6), chance.randint(2, 6), crosses=chance.random() < 0.5)
        self._buckets = {table: chance.choice((1, 2, 4)) for table in TABLES}
        self._format = chance.choice((2, 3))
        self._merge = chance.choice(("upsert", "partial"))

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables, and all accounts by one commit."""
        options = {"format_version": self._format, "freshness": "2s"}
        for table, buckets in self._buckets.items():
            schema, merge = (_GROUPED, self._merge) if table in GROUPED else (_ADDED, ls.aggregate(_SUMS))
            key = ["id"]
            lake.create_table(_name(table), schema, primary_key=key, buckets=buckets, merge=merge, lake=options)
        with lake.commit() as commit:
            for table in TABLES:
                opened = {"balance": OPENING, **({"transfer": INITIAL} if table in GROUPED else {"seen": 0})}
                commit.upsert(_name(table), [{"id": account, **opened} for account in self._plan.accounts(table)])

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """The shape of the run first; then transfers and audits, about half and half."""
        yield Invocation(SHAPE, asdict(self._plan))
        yield from self._drawn(process, chance, (("move", 20), ("add", 20), *self.audits))

    def _drawn(self, process: int, chance: random.Random, weighted: Sequence[tuple[str, int]]) -> Iterator[Invocation]:
        """Transfers and audits of some kinds by their weights."""
        following = process * SPACING + 1
        names, weights = zip(*weighted, strict=True)
        while True:
            f = chance.choices(names, weights)[0]
            if f == "move":
                parts = [chance.randint(0, 4 * OPENING) for _ in range(3)]
                balances = [*parts, 4 * OPENING - sum(parts)]
                yield Invocation(
                    f, {"group": chance.randrange(self._plan.groups), "by": following, "balances": balances}
                )
                following += 1
            elif f == "add":
                yield Invocation(f, {"by": following, "rows": self._deltas(chance)})
                following += 1
            elif f in ("lookup", "scan"):
                yield Invocation(f, {"table": chance.choice(tuple(TABLES))})
            elif f in ("past", "time"):
                yield Invocation(f, {"back": chance.randrange(KEPT), "lookup": chance.random() < 0.5})
            elif f == "reopen":
                yield Invocation(f, {"start": chance.choice(("resume", "resume", "earliest", "snapshot"))})
            elif f == "engine":
                engine, table = chance.choice(("pyiceberg", "duckdb")), chance.choice((*TABLES, ""))
                yield Invocation(f, {"engine": engine, "table": table})
            elif f == "door":
                yield Invocation(f, {"way": chance.choice(DOOR_WAYS)})
            elif f == "spark":
                yield Invocation(f, {"table": chance.choice(tuple(TABLES)) if chance.random() < ONE_SHARE else ""})
            else:
                yield Invocation(f)

    def _deltas(self, chance: random.Random) -> list[list[Any]]:
        """Tables, accounts and deltas of one transfer, each account once."""
        tables = ["credit", "debit"] if self._plan.crosses else [chance.choice(("credit", "debit"))]
        places = [[table, account] for table in tables for account in range(self._plan.added)]
        chosen = chance.sample(places, chance.randint(2, min(len(places), 4)))
        deltas = [chance.randint(-9, 9) for _ in chosen[1:]]
        return [[*place, delta] for place, delta in zip(chosen, [-sum(deltas), *deltas], strict=True)]

    def last(self, process: int) -> Iterator[Invocation]:
        """All accounts at one cut, and all changes."""
        yield Invocation("snapshot")
        if process == 0:
            for f, _ in self.audits:
                if f in ("lookup", "scan"):
                    yield from (Invocation(f, {"table": table}) for table in TABLES)
                elif f == "engine":
                    yield from (Invocation(f, {"engine": each, "table": ""}) for each in ("pyiceberg", "duckdb"))
                elif f == "door":
                    yield from (Invocation(f, {"way": each}) for each in DOOR_WAYS)
                elif f == "spark":
                    yield from (Invocation(f, {"table": table}) for table in ("", "left", "credit"))
                elif f == "sql":
                    yield Invocation(f)
            yield Invocation("final")
        yield Invocation("drain")

    def client(self, target: Target, process: int) -> BankClient:
        """A client of the accounts."""
        return BankClient(target, process, self._plan)

    def check(self, history: History) -> Sequence[Anomaly]:
        """Everything that an auditor may not see."""
        shape = history.shape()
        plan = Plan(**shape) if shape else self._plan
        audit = Audit(plan, history.calls("move"), history.calls("add"))
        freshness = Freshness(history, history.calls("move", "add"))
        found: list[Anomaly] = []
        for call in history.calls(
            "lookup", "scan", "snapshot", "sql", "past", "time", "engine", "spark", "door", "final"
        ):
            if call.kind is Kind.OK and call.value["cut"]:
                found += _audited(audit, call, freshness.bound(call))
        return few([*found, *_followed(audit, history.calls("follow", "drain", "reopen"), freshness)])


class BankOfEngines(Bank):
    """The same accounts, read by other engines as well, by the presented catalog."""

    name = "bank_engines"
    needs = frozenset({"tierer"})
    audits = (*Bank.audits, ("engine", 6))


class BankOfSql(Bank):
    """The same accounts, read by a driver of Postgres as well; a transaction of it reads one cut."""

    name = "bank_sql"
    needs = frozenset({"sql"})
    audits = (*Bank.audits, ("door", 20))


class BankOfSpark(BankOfEngines):
    """The same accounts, read by Spark SQL as well: of one statement at one cut, and of each table of the catalog."""

    name = "bank_spark"
    needs = frozenset({"spark"})
    audits = (*BankOfEngines.audits, ("spark", 4))

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self._spark = SparkReader()

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables, and the session of Spark, which takes as long as a run."""
        super().setup(lake)
        self._spark.sql(lake.address, _QUERY)

    def client(self, target: Target, process: int) -> BankClient:
        """A client that reads by Spark as well."""
        return BankClient(target, process, self._plan, self._spark)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """One process reads by Spark, the others transfer meanwhile."""
        yield Invocation(SHAPE, asdict(self._plan))
        beside = (("lookup", 8), ("scan", 4), ("past", 4), ("follow", 8))
        yield from self._drawn(
            process, chance, (("move", 30), ("add", 30), *(beside if process else (("spark", 240),)))
        )


def _audited(audit: Audit, call: Call, bound: Bound) -> Iterator[Anomaly]:
    """One read of one cut."""
    value, index = call.value, call.invoked.index
    cut: Cut = {table: {row["id"]: row for row in rows} for table, rows in value["cut"].items()}
    is_newest = call.f not in ("past", "time")
    assert call.completed is not None
    may_be_empty = bound.may_be_empty and call.f != "past"  # a follower waits for a token, and not for a time
    newest = bound if is_newest else None
    yield from audit.cut(cut, index, newest, call.completed.index, may_be_empty=may_be_empty)
    for table, rows in value["cut"].items():
        if len(rows) != len(cut[table]):
            yield Anomaly("row-twice", f"an account of {table} came twice in one read", (index,))
    if call.f == "past":
        group, name = value["of"]
        yield from audit.at_token(cut, group, name, index)
    if call.f == "final":
        yield from audit.last(cut, index)


def _followed(audit: Audit, calls: Sequence[Call], freshness: Freshness) -> Iterator[Anomaly]:
    """The streams of every process, audited at the end of whole commits."""
    streams: dict[int | str, _Followed] = {}
    for call in calls:
        if call.kind is not Kind.OK or call.value["start"] is None:
            continue
        if call.value["start"] in ("earliest", "snapshot"):
            name, start = f"the stream of process {call.process}", call.value["start"]
            streams[call.process] = _Followed(name, from_start=start == "earliest")
        bound = freshness.bound(call)
        yield from streams[call.process].add(
            audit, call.value["batches"], call.invoked.index, may_be_empty=bound.may_be_empty
        )
        if call.f == "drain":
            yield from streams[call.process].cut(audit, call.invoked.index, bound)


class _Followed:
    """One consumer's accounts."""

    def __init__(self, name: str, *, from_start: bool) -> None:
        self._folds = {_name(table): Fold(f"{name}, {table}", ["id"], images=True) for table in TABLES}
        self._order = Order(name, dense=True, from_start=from_start)

    def add(
        self, audit: Audit, batches: Sequence[dict[str, Any]], operation: int, *, may_be_empty: bool
    ) -> Iterator[Anomaly]:
        for batch in batches:
            table, rows = batch["table"], batch["rows"]
            yield from self._folds[table].add(rows, operation)
            if batch["snapshot"]:
                self._order.snapshot(table, rows)
                continue
            yield from self._order.add(table, rows, operation)
            if batch["whole"]:
                yield from self.cut(audit, operation, may_be_empty=may_be_empty)

    def cut(
        self, audit: Audit, operation: int, bound: Bound | None = None, *, may_be_empty: bool = False
    ) -> Iterator[Anomaly]:
        """The accounts behind whole commits."""
        for fold in self._folds.values():
            yield from fold.end(operation)
        folds = {table: self._folds[_name(table)].rows for table in TABLES}
        yield from audit.cut(folds, operation, bound, may_be_empty=may_be_empty)


class BankClient:
    """Transfers and audits of one connection."""

    def __init__(self, target: Target, process: int, plan: Plan, spark: SparkReader | None = None) -> None:
        self._lake, self._catalog, self._plan = target.connect(process), target.catalog, plan
        self._spark, self._sql = spark, target.sql
        self._door: psycopg.Connection[Any] | None = None
        self._stream: ls.ChangeStream | None = None
        self._token = ""
        """Behind whole commits that the stream has given."""
        self._tokens: list[tuple[list[int], str]] = []
        self._times: list[str] = []

    def invoke(self, invocation: Invocation) -> Any:
        """Do it; an audit gives `cut`, by table the rows."""
        f, value = invocation.f, invocation.value
        if f == SHAPE:
            return value
        if f == "move":
            return self._move(value)
        if f == "add":
            return self._add(value)
        if f in ("follow", "reopen", "drain"):
            return self._follow(f, value)
        if f == "engine":
            return self._by_engine(value)
        if f == "spark":
            return self._by_spark(value["table"])
        if f == "door":
            return {"cut": self._by_door(value["way"])}
        return self._audit(f, value)

    def _move(self, value: dict[str, Any]) -> dict[str, Any]:
        with self._lake.commit() as commit:
            for (table, account), balance in zip(self._plan.group(value["group"]), value["balances"], strict=True):
                commit.upsert(_name(table), [{"id": account, "balance": balance, "transfer": value["by"]}])
        self._tokens = [*self._tokens[-KEPT + 1 :], ([value["group"], value["by"]], commit.token)]
        return {**value, "token": commit.token}

    def _add(self, value: dict[str, Any]) -> dict[str, Any]:
        with self._lake.commit() as commit:
            for table, account, delta in value["rows"]:
                commit.upsert(_name(table), [{"id": account, "balance": delta, "seen": value["by"]}])
        return value

    def _audit(self, f: str, value: Any) -> dict[str, Any]:
        if f == "past":
            if not self._tokens:
                return {"of": None, "cut": {}}
            of, token = self._tokens[-1 - value["back"] % len(self._tokens)]
            if value["lookup"]:
                return {"of": of, "cut": {table: self._looked_up(table, token) for table in TABLES}}
            return {"of": of, "cut": _scanned(self._lake.at(token))}
        if f == "time":
            return {
                "cut": _scanned(self._lake.at(self._times[-1 - value["back"] % len(self._times)]))
                if self._times
                else {}
            }
        if f == "lookup":
            return {"cut": {value["table"]: self._looked_up(value["table"])}}
        if f == "scan":
            return {"cut": {value["table"]: self._scan(value["table"])}}
        if f == "sql":
            return {"cut": self._queried()}
        with self._lake.snapshot() as cut:
            return {"cut": _scanned(cut)}

    def _looked_up(self, table: str, at: str | None = None) -> list[dict[str, Any]]:
        keys = [{"id": account} for account in self._plan.accounts(table)]
        return list(self._lake.table(_name(table)).lookup(keys, columns=TABLES[table], at=at).to_pylist())

    def _scan(self, table: str) -> list[dict[str, Any]]:
        rows = self._lake.table(_name(table)).scan([*TABLES[table], "__timestamp"]).to_arrow().to_pylist()
        times = [plain_value(row.pop("__timestamp")) for row in rows]
        self._times = [*self._times[-KEPT + 1 :], max(times)] if times else self._times
        return list(rows)

    def _queried(self) -> dict[str, list[dict[str, Any]]]:
        """All accounts by one query over four tables."""
        return _apart(self._lake.sql(_QUERY).to_pylist())

    def _by_spark(self, table: str) -> dict[str, Any]:
        """One table by the presented catalog, or all by one statement."""
        assert self._spark is not None
        if table:
            text = f"SELECT {', '.join(TABLES[table])} FROM now.{_name(table)}"
            return {"cut": {table: self._spark.by_catalog(self._lake.address, text)}}
        return {"cut": _apart(self._spark.sql(self._lake.address, _QUERY))}

    def _by_door(self, way: str) -> dict[str, list[dict[str, Any]]]:
        """All accounts by the Postgres port. An answer of a fault ends the connection."""
        try:
            if self._door is None or self._door.closed:
                self._door = _connected(self._sql)
            with self._door.transaction():
                return self._asked(self._door, way)
        except psycopg.Error as error:
            self._end_door()
            if error.sqlstate is not None and error.sqlstate[:2] not in _OF_FAULTS:
                raise
            raise ls.Unavailable(f"{error.sqlstate}: {error}"[:500]) from error

    def _asked(self, door: psycopg.Connection[Any], way: str) -> dict[str, list[dict[str, Any]]]:
        if way == "statement":
            names = ("held_in", "id", "balance", "third", "fourth")
            return _apart([dict(zip(names, row, strict=True)) for row in door.execute(_QUERY)])
        cut: dict[str, list[dict[str, Any]]] = {}
        for table in ("left", "credit", "right", "debit"):  # halves of a transfer apart
            columns = TABLES[table]
            text = f"SELECT {', '.join(columns)} FROM {_name(table)}"
            if way == "transaction":
                rows = list(door.execute(text))
            else:
                accounts = self._plan.accounts(table)
                rows = [row for account in accounts for row in door.execute(f"{text} WHERE id = %s", [account])]
            cut[table] = [dict(zip(columns, row, strict=True)) for row in rows]
        return cut

    def _end_door(self) -> None:
        if self._door is not None:
            self._door.close()
        self._door = None

    def _follow(self, f: str, value: Any) -> dict[str, Any]:
        """The batches of the stream of all tables now, or all changes by another. `start`: its beginning, or empty."""
        start, end, most = "", None, FOLLOW_BATCHES
        if f == "drain":
            start, end, most = "earliest", "now", 1_000_000
        elif f == "reopen":
            start = value["start"] if value["start"] != "resume" else "" if self._token else "earliest"
        elif self._stream is None:
            start = "earliest"
        if start or f == "reopen" or self._stream is None:
            self._end_stream()
            self._stream = self._lake.changes(NAMES, start or self._token, until=end, before_images=True)
        try:
            seconds = (DRAIN_SECONDS, DRAIN_SECONDS) if end else (QUIET_SECONDS, FOLLOW_SECONDS)
            batches = take(self._stream, seconds[0], most, seconds[1])
        except ls.LakestoreError:
            self._end_stream()  # what it gave is not told, so no other one may go on behind it
            self._token = ""
            raise
        whole = not batches or batches[-1].whole
        self._token = batches[-1].token if batches and whole else self._token if whole and not start else ""
        if end or not whole:
            self._end_stream()
        return {"start": start, "batches": [told(batch) for batch in batches]}

    def _by_engine(self, value: dict[str, Any]) -> dict[str, Any]:
        """One table at its head, or all at one cut, by an engine that is not ours."""
        with engines.answering():
            if value["table"]:
                tables, warehouse = [value["table"]], "now"
            else:
                with self._lake.snapshot() as cut:
                    tables, warehouse = list(TABLES), f"at:{cut.token}"
            engine, catalog = value["engine"], self._catalog
            return {"cut": {table: _read_by(engine, catalog, warehouse, table) for table in tables}}

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def close(self) -> None:
        """End the stream and the connections."""
        self._end_stream()
        self._end_door()
        self._lake.close()


def _connected(address: str) -> psycopg.Connection[Any]:
    host, _, port = address.rpartition(":")
    return psycopg.connect(
        host=host,
        port=port,
        user="jepsen",
        dbname="jepsen",
        password="unused",
        autocommit=True,
        connect_timeout=DOOR_SECONDS,
        tcp_user_timeout=DOOR_SECONDS * 1000,
        keepalives_idle=DOOR_SECONDS,
    )


def _scanned(cut: ls.Snapshot) -> dict[str, list[dict[str, Any]]]:
    return {table: cut.scan(_name(table), columns).to_arrow().to_pylist() for table, columns in TABLES.items()}


def _read_by(engine: str, catalog: str, warehouse: str, table: str) -> list[dict[str, Any]]:
    columns = TABLES[table]
    if engine == "pyiceberg":
        return list(engines.load(catalog, warehouse, _name(table)).scan(selected_fields=columns).to_arrow().to_pylist())
    rows = engines.by_duckdb(catalog, warehouse, _name(table), columns=columns)
    return [dict(zip(columns, row, strict=True)) for row in rows]


_QUERY = " UNION ALL ".join(
    f"SELECT '{table}' AS held_in, id, balance, {TABLES[table][2]} AS third, {TABLES[table][-1]} AS fourth"
    f" FROM jepsen.bank_{table}"
    for table in ("left", "credit", "right", "debit")  # halves of a transfer apart: cuts that differ show
)


def _apart(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The answer to the query, by table."""
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    for row in rows:
        values = row["id"], row["balance"], row["third"], row["fourth"]
        columns = TABLES[row["held_in"]]
        found[row["held_in"]].append(dict(zip(columns, values[: len(columns)], strict=True)))
    return found


def _name(table: str) -> str:
    return f"jepsen.bank_{table}"
