"""Records and the positions behind them, gathered for one commit: neither is ever there without the other."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from lakestore.kafka.bridge import gathering as room
from lakestore.kafka.bridge.carry_over import Batch
from lakestore.kafka.bridge.decode.debezium.change_events import NEW_KEY, OLD_KEY
from lakestore.kafka.bridge.gathering import Gathering
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.spec import BatchBounds


@dataclass
class _Message:
    place: Place
    number: int
    text: bytes | None = b"{}"
    header: str = ""

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

    def value(self) -> bytes | None:
        return self.text

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [(self.header, b"")] if self.header else None


def _nothing_more(_: Mapping[Place, int]) -> bool:
    return False


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
        gathering = Gathering(BatchBounds(), _nothing_more)
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
                batch = gathering.take_batch(1)
                found = _offsets(batch)
                assert set(found) == set(batch.moves)
                for place, offsets in found.items():
                    assert offsets == list(range(committed[place], batch.moves[place]))
                committed.update(batch.moves)


def _change(place: Place, first: int) -> list[_Message]:
    """A change of a key: a delete, its tombstone, and the event of the new key."""
    return [
        _Message(place, first, header=NEW_KEY),
        _Message(place, first + 1, None),
        _Message(place, first + 2, header=OLD_KEY),
    ]


@pytest.mark.parametrize("cut", [1, 2])
def test_a_batch_ends_before_half_of_a_key_change(cut: int) -> None:
    gathering, place, other = Gathering(BatchBounds(), _nothing_more), Place("a", 0), Place("b", 0)
    gathering.topic_ids, gathering.next = {"a": "1", "b": "2"}, {place: 0, other: 0}
    half = _change(place, 3)
    gathering.add([*(_Message(place, number) for number in range(3)), *half[:cut], _Message(other, 0)], {})
    batch = gathering.take_batch(1)
    assert (_offsets(batch), batch.moves) == ({place: [0, 1, 2], other: [0]}, {place: 3, other: 1})
    assert not gathering.is_due
    empty = gathering.take_batch(1)
    assert (_offsets(empty), empty.moves) == ({}, {})
    gathering.add(half[cut:], {})
    batch = gathering.take_batch(1)
    assert (_offsets(batch), batch.moves) == ({place: [3, 4, 5]}, {place: 6})


def test_half_of_a_key_change_goes_alone_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    gathering, place = Gathering(BatchBounds(), _nothing_more), Place("a", 0)
    gathering.topic_ids, gathering.next = {"a": "1"}, {place: 0}
    gathering.add(_change(place, 0)[:2], {})
    assert gathering.take_batch(1).moves == {}
    monkeypatch.setattr(room, "HALF_SECONDS", 0.0)
    batch = gathering.take_batch(1)
    assert (_offsets(batch), batch.moves) == ({place: [0, 1]}, {place: 2})


def test_half_of_a_key_change_waits_however_long_this_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other half is in Kafka: a paused or starved process would part the two, and a value that was not sent is
    lost with the row of the old key."""
    ends, place, other = {Place("a", 0): 3, Place("a", 1): 0}, Place("a", 0), Place("a", 1)
    gathering = Gathering(BatchBounds(), lambda places: any(ends[each] > next for each, next in places.items()))
    gathering.topic_ids, gathering.next = {"a": "1"}, {place: 0, other: 0}
    monkeypatch.setattr(room, "HALF_SECONDS", 0.0)
    half = _change(place, 0)
    gathering.add(half[:2], {})
    assert gathering.take_batch(1).moves == {}
    gathering.add(half[2:], {})
    batch = gathering.take_batch(1)
    assert (_offsets(batch), batch.moves) == ({place: [0, 1, 2]}, {place: 3})


def test_a_new_key_without_its_delete_leaves_the_next_change_whole() -> None:
    gathering, place = Gathering(BatchBounds(), _nothing_more), Place("a", 0)
    gathering.topic_ids, gathering.next = {"a": "1"}, {place: 0}
    gathering.add([_Message(place, 0, header=OLD_KEY), *_change(place, 1)[:2]], {})
    assert gathering.take_batch(1).moves == {place: 1}


def test_halves_in_two_partitions_are_one_change() -> None:
    gathering, places = Gathering(BatchBounds(), _nothing_more), [Place("a", 0), Place("a", 1)]
    gathering.topic_ids, gathering.next = {"a": "1"}, dict.fromkeys(places, 0)
    half = _change(places[0], 0)
    gathering.add([*half[:2], _Message(places[1], 0, header=OLD_KEY)], {})
    assert gathering.take_batch(1).moves == {places[0]: 2, places[1]: 1}


def test_the_record_before_a_start_goes_with_the_first_batch_and_is_no_part_of_it() -> None:
    gathering, place = Gathering(BatchBounds(), _nothing_more), Place("a", 0)
    gathering.topic_ids, gathering.next = {"a": "1"}, {place: 5}
    gathering.add([_Message(place, 4)], {})
    assert not gathering.has_moves
    gathering.add([_Message(place, 5, None)], {})
    batch = gathering.take_batch(1)
    assert (_offsets(batch), batch.moves) == ({place: [5]}, {place: 6})
    assert [block.offset.tolist() for block in batch.before] == [[4]]
    gathering.add([_Message(place, 6)], {})
    assert not gathering.take_batch(1).before


def test_what_lies_before_waits_for_a_batch_that_moves() -> None:
    gathering, place = Gathering(BatchBounds(), _nothing_more), Place("a", 0)
    gathering.topic_ids, gathering.next = {"a": "1"}, {place: 5}
    gathering.add([_Message(place, 4), *_change(place, 5)[:2]], {})
    assert gathering.take_batch(1).moves == {}
    gathering.add(_change(place, 5)[2:], {})
    assert [block.offset.tolist() for block in gathering.take_batch(1).before] == [[4]]
    gathering.add([_Message(place, 4)], {})
    gathering.leave([place])
    assert not gathering.take_batch(1).before
