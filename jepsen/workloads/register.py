"""Keyed rows as registers: every key's calls have one order that keeps real time, and every read is one cut.

Keys come in groups, which go out of use after a while, so that the history of each is short. Of a group some keys are
anybody's, some are one process's own, and two are twins, which are written by the same commits only.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import registers
from jepsen.checkers.registers import COLUMNS, OWN, TWIN
from jepsen.history import History
from jepsen.operation import SHAPE, Invocation
from jepsen.workload import SPACING, Target
from jepsen.workloads.one_table import OneTable
from jepsen.workloads.tokens import Tokens

TABLE = "jepsen.register"
OWN_KEYS = 8
ROUND = 30
"""Operations of one process in a group of keys."""
TOKENS_KEPT = 32
VERSIONS = 12
ENGINES = ("upsert", "upsert", "partial", "first_row", "versioned")


class Register:
    """Upserts, deletes, inserts, look-ups, prefix look-ups and scans, now and at tokens."""

    name = "register"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self.engine = chance.choice(ENGINES)
        self._buckets = chance.choice((1, 2, 4))
        self._by_group = chance.random() < 0.7
        self._lake = {"format_version": chance.choice((2, 3))}
        self._shared_keys = chance.randint(1, 4)
        self._pad = chance.choice((0, 10, 500, 20_000))
        self.tokens = Tokens(TOKENS_KEPT)

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        needed = [pa.field(name, kind, nullable=False) for name, kind in (("g", pa.int64()), ("k", pa.string()))]
        schema = pa.schema([*needed, *(pa.field(name, pa.int64()) for name in COLUMNS), pa.field("pad", pa.string())])
        lake.create_table(
            TABLE,
            schema,
            primary_key=["g", "k"],
            bucket_key=["g"] if self._by_group else None,
            buckets=self._buckets,
            merge=ls.versioned("v") if self.engine == "versioned" else self.engine,
            lake=self._lake,
        )

    def _group(self, group: int) -> list[str]:
        anybody = [f"{group}/k{number}" for number in range(self._shared_keys)]
        own = [f"{group}/{OWN}{process}" for process in range(OWN_KEYS)]
        return [*anybody, *own, f"{group}/{TWIN}1", f"{group}/{TWIN}2"]

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """The engine, by which answers are judged; then writes and reads in equal parts."""
        yield Invocation(SHAPE, {"engine": self.engine})
        numbers = iter(range(process * SPACING + 1, (process + 1) * SPACING))
        for count in range(SPACING):
            group = count // ROUND * 2 + chance.randrange(2)
            drawn = chance.random()
            if drawn < 0.5:
                yield self._write(process, group, chance, numbers)
            else:
                yield self._read(group, chance)

    def _columns(self, chance: random.Random, numbers: Iterator[int], *, whole: bool = False) -> dict[str, int]:
        number = next(numbers)
        columns = {"a": number, "b": number, "v": chance.randrange(VERSIONS)}
        if self.engine != "versioned":
            del columns["v"]
        if self.engine == "partial" and not whole and chance.random() < 0.5:
            del columns[chance.choice("ab")]
        return columns

    def _write(self, process: int, group: int, chance: random.Random, numbers: Iterator[int]) -> Invocation:
        anybody = [f"{group}/k{number}" for number in range(self._shared_keys)]
        form = chance.choices(("table", "commit", "writer"), (6, 3, 1))[0]
        drawn = chance.random()
        is_delete = chance.random() < 0.2
        if drawn < 0.15:
            return Invocation("insert", {"row": [chance.choice(anybody), self._columns(chance, numbers)]})
        if drawn < 0.3 and self.engine in ("upsert", "partial"):
            columns = self._columns(chance, numbers, whole=True)
            return Invocation(
                "write", {"form": form, "kind": "upsert", "rows": [[f"{group}/{OWN}{process % OWN_KEYS}", columns]]}
            )
        if drawn < 0.45:
            columns = self._deleted(chance) if is_delete else self._columns(chance, numbers)
            rows = [[f"{group}/{TWIN}{number}", columns] for number in (1, 2)]
        else:
            keys = chance.sample(anybody, chance.randint(1, len(anybody)) if chance.random() < 0.3 else 1)
            rows = [[key, self._deleted(chance) if is_delete else self._columns(chance, numbers)] for key in keys]
        return Invocation("write", {"form": form, "kind": "delete" if is_delete else "upsert", "rows": rows})

    def _deleted(self, chance: random.Random) -> dict[str, int]:
        return {"v": chance.randrange(VERSIONS)} if self.engine == "versioned" else {}

    def _read(self, group: int, chance: random.Random) -> Invocation:
        keys = self._group(group)
        by = "token" if chance.random() < 0.3 else "now"
        pick = chance.getrandbits(30)
        drawn = chance.random()
        if drawn < 0.15:
            by = "token" if by == "token" else chance.choice(("now", "snapshot"))
            return Invocation("scan", {"keys": keys, "group": group, "by": by, "pick": pick})
        if drawn < 0.3 and self._by_group:
            return Invocation("prefix", {"keys": keys, "group": group, "by": by, "pick": pick})
        some = sorted(chance.sample(keys, chance.randint(1, len(keys))) if chance.random() < 0.5 else [keys[0]])
        return Invocation("lookup", {"keys": some, "by": by, "pick": pick})

    def last(self, process: int) -> Iterator[Invocation]:
        """All rows."""
        by = ("now", "snapshot")[process % 2]
        yield Invocation("scan", {"keys": None, "group": None, "by": by, "pick": 0})
        probe = [f"-1/probe{process}"]
        yield Invocation("write", {"form": "table", "kind": "delete", "rows": [[probe[0], {}]]})
        yield Invocation("insert", {"row": [f"-{2 + process}/k0", {"a": 1, "b": 1, **self._deleted(random.Random(0))}]})
        yield Invocation("lookup", {"keys": probe, "by": "now", "pick": 0})
        if self._by_group:
            yield Invocation("prefix", {"keys": self._group(0), "group": 0, "by": "now", "pick": 0})

    def client(self, target: Target, process: int) -> RegisterClient:
        """A client of the table."""
        return RegisterClient(target.connect(process), self)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that `jepsen.checkers.registers` finds."""
        return registers.judge(history, self._engine(history))[0]

    def figures(self, history: History) -> dict[str, float]:
        """The size of the search."""
        keys = registers.judge(history, self._engine(history))[1]
        return {"keys": keys.keys, "calls of keys": keys.steps, "undecided keys": len(keys.undecided)}

    def bars(self, history: History) -> Sequence[dict[str, Any]]:
        """Each counterexample as its picture has it."""
        found = registers.judge(history, self._engine(history))[1].counterexamples
        return [each.picture for each in found]

    def _engine(self, history: History) -> str:
        shape = history.shape()
        return str(shape["engine"]) if shape else self.engine

    def pad(self, columns: dict[str, Any]) -> str:
        """The pad of a row: it follows from the columns that are written with it."""
        number = columns.get("a") or columns.get("b") or 0
        return f"{number}:" + "x" * (number * 7_919 % (self._pad + 1))


def _split(key: str) -> dict[str, Any]:
    group, name = key.split("/")
    return {"g": int(group), "k": name}


class RegisterClient(OneTable):
    """Writes and reads of one connection."""

    def __init__(self, lake: ls.Lake, workload: Register) -> None:
        super().__init__(lake, TABLE)
        self._workload = workload

    def invoke(self, invocation: Invocation) -> Any:
        """Do it; the shapes of values are those that `jepsen.checkers.registers` reads."""
        asked = invocation.value
        match invocation.f:
            case "shape":
                return asked
            case "write":
                return self._write(asked["form"], asked["kind"], asked["rows"])
            case "insert":
                return self._insert(*asked["row"])
            case "scan":
                return self._scan(asked)
            case _:
                return self._lookup(asked, is_prefix=invocation.f == "prefix")

    def _rows(self, kind: str, rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
        if kind == "delete":
            return [{**_split(key), **columns} for key, columns in rows]
        return [{**_split(key), **columns, "pad": self._workload.pad(columns)} for key, columns in rows]

    def _write(self, form: str, kind: str, rows: Sequence[Sequence[Any]]) -> Any:
        sent = self._rows(kind, rows)
        said: str | None = None
        token: str
        if form == "table":
            token = told = (self._table.upsert if kind == "upsert" else self._table.delete)(sent)
            names = ("inserted", "updated", "deleted", "not_found", "ignored", "unchanged")
            said = next((name for name in names if getattr(told.result, name)), None) if len(rows) == 1 else None
        elif form == "commit":
            with self._lake.commit() as commit:
                for row in sent:
                    (commit.upsert if kind == "upsert" else commit.delete)(TABLE, [row])
            token = commit.token
        else:
            with self._table.writer() as writer:
                (writer.upsert if kind == "upsert" else writer.delete)(sent)
                token = writer.flush()
        return {"token": self._workload.tokens.keep(str(token)), "said": said}

    def _insert(self, key: str, columns: dict[str, Any]) -> Any:
        table = self._table
        there = self._by_key(table.insert_if_absent(self._rows("insert", [[key, columns]])), [])
        result = table.last_result
        assert result is not None
        return {"token": "", "said": "inserted" if result.inserted else "ignored", "row": there.get(key)}

    def _by_key(self, rows: pa.Table, torn: list[str]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for row in rows.to_pylist():
            key = f"{row['g']}/{row['k']}"
            if key in found:
                torn.append(f"{key} twice")
            found[key] = [row[name] for name in COLUMNS]
            numbers = {row["a"], row["b"]} - {None}
            pads = {self._workload.pad({"a": number}) for number in numbers}
            if row["pad"] not in pads or (len(numbers) > 1 and self._workload.engine != "partial"):
                torn.append(key)
        return found

    def _lookup(self, asked: dict[str, Any], *, is_prefix: bool) -> Any:
        token = self._workload.tokens.pick(asked["pick"]) if asked["by"] == "token" else ""
        keys = [{"g": asked["group"]}] if is_prefix else [_split(key) for key in asked["keys"]]
        torn = list[str]()
        rows = self._by_key(self._table.lookup(keys, at=token or None), torn)
        return {"token": token, "rows": rows, "also": None, "torn": torn}

    def _scan(self, asked: dict[str, Any]) -> Any:
        """A scan; at a token or a snapshot with a look-up of the same keys there."""
        by, group = asked["by"], asked["group"]
        token = self._workload.tokens.pick(asked["pick"]) if by == "token" else ""
        where = None if group is None else f"g = {group}"
        torn = list[str]()
        if by == "snapshot":
            with self._lake.snapshot() as cut:
                rows = self._by_key(cut.scan(TABLE, where=where).to_arrow(), torn)
                token = self._workload.tokens.keep(cut.token)
        else:
            rows = self._by_key(self._table.scan(where=where, at=token or None).to_arrow(), torn)
        also = None
        if token:
            keys = [_split(key) for key in (asked["keys"] or rows)]
            also = self._by_key(self._table.lookup(keys, at=token), torn) if keys else {}
        return {"token": token, "rows": rows, "also": also, "torn": torn}
