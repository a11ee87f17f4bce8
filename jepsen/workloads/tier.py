"""The lake: what the tierer brings there is the fold of the changelog at its tier point, as engines that are not ours
read it, whoever is killed, paused or a zombie; reads of a presented cut and union reads are that fold, too."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen import engines
from jepsen.anomaly import Anomaly
from jepsen.checkers import lake as checker
from jepsen.engines import answering
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.workload import SPACING, Target

KEYED, LOG = "jepsen.tiered", "jepsen.tiered_log"
TABLES = {"keyed": KEYED, "log": LOG}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
HOT_KEYS = 20
"""Keys that are written anew when the lake is level: a union read has rows of both then."""
TIERED_SECONDS = 150.0
"""After everything has healed the lake is level with the log within this time, Spark's start included."""
LANDED_SECONDS = 30.0
"""A compaction takes seconds. One whose tierer was killed leaves its branch, which is no anomaly."""
LOOK_SECONDS = 1.0


class Tier:
    """Upserts, deletes and appends; reads by foreign engines and by the union."""

    name = "tier"
    needs: frozenset[str] = frozenset({"tierer"})

    def __init__(self, chance: random.Random) -> None:
        self._buckets = {name: chance.choice((1, 2, 3)) for name in TABLES}
        self._lake = {
            name: {"freshness": chance.choice(("1s", "2s")), "format_version": chance.choice((2, 2, 3))}
            for name in TABLES
        }
        self._keys = chance.choice((5, 50, 500))
        self._rows = chance.choice((3, 30))

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables."""
        for name, table in TABLES.items():
            key = ["id"] if name == "keyed" else None
            lake.create_table(table, SCHEMA, primary_key=key, buckets=self._buckets[name], lake=self._lake[name])

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly writes, with pauses: the tierer is slow."""
        numbers = itertools.count(process * SPACING)
        while True:
            how = chance.random()
            table = chance.choice(tuple(TABLES))
            if how < 0.5:
                yield self._write(numbers, chance)
            elif how < 0.7:
                yield Invocation("append", list(itertools.islice(numbers, chance.randint(1, self._rows))))
            elif how < 0.8:
                yield Invocation("lake", {"table": table, "engine": chance.choice(tuple(engines.ENGINES))})
            elif how < 0.9:
                yield Invocation("cut", {"table": table, "engine": chance.choice(tuple(engines.ENGINES))})
            else:
                yield Invocation("scan", {"table": table})
            yield Invocation("pause", round(chance.uniform(0.0, 0.4), 3))

    def _write(self, numbers: Iterator[int], chance: random.Random) -> Invocation:
        count = min(chance.randint(1, self._rows), self._keys)
        ids = chance.sample(range(self._keys), count)
        dead = chance.randint(0, count // 3)
        upserts = [[each, next(numbers)] for each in ids[dead:]]
        return Invocation("write", {"upsert": upserts, "delete": ids[:dead]})

    def last(self, process: int) -> Iterator[Invocation]:
        """The lake when it is level with the log, by all engines; and the changelog, which says how all must be."""
        if process == 0:
            for table in TABLES:
                yield Invocation("level", {"table": table})
                for engine in engines.ENGINES:
                    yield Invocation("lake", {"table": table, "engine": engine})
                    yield Invocation("cut", {"table": table, "engine": engine})
                if self._lake[table]["format_version"] == 2:
                    yield Invocation("deletes", {"table": table})
                yield Invocation("scan", {"table": table})
                if table == "keyed":
                    fresh = [[each, SPACING - 1 - each] for each in range(min(self._keys, HOT_KEYS))]
                    yield Invocation("hot", {"table": table, "upsert": fresh, "delete": []})
                    yield Invocation("level", {"table": table})
                    yield Invocation("landed", {"table": table})
                    yield from (Invocation("lake", {"table": table, "engine": engine}) for engine in engines.ENGINES)
                yield Invocation("changelog", {"table": table})

    def client(self, target: Target, process: int) -> TierClient:
        """A writer, and a reader by engines of its own."""
        return TierClient(target, process)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that can be wrong with a lake."""
        return checker.check(history)


class TierClient:
    """Writes and reads of one process."""

    def __init__(self, target: Target, process: int) -> None:
        self._lake, self._catalog = target.connect(process), target.catalog
        self._patience = TIERED_SECONDS

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        value = invocation.value
        match invocation.f:
            case "write":
                return self._write(value)
            case "append":
                self._lake.table(LOG).append([{"id": n, "v": n} for n in value])
                return value
            case "pause":
                time.sleep(value)
                return value
            case "scan":
                return {**value, "rows": self._scan(value["table"])}
            case "hot":
                return {**self._write(value), "rows": self._scan(value["table"])}
            case "changelog":
                return {**value, "changes": self._changes(value["table"])}
            case "level":
                return self._level(value)
            case "landed":
                return self._landed(value)
            case _:
                return self._by_engine(invocation)

    def _write(self, value: dict[str, Any]) -> dict[str, Any]:
        with self._lake.commit() as commit:
            if value["delete"]:
                commit.delete(KEYED, [{"id": each} for each in value["delete"]])
            commit.upsert(KEYED, [{"id": each, "v": v} for each, v in value["upsert"]])
        return value

    def _by_engine(self, invocation: Invocation) -> dict[str, Any]:
        value = invocation.value
        try:
            with answering():
                match invocation.f:
                    case "lake":
                        return {**value, **self._of_lake(value["table"], value["engine"])}
                    case "cut":
                        return {**value, **self._of_cut(value["table"], value["engine"])}
                    case _:
                        found = engines.deletes(engines.load(self._catalog, "lake", TABLES[value["table"]]))
                        return {**value, "hits": found.hits, "dangling": found.dangling, **self._point(value["table"])}
        except engines.MissingFile as error:
            return {**value, "missing": str(error)}

    def _of_lake(self, name: str, engine: str) -> dict[str, Any]:
        """The newest snapshot and its rows."""
        told = self._point(name)
        rows = engines.ENGINES[engine](self._catalog, "lake", TABLES[name], told["snapshot"]) if told["point"] else []
        return {**told, "rows": rows}

    def _of_cut(self, name: str, engine: str) -> dict[str, Any]:
        """The rows at the head of this moment, by an engine and by a scan."""
        with self._lake.snapshot() as cut:
            scanned = engines.rows(cut.scan(TABLES[name], columns=list(engines.COLUMNS)).to_arrow())
            rows = engines.ENGINES[engine](self._catalog, f"at:{cut.token}", TABLES[name])
            return {"token": cut.token, "rows": rows, "scanned": scanned}

    def _point(self, name: str) -> dict[str, Any]:
        found = engines.tiered(engines.load(self._catalog, "lake", TABLES[name]))
        if found is None:
            return {"snapshot": 0, "point": []}
        return {"snapshot": found.snapshot, "point": list(found.point)}

    def _level(self, value: dict[str, Any]) -> dict[str, Any]:
        """Wait until the lake has what the log has now.

        After one wait in vain each later call looks once: the run must be judged before its caller ends it.
        """
        heads = _heads(self._changes(value["table"]))
        deadline, point, trouble = time.monotonic() + self._patience, [], ""
        while True:
            try:
                with answering():
                    point = self._point(value["table"])["point"]
                if all(point[bucket] >= head for bucket, head in heads.items()) if point else not heads:
                    return {**value, "done": True, "point": point, "trouble": ""}
            except ls.LakestoreError as error:
                trouble = error.message
            if time.monotonic() >= deadline:
                self._patience = 0.0
                return {**value, "done": False, "point": point, "trouble": trouble}
            time.sleep(LOOK_SECONDS)

    def _landed(self, value: dict[str, Any]) -> dict[str, Any]:
        """Wait until no compaction is under way: the lake can be level before one lands."""
        deadline, left = time.monotonic() + LANDED_SECONDS, ["unknown"]
        while True:
            with suppress(ls.LakestoreError), answering():
                left = engines.branches(engines.load(self._catalog, "lake", TABLES[value["table"]]))
            if not left or time.monotonic() >= deadline:
                return {**value, "branches": left}
            time.sleep(LOOK_SECONDS)

    def _scan(self, name: str) -> list[list[int]]:
        return engines.rows(self._lake.table(TABLES[name]).scan(list(engines.COLUMNS)).to_arrow())

    def _changes(self, name: str) -> list[list[Any]]:
        return [
            [row["__bucket"], row["__offset"], row["__change"], row["id"], row["v"]]
            for batch in self._lake.table(TABLES[name]).changes(until="now")
            for row in batch.to_pylist()
        ]

    def close(self) -> None:
        """End the connection."""
        self._lake.close()


def _heads(changes: Sequence[Sequence[Any]]) -> dict[int, int]:
    heads: dict[int, int] = {}
    for bucket, offset, *_ in changes:
        heads[bucket] = max(heads.get(bucket, 0), offset + 1)
    return heads
