"""Records and the positions behind them, gathered for one commit: neither is ever there without the other."""

from __future__ import annotations

import random
from dataclasses import dataclass

from lakestore.connectors.bridge.lane.batch import Batch
from lakestore.connectors.bridge.lane.gathering import Gathering
from lakestore.connectors.bridge.lane.positions import Place
from lakestore.connectors.bridge.spec import BatchBounds


@dataclass
class _Message:
    place: Place
    number: int

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> None:
        return None


PLACES = [Place(topic, partition) for topic in "ab" for partition in range(3)]


def _offsets(batch: Batch) -> dict[Place, list[int]]:
    found: dict[Place, list[int]] = {}
    for block in batch.blocks:
        for partition, offset in zip(block.partition.tolist(), block.offset.tolist(), strict=True):
            found.setdefault(Place(block.topic, partition), []).append(offset)
    return found


def test_each_record_comes_with_the_move_behind_it_whatever_partitions_are_left() -> None:
    chance = random.Random(3)
    for _ in range(50):
        gathering = Gathering(BatchBounds())
        gathering.topic_ids = {"a": "1", "b": "2"}
        committed = dict.fromkeys(PLACES, 0)
        for _ in range(20):
            for place in set(PLACES) - set(gathering.next):
                if chance.random() < 0.5:
                    gathering.next[place] = committed[place]
            sent = [
                _Message(place, number)
                for place, next in gathering.next.items()
                for number in range(next, next + chance.randrange(3))
            ]
            gathering.add(sent, {})
            if chance.random() < 0.3:
                gathering.leave(chance.sample(PLACES, 2))
            if chance.random() < 0.3:
                batch = gathering.taken(1)
                found = _offsets(batch)
                assert set(found) == set(batch.moves)
                for place, offsets in found.items():
                    assert offsets == list(range(committed[place], batch.moves[place]))
                committed.update(batch.moves)
