"""A log: unique numbers are appended, polled and scanned; nothing is lost, doubled, moved, torn or invented.

A port of Jepsen's workload for Kafka. A *send* appends numbers by one of the client's ways; a *consumer* is assigned
tables, and polls them by a change stream; a *cut* is all of the log below a token. Numbers are sent with a body that
follows from the number, so that a mixed or torn record shows. `jepsen.checkers.logs` judges.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.checkers import logs
from jepsen.checkers.log_facts import LANES
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.workload import SPACING, Target
from jepsen.workloads.log_client import WAKING, LogClient, Shape, Shared

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("body", pa.binary()),
    ]
)
FORMS = {"append": 0.4, "commit": 0.2, "named": 0.13, "shared": 0.08, "writer": 0.12, "abandon": 0.07}
CROWDED_SHARE, CROWDED = 0.25, 0.6
"""In so many runs so many sends are of the producer that all clients open: one that is fenced soon sends again."""


class Log:
    """Sends of one to some thousand numbers to one or several tables, consumers, and cuts."""

    name = "log"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._tables = [f"jepsen.log{number}" for number in range(chance.choice((1, 1, 2, 3)))]
        self._buckets = [chance.choice((1, 2, 3, 5)) for _ in self._tables]
        self._lake = {"format_version": chance.choice((2, 3))}
        self._rows_max = chance.choice((200, 1_000, 3_000))
        self._shape = Shape(tuple(self._tables), chance.choice((0, 20, 300, 4_000)))
        self._shared = Shared()
        self._crowded = CROWDED if chance.random() < CROWDED_SHARE else 0.0

    def setup(self, lake: ls.Lake) -> None:
        """Make the tables."""
        for name, buckets in zip(self._tables, self._buckets, strict=True):
            lake.create_table(name, SCHEMA, buckets=buckets, lake=self._lake)
        lake.create_table(WAKING, SCHEMA)

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly sends; an assignment comes first."""
        numbers = iter(range(process * SPACING, (process + 1) * SPACING))
        yield self._assignment(chance)
        while True:
            drawn = chance.random()
            if drawn < 0.6:
                yield self._send(chance, numbers)
            elif drawn < 0.84:
                yield Invocation("poll", {"anew": chance.random() < 0.15})
            elif drawn < 0.88:
                yield self._assignment(chance)
            else:
                yield self._cut(chance)

    def _send(self, chance: random.Random, numbers: Iterator[int]) -> Invocation:
        form = chance.choices(list(FORMS), list(FORMS.values()))[0]
        if self._crowded and chance.random() < self._crowded:
            form = "shared"
        parts = 1 if form == "append" else chance.randint(1, 4)
        alone = chance.choice(self._tables)
        sent = []
        for _ in range(parts):
            table = alone if form == "writer" else chance.choice(self._tables)
            count = chance.randint(1, 5) if chance.random() < 0.93 else chance.randint(6, self._rows_max)
            sent.append([table, min(itertools.islice(numbers, count)), count])
        return Invocation("send", {"form": form, "parts": sent})

    def _assignment(self, chance: random.Random) -> Invocation:
        tables = chance.sample(self._tables, chance.randint(1, len(self._tables)))
        start: Any = chance.choices(("earliest", "latest", "snapshot", "token"), (4, 2, 2, 4))[0]
        value = {
            "tables": sorted(tables),
            "start": start,
            "pick": chance.getrandbits(30),
            "lane": chance.randrange(LANES) if chance.random() < 0.25 else None,
            "bodies": chance.random() < 0.7,
            "together": len(tables) > 1 or chance.random() < 0.3,
        }
        return Invocation("assign", value)

    def _cut(self, chance: random.Random) -> Invocation:
        by = chance.choices(("token", "changes", "snapshot", "scan"), (4, 2, 2, 2))[0]
        lane = chance.randrange(LANES) if chance.random() < 0.25 else None
        bodies = chance.random() < 0.3
        return Invocation("cut", {"by": by, "pick": chance.getrandbits(30), "lane": lane, "bodies": bodies})

    def last(self, process: int) -> Iterator[Invocation]:
        """All that is there, by one of the ways, and a cut of it."""
        ways = ("earliest", "snapshot")
        yield Invocation("read", {"start": ways[process % 2], "together": process % 4 < 2})
        yield Invocation("cut", {"by": "snapshot", "pick": 0, "lane": None, "bodies": True})
        all_of_it = {"tables": self._tables, "start": "earliest", "pick": 0, "lane": None, "bodies": False}
        yield Invocation("assign", {**all_of_it, "together": True})
        yield Invocation("poll", {"anew": True})
        yield Invocation("wake", (process + 1) * SPACING - 1)

    def client(self, target: Target, process: int) -> LogClient:
        """A client of the tables, which goes on with the consumer that the process had."""
        return LogClient(target.connect(process), process, self._shape, self._shared)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that `jepsen.checkers.logs` finds."""
        return logs.check(history)

    def figures(self, history: History) -> dict[str, float]:
        """The lag of consumers, and the number of things checked."""
        return logs.figures(history)
