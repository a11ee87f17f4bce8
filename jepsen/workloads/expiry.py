"""Rows that expire: each only when its own time is over, whatever the server's clock says; one written anew stays.

The times in the rows come from the clients' clock, which no nemesis touches. Some rows are due soon, others after hours
and days: as long as clocks jump, for a server that believes a jump at once.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import expired as checker
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.rows import PLACED, listed
from jepsen.workload import SPACING, Target

TABLE = "jepsen.expiring"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("seen", pa.timestamp("us", tz="UTC")),
    ]
)
COLUMNS = (*PLACED, "id", "v")
AFTER_SECONDS = 2
SOON, HOURS, DAYS = (-1.0, 3.0), (600.0, 14_400.0), (40_000.0, 200_000.0)
"""Seconds between the clients' time and the times of rows."""
WAIT_SECONDS = 4.0


class Expiring:
    """Upserts with times, and reads."""

    name = "expiry"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2))
        self._keys = chance.choice((10, 100, 1000))
        self._merge = chance.choice(("upsert", "upsert", "partial"))

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        ttl = {"column": "seen", "after": f"{AFTER_SECONDS}s"}
        merge: Any = self._merge
        lake.create_table(TABLE, _schema(merge), primary_key=["id"], buckets=self._buckets, ttl=ttl, merge=merge)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Writes of rows that live for seconds, for days and for ever."""
        numbers = itertools.count(process * SPACING)
        while True:
            if chance.random() < 0.2:
                yield Invocation("scan")
            else:
                keys = chance.sample(range(self._keys), chance.randint(1, 3))
                yield Invocation("upsert", [[key, next(numbers), _life(chance)] for key in keys])
            yield Invocation("pause", round(chance.uniform(0.0, 0.2), 3))

    def last(self, process: int) -> Iterator[Invocation]:
        """Let some rows expire; then all that has happened."""
        if process == 0:
            yield Invocation("pause", WAIT_SECONDS)
            yield Invocation("changelog")
            yield Invocation("scan")

    def client(self, target: Target, process: int) -> ExpiryClient:
        """A writer, and a reader."""
        return ExpiryClient(target.connect(process))

    def check(self, history: History) -> Sequence[Anomaly]:
        """Rows that went too early, and all that does not fit together."""
        return checker.check(history, AFTER_SECONDS)


def _life(chance: random.Random) -> float | None:
    """Seconds from now to a row's time; none of a row that stays."""
    span = chance.choice((SOON, SOON, SOON, HOURS, DAYS, None))
    return None if span is None else round(chance.uniform(*span), 3)


def _schema(merge: str) -> pa.Schema:
    """All columns but the key of a partial table are optional."""
    if merge != "partial":
        return SCHEMA
    return pa.schema([field.with_nullable(field.name != "id") for field in SCHEMA])


class ExpiryClient:
    """Writes and reads of one connection."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake

    def invoke(self, invocation: Invocation) -> Any:
        """Do it. Times are seconds since 1970."""
        match invocation.f:
            case "upsert":
                return self._upsert(invocation.value)
            case "pause":
                time.sleep(invocation.value)
                return invocation.value
            case "scan":
                return listed(self._lake.table(TABLE).scan(columns=COLUMNS).to_arrow(), *COLUMNS)
            case _:
                stream = self._lake.table(TABLE).changes(until="now", before_images=True)
                return {"now": time.time(), "changes": [_told(row) for batch in stream for row in batch.to_pylist()]}

    def _upsert(self, rows: list[list[Any]]) -> list[list[Any]]:
        now = time.time()
        told = [[key, v, None if life is None else now + life] for key, v, life in rows]
        self._lake.table(TABLE).upsert([{"id": key, "v": v, "seen": _moment(seen)} for key, v, seen in told])
        return told

    def close(self) -> None:
        """End the connection."""
        self._lake.close()


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: row[name].timestamp() if row[name] else None for name in ("seen", "__timestamp")}
    return {**{name: row[name] for name in ("__bucket", "__offset", "__change", "id", "v")}, **times}
