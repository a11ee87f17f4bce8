"""The log workload's client: sends by every way of the public client, polls of one consumer, and cuts."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import lakestore as ls
from jepsen.checkers.log_facts import LANES
from jepsen.operation import Invocation
from jepsen.rows import PLACED, listed
from jepsen.workload import TROUBLES, trouble
from jepsen.workloads.named import Named
from jepsen.workloads.tokens import Tokens

POLL_SECONDS = 0.2
TOKENS_KEPT = 64
BATCHES_MAX = 20
"""Batches that one poll takes."""
WHOLE_SECONDS = 20.0
"""A poll waits so long for the rest of a commit."""
SHARED_PRODUCER = "log-anybody"
WAKING = "jepsen.logwaking"
"""A table beside the log's, of which nothing is judged but whether its rows wake a stream."""
WAKE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The tables and their rows."""

    tables: tuple[str, ...]
    body_bytes: int
    """The length of the longest body of most rows."""

    def body(self, number: int) -> bytes:
        """The body that belongs to a number, and to no other one."""
        drawn = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=8).digest()
        long = int.from_bytes(drawn[:4], "big") % (self.body_bytes + 1)
        long = long * 20 if drawn[4] == 0 else long
        return drawn + hashlib.shake_128(drawn).digest(long)

    def rows(self, numbers: Sequence[int]) -> pa.Table:
        """The rows of numbers."""
        lanes = pa.array([number % LANES for number in numbers], pa.int32())
        bodies = pa.array([self.body(number) for number in numbers], pa.binary())
        return pa.table({"n": pa.array(numbers, pa.int64()), "lane": lanes, "body": bodies})

    def torn(self, rows: pa.Table) -> list[int]:
        """The numbers whose body or lane is not theirs."""
        numbers = rows.column("n").to_pylist()
        told = {name: rows.column(name).to_pylist() for name in ("body", "lane") if name in rows.column_names}
        bad = {n for n, body in zip(numbers, told.get("body", ()), strict=False) if body != self.body(n)}
        bad |= {n for n, lane in zip(numbers, told.get("lane", ()), strict=False) if lane != n % LANES}
        return sorted(bad)


@dataclass
class Shared:
    """The state of all clients of a run: tokens that were given, and where each process's consumer stands."""

    tokens: Tokens = field(default_factory=lambda: Tokens(TOKENS_KEPT))
    consumers: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By process: the assignment, the `consumer`'s number and the `token` that it has come to."""


class Abandoned(Exception):
    """The end of a commit that is not to happen."""


class LogClient:
    """One connection, with one consumer."""

    def __init__(self, lake: ls.Lake, process: int, shape: Shape, shared: Shared) -> None:
        self._lake, self._process, self._shape, self._shared = lake, process, shape, shared
        self._tables: dict[str, ls.Table] = {}
        self._stream: ls.ChangeStream | None = None
        self._held: list[ls.ChangeBatch] = []
        """Batches of a commit whose rest has not come."""
        self._producer = Named(lake, f"log-{process}")
        self._shared_producer: ls.NamedWrites | None = None

    def close(self) -> None:
        """End the stream and the connection."""
        self._leave()
        self._lake.close()

    def invoke(self, invocation: Invocation) -> Any:
        """Do it; the shapes of values are those that `jepsen.checkers.logs` reads."""
        asked = invocation.value
        match invocation.f:
            case "send":
                return self._send(asked["form"], asked["parts"])
            case "assign":
                return self._assign(asked)
            case "poll":
                return self._poll(anew=asked["anew"])
            case "read":
                return self._read(asked)
            case "wake":
                return {"woken": self._is_woken(asked)}
            case _:
                return self._cut(asked)

    def _table(self, name: str) -> ls.Table:
        if name not in self._tables:
            self._tables[name] = self._lake.table(name)
        return self._tables[name]

    # Sends

    def _send(self, form: str, parts: list[list[Any]]) -> Any:
        match form:
            case "append":
                table, first, count = parts[0]
                token = str(self._table(table).append(self._rows(first, count)))
            case "commit":
                with self._lake.commit() as commit:
                    self._add(commit, parts)
                token = commit.token
            case "named":
                token = self._send_named(parts)
            case "shared":
                token = self._send_shared(parts)
            case "abandon":
                with suppress(Abandoned), self._lake.commit() as commit:
                    self._add(commit, parts)
                    raise Abandoned
                raise ls.Invalid("the commit was abandoned, as it should be")
            case _:
                return self._send_pipelined(parts)
        if token:
            self._shared.tokens.keep(token)
        return {"token": token, "acked": parts, "failed": [], "unknown": []}

    def _rows(self, first: int, count: int) -> pa.Table:
        return self._shape.rows(range(first, first + count))

    def _add(self, commit: ls.Commit, parts: Iterable[Sequence[Any]]) -> None:
        for table, first, count in parts:
            commit.append(table, self._rows(first, count))

    def _send_named(self, parts: list[list[Any]]) -> str:
        """By a named producer; empty if a try whose token nobody told has happened."""
        return self._producer.commit(str(parts[0][1]), lambda commit: self._add(commit, parts))

    def _send_shared(self, parts: list[list[Any]]) -> str:
        """A commit of the one producer that all processes open: the next one who does fences this one."""
        try:
            if self._shared_producer is None:
                self._shared_producer = self._lake.producer(SHARED_PRODUCER)
            with self._shared_producer.commit(progress=str(parts[0][1])) as commit:
                self._add(commit, parts)
            return commit.token
        except ls.LakestoreError:
            self._shared_producer = None
            raise

    def _send_pipelined(self, parts: list[list[Any]]) -> Any:
        """By a writer, whose rows without an answer have failed or are unknown together."""
        told: dict[str, Any] = {"token": "", "acked": parts, "failed": [], "unknown": []}
        writer = self._table(parts[0][0]).writer()
        try:
            with writer:
                for _, first, count in parts:
                    writer.append(self._rows(first, count))
                told["token"] = writer.flush()
        except ls.LakestoreError as error:
            left = {n for batch in writer.unconfirmed for n in batch.column("n").to_pylist()}
            rest = [part for part in parts if part[1] + part[2] - 1 in left]
            acked = [part for part in parts if part not in rest]
            if not acked:
                raise
            kind = "failed" if error.applied == "no" else "unknown"
            return {**told, "acked": acked, kind: rest, TROUBLES: [trouble(error)]}
        self._shared.tokens.keep(told["token"])
        return told

    # Consumers

    def _is_woken(self, number: int) -> bool:
        """Whether a stream of all tables that has nothing to give is woken by a row in the last one."""
        stream = self._lake.changes([*self._shape.tables, WAKING], "latest")
        try:
            while stream.next(POLL_SECONDS) is not None:
                pass
            self._table(WAKING).append(self._rows(number, 1))
            deadline = time.monotonic() + WAKE_SECONDS
            while time.monotonic() < deadline:
                batch = stream.next(WAKE_SECONDS)
                if batch is not None and batch.name == WAKING and number in batch.table.column("n").to_pylist():
                    return True
            return False
        finally:
            stream.close()

    def _assign(self, asked: dict[str, Any]) -> Any:
        """A new consumer, and its first poll, which opens its stream."""
        self._leave()
        before = self._shared.consumers.get(self._process, {"consumer": self._process})
        start = self._shared.tokens.pick(asked["pick"]) if asked["start"] == "token" else asked["start"]
        number = before["consumer"] + 1_000
        consumer = {**asked, "start": start or "earliest", "token": "", "consumer": number}
        self._shared.consumers[self._process] = consumer
        return {**self._polled(consumer), "start": consumer["start"]}

    def _poll(self, *, anew: bool) -> Any:
        consumer = self._shared.consumers.get(self._process)
        if consumer is None:
            return {"consumer": None, "token": "", "in_snapshot": False, "rows": {}, "torn": []}
        if anew:
            self._leave()
        return self._polled(consumer)

    def _polled(self, consumer: dict[str, Any]) -> dict[str, Any]:
        try:
            batches = self._whole_batches(consumer)
        except ls.LakestoreError:
            self._leave()
            raise
        rows, torn = self._rows_of(batches)
        if batches:
            consumer["token"] = batches[-1].token
        if self._stream is not None and not self._held and self._stream.token:
            consumer["token"] = self._stream.token  # which may be further: nothing lies between
        in_snapshot = any(batch.snapshot for batch in batches)
        if batches and not in_snapshot:
            self._shared.tokens.keep(consumer["token"])
        told = {"consumer": consumer["consumer"], "token": consumer["token"], "in_snapshot": in_snapshot}
        return {**told, "rows": rows, "torn": torn}

    def _whole_batches(self, consumer: dict[str, Any]) -> list[ls.ChangeBatch]:
        """Some batches, of whole commits. The stream goes on where the last poll ended."""
        if self._stream is None:
            self._stream = self._opened(consumer, consumer["token"] or consumer["start"])
        taken, self._held = self._held, []
        waited = 0.0
        while (len(taken) < BATCHES_MAX and waited == 0.0) or (taken and not taken[-1].whole):
            batch = self._stream.next(timeout=POLL_SECONDS)
            if batch is not None:
                taken.append(batch)
                continue
            waited += POLL_SECONDS
            if waited > WHOLE_SECONDS:
                break
        ends = [at for at, batch in enumerate(taken) if batch.whole]
        whole = ends[-1] + 1 if ends else 0
        self._held = taken[whole:]
        return taken[:whole]

    def _opened(self, asked: dict[str, Any], start: str, until: str | None = None) -> ls.ChangeStream:
        lane = asked.get("lane")
        where = None if lane is None else f"lane = {lane}"
        columns = ["n", "lane", "body"] if asked.get("bodies", True) else ["n"]
        if asked["together"]:
            return self._lake.changes(asked["tables"], start, until=until, columns=columns, where=where)
        return self._table(asked["tables"][0]).changes(start, until=until, columns=columns, where=where)

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        self._held = []
        if stream is not None:
            stream.close()

    def _rows_of(self, batches: Iterable[ls.ChangeBatch]) -> tuple[dict[str, list[list[int]]], list[int]]:
        """Offsets and numbers of each bucket in the order in which they came; those of a snapshot, in theirs."""
        found: dict[str, list[list[int]]] = {}
        torn: list[int] = []
        for batch in batches:
            rows = batch.to_arrow()
            rows = rows.sort_by([(name, "ascending") for name in PLACED]) if batch.snapshot else rows
            torn += self._shape.torn(rows)
            for bucket, offset, number in listed(rows, *PLACED, "n"):
                found.setdefault(f"{batch.name}/{bucket}", []).append([offset, number])
        return found, torn

    # Cuts

    def _read(self, asked: dict[str, Any]) -> Any:
        """All rows until now, by streams."""
        ways = [self._shape.tables] if asked["together"] else [(name,) for name in self._shape.tables]
        rows: dict[str, list[list[int]]] = {}
        torn: list[int] = []
        for tables in ways:
            batches = self._opened({**asked, "tables": list(tables)}, asked["start"], "now")
            more, bad = self._rows_of(batches)
            rows |= more
            torn += bad
        return {"rows": rows, "torn": torn}

    def _cut(self, asked: dict[str, Any]) -> Any:
        """Digests of all buckets at a token: of the chance's choice, of a new snapshot, or none by a plain scan."""
        by, tables = asked["by"], self._shape.tables
        token = self._shared.tokens.pick(asked["pick"]) if by in ("token", "changes") else ""
        lane, names = asked["lane"], [*PLACED, "n", "lane", *(["body"] if asked["bodies"] else [])]
        where = None if lane is None else f"lane = {lane}"
        digests, torn = Digests(), list[int]()
        if by == "scan":
            name = tables[asked["pick"] % len(tables)]
            scans = {name: self._table(name).scan(names, where)}
        elif token and by == "changes":
            wanted = {"tables": list(tables), "together": True, "lane": lane, "bodies": asked["bodies"]}
            stream = self._opened(wanted, "earliest", token)
            for batch in stream:
                torn += digests.add(batch.name, batch.to_arrow(), self._shape)
            scans = {}
        else:
            cut = self._lake.at(token) if token else self._lake.snapshot()
            token = cut.token
            self._shared.tokens.keep(token)
            scans = {name: cut.scan(name, names, where) for name in tables}
        for name, scan in scans.items():
            torn += digests.add(name, scan.to_arrow(), self._shape)
        return {
            "token": token,
            "tables": list(scans or tables),
            "at": digests.told(),
            "odd": digests.odd(lane),
            "torn": torn,
        }


class Digests:
    """Buckets of a cut as counts and checksums of their numbers, in the order of their offsets."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]] = {}

    def add(self, table: str, rows: pa.Table, shape: Shape) -> list[int]:
        """Take rows; the torn ones."""
        buckets, offsets, numbers = (rows.column(name).to_numpy() for name in (*PLACED, "n"))
        for bucket in np.unique(buckets):
            mine = buckets == bucket
            self._parts.setdefault(f"{table}/{bucket}", []).append((offsets[mine], numbers[mine]))
        return shape.torn(rows)

    def _sorted(self, key: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        offsets, numbers = (np.concatenate(each) for each in zip(*self._parts[key], strict=True))
        order = np.argsort(offsets, kind="stable")
        return offsets[order], numbers[order]

    def told(self) -> dict[str, list[int]]:
        """By bucket: how many rows, and the checksum of their numbers."""
        sorted_parts = {key: self._sorted(key)[1] for key in sorted(self._parts)}
        return {key: [len(each), zlib.crc32(each.astype("<i8").tobytes())] for key, each in sorted_parts.items()}

    def odd(self, lane: int | None) -> dict[str, list[int]]:
        """By bucket: offsets that are there twice, or missing below the last one where no lane leaves them out."""
        found: dict[str, list[int]] = {}
        for key in self._parts:
            offsets = self._sorted(key)[0]
            doubled = offsets[1:][offsets[1:] == offsets[:-1]]
            missing = np.setdiff1d(np.arange(int(offsets[-1]) + 1), offsets) if lane is None else doubled[:0]
            if bad := [*doubled[:5].tolist(), *missing[:5].tolist()]:
                found[key] = bad
        return found
