"""Logs that are let go: only what the lake has, and what no subscription, lease or reader's snapshot still needs.

A log table whose retention is seconds is tiered all the while. Processes keep positions to go on from, hold cuts for a
while, and read from the log's start. At first one of them reads a subscription slowly, which holds the log of all; once
that moves it lets go of it, and the log follows the lake.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import kept as checker
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.rows import PLACED, listed
from jepsen.workload import SPACING, TROUBLES, Target, trouble

TABLE = "jepsen.retained"
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("weight", pa.string())])
COLUMNS = (*PLACED, "n")
WEIGHT = "x" * 1_000
"""Journals must fill: what goes is whole segments, which checkpoints cut."""
WAIT_SECONDS = 0.3
POSITIONS_MAX = 5
LATE = "late"
"""The subscription, which process 0 reads."""
FORGET_EVERY = 10
"""After so many operations process 0 looks whether the log moves."""
HOLDER = 1
"""The process that holds cuts, for what it holds stays in the log."""
LET_GO_SECONDS, MOVES_SECONDS = 6.0, 15.0
"""Time in which the tierer and the server's duty come round once more, and for the first time."""


class Retained:
    """Appends, and readers that are late."""

    name = "retention"
    needs: frozenset[str] = frozenset({"tierer"})

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2))
        self._retention = chance.choice(({"age": "1s"}, {"bytes": "1KB"}, {"age": "2s", "bytes": "4KB"}))
        self.settings: Mapping[str, str] = {
            "LAKESTORE_RETENTION_CHECK_SECONDS": "0.3",
            "LAKESTORE_LEASE_GRACE_SECONDS": chance.choice(("0", "2")),
            "LAKESTORE_LIMITS_JOURNAL_CHECKPOINT_BYTES": chance.choice(("16384", "65536")),
        }
        """Only whole segments go, and none within a grace time, so both are small."""

    def setup(self, lake: ls.Lake) -> None:
        """Make the table, and the subscription before anything of the table can go."""
        options = {"freshness": "1s"}
        made = lake.create_table(TABLE, SCHEMA, buckets=self._buckets, retention=self._retention, lake=options)
        stream = made.changes(subscription=LATE)
        stream.next(WAIT_SECONDS)
        stream.close()

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly appends."""
        numbers = itertools.count(process * SPACING)
        for done in itertools.count():
            draw = chance.random()
            if process == 0 and done % FORGET_EVERY == FORGET_EVERY - 1:
                yield Invocation("take", {"subscription": LATE, "ack": True})
                yield Invocation("forget", {"subscription": LATE, "always": False})
            elif draw < 0.6:
                yield Invocation("append", list(itertools.islice(numbers, chance.randint(1, 20))))
            elif draw < 0.75 and process == 0:
                yield Invocation("take", {"subscription": LATE, "ack": chance.random() < 0.8})
            elif draw < 0.82:
                yield Invocation("earliest")
            elif draw < 0.92:
                yield Invocation("resume", chance.randrange(POSITIONS_MAX))
            elif draw < 0.98 and process == HOLDER:
                yield Invocation("hold", round(chance.uniform(0.5, 4.0), 3))
            else:
                yield Invocation("snapshot")
            yield Invocation("pause", round(chance.uniform(0.0, 0.3), 3))

    def last(self, process: int) -> Iterator[Invocation]:
        """The rest that the subscription has to give, and the whole table."""
        if process == 0:
            yield Invocation("drain", {"subscription": LATE})
            yield Invocation("forget", {"subscription": LATE, "always": True})
        yield Invocation("snapshot")
        yield Invocation("earliest")
        yield Invocation("pause", LET_GO_SECONDS)
        yield Invocation("resume", 0)
        yield Invocation("earliest")
        yield Invocation("snapshot")

    def client(self, target: Target, process: int) -> RetentionClient:
        """A writer, and a late reader."""
        return RetentionClient(target.connect(process))

    def check(self, history: History) -> Sequence[Anomaly]:
        """Rows that are missing somewhere."""
        return checker.check(history)


class RetentionClient:
    """Appends and reads of one connection."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake
        self._positions: list[tuple[str, dict[str, int]]] = []
        self._has_moved = False

    def invoke(self, invocation: Invocation) -> Any:
        """Do it. Rows are `[bucket, offset, n]`."""
        value = invocation.value
        match invocation.f:
            case "append":
                self._lake.table(TABLE).append([{"n": n, "weight": f"{n}{WEIGHT}"} for n in value])
                return value
            case "pause":
                time.sleep(value)
                return value
            case "take":
                return {**value, **self._take(value["subscription"], ack=value["ack"])}
            case "drain":
                return {**value, **self._drain(value["subscription"])}
            case "forget":
                return {**value, "done": self._forget(value["subscription"], always=value["always"])}
            case "earliest":
                return self._earliest()
            case "resume":
                return self._resume(value)
            case "hold":
                return self._hold(value)
            case _:
                return self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        """All rows, as a stream begins with them."""
        try:
            batches = self._lake.table(TABLE).changes(start="snapshot", until="now")
            return {"rows": [row for batch in batches for row in listed(batch.table, *COLUMNS)], "expired": ""}
        except ls.PositionExpired as error:
            return {"rows": [], "expired": error.message}

    def _take(self, name: str, *, ack: bool) -> dict[str, Any]:
        """The next whole commits of a subscription, if it is there, whose stream is opened and closed again.

        A batch whose commit goes on in the next one has its token before its rows: to acknowledge it moves nothing.
        """
        rows: list[list[int]] = []
        acked, troubles = "", list[str]()
        if not self._is_there(name):
            return {"rows": rows, "acked": acked, "expired": ""}
        try:
            stream = self._lake.table(TABLE).changes(subscription=name)
        except ls.PositionExpired as error:
            return {"rows": rows, "acked": acked, "expired": error.message}
        try:
            while batch := stream.next(WAIT_SECONDS):
                rows += listed(batch.table, *COLUMNS)
                if batch.whole:
                    break
            if batch and ack:
                try:
                    batch.ack()
                    acked = "yes"
                except ls.LakestoreError as error:
                    acked = "unknown"  # the rows are told in any case
                    troubles.append(trouble(error))
            return {"rows": rows, "acked": acked, "expired": "", TROUBLES: troubles}
        except ls.PositionExpired as error:
            return {"rows": rows, "acked": acked, "expired": error.message, TROUBLES: troubles}
        finally:
            stream.close()

    def _is_there(self, name: str) -> bool:
        """Whether the server has a subscription. One whose log has gone cannot even be listed: its read tells that."""
        try:
            return any(each.name == name for each in self._lake.subscriptions())
        except ls.PositionExpired:
            return True

    def _forget(self, name: str, *, always: bool) -> bool:
        """Drop a subscription, if need be only when the log was seen to move twice; whether that is done."""
        had, self._has_moved = self._has_moved, self._moves()
        if not always and not (had and self._has_moved):
            return False
        with suppress(ls.NotFound):  # so says a second try
            self._lake.drop_subscription(name)
        return True

    def _moves(self) -> bool:
        """Whether the log does not begin with the first row any more."""
        return any({bucket: offset for bucket, offset, _ in reversed(self._earliest())}.values())

    def _drain(self, name: str) -> dict[str, Any]:
        """All that a subscription has to give, if it is there, once the lake has come up and the log may move."""
        rows: list[list[int]] = []
        if not self._is_there(name):
            return {"rows": rows, "expired": ""}
        deadline = time.monotonic() + MOVES_SECONDS
        while not self._moves() and time.monotonic() < deadline:
            time.sleep(WAIT_SECONDS)
        time.sleep(LET_GO_SECONDS)
        try:
            for batch in self._lake.table(TABLE).changes(subscription=name, until="now"):
                rows += listed(batch.table, *COLUMNS)
        except ls.PositionExpired as error:
            return {"rows": rows, "expired": error.message}
        return {"rows": rows, "expired": ""}

    def _earliest(self) -> list[list[int]]:
        """All that the log has. Every other position is kept to go on from."""
        found: list[list[int]] = []
        ends: dict[str, int] = {}
        for batch in self._lake.table(TABLE).changes(start="earliest", until="now"):
            rows = listed(batch.table, *COLUMNS)
            found += rows
            ends.update({str(bucket): offset for bucket, offset, _ in rows})
            if batch.whole:
                self._positions = [*self._positions[-POSITIONS_MAX + 1 :], (batch.token, dict(ends))]
        return found

    def _resume(self, which: int) -> dict[str, Any]:
        """Go on from a position of before; `ends` has the last offset of each bucket that was read up to there."""
        if not self._positions:
            return {"ends": {}, "rows": [], "expired": False}
        token, ends = self._positions[which % len(self._positions)]
        try:
            batches = list(self._lake.table(TABLE).changes(start=token, until="now"))
        except ls.PositionExpired as error:
            return {"ends": ends, "rows": [], "expired": True, "earliest": bool(error.earliest)}
        return {
            "ends": ends,
            "rows": [row for batch in batches for row in listed(batch.table, *COLUMNS)],
            "expired": False,
        }

    def _hold(self, seconds: float) -> dict[str, Any]:
        """Two scans of one cut."""
        with self._lake.snapshot() as cut:
            first = listed(cut.scan(TABLE, columns=COLUMNS).to_arrow(), *COLUMNS)
            time.sleep(seconds)
            try:
                second = listed(cut.scan(TABLE, columns=COLUMNS).to_arrow(), *COLUMNS)
            except (ls.PositionExpired, ls.NotFound) as error:
                return {"first": len(first), "lost": f"{error.kind}: {error.message}", "same": False}
        return {"first": len(first), "lost": "", "same": sorted(first) == sorted(second)}

    def close(self) -> None:
        """End the connection."""
        self._lake.close()
