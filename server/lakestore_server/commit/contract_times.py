"""Times of rows under a contract, before its rules: columns of times, rows without a time, late rows.

- Bad and late rows are violations of two rules that every contract with times has: `event_time` and `late`.
- A row that keeps its event time keeps the columns that are made from it too.
- The clock is read once for a request, on the caller's thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakestore.model import times
from lakestore.model.contract.event_time import BROKER, EVENT_TIME, LANDING_TIME
from lakestore.model.contract.late_data import DEAD_LETTER, LateData
from lakestore.model.contract.rules import Rule
from lakestore.model.table import Table
from lakestore.rows.row_checks import Flags, Ints, Violation
from lakestore.rows.row_times import RowTimes, TimeRules
from lakestore_server.state.registers import RegisterUpdates

BAD, LATE = "event_time", "late"
"""Names of the rules, and codes of their dead letters."""
LATE_REWRITE = "late_rewrite"
"""The action of the audit row about late rows that are stored in a closed partition."""
_OF_A_BRIDGE = re.compile(r"(?:[^/]+/)?(?:bridge|dlq)/")
"""Registers that a bridge moves with its rows, and a replay of dead letters, also of a principal's own."""
PARTITIONS_MAX = 100
"""Partitions of one change with an audit row each. More have one row together."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When and by whom rows came in."""

    now_us: int
    from_bridge: bool
    """Whether `_broker_time` in the rows counts."""

    @staticmethod
    def of(now_us: int, moves: RegisterUpdates) -> Arrival:
        """The arrival of a request that moves these registers."""
        return Arrival(now_us, any(_OF_A_BRIDGE.match(move.register) for move in moves.each))


@dataclass(frozen=True, slots=True)
class TimedRows:
    """A change's rows with their times."""

    batch: pa.RecordBatch
    given: frozenset[int]
    """Ids of the columns that the rows bring."""
    violations: tuple[Violation, ...]
    """Rows without a time, and late rows."""
    times: RowTimes

    def late_partitions(self, stays: Ints | None) -> tuple[tuple[str, int], ...]:
        """Closed partitions in which rows are stored, as the lake names them, with their number of rows."""
        found = self.times.late_partitions(stays)
        if len(found) > PARTITIONS_MAX:
            names = sorted(found)
            return ((f"{names[0]} to {names[-1]}", sum(found.values())),)
        return tuple(sorted(found.items()))


class ContractTimes:
    """The times of one version of a table with an event time. Thread-safe."""

    def __init__(self, rules: TimeRules) -> None:
        table = rules.table
        ids = {column.name: column.id for column in table.columns}
        self._rules, self._ids = rules, ids
        columns = (rules.section.column,) if rules.section.column and rules.section.chosen != BROKER else ()
        line = rules.contract.properties["lakestore.eventTime"].line
        self._bad = Rule(BAD, BAD, columns, action=DEAD_LETTER, line=line)
        late = rules.late
        self._late = Rule(LATE, LATE, columns, _span(late), late.policy, line) if late is not None else None
        self._event = ids.get(rules.column)
        """The id of the event column."""
        self._derived = frozenset(
            ids[name] for name in (EVENT_TIME, LANDING_TIME) if name in ids and name in rules.filled
        )

    @staticmethod
    def of(table: Table) -> ContractTimes | None:
        """None for a table without an event time."""
        rules = TimeRules.of(table)
        return None if rules is None else ContractTimes(rules)

    def with_derived(self, columns: tuple[int, ...]) -> tuple[int, ...]:
        """The columns that rows keep if they keep these."""
        if self._event not in columns:
            return columns
        return (*columns, *sorted(self._derived - set(columns)))

    def timed(
        self,
        batch: pa.RecordBatch,
        given: frozenset[int],
        kept: Sequence[tuple[Sequence[int], Flags]],
        arrival: Arrival,
    ) -> TimedRows:
        """Fill the times of rows to upsert, insert or append. `kept` are columns that some rows leave as they are."""
        keeps = np.zeros(batch.num_rows, dtype=np.bool_)
        for columns, rows in kept:
            if self._event in columns:
                keeps |= rows
        brings_event = self._event is None or self._event in given
        times = self._rules.fill(
            batch, arrival.now_us, from_bridge=arrival.from_bridge, kept=keeps, brings_event=brings_event
        )
        filled = {self._ids[name] for name in self._rules.filled}
        if not brings_event and self._rules.is_partly:
            filled -= self._derived
        found = [Violation(self._bad, np.flatnonzero(times.bad))]
        if self._late is not None:
            found.append(Violation(self._late, np.flatnonzero(times.late)))
        return TimedRows(times.batch, given | filled, tuple(each for each in found if len(each.rows)), times)


def audit_rows(table: Table, late: Sequence[tuple[str, int]], owner: str, now_us: int, audit: Table) -> pa.RecordBatch:
    """The audit rows about late rows of one change, one for each partition."""
    common = {"at": times.moment_of(now_us), "principal": owner, "table": table.name, "table_uuid": table.uuid}
    common |= {"action": LATE_REWRITE, "why": "", "outcome": "done"}
    common |= {"version": table.contract.version if table.contract else None}
    rows = [common | {"what": json.dumps({"partition": partition, "rows": count})} for partition, count in late]
    return pa.RecordBatch.from_pylist(rows, schema=audit.schema)


def _span(late: LateData) -> str:
    return f"closed after {late.closed_after_us // 1_000_000} s"
