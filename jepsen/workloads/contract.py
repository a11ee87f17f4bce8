"""A table with a contract whose limit changes, under writes that obey it and writes that do not.

Each row has a number that is never used twice. A read takes one cut of the table and of its dead letters.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.anomaly import Anomaly, few
from jepsen.checkers import contracts
from jepsen.checkers.contracts import BAD, GOOD
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.workload import SPACING, Target

NAME, LETTERS = "jepsen.contracted", "jepsen.contracted__dlq"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("amount", pa.int64()),
        ("status", pa.string()),
        ("note", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
ON_TIME, LATE = (datetime(year, 1, 1, tzinfo=UTC) for year in (2100, 2001))
"""Times of rows. Whatever a clock of a run says, the day of one is open and the day of the other is closed."""
FIRST_LIMIT, AMOUNT_MAX = 500, 1_000
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: contracted
version: 1.0.0
status: active
schema:
  - name: contracted
    physicalName: jepsen.contracted
    properties:
      - {{name: id, logicalType: integer, {key}required: true}}
      - {{name: at, logicalType: timestamp, physicalType: timestamptz}}
      - name: amount
        logicalType: integer
      - name: status
        logicalType: string
        enum: [{{value: new}}]
      - name: note
        logicalType: string
        quality:
          - metric: nullValues
            name: note given
            mustBe: 0
            customProperties: [{{property: lakestore.onViolation, value: count}}]
    customProperties:
      - {{property: lakestore.eventTime, value: {{from: event, column: at}}}}
      - {{property: lakestore.lateData, value: {{policy: dead_letter, closedAfter: 30d}}}}
    quality:
      - type: sql
        name: amount within the limit
        query: "SELECT COUNT(*) FROM {{object}} WHERE amount > {limit}"
        mustBe: 0
        customProperties: [{{property: lakestore.onViolation, value: dead_letter}}]
"""


class Contracted:
    """Writes, reads and changes of the contract of one table."""

    name = "contract"
    needs: frozenset[str] = frozenset()

    def __init__(self, chance: random.Random) -> None:
        self._buckets = chance.choice((1, 2, 4))
        self._is_keyed = chance.random() < 0.7

    def setup(self, lake: ls.Lake) -> None:
        """Make the table."""
        key = ["id"] if self._is_keyed else None
        layout = {"partition_by": ["day(at)"]}
        lake.create_table(NAME, SCHEMA, primary_key=key, buckets=self._buckets, lake=layout)
        lake.apply_contract(_document(FIRST_LIMIT, is_keyed=self._is_keyed))

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly writes and reads."""
        following = process * SPACING
        weights = {"write": 30, "read": 20, "apply": 3}
        while True:
            f = chance.choices(tuple(weights), tuple(weights.values()))[0]
            if f == "write":
                numbers = range(following, following + chance.choice((1, 1, 3, 20)))
                following = numbers.stop
                status = BAD if chance.random() < 0.1 else GOOD
                rows = [[number, chance.randrange(AMOUNT_MAX), chance.random() < 0.1] for number in numbers]
                yield Invocation(f, {"rows": rows, "status": status})
            elif f == "apply":
                yield Invocation(f, {"limit": chance.randrange(0, AMOUNT_MAX, 50)})
            else:
                yield Invocation(f, {})

    def last(self, process: int) -> Iterator[Invocation]:
        """One read of everything."""
        if process == 0:
            yield Invocation("read", {})

    def client(self, target: Target, process: int) -> ContractedClient:
        """A client of the table."""
        return ContractedClient(target.connect(process))

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that `jepsen.checkers.contracts` finds."""
        return few(contracts.check(history, FIRST_LIMIT))


class ContractedClient:
    """One connection."""

    def __init__(self, lake: ls.Lake) -> None:
        self._lake = lake
        self._handle: ls.Table | None = None

    def invoke(self, invocation: Invocation) -> Any:
        """Do it."""
        f, value = invocation.f, invocation.value
        if f == "read":
            return self._read()
        if f == "apply":
            self._lake.apply_contract(_document(value["limit"], is_keyed=self._lake.table(NAME).definition.keyed))
            return value
        if self._handle is None:
            self._handle = self._lake.table(NAME)
        rows = [
            {"id": number, "amount": amount, "status": value["status"], "at": LATE if late else ON_TIME}
            for number, amount, late in value["rows"]
        ]
        if self._handle.definition.keyed:
            self._handle.upsert(rows)
        else:
            self._handle.append(rows)
        return value

    def _read(self) -> dict[str, list[int]]:
        """The numbers in the table and in its dead letters, at one cut."""
        with self._lake.snapshot() as cut:
            rows = cut.scan(NAME).to_arrow()["id"].to_pylist()
            letters = cut.scan(LETTERS).to_arrow()["value"].to_pylist()
        return {"rows": sorted(rows), "letters": sorted(json.loads(value)["id"] for value in letters)}

    def close(self) -> None:
        """End the connection."""
        self._lake.close()


def _document(limit: int, *, is_keyed: bool) -> str:
    return DOCUMENT.format(limit=limit, key="primaryKey: true, " if is_keyed else "")
