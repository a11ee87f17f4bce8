"""Source transactions of a consumer: records wait until their transactions are complete, then continue as batches.

- A batch takes transactions in the order of their ENDs, up to the bounds of one commit. Its `cuts` lie between
  transactions.
- A batch moves each partition's progress to the first waiting record.
- A transaction whose events never arrive is given up, with a log line, some time after its topics were read to their
  ends.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from lakestore.kafka.bridge.carry_over import Batch, Cut
from lakestore.kafka.bridge.decode.decoding import Decoder
from lakestore.kafka.bridge.gathering import join_records
from lakestore.kafka.bridge.outcome import DecodedBlock
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import BatchBounds
from lakestore.kafka.bridge.transaction_blocks import (
    Transactions,
    Unit,
    register_decoded_marks,
    register_marks,
    runs,
    topics_of,
)

ROWS_MAX, BYTES_MAX = 1_000_000, 256 << 20
"""The most records that wait, and their bytes. A larger transaction is committed in parts."""
BATCHES_MIN = 16
"""At least this many batches may wait: several are always under way."""
AHEAD = 4
"""The fraction of a fair share above which a partition pauses for others."""
LACKING_SECONDS = 30.0
"""Seconds to wait for missing events after their topics were read to their ends."""
NOTHING = pa.schema([])
"""No fields: enough to learn the transactions of events."""
_LOG = logging.getLogger("lakestore.bridge")


class Whole:
    """The waiting records of one consumer. For one thread, except `ahead` and `waiting`."""

    def __init__(
        self,
        marks: str,
        decoder: Callable[[str], Decoder],
        marks_decoder: Decoder | None,
        bounds: BatchBounds,
    ) -> None:
        """`marks` is the topic of BEGINs and ENDs, in JSON unless there is a `marks_decoder`."""
        self.marks = marks
        self._decoder, self._marks_decoder, self._bounds = decoder, marks_decoder, bounds
        self._rows_max = max(ROWS_MAX, BATCHES_MIN * bounds.rows)
        self._bytes_max = max(BYTES_MAX, BATCHES_MIN * bounds.bytes)
        self.ahead: frozenset[Place] = frozenset()
        """Partitions with many waiting records."""
        self.waiting: tuple[str, ...] = ()
        """Transactions that are not complete."""
        self.reset()

    def reset(self) -> None:
        """Drop all waiting records. They are read again."""
        self._transactions = Transactions(
            lambda table: topics_of(table, self._topics), rows_max=self._rows_max, bytes_max=self._bytes_max
        )
        self._decoders: dict[str, Decoder] = {}
        self._topics: set[str] = set()
        self._places: set[Place] = set()
        self._pieces: dict[Place, deque[Records]] = {}
        self._next: dict[Place, int] = {}
        self._sent: dict[Place, int] = {}
        self._told: dict[str, float] = {}
        self.ahead, self.waiting = frozenset(), ()

    def opened(self, places: Iterable[Place]) -> None:
        """Partitions are read from now on."""
        self._places.update(places)
        self._topics.update(place.topic for place in places if place.topic != self.marks)

    def read(self, records: Records) -> DecodedBlock | None:
        """Decode what tells of transactions; None for BEGIN and END records in JSON."""
        if records.topic == self.marks:
            return None if self._marks_decoder is None else self._marks_decoder.decode(records, None)
        if records.topic not in self._decoders:
            self._decoders[records.topic] = self._decoder(records.topic)
        return self._decoders[records.topic].decode(records, NOTHING)

    def batches(self, batch: Batch, read: Sequence[DecodedBlock | None], ends: Mapping[Place, float]) -> list[Batch]:
        """The batches that can be committed now. `ends`: when partitions were last read to their ends."""
        for records, decoded in zip(batch.blocks, read, strict=True):
            if records.topic == self.marks:
                self._add_marks(records, decoded)
            elif decoded is not None:
                self._add_events(records, decoded)
        self._next |= batch.moves
        units = self._transactions.ready()
        units += self._given_up(ends)
        for unit in units:
            if unit.parts:
                _LOG.warning("%s", unit.parts)
        made = [self._made(batch, some) for some in _grouped(units, self._bounds.rows)]
        self._finish(batch, made)
        share = AHEAD * max(len(self._places), 1)
        crowded = self._transactions.crowded(self._rows_max // share, self._bytes_max // share)
        self.ahead = frozenset(Place(*place) for place in crowded)
        self.waiting = self._transactions.open
        return made

    def _add_marks(self, records: Records, decoded: DecodedBlock | None) -> None:
        if decoded is None:
            register_marks(self._transactions, records)
        else:
            register_decoded_marks(self._transactions, records, decoded)
        now = time.monotonic()
        self._told = {name: self._told.get(name, now) for name in self._transactions.ends}

    def _add_events(self, records: Records, decoded: DecodedBlock) -> None:
        for place, found in runs(records, decoded).items():
            self._transactions.events(place, found)
            rows = np.flatnonzero(records.partition == place[1])
            piece = records if len(rows) == len(records) else records.take(rows)
            self._pieces.setdefault(Place(*place), deque()).append(piece)

    def _given_up(self, ends: Mapping[Place, float]) -> list[Unit]:
        units: list[Unit] = []
        while True:
            found = [
                (name, short)
                for name, (topics, short) in self._transactions.lacking().items()
                if self._is_late(self._told.get(name, float("inf")) + LACKING_SECONDS, topics, ends)
            ]
            if not found:
                return units
            for name, short in found:
                why = f"transaction {name} is committed without events that their topics do not hold{short}"
                units.append(self._transactions.loosen(name, why))
            units += self._transactions.ready()

    def _is_late(self, moment: float, topics: set[str], ends: Mapping[Place, float]) -> bool:
        places = [place for place in self._places if place.topic in topics]
        return bool(places) and all(ends.get(place, 0.0) > moment for place in places)

    def _made(self, batch: Batch, units: Sequence[Unit]) -> Batch:
        taken: dict[str, list[Place]] = {}
        for unit in units:
            for key in unit.offsets:
                place = Place(*key)
                if place.topic != self.marks and place not in taken.setdefault(place.topic, []):
                    taken[place.topic].append(place)
        moves: dict[Place, int] = {}
        highs: list[list[int]] = [[] for _ in units]
        blocks = []
        for places in taken.values():
            counts = [[len(unit.offsets.get(place, ())) for place in places] for unit in units]
            blocks.append(self._block(places, counts))
            for number, high in enumerate(np.cumsum([sum(each) for each in counts]).tolist()):
                highs[number].append(high)
        cuts = []
        for unit, high in zip(units, highs, strict=True):
            moves |= {Place(*place): int(offsets[-1]) + 1 for place, offsets in unit.offsets.items()}
            cuts.append(Cut(high, dict(moves), ", ".join(unit.transactions)))
        self._sent |= moves
        return Batch(batch.generation, blocks, moves, batch.polled, sum(each.nbytes for each in blocks), cuts=cuts)

    def _block(self, places: Sequence[Place], counts: Sequence[Sequence[int]]) -> Records:
        totals = np.sum(np.array(counts, np.int64), axis=0)
        taken = zip(places, totals.tolist(), strict=True)
        whole = join_records([piece for place, count in taken for piece in self._first(place, count)])
        starts = np.r_[0, np.cumsum(totals)[:-1]]
        order = []
        for unit in counts:
            for number, count in enumerate(unit):
                order.append(np.arange(starts[number], starts[number] + count))
                starts[number] += count
        rows: Ints = np.concatenate(order)
        return whole if bool((np.diff(rows) == 1).all()) else whole.take(rows)

    def _first(self, place: Place, count: int) -> list[Records]:
        queue, found = self._pieces[place], []
        while count:
            piece = queue.popleft()
            if len(piece) > count:
                queue.appendleft(piece.take(np.arange(count, len(piece))))
                piece = piece.take(np.arange(count))
            count -= len(piece)
            found.append(piece)
        return found

    def _finish(self, batch: Batch, batches: list[Batch]) -> None:
        moves = {}
        for place, next in self._next.items():
            floor = self._transactions.floor(place)
            to = next if floor is None else min(floor, next)
            if to != self._sent.get(place):
                moves[place] = to
        if not moves:
            return
        self._sent |= moves
        if batches:
            last = batches[-1]
            last.moves = {**last.moves, **moves}
            last.cuts = [*last.cuts[:-1], Cut(last.cuts[-1].highs, dict(last.moves), last.cuts[-1].names)]
        else:
            batches.append(Batch(batch.generation, [], moves, batch.polled, 0))


def _grouped(units: Iterable[Unit], rows: int) -> list[list[Unit]]:
    groups: list[list[Unit]] = []
    held = 0
    for unit in units:
        if not unit.offsets:
            continue
        count = sum(len(offsets) for offsets in unit.offsets.values())
        if not groups or held + count > rows:
            groups.append([])
            held = 0
        groups[-1].append(unit)
        held += count
    return groups
