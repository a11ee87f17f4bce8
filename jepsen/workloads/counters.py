"""Aggregate tables under retries: every increment counts once, or not at all, in every column, and reads only grow.

A row's list has the numbers of its increments, in order, so each read tells exactly what has been counted: sums,
counts, the greatest and the least, the first and the last follow from it. A named producer sends an increment whose
outcome is unknown again until it is known, so most sums are known exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import tallies
from jepsen.checkers.tallies import delta
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.workload import SPACING, Target
from jepsen.workloads.named import Named
from jepsen.workloads.one_table import OneTable

TABLE = "jepsen.counters"
ROUND = 40
"""Operations of one process in the same keys."""
FUNCTIONS = {
    "ids": "string_list( )",
    "total": "sum",
    "n": "count",
    "hi": "max",
    "lo": "min",
    "first": "first",
    "last": "last",
    "any": "bool_or",
}


class Counters:
    """Increments of one to four keys, look-ups and scans; in the end the changes as well."""

    name = "counters"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2, 4))
        self._keys = chance.randint(1, 5)
        self._lake = {"format_version": chance.choice((2, 3))}

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        kinds = {"ids": pa.string(), "any": pa.bool_()}
        columns = [pa.field(name, kinds.get(name, pa.int64())) for name in FUNCTIONS]
        schema = pa.schema([pa.field("k", pa.string(), nullable=False), *columns])
        merge = ls.aggregate(FUNCTIONS)
        lake.create_table(TABLE, schema, primary_key=["k"], buckets=self._buckets, merge=merge, lake=self._lake)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Two increments to a read."""
        following = process * SPACING + 1
        for count in range(SPACING):
            keys = [f"{count // ROUND}-{number}" for number in range(self._keys)]
            if chance.random() < 0.35:
                by = chance.choices(("lookup", "scan", "snapshot"), (6, 1, 1))[0]
                yield Invocation("read", {"keys": keys, "by": by})
                continue
            form = chance.choices(("table", "commit", "named", "writer"), (4, 2, 3, 1))[0]
            chosen = [chance.choice(keys) for _ in range(chance.choice((1, 1, 2, 4)))]
            yield Invocation("add", {"form": form, "adds": [[key, following + at] for at, key in enumerate(chosen)]})
            following += len(chosen)

    def last(self, process: int) -> Iterator[Invocation]:
        """One more increment, all rows, and all changes."""
        yield Invocation("add", {"form": "named", "adds": [[f"last-{process}", -1 - process]]})
        yield Invocation("read", {"keys": [f"last-{process}"], "by": "lookup"})
        if process == 0:
            yield Invocation("changes")
            yield Invocation("read", {"keys": None, "by": "scan"})

    def client(self, target: Target, process: int) -> CountersClient:
        """A client of the table."""
        return CountersClient(target.connect(process), process)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that `jepsen.checkers.tallies` finds."""
        return tallies.check(history)


class CountersClient(OneTable):
    """Increments and reads of one connection."""

    def __init__(self, lake: ls.Lake, process: int) -> None:
        super().__init__(lake, TABLE)
        self._producer = Named(lake, f"counters-{process}")

    def invoke(self, invocation: Invocation) -> Any:
        """Do it; the shapes of values are those that `jepsen.checkers.tallies` reads."""
        asked = invocation.value
        match invocation.f:
            case "add":
                self._add(asked["form"], [_row(key, number) for key, number in asked["adds"]])
                return {}
            case "read":
                return {"rows": self._read(asked["keys"], asked["by"])}
            case _:
                return {"steps": self._changes()}

    def _add(self, form: str, rows: list[dict[str, Any]]) -> None:
        match form:
            case "table":
                self._table.upsert(rows)
            case "commit":
                with self._lake.commit() as commit:
                    for row in rows:
                        commit.upsert(TABLE, [row])
            case "writer":
                with self._table.writer() as writer:
                    writer.upsert(rows)
            case _:
                self._producer.commit(str(rows[0]["ids"]), lambda commit: commit.upsert(TABLE, rows))

    def _read(self, keys: list[str] | None, by: str) -> dict[str, Any]:
        if by == "lookup" and keys is not None:
            found = self._table.lookup([{"k": key} for key in keys])
        elif by == "snapshot":
            with self._lake.snapshot() as cut:
                found = cut.scan(TABLE).to_arrow()
        else:
            found = self._table.scan().to_arrow()
        rows = found.to_pylist()
        return {row["k"]: _values(row) for row in rows if keys is None or row["k"] in keys}

    def _changes(self) -> dict[str, list[list[Any]]]:
        """By key, the row before and after each change."""
        found: dict[str, list[list[Any]]] = {}
        before: dict[str, Any] = {}
        for batch in self._table.changes("earliest", until="now", before_images=True):
            for row in batch.to_pylist():
                if row["__change"] == "-U":
                    before[row["k"]] = _values(row)
                else:
                    found.setdefault(row["k"], []).append([before.pop(row["k"], None), _values(row)])
        return found


def _row(key: str, number: int) -> dict[str, Any]:
    amount = delta(number)
    sums = dict.fromkeys(("total", "hi", "lo", "first", "last"), amount)
    return {"k": key, "ids": str(number), **sums, "any": amount % 7 == 0}


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in FUNCTIONS}
