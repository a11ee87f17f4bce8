"""A table that is truncated, renamed, dropped, had back and deleted from by conditions, under writes and reads.

Rows have numbers that are never used twice, so each read tells which writes it has seen, and which of those that took
rows away. Whoever reads does so by either name that the table has, or by a handle from before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly, few
from jepsen.checkers import emptied
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.workload import SPACING, Target

NAMES = ("jepsen.administered", "jepsen.renamed")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.int64())])
PARTS = 4
"""A delete by a condition takes the rows of one part."""
UNDROP_TRIES = 20


class Administered:
    """Writes and reads of one table, and what an administrator does to it."""

    name = "administration"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2, 4))
        self._format = chance.choice((2, 3))

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        options = {"format_version": self._format}
        lake.create_table(NAMES[0], SCHEMA, primary_key=["id"], buckets=self._buckets, lake=options)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly writes and reads."""
        following = process * SPACING
        weights = {"write": 30, "read": 20, "truncate": 2, "delete": 3, "rename": 2, "drop": 2, "undrop": 6}
        while True:
            f = chance.choices(tuple(weights), tuple(weights.values()))[0]
            if f == "write":
                rows = list(range(following, following + chance.choice((1, 1, 3, 20))))
                following += len(rows)
                yield Invocation(f, {"rows": rows})
            elif f == "delete":
                yield Invocation(f, {"part": chance.randrange(PARTS)})
            elif f == "read":
                yield Invocation(f, {"by": chance.choice(("scan", "snapshot", "stream")), "old": chance.random() < 0.3})
            else:
                yield Invocation(f, {})

    def last(self, process: int) -> Iterator[Invocation]:
        """The table is had back, and read by each way."""
        for by in ("scan", "snapshot", "stream") if process == 0 else ():
            yield Invocation("undrop", {})
            yield Invocation("read", {"by": by, "old": False})

    def client(self, target: Target, process: int) -> AdministeredClient:
        """A client that looks for the table under its names."""
        return AdministeredClient(target.connect(process))

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that `jepsen.checkers.emptied` finds."""
        return few(emptied.check(history, PARTS))


class AdministeredClient:
    """One connection."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake
        self._handle: ls.Table | None = None

    def invoke(self, invocation: Invocation) -> Any:
        """Do it; a table that is not there is a failed call."""
        f, value = invocation.f, invocation.value
        if f == "undrop":
            return self._undrop()
        table = self._table(old=value.get("old", False))
        if f == "write":
            table.upsert([{"id": number, "part": number % PARTS} for number in value["rows"]])
        elif f == "read":
            return {**value, "rows": self._read(table, value["by"])}
        elif f == "truncate":
            table.truncate()
        elif f == "delete":
            table.delete(where=f"part = {value['part']}")
        elif f == "rename":
            table.rename(NAMES[1 - NAMES.index(table.name)])
        else:
            self._lake.drop_table(table.name)
        return value

    def _table(self, *, old: bool) -> ls.Table:
        if old and self._handle is not None:
            return self._handle
        for name in NAMES:
            with suppress(ls.NotFound):
                self._handle = self._lake.table(name)
                return self._handle
        raise ls.NotFound("the table has neither of its names")

    def _undrop(self) -> dict[str, Any]:
        """Have the table back if it is dropped. Other workloads drop tables of their own on the same server."""
        dropped = [each for each in self._lake.dropped_tables() if each.name in NAMES]
        if not dropped:
            return {"done": False}
        self._lake.undrop(dropped[0].name, uuid=dropped[0].uuid)
        return {"done": True}

    def _read(self, table: ls.Table, by: str) -> list[int]:
        """The numbers of all rows, as this way of reading has them; of a stream those of its fold."""
        if by == "snapshot":
            with self._lake.snapshot() as cut:
                return sorted(cut.scan(table.name).to_arrow()["id"].to_pylist())
        if by == "scan":
            return sorted(table.scan().to_arrow()["id"].to_pylist())
        live: list[int] = []
        with table.changes("earliest", until="now") as stream:
            for batch in stream:
                for row in batch.to_pylist():
                    if row["__change"] == "-D":
                        live.remove(row["id"])
                    else:
                        live.append(row["id"])
        return sorted(live)

    def close(self) -> None:
        """End the connection."""
        self._lake.close()
