"""A log: unique integers are appended, polled and scanned; nothing is lost, doubled, moved, torn or invented."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.workload import Target

TABLE = "jepsen.log"
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
SPACING = 1 << 32
"""Each process appends numbers of its own: its number times this, and counting."""


class Log:
    """Appends of one to five numbers, and scans."""

    name = "log"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2, 3))

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        lake.create_table(TABLE, SCHEMA, buckets=self._buckets)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly appends."""
        following = process * SPACING
        while True:
            if chance.random() < 0.1:
                yield Invocation("scan")
                continue
            count = chance.randint(1, 5)
            yield Invocation("append", list(range(following, following + count)))
            following += count

    def last(self, process: int) -> Iterator[Invocation]:
        """One scan."""
        yield Invocation("scan")

    def client(self, target: Target, process: int) -> LogClient:
        """A client of the table."""
        return LogClient(target.connect(process))

    def check(self, history: History) -> Sequence[Anomaly]:
        """Lost, doubled and invented numbers."""
        tried = {n for call in history.calls("append") for n in call.invoked.value}
        acknowledged = {n for call in history.calls("append") if call.kind == "ok" for n in call.invoked.value}
        last = history.calls("scan")[-1]
        found = [n for _, _, n in last.value or []]
        lost, phantom = acknowledged - set(found), set(found) - tried
        doubled = len(found) - len(set(found))
        anomalies = []
        if lost:
            anomalies.append(Anomaly("lost", f"{len(lost)} acknowledged numbers are gone, as {min(lost)}"))
        if phantom:
            anomalies.append(Anomaly("phantom", f"{len(phantom)} numbers were never appended, as {min(phantom)}"))
        if doubled:
            anomalies.append(Anomaly("duplicate", f"{doubled} numbers are there twice"))
        return anomalies


class LogClient:
    """Appends and scans of one connection."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake

    def invoke(self, invocation: Invocation) -> Any:
        """The numbers with their places, as [bucket, offset, number]."""
        table = self._lake.table(TABLE)
        if invocation.f == "append":
            table.append([{"n": n} for n in invocation.value])
            return invocation.value
        rows = table.scan(columns=["__bucket", "__offset", "n"]).to_arrow()
        return [list(row.values()) for row in rows.to_pylist()]

    def close(self) -> None:
        """End the connection."""
        self._lake.close()
