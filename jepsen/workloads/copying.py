"""Copies of a source whose positions move with the rows, as a bridge's do: each record once, and nobody who is fenced.

The source has partitions of records that are numbered from 0 on, and needs no broker. Processes take partitions from
one another: they open the partitions' registers, copy what follows into two tables in one commit that moves the
registers, and go on with registers that others have opened since, as a bridge does that was held up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import copied as checker
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.rows import listed
from jepsen.workload import SPACING, Target

LOG, KEYED = "jepsen.copied", "jepsen.copied_keyed"
COLUMNS = "p", "n", "by"
SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in COLUMNS])
PREFIX = "jepsen-copying/"
HELD_UP_MAX = 3
ROUND = 40
"""Operations of one process with the same partitions, so that most reads are of few rows."""


class Copying:
    """Openings, copies, late copies and reads."""

    name = "copying"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._partitions = chance.choice((1, 2, 4))
        self._buckets = chance.choice((1, 2, 4))
        self._rows = chance.choice((1, 3, 30))
        self._opens = chance.choice((0.1, 0.3))

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables."""
        lake.create_table(LOG, SCHEMA, buckets=self._buckets)
        lake.create_table(KEYED, SCHEMA, primary_key=["p", "n"], buckets=self._buckets)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Copies by the newest registers of a process and by older ones; each has its number."""
        for count in range(SPACING):
            number, first = process * SPACING + count, count // ROUND * self._partitions
            some = chance.sample(range(first, first + self._partitions), chance.randint(1, self._partitions))
            drawn = chance.random()
            if drawn < self._opens or not count % ROUND:
                yield Invocation("open", {"reader": number, "partitions": sorted(some)})
            elif drawn < 0.9:
                moves = [[partition, chance.randint(1, self._rows)] for partition in sorted(some)]
                yield Invocation("copy", {"by": number, "moves": moves, "late": chance.random() < 0.25})
            else:
                yield Invocation("read", {"first": first})

    def last(self, process: int) -> Iterator[Invocation]:
        """The first process takes all partitions, which ends whatever is still on its way, and reads all."""
        if process == 0:
            yield Invocation("open", {"reader": checker.LAST, "partitions": None})
            yield Invocation("copy", {"by": checker.LAST, "moves": None, "late": False})
            yield Invocation("read", {"first": 0})

    def client(self, target: Target, process: int) -> CopyingClient:
        """One copier."""
        return CopyingClient(target.connect(process))

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that can be wrong with copies."""
        return checker.check(history)


@dataclass(slots=True)
class _Open:
    """Registers that a process has opened, by the number that it gave them."""

    reader: int
    registers: ls.Registers


class CopyingClient:
    """One connection with its registers, and those that it opened before."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake
        self._newest: _Open | None = None
        self._older: list[_Open] = []

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        value = invocation.value
        if invocation.f == "open":
            return self._opened(value)
        return self._copied(value) if invocation.f == "copy" else self._read(value["first"])

    def _opened(self, value: dict[str, Any]) -> dict[str, Any]:
        """Open some registers, or all that there are."""
        named = value["partitions"]
        registers = self._lake.registers(
            [each.name for each in self._lake.list_registers(PREFIX)] if named is None else map(_register, named)
        )
        if self._newest is not None:
            self._older = [*self._older, self._newest][-HELD_UP_MAX:]
        self._newest = _Open(value["reader"], registers)
        return {**value, "at": _positions(registers.progress)}

    def _copied(self, value: dict[str, Any]) -> dict[str, Any]:
        """Copy what follows the position that the registers had; nothing without registers of these partitions."""
        held = self._older.pop(0) if value["late"] and self._older else self._newest
        progress = {p: at for p, at in _positions(held.registers.progress)} if held else {}
        moves = [(p, 1) for p in progress] if value["moves"] is None else value["moves"]
        spans = [[p, progress[p], progress[p] + count] for p, count in moves if p in progress]
        if held is None or not spans:
            return {**value, "reader": None, "spans": []}
        rows = [{"p": p, "n": n, "by": value["by"]} for p, begin, end in spans for n in range(begin, end)]
        try:
            with held.registers.commit({_register(p): str(end) for p, _, end in spans}) as commit:
                commit.append(LOG, rows)
                commit.upsert(KEYED, rows)
        except ls.LakestoreError as error:
            # These registers take no more commits, unless the server has said that it may be asked again.
            if held is self._newest and (error.applied == "unknown" or isinstance(error, ls.Fenced | ls.Conflict)):
                self._newest = None
            raise
        return {**value, "reader": held.reader, "spans": spans}

    def _read(self, first: int) -> dict[str, Any]:
        """The positions, and then both tables at one cut, of partitions from one on."""
        at = _positions({each.name: each.value for each in self._lake.list_registers(PREFIX)})
        with self._lake.snapshot() as cut:
            log, keyed = (listed(cut.scan(table, where=f"p >= {first}").to_arrow(), *COLUMNS) for table in (LOG, KEYED))
        return {
            "first": first,
            "at": [each for each in at if each[0] >= first],
            "log": _spans(log),
            "keyed": _spans(keyed),
        }

    def close(self) -> None:
        """End the connection."""
        for held in [*self._older, *([self._newest] if self._newest else [])]:
            with suppress(ls.LakestoreError):
                held.registers.close()
        self._lake.close()


def _register(partition: int) -> str:
    return f"{PREFIX}{partition}"


def _positions(values: Any) -> list[list[int]]:
    """Partition and position of each register; a new one is at 0."""
    return [[int(name.removeprefix(PREFIX)), int(value or 0)] for name, value in sorted(values.items())]


def _spans(rows: list[list[int]]) -> list[list[int]]:
    """Rows as partition, first number, number behind the last one, and copy; a row that is there twice is in two."""
    spans: list[list[int]] = []
    for p, by, n in sorted((p, by, n) for p, n, by in rows):
        if spans and spans[-1] == [p, spans[-1][1], n, by]:
            spans[-1][2] = n + 1
        else:
            spans.append([p, n, n + 1, by])
    return spans
