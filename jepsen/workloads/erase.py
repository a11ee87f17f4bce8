"""Rows with recognisable values are written and erased, in a table with a key and in a log table.

1. A process never writes a row again once it has asked for its erasure. The rows are found when the server's duty runs,
   so nobody else writes them either.
2. One erasure is of one table. It needs a tierer to end, and a second one of the table waits for it.
3. After everything has healed all erasures end. Then every way to read, and a search for bytes, looks for the rows.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

import lakestore as ls
from jepsen import engines, raw_bytes
from jepsen.anomaly import Anomaly, few
from jepsen.checkers import erasures
from jepsen.checkers.erasures import DELETED
from jepsen.engines import answering
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.rows import listed
from jepsen.workload import SPACING, Target

TABLES = {"keyed": "jepsen.erased", "log": "jepsen.erased_log"}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False), ("mark", pa.string())]
)
MARK = re.compile(rb"e(\d{12})x")
"""The text of a row: Iceberg keeps 16 characters of it as a bound."""
WAYS = "scan", "lookup", "changes", "lake", "cut"
ENDED_SECONDS = 240.0
"""After everything has healed all erasures end within this time, Spark's start and rounds included."""
LOOK_SECONDS = 1.0


def mark(number: int) -> str:
    """The text of a row."""
    return f"e{number:012d}x"


class Erased:
    """Writes, erasures and reads of two tables."""

    name = "erase"
    needs: frozenset[str] = frozenset({"tierer"})

    def __init__(self, chance: random.Random) -> None:
        self._buckets = {name: chance.choice((1, 2, 3)) for name in TABLES}
        self._lake = {
            name: {"freshness": chance.choice(("1s", "2s")), "format_version": chance.choice((2, 2, 3))}
            for name in TABLES
        }
        self._retention = chance.choice((None, {"bytes": 1}))

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables."""
        for name, table in TABLES.items():
            about: dict[str, Any] = {"buckets": self._buckets[name], "lake": self._lake[name]}
            key = ["id"] if name == "keyed" else None
            lake.create_table(table, SCHEMA, primary_key=key, retention=self._retention, **about)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly writes and reads; each row that is erased was written by the same process."""
        numbers, own = itertools.count(process * SPACING), {name: dict[int, int]() for name in TABLES}
        while True:
            table = chance.choice(tuple(TABLES))
            how = chance.random()
            if how < 0.45 or len(own[table]) < 3:
                yield self._write(table, own[table], numbers, chance)
            elif how < 0.52:
                ids = chance.sample(sorted(own[table]), chance.randint(1, 3))
                for each in ids:
                    del own[table][each]
                yield Invocation("erase", {"table": table, "ids": ids})
            elif how < 0.6:
                yield Invocation("ended", {"table": table})
            else:
                yield self._read(table, sorted(own[table])[:20], chance.choice(WAYS))
            yield Invocation("pause", round(chance.uniform(0.0, 0.4), 3))

    def _write(self, table: str, own: dict[int, int], numbers: Iterator[int], chance: random.Random) -> Invocation:
        ids = list(itertools.islice(numbers, chance.choice((1, 2, 20))))
        if table == "keyed" and own:
            ids += chance.sample(sorted(own), min(len(own), 3))
        rows = [[each, own.get(each, -1) + 1] for each in ids]
        own.update((each, version) for each, version in rows)
        return Invocation("write", {"table": table, "rows": rows})

    def _read(self, table: str, ids: list[int], way: str) -> Invocation:
        way = "scan" if table == "log" and way == "lookup" else way
        return Invocation("read", {"table": table, "way": way, **({"ids": ids} if way == "lookup" else {})})

    def last(self, process: int) -> Iterator[Invocation]:
        """The end of all erasures, then every way to read."""
        if process == 0:
            for table in TABLES:
                yield Invocation("settle", {"table": table})
                yield from (Invocation("read", {"table": table, "way": way}) for way in WAYS if way != "lookup")
            yield Invocation("bytes", {})
            yield Invocation("verified", {})

    def client(self, target: Target, process: int) -> ErasedClient:
        """A client of both tables."""
        return ErasedClient(target, process)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that `jepsen.checkers.erasures` finds."""
        return few(erasures.check(history))


class ErasedClient:
    """One connection, and engines of its own."""

    def __init__(self, target: Target, process: int) -> None:
        self._lake, self._catalog = target.connect(process), target.catalog

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        value = invocation.value
        match invocation.f:
            case "write":
                return self._write(value)
            case "erase":
                where = f"id IN ({', '.join(map(str, value['ids']))})"
                asked = self._lake.table(TABLES[value["table"]]).erase(where=where, within=0)
                return {**value, "erasure": asked.id}
            case "pause":
                time.sleep(value)
                return value
            case "ended":
                return {**value, **self._ended(value["table"])}
            case "settle":
                return {**value, **self._settled(value["table"])}
            case "bytes":
                return {"ids": self._in_bytes()}
            case "verified":
                return {"findings": self._findings()}
            case _:
                return {**value, "rows": self._read(value)}

    def _write(self, value: dict[str, Any]) -> dict[str, Any]:
        table = self._lake.table(TABLES[value["table"]])
        rows = [{"id": each, "v": version, "mark": mark(each)} for each, version in value["rows"]]
        if value["table"] == "keyed":
            table.upsert(rows)
        else:
            table.append(rows)
        return value

    def _read(self, value: dict[str, Any]) -> list[list[int]]:
        """Number and version of each row, or of each change."""
        table = TABLES[value["table"]]
        match value["way"]:
            case "scan":
                return _pairs(self._lake.table(table).scan().to_arrow())
            case "lookup":
                keys = [{"id": each} for each in value["ids"]]
                return _pairs(self._lake.table(table).lookup(keys)) if keys else []
            case "changes":
                batches = self._lake.table(table).changes(until="now")
                return [pair for batch in batches for pair in _pairs(batch.to_arrow())]
            case "lake":
                with answering():
                    return self._by_engine("lake", table)
            case _:
                with self._lake.snapshot() as cut, answering():
                    return self._by_engine(f"at:{cut.token}", table)

    def _by_engine(self, warehouse: str, table: str) -> list[list[int]]:
        return [row[-2:] for row in engines.by_pyiceberg(self._catalog, warehouse, table)]

    def _ended(self, name: str) -> dict[str, Any]:
        """The ids of the erasures that are done, and what the others wait for."""
        found = self._lake.table(TABLES[name]).erasures()
        waiting = {each.id: [each.step, *each.held_back_by] for each in found if not each.is_done}
        return {"done": [each.id for each in found if each.is_done], "waiting": waiting}

    def _settled(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + ENDED_SECONDS
        while (found := self._ended(name))["waiting"] and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return found

    def _in_bytes(self) -> list[int] | None:
        """The numbers of the rows whose bytes are in some file; None if the files are not on this machine."""
        with answering():
            place = urlsplit(engines.load(self._catalog, "lake", TABLES["keyed"]).location())
        folders = [Path(unquote(place.path)), *Path(unquote(place.path)).parents]
        data = next((each for each in folders if (each / "lock").exists()), None)
        if place.scheme not in ("", "file") or data is None:
            return None
        return sorted(int(text) for text in raw_bytes.matches(data, MARK))

    def _findings(self) -> list[str]:
        """The findings of a scan by the server for the rows of all certificates."""
        every = [each for table in TABLES.values() for each in self._lake.table(table).erasures()]
        certificates = [each.certificate for each in every if each.certificate]
        return [finding for each in certificates for finding in self._lake.verify_erased(each).findings]

    def close(self) -> None:
        """End the connection."""
        self._lake.close()


def _pairs(table: pa.Table) -> list[list[int]]:
    """Number and version of each row. A row with the text of another one has a version that nobody wrote."""
    rows = listed(table, "id", "v", "mark")
    return [[each, DELETED if v is None else v if text == mark(each) else -1] for each, v, text in rows]
