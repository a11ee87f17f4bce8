"""Gathering: messages of a Kafka consumer become blocks of records with the positions after them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.kafka.bridge.carry_over import Batch
from lakestore.kafka.bridge.decode.debezium.change_events import open_half
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.source import records_of
from lakestore.kafka.bridge.spec import BatchBounds

IDLE_SECONDS = 0.05
QUIET_SECONDS = 1.0
"""Seconds between commits that only move progress past skipped offsets."""
HALF_SECONDS = 2.0
"""Seconds that the first half of a key change waits before Kafka is asked whether the second half exists."""
_RECORD_BYTES_FIRST = 8 << 10
_COUNT_MAX = 100_000


class Gathering:
    """The records of the next batch. For one thread."""

    def __init__(self, bounds: BatchBounds, unread: Callable[[Mapping[Place, int]], bool]) -> None:
        """`unread` says whether Kafka has records of partitions at or after these offsets."""
        self._bounds, self._unread = bounds, unread
        self.next: dict[Place, int] = {}
        """The next offset of each partition being read. Records of other partitions are dropped."""
        self.topic_ids: dict[str, str] = {}
        self._pieces: dict[str, list[Records]] = {}
        self._rows = self._bytes = 0
        self._moves: dict[Place, int] = {}
        self._first = self._taken = 0.0
        self._record_bytes = float(_RECORD_BYTES_FIRST)
        self._halves: dict[Place, tuple[int, float]] = {}
        """Partition to the offset from which records wait for a second half, and the time when the wait began."""
        self._waiting = 0
        self._before: list[Records] = []
        """Records right before the first ones of partitions."""

    def appetite(self) -> tuple[int, float]:
        """The most records to take and the seconds to wait for them."""
        room = (self._bounds.bytes - self._bytes) / self._record_bytes
        count = int(max(1, min(self._bounds.rows - self._rows, room, _COUNT_MAX)))
        if not self._rows:
            return count, IDLE_SECONDS
        left = self._first + self._bounds.seconds - time.monotonic()
        return count, max(min(left, IDLE_SECONDS), 0.001)

    def add(self, messages: Sequence[Any], ends: Mapping[Place, int]) -> None:
        """Add messages in order, and the end offsets of partitions that were read to their end."""
        names = [message.topic() for message in messages]
        for topic in set(names) & set(self.topic_ids):
            found = [m for m, name in zip(messages, names, strict=True) if name == topic]
            self._keep(self._wanted(records_of(found, topic, self.topic_ids[topic])))
        for place, offset in ends.items():
            if offset > self.next.get(place, offset):
                self.next[place] = self._moves[place] = offset

    def _wanted(self, records: Records) -> Records:
        kept = np.ones(len(records), bool)
        for number in np.unique(records.partition):
            place = Place(records.topic, int(number))
            at = np.flatnonzero(records.partition == number)
            expected = self.next.get(place)
            if expected is None:
                kept[at] = False
                continue
            offsets = records.offset[at]
            before = np.maximum.accumulate(np.r_[expected - 1, offsets[:-1]])
            kept[at] = offsets > before
            if int(offsets[0]) == expected - 1:
                self._before.append(records.take(at[:1]))
            if int(offsets.max()) >= expected:
                self.next[place] = self._moves[place] = int(offsets.max()) + 1
        return records if kept.all() else records.take(np.flatnonzero(kept))

    def _keep(self, records: Records) -> None:
        if not len(records):
            return
        if not self._rows:
            self._first = time.monotonic()
        self._pieces.setdefault(records.topic, []).append(records)
        nbytes = records.nbytes
        self._rows += len(records)
        self._bytes += nbytes
        self._record_bytes = max((self._record_bytes + nbytes / len(records)) / 2, 1.0)

    @property
    def is_due(self) -> bool:
        if not self._rows:
            return bool(self._moves) and time.monotonic() - self._taken > QUIET_SECONDS
        if self._rows == self._waiting and not self._is_late(time.monotonic()):
            return False
        full = self._rows >= self._bounds.rows or self._bytes + self._record_bytes > self._bounds.bytes
        return full or time.monotonic() - self._first >= self._bounds.seconds

    @property
    def has_moves(self) -> bool:
        return bool(self._moves)

    def take_batch(self, generation: int) -> Batch:
        """Take the current batch. Unfinished key changes stay for the next one."""
        now = time.monotonic()
        blocks = [join_records(pieces) for pieces in self._pieces.values()]
        moves, held = self._moves, [self._held(block, now) for block in blocks]
        sent = [
            block.take(np.flatnonzero(~mask)) if mask.any() else block for block, mask in zip(blocks, held, strict=True)
        ]
        kept = [block.take(np.flatnonzero(mask)) for block, mask in zip(blocks, held, strict=True) if mask.any()]
        self._taken = now
        self._empty()
        for block in kept:
            self._keep(block)
        self._waiting = self._rows
        for place, (offset, _) in self._halves.items():
            self._moves[place] = moves[place]
            is_sent = any(place.partition in block.partition for block in sent if block.topic == place.topic)
            moves = {**moves, place: offset} if is_sent else {each: to for each, to in moves.items() if each != place}
        sent = [block for block in sent if len(block)]
        before, self._before = (self._before, []) if moves else ([], self._before)
        return Batch(generation, sent, moves, now, sum(block.nbytes for block in sent), before=before)

    def _held(self, records: Records, now: float) -> npt.NDArray[np.bool_]:
        held = np.zeros(len(records), np.bool_)
        for number in np.unique(records.partition).tolist():
            place, rows = Place(records.topic, number), np.flatnonzero(records.partition == number)
            half = open_half(records, rows)
            before = self._halves.pop(place, None)
            if half is None:
                continue
            offset = int(records.offset[half])
            since = before[1] if before is not None and before[0] == offset else now
            if now - since >= HALF_SECONDS:
                if not self._unread({each: next for each, next in self.next.items() if each.topic == place.topic}):
                    continue
                since = now  # the process was suspended, not the source
            self._halves[place] = offset, since
            held[rows[rows >= half]] = True
        return held

    def _is_late(self, now: float) -> bool:
        return any(now - since >= HALF_SECONDS for _, since in self._halves.values())

    def forget(self) -> None:
        self._empty()
        self._halves.clear()
        self._before.clear()
        self.next.clear()

    def leave(self, places: Sequence[Place]) -> None:
        for place in places:
            self.next.pop(place, None)
            self._moves.pop(place, None)
            self._halves.pop(place, None)
        self._before = [each for each in self._before if Place(each.topic, int(each.partition[0])) not in places]
        for topic in {place.topic for place in places} & set(self._pieces):
            gone = [place.partition for place in places if place.topic == topic]
            self._pieces[topic] = [left for each in self._pieces[topic] if len(left := _without(each, gone))]
            if not self._pieces[topic]:
                del self._pieces[topic]
        kept = [each for pieces in self._pieces.values() for each in pieces]
        self._rows, self._bytes = sum(map(len, kept)), sum(each.nbytes for each in kept)
        self._waiting = 0

    def _empty(self) -> None:
        self._pieces, self._moves, self._rows, self._bytes, self._waiting = {}, {}, 0, 0, 0


def _without(records: Records, partitions: Sequence[int]) -> Records:
    gone = np.isin(records.partition, partitions)
    return records.take(np.flatnonzero(~gone)) if gone.any() else records


def join_records(pieces: Sequence[Records]) -> Records:
    """Concatenate records of one topic into one block."""
    if len(pieces) == 1:
        return pieces[0]
    headers = None
    if any(piece.headers is not None for piece in pieces):
        headers = [each for piece in pieces for each in (piece.headers or [None] * len(piece))]
    first = pieces[0]
    return Records(
        first.topic,
        first.topic_id,
        np.concatenate([piece.partition for piece in pieces]),
        np.concatenate([piece.offset for piece in pieces]),
        np.concatenate([piece.timestamp_ms for piece in pieces]),
        pa.concat_arrays([piece.keys for piece in pieces]),
        pa.concat_arrays([piece.values for piece in pieces]),
        headers,
    )
