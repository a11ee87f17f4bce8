"""Changelogs: what consumers of every kind fold is the table, of every merge engine, whatever is broken meanwhile.

Writers upsert, delete, insert and update parts, in commits over several keys and tables; each row names itself in `by`.
Consumers read with and without images of the row before, filtered, with some columns, from the start, a snapshot, a
token or a time, at one go or as they come, and each read ends with a scan at its end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers.consumers import PREFIX, Consumer, Consumers
from jepsen.history import History
from jepsen.operation import SHAPE, Invocation
from jepsen.workload import SPACING, Target
from jepsen.workloads.following import plain, take, take_begun, told

ENGINES: dict[str, Any] = {
    "upsert": "upsert",
    "skipping": "upsert",
    "partial": "partial",
    "first_row": "first_row",
    "versioned": ls.versioned("a"),
    "aggregate": ls.aggregate({"a": "sum", "b": "last", "by": "last"}),
}
COLUMNS = ("id", "a", "b", "by")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.string()), ("by", pa.int64())]
)
CONDITIONS = ("a > 50", "a < 30 AND b IS NOT NULL", "b = 'x' OR id < 3")
COUNTS = ("inserted", "updated", "deleted", "not_found", "ignored", "unchanged", "folded")
QUIET_SECONDS, LIVE_SECONDS, LIVE_BATCHES, READ_SECONDS = 0.05, 1.0, 20, 20.0
KEPT_TIMES = 20
RESTS_SECONDS = 0.0, 0.3, 0.6, 0.9
"""The rest of a consumer within its snapshot."""
BEGUN_WEIGHTS = 5, 5, 40
"""The weight of reads that begin an endless stream with a snapshot, of which each run draws one, beside others' 95."""


class Changelog:
    """Writes of every sort, and consumers of every kind."""

    name = "changelog"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._engines = chance.sample(sorted(ENGINES), chance.randint(2, 4))
        self._buckets = {engine: chance.choice((1, 2, 4)) for engine in self._engines}
        self._keys = chance.choice((3, 10, 60))
        self._padding = chance.choice((0, 0, 500))
        self._consumers = [Consumer(tuple(self._engines), images=True), Consumer((self._engines[0],))]
        for _ in range(4):
            tables = tuple(chance.sample(self._engines, chance.randint(1, len(self._engines))))
            where = chance.choice(("", *CONDITIONS))
            columns = chance.choice(((), ("id", "a"), ("id", "b")))
            self._consumers.append(Consumer(tables, images=chance.random() < 0.5, where=where, columns=columns))
        self._weights = 60, 15, 20, chance.choice(BEGUN_WEIGHTS)

    def setup(self, lake: ls.Lake) -> None:
        """Make a table for each engine."""
        for engine in self._engines:
            skips = engine == "skipping"
            lake.create_table(
                _name(engine),
                SCHEMA,
                primary_key=["id"],
                buckets=self._buckets[engine],
                merge=ENGINES[engine],
                skip_unchanged=skips,
            )

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """The shape of the run first; then writes, and reads of one consumer each."""
        yield Invocation(SHAPE, [asdict(each) for each in self._consumers])
        following = process * SPACING
        while True:
            f = chance.choices(("write", "read", "live", "begin"), self._weights)[0]
            if f == "write":
                count = chance.choice((1, 1, 2, 3))
                changes = [
                    self._change(engine, chance)
                    for engine in chance.sample(self._engines, min(count, len(self._engines)))
                ]
                for change in changes:
                    for row in change["rows"] if change["kind"] != "delete" else ():
                        if change["table"] != "skipping":
                            row["by"] = following
                            following += 1
                yield Invocation(f, changes)
                continue
            starts = ("resume", "resume", "resume", "earliest", "snapshot", "time") if f == "read" else ("resume",)
            consumer = chance.randrange(len(self._consumers))
            asked = {"consumer": consumer, "start": chance.choice(starts), "back": chance.randrange(KEPT_TIMES)}
            if f == "begin":
                first = {"consumer": 0} if chance.random() < 0.5 else {}  # who is told the most, in the most pieces
                asked |= {**first, "start": "snapshot", "rest": chance.choice(RESTS_SECONDS)}
            yield Invocation("read" if f == "read" else "live", asked)

    def _change(self, engine: str, chance: random.Random) -> dict[str, Any]:
        kind = chance.choices(("upsert", "delete", "insert"), (70, 22, 8))[0]
        keys = chance.sample(range(self._keys), chance.randint(1, min(self._keys, chance.choice((1, 3, 20)))))
        if engine == "upsert" and kind == "upsert" and chance.random() < 0.2:
            keys += chance.choices(keys, k=chance.randint(1, 2))  # whose rows follow one another
        if kind == "delete":
            return {"table": engine, "kind": kind, "rows": [{"id": key} for key in keys]}
        few = engine == "skipping"
        rows = []
        for key in keys:
            row = {
                "id": key,
                "a": chance.randrange(3 if few else 100),
                "b": chance.choice((None, "x", "y" + "z" * self._padding)),
            }
            if engine == "partial":
                row.pop(chance.choice(("a", "b", "id")) if chance.random() < 0.7 else "", None)
            rows.append({**row, "id": key})
        return {"table": engine, "kind": kind, "rows": rows}

    def last(self, process: int) -> Iterator[Invocation]:
        """Every consumer reads to the end, the first process's also from the start."""
        for consumer in range(len(self._consumers)):
            if process == 0:
                yield Invocation("read", {"consumer": consumer, "start": "earliest", "back": 0})
                yield Invocation("read", {"consumer": consumer, "start": "snapshot", "back": 0})
            yield Invocation("live", {"consumer": consumer, "start": "resume", "back": 0})

    def client(self, target: Target, process: int) -> ChangelogClient:
        """A writer, and a consumer of each kind."""
        return ChangelogClient(target.connect(process), self._consumers)

    def check(self, history: History) -> Sequence[Anomaly]:
        """Everything that a changelog must not say."""
        shape = history.shape()
        consumers = [Consumer(**each) for each in shape] if shape else self._consumers
        return Consumers(consumers, history).anomalies()


class ChangelogClient:
    """Writes and streams of one connection."""

    def __init__(self, lake: ls.Lake, consumers: Sequence[Consumer]) -> None:
        self._lake, self._consumers = lake, consumers
        self._tokens: dict[int, str] = {}
        """The place that the reads of each consumer have come to."""
        self._live: dict[int, ls.ChangeStream] = {}
        self._times: list[str] = []

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        if invocation.f == SHAPE:
            return invocation.value
        if invocation.f == "write":
            return self._write(invocation.value)
        number = invocation.value["consumer"]
        if invocation.f == "live":
            rest = invocation.value.get("rest")
            return self._follow(number) if rest is None else self._begin(number, rest)
        return self._read(number, invocation.value["start"], invocation.value["back"])

    def _write(self, changes: list[dict[str, Any]]) -> dict[str, Any]:
        with self._lake.commit() as commit:
            for change in changes:
                add = {"upsert": commit.upsert, "delete": commit.delete, "insert": commit.insert_if_absent}[
                    change["kind"]
                ]
                add(_name(change["table"]), change["rows"])
        counts = {change["table"]: dict.fromkeys(COUNTS, 0) for change in changes}
        for result in commit.results:  # rows that name other columns have results of their own
            for name in COUNTS:
                counts[result.table.removeprefix(PREFIX)][name] += getattr(result, name)
        return {"changes": changes, "counts": counts}

    def _read(self, number: int, start: str, back: int) -> dict[str, Any]:
        """All changes up to now, from where the consumer's last read ended or from elsewhere."""
        begin = self._tokens.get(number, "") if start == "resume" else start
        if start == "time":
            begin = self._times[-1 - back % len(self._times)] if self._times else ""
        if not begin:
            start = begin = "earliest"
        stream = self._stream(number, begin, "now")
        try:
            batches = take(stream, READ_SECONDS, 1_000_000, READ_SECONDS)
        finally:
            stream.close()
        times = [change[4] for batch in batches for change in told(batch)["rows"] if not batch.snapshot]
        self._times = [*self._times, *times][-KEPT_TIMES:]
        answer = self._told(number, start, begin, batches, stream.token)
        if start != "time":
            self._tokens[number] = stream.token
        return answer

    def _follow(self, number: int) -> dict[str, Any]:
        """The batches that an endless stream gives now; it is opened from the start if it is not open."""
        start = "" if number in self._live else "earliest"
        stream = self._live.setdefault(number, self._stream(number, "earliest", None)) if start else self._live[number]
        try:
            batches = take(stream, QUIET_SECONDS, LIVE_BATCHES, LIVE_SECONDS)
            if batches and not batches[-1].whole:
                self._live.pop(number).close()  # parts of a commit are told, and the next call begins anew
            return self._told(number, start, start, batches, _come_to(batches))
        except ls.LakestoreError:
            if live := self._live.pop(number, None):
                live.close()  # what it gave is not told, so nothing may follow behind it
            raise

    def _begin(self, number: int, rest: float) -> dict[str, Any]:
        """A snapshot and what follows it, by an endless stream that takes the place of the one before."""
        if live := self._live.pop(number, None):
            live.close()
        stream = self._stream(number, "snapshot", None)
        try:
            batches = take_begun(stream, rest, QUIET_SECONDS, LIVE_SECONDS)
            answer = self._told(number, "snapshot", "snapshot", batches, _come_to(batches))
        except ls.LakestoreError:
            stream.close()
            raise
        if batches and not batches[-1].whole:
            stream.close()  # as in `_follow`
        else:
            self._live[number] = stream
        return answer

    def _stream(self, number: int, start: str, until: str | None) -> ls.ChangeStream:
        consumer = self._consumers[number]
        return self._lake.changes(
            [_name(table) for table in consumer.tables],
            start,
            until=until,
            before_images=consumer.images,
            columns=consumer.columns or None,
            where=consumer.where or None,
        )

    def _told(self, number: int, start: str, begin: str, batches: list[ls.ChangeBatch], token: str) -> dict[str, Any]:
        """Changes with a scan at their end, if it lies behind whole commits."""
        consumer, scans = self._consumers[number], {}
        if token and (not batches or batches[-1].whole):
            cut = self._lake.at(token)
            for table in consumer.tables:
                columns = list(consumer.columns or COLUMNS)
                rows = cut.scan(_name(table), columns, consumer.where or None).to_arrow().to_pylist()
                scans[table] = [plain(row) for row in rows]
        found = [told(batch) for batch in batches]
        return {"consumer": number, "start": start, "begin": begin, "batches": found, "token": token, "scans": scans}

    def close(self) -> None:
        """End all streams and the connection."""
        for stream in self._live.values():
            stream.close()
        self._lake.close()


def _come_to(batches: Sequence[ls.ChangeBatch]) -> str:
    """The token behind the last batch; empty inside of a snapshot, whose rest is not told."""
    return batches[-1].token if batches and not batches[-1].snapshot else ""


def _name(engine: str) -> str:
    return f"{PREFIX}{engine}"
