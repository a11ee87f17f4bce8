"""The completeness feeds of a bridge: registers that say through which time a partition's rows are in a table.

- A table has feeds if its contract has an event time and late data. Each partition of its topics has one.
- A feed moves in the commit with the rows, below every time that a row may still have without being late by the
  contract. An idle partition or a stalled producer does not move it.
- The feeds of all partitions of a topic exist before the first one moves, so that none is overlooked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow.compute as pc

from lakestore.client.lake import Lake
from lakestore.client.registers import Registers
from lakestore.errors import NotFound
from lakestore.kafka.bridge.outcome import Op, TableRows
from lakestore.kafka.bridge.positions import Place, register_of
from lakestore.kafka.bridge.writing import Part
from lakestore.model import times
from lakestore.rows.row_times import TimeRules, partition_starts


def feed_register(table: str, bridge: str, source: str, place: Place) -> str:
    """The name of the feed of a partition for a table."""
    return f"complete/{table}/{register_of(bridge, source, place)}"


def complete_through(rules: TimeRules, newest_us: int, now_us: int) -> int | None:
    """The time through which rows in Kafka's order are complete once a row of `newest_us` is stored; None without late
    data.

    closedAfter 1h, partitions of an hour, row of 10:20, clock 10:21: partition 08:00 is closed and 09:00 is not, so the
    answer is 1 µs before 09:00. A row below that time is late whenever it comes.
    """
    if rules.late is None:
        return None
    closed = np.array([min(newest_us, now_us) - rules.late.closed_after_us - 1], np.int64)
    return int(partition_starts(closed, rules.transform)[0]) - 1


class Feeds:
    """The feeds of one consumer. For one thread."""

    def __init__(
        self,
        lake: Lake,
        bridge: str,
        source: str,
        *,
        tables: Callable[[str], Sequence[str]],
        partitions: Callable[[], set[Place]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tables` returns the tables that a topic is known to fill, `partitions` all partitions of the cluster."""
        self._lake, self._bridge, self._source = lake, bridge, source
        self._tables, self._partitions, self._clock = tables, partitions, clock
        self._open: set[str] = set()
        """Feeds that this consumer moves."""
        self._known: set[tuple[str, str]] = set()
        """Tables and topics whose feeds all exist."""
        self._ahead_us = 0
        """Microseconds by which this machine's clock is ahead of the server's."""

    def begin(self, now_us: int) -> None:
        """Forget which feeds are open. `now_us` is the server's time, 0 if it does not say."""
        self._open.clear()
        self._known.clear()
        self._ahead_us = int(self._clock() * 1_000_000) - now_us if now_us else 0

    def release(self, registers: Registers, places: Iterable[Place]) -> None:
        """Give up the feeds of these partitions."""
        ends = {f"/{register_of(self._bridge, self._source, place)}" for place in places}
        gone = {name for name in self._open if any(name.endswith(end) for end in ends)}
        registers.release(gone)
        self._open -= gone
        self._known.clear()

    def open(self, registers: Registers, places: Iterable[Place], *, is_new: bool = False) -> None:
        """Open the feeds of partitions for the tables that their topics are known to fill. With `is_new` the server is
        asked for the contracts of tables without feeds.
        """
        by_topic: dict[str, list[Place]] = {}
        for place in places:
            by_topic.setdefault(place.topic, []).append(place)
        for topic, held in by_topic.items():
            for table in self._tables(topic):
                if self._rules(table, is_new=is_new and (table, topic) not in self._known) is not None:
                    self._open_table(registers, table, topic, held)

    def moves(self, registers: Registers, parts: Iterable[Part], held: Iterable[Place]) -> dict[str, str]:
        """The feeds that the rows of these parts move, by name, with their next values."""
        newest: dict[str, int] = {}
        now_us = int(self._clock() * 1_000_000) - self._ahead_us
        for part in parts:
            for rows in part.tables():
                rules = self._rules(rows.table)
                if rules is None:
                    continue
                topic = part.records.topic
                self._open_table(registers, rows.table, topic, [place for place in held if place.topic == topic])
                for partition, moment in _newest(rules, rows, part.records.partition).items():
                    through = complete_through(rules, moment, now_us)
                    name = feed_register(rows.table, self._bridge, self._source, Place(topic, partition))
                    if through is not None and name in self._open:
                        newest[name] = max(newest.get(name, through), through)
        return {name: times.text_of(to) for name, to in newest.items() if to > _micros(registers.progress[name])}

    def _rules(self, table: str, *, is_new: bool = False) -> TimeRules | None:
        try:
            rules = TimeRules.of(self._lake.table(table).definition if is_new else self._lake.definition_of(table))
        except NotFound:  # the table is made with its first records
            return None
        return None if rules is None or rules.late is None else rules

    def _open_table(self, registers: Registers, table: str, topic: str, held: Sequence[Place]) -> None:
        mine = {feed_register(table, self._bridge, self._source, place) for place in held}
        registers.open(sorted(mine - self._open))
        self._open |= mine
        if (table, topic) in self._known:
            return
        every = {
            feed_register(table, self._bridge, self._source, place)
            for place in self._partitions()
            if place.topic == topic
        }
        there = {register.name for register in self._lake.list_registers(f"complete/{table}/")}
        missing = sorted(every - mine - there)
        registers.open(missing)  # another process opens them again for itself
        registers.release(missing)
        self._known.add((table, topic))


def _newest(rules: TimeRules, rows: TableRows, partition: np.ndarray) -> dict[int, int]:
    """The greatest chosen time of the stored rows of each partition, in microseconds."""
    chosen = rules.chosen_times(rows.batch)
    stored = (rows.op == Op.PUT) & pc.is_valid(chosen).to_numpy(zero_copy_only=False)
    micros = pc.fill_null(chosen.cast("int64"), 0).to_numpy(zero_copy_only=False)[stored]
    places = partition[rows.record][stored]
    return {int(place): int(micros[places == place].max()) for place in np.unique(places)}


def _micros(value: str) -> int:
    found = times.micros_of(value) if value else None
    return -(1 << 63) if found is None else found
