"""Upserts into a table of 1 M keys by one producer: new keys, and updates that are uniform, skewed or partial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.bench.peers.contest import Measure, Workload
from tests.bench.peers.contestants import fluss, lakestore

BUCKETS = 4
INSERT, UNIFORM, SKEWED, PARTIAL = (
    "inserts of new keys in random order",
    "uniform updates",
    "updates, 90 % of them on 1 % of the keys",
    "updates of 2 of 5 columns",
)
KINDS = {UNIFORM: "uniform", SKEWED: "skewed", PARTIAL: "partial"}
MEASURES = {name: Measure(name, "rows/s") for name in (INSERT, *KINDS)}
TURN_SECONDS, INSERTS = 4.0, 500_000


class Keyed(Protocol):
    """The methods that this workload calls on a system. Keys are numbers; a time is in seconds, until all rows are
    acknowledged."""

    def make_keyed(self, name: str, buckets: int, *, is_partial: bool = False) -> None:
        """Make a table of five columns with a key."""

    def insert(self, name: str, first: int, count: int) -> float:
        """Insert the keys of so many numbers from the first on."""

    def update(self, name: str, kind: str, keys: int, seconds: float) -> tuple[int, float]:
        """Rows and time of updates for about so many seconds: `uniform`, `skewed` or `partial`."""

    def check(self, name: str, keys: int) -> None:
        """Raise `Failed` unless the table has these keys."""


@dataclass(slots=True)
class Stage:
    """A system whose tables hold the keys."""

    system: Keyed
    keys: int
    seconds: float
    inserts: int
    kinds: Sequence[str]

    def turn(self, number: int) -> dict[str, float]:
        """Rows a second of each measure."""
        rates = {}
        if self.inserts:
            self.system.make_keyed(f"inserts{number}", BUCKETS)
            rates[INSERT] = self.inserts / self.system.insert(f"inserts{number}", 0, self.inserts)
            self.system.check(f"inserts{number}", self.inserts)
        for name in self.kinds:
            rows, seconds = self.system.update(_table(name), KINDS[name], self.keys, self.seconds)
            rates[name] = rows / seconds
        for name in set(map(_table, self.kinds)):
            self.system.check(name, self.keys)
        return rates


def _table(name: str) -> str:
    return "partial" if name == PARTIAL else "whole"


def prepare(system: Keyed, scale: float, keys: int, inserts: int, kinds: Sequence[str]) -> Stage:
    """Fill the tables."""
    stage = Stage(system, int(keys * scale), max(TURN_SECONDS * scale, 0.5), int(inserts * scale), kinds)
    for name in {_table(kind): kind for kind in kinds}:
        system.make_keyed(name, BUCKETS, is_partial=name == "partial")
        system.insert(name, 0, stage.keys)
    for kind in kinds:
        system.update(_table(kind), KINDS[kind], stage.keys, 1.0)
    return stage


def turn(stage: Stage, number: int) -> Mapping[str, float]:
    """Rows a second of each measure."""
    return stage.turn(number)


def workload(title: str, keys: int, inserts: int, kinds: Sequence[str]) -> Workload:
    """Such updates of a table of so many keys."""
    return Workload(
        title=title,
        what=(
            f"One producer writes rows of five columns (44 bytes, random values) to a table with {keys:,} keys in"
            f" {BUCKETS} buckets. Updates go on for {TURN_SECONDS:.0f} s in a turn, which ends when the last row is"
            " acknowledged. The producer passes 10,000 rows in each call."
        ),
        measures=[MEASURES[name] for name in ((INSERT,) if inserts else ()) + tuple(kinds)],
        contestants=(lakestore.CONTESTANT, fluss.contestant()),
        prepare=lambda system, scale: prepare(system, scale, keys, inserts, kinds),
        turn=turn,
    )


WORKLOAD = workload("Upserts, 1 M keys", 1_000_000, INSERTS, tuple(KINDS))
